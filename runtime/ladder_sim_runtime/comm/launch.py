"""Start the ranks of a run on this machine, watch them, and leave none behind. Imports no torch: the ranks do.

Ranks meet through a file, not a port that may be in use. On several nodes, start torchrun on each.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from ladder_sim.errors import RankError, exit_code, print_error
from ladder_sim.system.processes import end_with_parent, ending_children, killed, reserve_stdout, start

_Result = TypeVar("_Result")

# environment variable: folder in which the ranks of one launch meet and leave their errors
FOLDER = "LADDER_RUNTIME_FOLDER"
_POLL_S = 0.05


def launch(arguments: Sequence[str], ranks: int, module: str = "ladder_sim_runtime") -> int:
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
            for process in started:
                # a rank has nothing to save, and a stopped one handles no other signal
                process.kill()
                process.wait()


def on_ranks(ranks: int, call: Callable[..., _Result], *arguments: object) -> _Result:
    """Call a function of a module on every rank; returns what rank 0 has of it.

    It travels as a pickle, in a folder that only this user can write. Raises RankError if a rank failed; it has printed
    why.
    """
    with tempfile.TemporaryDirectory(prefix="ladder-sim-") as folder:
        file = Path(folder, "call")
        file.write_bytes(pickle.dumps((call, arguments)))
        if code := launch([str(file)], ranks, "ladder_sim_runtime.comm.launch"):
            raise RankError(f"a rank ended with exit code {code}")
        result: _Result = pickle.loads(file.with_suffix(".result").read_bytes())
    return result


def _answer(file: Path) -> None:
    """Make the call in a file, as one of the ranks."""
    call, arguments = pickle.loads(file.read_bytes())
    result = call(*arguments)
    if os.environ["RANK"] == "0":
        file.with_suffix(".result").write_bytes(pickle.dumps(result))


def end_with(main: Callable[[], int]) -> NoReturn:
    """Run a program that may be a rank of several to its end."""
    end_with_parent()
    if "RANK" in os.environ:
        reserve_stdout()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)


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


if __name__ == "__main__":
    end_with(lambda: exit_code(lambda: _answer(Path(sys.argv[1])), report=report_error))
