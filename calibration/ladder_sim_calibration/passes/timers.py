"""Timers: of a collective alone, of every kernel in its place in a pass, and of collectives during a pass.

Kernels timed in isolation add up to up to a third less than a pass takes: in a pass caches are colder, and the
interpreter works between two kernels. So a pass is timed as it runs, by an observer that only notes when each kernel
begins. The simulator's graph holds the same kernels in the same order and says which is which.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from ladder_sim.costs.in_place import OpKey
from ladder_sim.graph.ops import Op
from ladder_sim_calibration.passes.observations import ELEMENT_BYTES
from ladder_sim_runtime.comm.base import DONE, Communicator
from ladder_sim_runtime.model.kernels import observed

# collectives in a row whose mean is taken: ranks leave a barrier one after the other, which delays the first collective
CHAIN = 6
# between two checks whether the end of a message has been noted
_POLL_S = 1e-3


def message(size_bytes: float) -> torch.Tensor:
    """Return a tensor of about `size_bytes` to send."""
    return torch.zeros(1, max(1, round(size_bytes / ELEMENT_BYTES)))


def time_collective(comm: Communicator, kind: str, size_bytes: float) -> float:
    """Return the seconds of a collective while nothing else runs, on the slowest rank.

    Its kind is "all_reduce", "all_gather", "reduce_scatter" or "broadcast"; the size of an all-gather is its result's.
    """
    x = message(size_bytes / (comm.size if kind == "all_gather" else 1))
    comm.barrier()
    start_s = time.perf_counter()
    for _ in range(CHAIN):
        if kind == "all_reduce":
            comm.all_reduce(x).wait()
        elif kind == "all_gather":
            comm.all_gather(x)
        elif kind == "reduce_scatter":
            _, handle = comm.scatter_sum(x.view(comm.size, -1))
            handle.wait()
        else:
            comm.broadcast(x)
    own = torch.tensor([(time.perf_counter() - start_s) / CHAIN], dtype=torch.float64)
    return float(comm.slowest(own).item())


def time_kernels(run: Callable[[], None], expected: Sequence[Op]) -> list[tuple[OpKey, float]]:
    """Return the seconds from each kernel of one pass to the next one's start; their sum is the whole pass.

    `run` runs the pass, without communication; `expected` are the simulator's ops of it. Raises ValueError if the pass
    runs other kernels than these.
    """
    kinds: list[str] = []
    starts_s: list[float] = []

    def note_start(kind: str, kernel: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        # in no graph: a part of the kernel before
        if kind not in ("positions", "squares"):
            kinds.append(kind)
            starts_s.append(time.perf_counter())
        return kernel(*args)

    start_s = time.perf_counter()
    with observed(note_start):
        run()
    end_s = time.perf_counter()
    ops = [op for op in expected if op.stream == "compute"]
    if [op.kind for op in ops] != kinds:
        raise ValueError(f"{[op.kind for op in ops]} were expected, the pass ran {kinds}")
    # the time before the first kernel counts as its own
    edges_s = [start_s, *starts_s[1:], end_s]
    return [
        ((op.kind, op.shape), next_s - begin_s) for op, (begin_s, next_s) in zip(ops, pairwise(edges_s), strict=True)
    ]


class OverlapTime(NamedTuple):
    """An all-reduce and a pass at the same time."""

    message_s: float
    """From the message's issue to its end."""
    lost_s: float
    """How much longer the pass takes, per message."""


def time_overlap(
    run: Callable[[], None], alone_s: float, comm: Communicator, x: torch.Tensor, due: range
) -> OverlapTime:
    """Time a pass that computes only, and messages sent during it for which it does not wait.

    `run` runs the pass, which takes `alone_s` without messages of `x`. Each is issued before one of the kernels whose
    numbers are `due`, far enough apart for it to end in time.
    """
    sender = _Sender(comm, x, due)
    comm.barrier()
    start_s = time.perf_counter()
    with observed(sender.observe):
        run()
    pass_s = time.perf_counter() - start_s - sender.waited_s
    return OverlapTime(sender.mean_message_s(), (pass_s - alone_s) / len(due))


class _Sender:
    """Observes a pass and issues messages before some of its kernels."""

    def __init__(self, comm: Communicator, x: torch.Tensor, due: range) -> None:
        self._comm, self._x, self._due = comm, x, due
        self._kernels = 0
        self._message = DONE

        # perf_counter, one per message
        self._issued_s: list[float] = []
        self._ended_s: list[float] = []

        # for messages that had not ended when the next one was due
        self.waited_s = 0.0

    def observe(self, _kind: str, kernel: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._kernels in self._due:
            self._wait()
            self._issued_s.append(time.perf_counter())
            self._message = self._comm.all_reduce(self._x)
            self._message.observe(self._ended_s.append)
        self._kernels += 1
        return kernel(*args)

    def mean_message_s(self) -> float:
        """Return the mean seconds of a message, once all have ended."""
        self._wait()
        while len(self._ended_s) < len(self._issued_s):
            time.sleep(_POLL_S)
        return (sum(self._ended_s) - sum(self._issued_s)) / len(self._issued_s)

    def _wait(self) -> None:
        start_s = time.perf_counter()
        self._message.wait()
        self.waited_s += time.perf_counter() - start_s
