"""Why the streams of a device were idle, in the terms of Holistic Trace Analysis.

A stream that ran out of work waited for the host; one whose next kernel was launched, but began later, waited for
something else; gaps below `KERNEL_WAIT_S` are the device's own between two kernels.
"""

from dataclasses import dataclass

from ladder_sim.traces.graph import TraceGraph

# Holistic Trace Analysis 0.5, `get_idle_time_breakdown(consecutive_kernel_delay=30)`: documented as nanoseconds, but
# compared with microseconds
KERNEL_WAIT_S = 30e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """Idle time of a stream between its first and its last op."""

    rank: int
    stream: str
    host_s: float
    """The next op was not launched yet when the stream ran out of work."""
    kernel_s: float
    """The next op followed at once."""
    other_s: float
    """The next op was launched, but waited: for another stream, or for what the trace does not show."""

    @property
    def idle_s(self) -> float:
        """All of it."""
        return self.host_s + self.kernel_s + self.other_s


def idle_times(graph: TraceGraph) -> list[IdleTime]:
    """Idle time of every stream of every device."""
    rows = []
    for number, queue in enumerate(graph.queues()):
        lane = graph.lanes[number]
        if not lane.device or not queue:
            continue
        host_s = kernel_s = other_s = 0.0
        done_s = graph.ops[queue[0]].end_s
        for index in queue[1:]:
            op = graph.ops[index]
            gap_s = op.start_s - done_s
            launches = graph.launches(op)
            if gap_s > 0.0:
                if launches and graph.ops[launches[0]].start_s > done_s:
                    host_s += gap_s
                elif gap_s < KERNEL_WAIT_S:
                    kernel_s += gap_s
                else:
                    other_s += gap_s
            done_s = max(done_s, op.end_s)
        rows.append(IdleTime(rank=lane.rank, stream=lane.name, host_s=host_s, kernel_s=kernel_s, other_s=other_s))
    return rows
