"""All-reduces beside a whole pass: what each costs the other."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from runtime.comm.base import DONE, Communicator
from runtime.kernels import observed

_PAUSE_S = 1e-3
# between two looks at whether a message's end has been noted


class BesideTime(NamedTuple):
    """An all-reduce beside a computation."""

    message_s: float
    # from its issue to its end
    lost_s: float
    # what the computation took longer for it


def time_beside(run: Callable[[], None], alone_s: float, comm: Communicator, x: torch.Tensor, due: range) -> BesideTime:
    """Time a pass without communication beside messages that it does not wait for.

    Parameters
    ----------
    run
        Runs the pass.
    alone_s
        What it takes alone.
    comm
        The ranks.
    x
        What is sent.
    due
        Kernels, by number, that a message is issued before: far enough apart for it to end in time.
    """
    sender = _Sender(comm, x, due)
    comm.barrier()
    start_s = time.perf_counter()
    with observed(sender):
        run()
    seconds = time.perf_counter() - start_s - sender.waited_s
    return sender.means((seconds - alone_s) / len(due))


class _Sender:
    """Observer of a pass that issues the messages."""

    def __init__(self, comm: Communicator, x: torch.Tensor, due: range) -> None:
        self._comm, self._x, self._due = comm, x, due
        self._kernels = 0
        self._under_way = DONE
        self._issued_s: list[float] = []
        # perf_counter
        self._ended_s: list[float] = []
        # in the same order
        self.waited_s = 0.0
        # for messages that had not ended when the next one was due

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._kernels in self._due:
            self._finish()
            self._issued_s.append(time.perf_counter())
            self._under_way = self._comm.all_reduce(self._x)
            self._under_way.observe(self._ended_s.append)
        self._kernels += 1
        return run(*args)

    def place(self, layer: int, part: str) -> None:
        """All kernels are alike to it."""

    def means(self, lost_s: float) -> BesideTime:
        """The mean message, once all have ended."""
        self._finish()
        while len(self._ended_s) < len(self._issued_s):
            time.sleep(_PAUSE_S)
        return BesideTime((sum(self._ended_s) - sum(self._issued_s)) / len(self._issued_s), lost_s)

    def _finish(self) -> None:
        start_s = time.perf_counter()
        self._under_way.wait()
        self.waited_s += time.perf_counter() - start_s
