"""Child processes that end with their parent, however that ends, and why they ended."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

from ladder_sim.errors import LadderSimError

# environment variable: the process with whose end a child ends
_PARENT = "LADDER_SIM_PARENT"
# of Linux's sys/prctl.h
_PR_SET_PDEATHSIG = 1
# what a terminal, a shell or a scheduler sends to end a process
_ENDS = (signal.SIGTERM, signal.SIGHUP)
# to let a process end its own children
_PATIENCE_S = 10.0


def cores() -> int:
    """Return the number of cores that this process may use; macOS does not restrict them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(
    module: Sequence[str],
    *,
    last: signal.Signals = signal.SIGTERM,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    **options: Any,
) -> "subprocess.Popen[Any]":
    """Start ``python -m MODULE ...``, whose `__main__` calls `end_with_parent`.

    It gets the signal `last` when this process ends, SIGKILL if it has nothing to clean up, and the variables `env` on
    top of those of this process. Commands of the `prefix` become it, e.g. ``("taskset", "-c", "0")``; further options
    are those of `subprocess.Popen`.
    """
    environment = {**os.environ, **(env or {}), _PARENT: f"{os.getpid()} {int(last)}"}
    command = [*prefix, sys.executable, "-m", *module]
    return subprocess.Popen(command, env=environment, preexec_fn=_ignore_interrupts, **options)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the parent process, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this process when the one that called `start` ends, also if that was before now. First thing in a child."""
    parent, _, last = os.environ.pop(_PARENT, "").partition(" ")
    if not parent:
        return
    # elsewhere only a parent that ends by itself ends its children
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(last))
    if os.getppid() != int(parent):
        os._exit(128 + int(last))


def reserve_stdout() -> None:
    """Keep stdout for what this program prints: what libraries write to it goes to stderr, e.g. lines of NCCL_DEBUG."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)


def run(module: Sequence[str], *, capture: bool = False, given: str | None = None) -> tuple[int, str]:
    """Run ``python -m MODULE ...`` to its end; returns its exit code, and its stdout if that is captured.

    Its stdin is `given`, or that of this process. Raises LadderSimError if a signal ended it.
    """
    with ending_children():
        pipe = subprocess.PIPE
        process = start(module, stdin=None if given is None else pipe, stdout=pipe if capture else None, text=True)
        try:
            output, _ = process.communicate(given)
        finally:
            _end(process)
    if process.returncode < 0:
        raise killed(f"`python -m {' '.join(module[:2])}`", process.returncode)
    return process.returncode, output or ""


def killed(name: str, code: int) -> LadderSimError:
    """Return the error for a process that a signal ended, by its negative exit code."""
    number = -code
    known = number in set(signal.Signals)
    hint = "out of memory? a smaller model or batch needs less" if number == signal.SIGKILL else ""
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        hint = "out of memory or threads? fewer --threads and a smaller model need less"
    return LadderSimError(f"{name} was ended by {signal.Signals(number).name if known else number}", hint=hint)


@contextlib.contextmanager
def ending_children() -> Iterator[None]:
    """Make signals that end this process unwind it, so that `finally` ends its children."""
    before = {number: signal.signal(number, _unwind) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _end(process: "subprocess.Popen[Any]") -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
