"""Times every kernel of a real forward pass in place: from its start to the next one's.

Isolated kernels add up to a third less than a pass takes: in a pass caches are colder, and the interpreter works
between two kernels. So a pass is timed as it runs, by an observer that only notes when each kernel begins. The
simulator's graph holds the same kernels in the same order, and says which is which.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from ladder_sim.costs.recorded import OpKey
from ladder_sim.graph.ops import StepGraph
from runtime.comm.base import DONE, Communicator
from runtime.model.kernels import observed

ELEMENT_BYTES = 4


# collectives in a row whose mean is taken: ranks leave a barrier one after the other, and the first pays for that
CHAIN = 6


def time_collective(comm: Communicator, kind: str, size_bytes: float) -> float:
    """Seconds of a collective beside which nothing runs, on the slowest rank.

    Parameters
    ----------
    comm
        The ranks.
    kind
        "all_reduce", "all_gather" or "broadcast".
    size_bytes
        Message; of an all-gather its result.
    """
    parts = comm.size if kind == "all_gather" else 1
    x = message(size_bytes / parts)
    comm.barrier()
    start_s = time.perf_counter()
    for _ in range(CHAIN):
        if kind == "all_reduce":
            comm.all_reduce(x).wait()
        elif kind == "all_gather":
            comm.all_gather(x)
        else:
            comm.broadcast(x)
    own = torch.tensor([(time.perf_counter() - start_s) / CHAIN], dtype=torch.float64)
    return float(comm.slowest(own).item())


def message(size_bytes: float) -> torch.Tensor:
    """Something to send."""
    return torch.zeros(1, max(1, round(size_bytes / ELEMENT_BYTES)))


class KernelTime(NamedTuple):
    """One kernel of a pass."""

    key: OpKey
    """Kind and shape."""
    seconds: float
    """Until the next one began."""


def time_kernels(run: Callable[[], None], graph: StepGraph) -> list[KernelTime]:
    """Time the kernels of one pass, which add up to all of it.

    Parameters
    ----------
    run
        Runs the pass, without communication.
    graph
        What the simulator takes it for.

    Raises
    ------
    ValueError
        The pass runs other kernels than the graph holds.
    """
    starts = _Starts()
    start_s = time.perf_counter()
    with observed(starts.kernel):
        run()
    end_s = time.perf_counter()
    ops = [op for op in graph.ops() if op.stream == "compute"]
    if [op.kind for op in ops] != starts.kinds:
        raise ValueError(f"the graph holds {[op.kind for op in ops]}, the pass ran {starts.kinds}")
    # what comes before the first kernel counts as its own
    edges_s = [start_s, *starts.at_s[1:], end_s]
    return [
        KernelTime((op.kind, op.shape), next_s - begin_s)
        for op, (begin_s, next_s) in zip(ops, pairwise(edges_s), strict=True)
    ]


class _Starts:
    """Observer that notes when each kernel begins."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.at_s: list[float] = []

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.kinds.append(kind)
        self.at_s.append(time.perf_counter())
        return run(*args)


# between two looks at whether a message's end has been noted
_PAUSE_S = 1e-3


class BesideTime(NamedTuple):
    """An all-reduce beside a computation."""

    message_s: float
    """From its issue to its end."""
    lost_s: float
    """What the computation took longer for it."""


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
    with observed(sender.kernel):
        run()
    seconds = time.perf_counter() - start_s - sender.waited_s
    return sender.means((seconds - alone_s) / len(due))


class _Sender:
    """Observer of a pass that issues the messages."""

    def __init__(self, comm: Communicator, x: torch.Tensor, due: range) -> None:
        self._comm, self._x, self._due = comm, x, due
        self._kernels = 0
        self._under_way = DONE
        # perf_counter
        self._issued_s: list[float] = []
        # in the same order
        self._ended_s: list[float] = []
        # for messages that had not ended when the next one was due
        self.waited_s = 0.0

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._kernels in self._due:
            self._finish()
            self._issued_s.append(time.perf_counter())
            self._under_way = self._comm.all_reduce(self._x)
            self._under_way.observe(self._ended_s.append)
        self._kernels += 1
        return run(*args)

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
