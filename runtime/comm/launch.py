"""Start the ranks of a run on this machine, watch them, and leave none behind. Imports no torch: the ranks do.

Ranks meet through a file, not a port that may be in use. On several nodes, start torchrun on each.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ladder_sim.errors import print_error
from ladder_sim.system.processes import ending_children, killed, start

# environment variable: folder in which the ranks of one launch meet and leave their errors
FOLDER = "LADDER_RUNTIME_FOLDER"
_POLL_S = 0.05


def launch(arguments: Sequence[str], ranks: int, module: str = "runtime") -> int:
    """Run ``python -m MODULE ARGUMENTS`` on every rank; returns the exit code of the first that failed, or 0.

    Rank 0 writes to this process's stdout and stderr; of the others only errors are shown.
    """
    with ending_children(), tempfile.TemporaryDirectory(prefix="ladder-runtime-") as name:
        folder = Path(name)
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                started.append(_start([module, *arguments], rank, ranks, folder))
            while any(process.poll() is None for process in started):
                failed = [rank for rank, process in enumerate(started) if process.poll()]
                if failed:
                    break
                time.sleep(_POLL_S)
            # if several failed, one that was killed is the cause
            codes = sorted((process.poll() or 0, rank) for rank, process in enumerate(started) if process.poll())
            return _report(*codes[0], folder) if codes else 0
        finally:
            _stop(started)


def report_error(message: str) -> None:
    """Leave a rank's error to its launcher, which shows the one that ended the run; without a launcher, print it."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        print_error(message)
    else:
        Path(folder, f"error-{os.environ['RANK']}").write_text(message, "utf-8")


def _start(module: Sequence[str], rank: int, ranks: int, folder: Path) -> "subprocess.Popen[bytes]":
    environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), FOLDER: str(folder)}
    with (folder / f"stderr-{rank}").open("wb") as log:
        # a rank has nothing to clean up
        return start(
            module,
            last=signal.SIGKILL,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else log,
        )


def _report(code: int, rank: int, folder: Path) -> int:
    """Print why a rank failed: its error, or what it wrote to stderr and how it ended."""
    error = folder / f"error-{rank}"
    if error.exists():
        print_error(error.read_text("utf-8"))
        return code
    sys.stderr.write((folder / f"stderr-{rank}").read_text("utf-8", errors="replace"))
    if code > 0:
        print_error(f"rank {rank} ended with exit code {code}")
        return code
    print_error(str(killed(f"rank {rank}", code)))
    return 1


def _stop(started: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in started:
        # a rank has nothing to save, and a stopped one handles no other signal
        process.kill()
        process.wait()
