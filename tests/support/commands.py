"""Run the command line as a user would: in this process, because starting one takes a second, or in its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ladder_sim.cli.main import main
from tests.conftest import REPO
from tests.support.waiting import HANG_S

# of this checkout, whichever is installed
PACKAGES = os.pathsep.join(map(str, (REPO, REPO / "runtime", REPO / "calibration")))


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


# a quick prediction that fits
SMALL = ("predict", "--model", "8b", "--variant", "ladder")


def run(*arguments: str) -> Ran:
    """Run `ladder-sim` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return Ran(code, out.getvalue(), err.getvalue())


def process(*arguments: str, shell: str = "", **environment: str) -> Ran:
    """Run `python -m ladder_sim` in its own process; `shell` is what follows it on a shell's line, as in ``| head``."""
    command: Sequence[str] = [sys.executable, "-m", "ladder_sim", *arguments]
    if shell:
        command = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", *command]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, "PYTHONPATH": PACKAGES, **environment},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def heed_interrupts() -> None:
    """For a child's `preexec_fn`: in a shell's background a suite, and so its children, ignores interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
