"""Children end with their parent, and say how they ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO
from tests.support.commands import heed_interrupts
from tests.support.waiting import HANG_S, until

# a child that starts a child of its own, and then waits; both write their process ids
CHILD = """
import os, sys, time
from pathlib import Path
from ladder_sim.system.processes import end_with_parent, ending_children, start
if __name__ == "__main__":
    while not Path(os.environ["MAY_BEGIN"]).exists():
        time.sleep(0.01)
    end_with_parent()
    Path(sys.argv[1], str(os.getpid())).touch()
    if len(sys.argv) > 2:
        start(["child", sys.argv[1]]).wait()
    time.sleep(600)
"""
PARENT = """
import sys
from ladder_sim.system import processes
from ladder_sim.errors import exit_code
sys.exit(exit_code(lambda: processes.run(["child", *sys.argv[1:]])[0]))
"""


def _start(folder: Path, *arguments: str, may_begin: Path = REPO, **options: Any) -> "subprocess.Popen[str]":
    """A parent whose children begin once a file is there."""
    (folder / "child.py").write_text(CHILD)
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{folder}", "MAY_BEGIN": str(may_begin)}
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments], env=environment, stderr=subprocess.PIPE, text=True, **options
    )


def _children(folder: Path, count: int) -> list[int]:
    """Their process ids, once there are that many."""
    until(lambda: len(list(folder.iterdir())) == count)
    return [int(entry.name) for entry in folder.iterdir()]


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_children_end_with_their_parent(number: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = _start(tmp_path, str(pids), "grandchild")
    children = _children(pids, 2)
    parent.send_signal(number)
    parent.communicate(timeout=HANG_S)
    assert parent.returncode == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: all(map(_gone, children)))


@pytest.mark.slow
def test_an_interrupt_is_reported_once(tmp_path: Path) -> None:
    """Regression: Ctrl-C reaches the child as well, which printed a traceback while it was still loading."""
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = _start(tmp_path, str(pids), preexec_fn=heed_interrupts, start_new_session=True)
    children = _children(pids, 1)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=HANG_S)
    assert (parent.returncode, errors) == (130, "error: interrupted\n")
    until(lambda: all(map(_gone, children)))


@pytest.mark.slow
def test_a_child_whose_parent_is_gone_before_it_begins_ends(tmp_path: Path) -> None:
    """Killed while the child still loads: it reads its parent's id too late to see it."""
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = _start(tmp_path, str(pids), may_begin=tmp_path / "begin")
    children: list[int] = []
    while not children:
        children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    parent.kill()
    parent.wait()
    (tmp_path / "begin").touch()
    parent.communicate(timeout=HANG_S)
    until(lambda: all(map(_gone, children)))
    assert not list(pids.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "words"), [(signal.SIGSEGV, "fewer --threads"), (signal.SIGKILL, "out of memory")])
def test_a_child_that_a_signal_ends_is_reported(number: signal.Signals, words: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = _start(tmp_path, str(pids))
    os.kill(_children(pids, 1)[0], number)
    _, errors = parent.communicate(timeout=HANG_S)
    assert parent.returncode == 1
    assert f"was ended by {number.name}" in errors
    assert words in errors
