"""Iterations that the profiler marked (``ProfilerStep#3``)."""

from bisect import bisect_right

from ladder_sim.traces.graph import ALONE
from ladder_sim.traces.kineto.reader import Recorded

_MARK = "ProfilerStep"


class Steps:
    """Which iteration a moment of the CPU lies in."""

    def __init__(self, recorded: Recorded, origin_us: float) -> None:
        marks = [event for event in recorded.events["user_annotation"] if event.name.startswith(_MARK)]
        self.names = tuple(event.name for event in marks)
        self.starts_s = [(event.start_us - origin_us) * 1e-6 for event in marks]
        self.ends_s = [(event.end_us - origin_us) * 1e-6 for event in marks]

    def at(self, time_s: float) -> int:
        """Position of the iteration, `ALONE` outside all of them."""
        index = bisect_right(self.starts_s, time_s) - 1
        return index if index >= 0 and time_s < self.ends_s[index] else ALONE
