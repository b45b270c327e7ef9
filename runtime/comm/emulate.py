"""One process stands for one rank: all-reduces change nothing and take the time that a table says.

The sums are missing, so tokens are meaningless; shapes, kernels and the order of everything are those of a real rank.
A gather or a broadcast is charged half an all-reduce, the traffic and the steps that a ring has for them.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from runtime.comm.base import Alone, Handle
from runtime.comm.table import LatencyTable

# the last part of a wait, which time.sleep would overshoot
_SPIN_S = 300e-6


class EmulatedLink(Alone):
    """CPU: deadlines on a serial virtual link, without a thread that would take the core from the computation."""

    name = "emulate"

    def __init__(self, size: int, table: LatencyTable) -> None:
        super().__init__(size)
        # seconds of an all-reduce by its message
        self.table = table
        # when the link has carried all that was given to it, perf_counter seconds
        self._free = 0.0
        # time that messages took on the link so far
        self.busy_s = 0.0
        # time that the computation waited for them so far
        self.waited_s = 0.0

    def all_reduce(self, x: Tensor) -> Handle:
        return self.send("all_reduce", x.nbytes)

    def all_gather(self, x: Tensor) -> Tensor:
        every = super().all_gather(x)
        self.send("all_gather", every.nbytes).wait()
        return every

    def broadcast(self, x: Tensor) -> None:
        self.send("broadcast", x.nbytes).wait()

    def settings(self) -> dict[str, object]:
        return {"table": self.table.points}

    def send(self, kind: str, size_bytes: int) -> Handle:
        """Put a collective's message behind those that are under way."""
        seconds = self.table.seconds(size_bytes) * (1 if kind == "all_reduce" else 0.5)
        self._free = max(time.perf_counter(), self._free) + seconds
        self.busy_s += seconds
        return _Deadline(self, self._free)


class _Deadline:
    def __init__(self, link: EmulatedLink, at: float) -> None:
        self._link, self._at = link, at

    def wait(self) -> None:
        began = time.perf_counter()
        if self._at - began > _SPIN_S:
            time.sleep(self._at - began - _SPIN_S)
        while time.perf_counter() < self._at:
            pass
        self._link.waited_s += time.perf_counter() - began

    def observe(self, sink: Callable[[float], None]) -> None:
        sink(self._at)


class EmulatedGpuLink(Alone):
    """GPU: a side stream that sleeps, ordered against the computation by events, so that CUDA graphs can hold it.

    With `occupy` each message is also copied on the side stream, which takes SMs and memory bandwidth from the
    computation as a collective does. Not measured yet.
    """

    name = "emulate"

    def __init__(self, size: int, table: LatencyTable, *, occupy: bool = False) -> None:
        super().__init__(size)
        self._table, self._occupy = table, occupy
        self._stream = torch.cuda.Stream()
        self._cycles_per_s = _sleep_rate()

    def all_reduce(self, x: Tensor) -> Handle:
        return self._send(x, self._table.seconds(x.nbytes))

    def all_gather(self, x: Tensor) -> Tensor:
        every = super().all_gather(x)
        self._send(every, self._table.seconds(every.nbytes) / 2).wait()
        return every

    def broadcast(self, x: Tensor) -> None:
        self._send(x, self._table.seconds(x.nbytes) / 2).wait()

    def settings(self) -> dict[str, object]:
        return {"table": self._table.points, "occupy": self._occupy}

    def _send(self, x: Tensor, seconds: float) -> "_StreamEvent":
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if self._occupy:
                x.clone()
            torch.cuda._sleep(round(seconds * self._cycles_per_s))
            event = torch.cuda.Event()
            event.record()
        return _StreamEvent(event)


class _StreamEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.wait()

    def observe(self, sink: Callable[[float], None]) -> None:
        """The CPU does not know when."""


def _sleep_rate() -> float:
    """Clock cycles per second of the sleep kernel."""
    cycles = 10_000_000
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(cycles)
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return cycles / (milliseconds * 1e-3)
