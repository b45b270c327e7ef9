"""Two clocks: a CPU's work is done when a call returns, a GPU's some time later."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

# about a millisecond: enough for Python to queue what is timed
HOLD_CYCLES = 2_000_000


class Timing(NamedTuple):
    """One repeat of an op."""

    seconds: float
    alone_s: float | None = None
    """Without the op that ran at the same time."""


class Clock(Protocol):
    """Takes time stamps in a device's work."""

    def now(self) -> Any:
        """The moment at which all work issued so far is done."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two moments, once all work is done."""

    def hold(self) -> None:
        """Delay the device until Python has queued the work, so that the device never waits for Python."""


class CpuClock:
    """For work that is done when its call returns."""

    def now(self) -> float:
        return time.perf_counter()

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def hold(self) -> None:
        """No-op: nothing is queued."""


class CudaClock:
    """For work on the current stream."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def hold(self) -> None:
        torch.cuda._sleep(HOLD_CYCLES)


def clock_of(device: torch.device) -> Clock:
    """The clock of a device's work."""
    return CudaClock() if device.type == "cuda" else CpuClock()


def timed(run: Callable[[], object], clock: Clock) -> float:
    """Seconds that the device takes."""
    clock.hold()
    start = clock.now()
    run()
    return clock.elapsed_s(start, clock.now())
