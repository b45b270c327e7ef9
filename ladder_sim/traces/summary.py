"""Sums up a run: time of each op, hidden and exposed communication, idle time, the critical path.

Why a stream was idle is said in the terms of Holistic Trace Analysis: it ran out of work and waited for the host; its
next kernel was launched, but began later; or the gap was the device's own between two kernels.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import pstdev
from typing import NamedTuple, Self

from ladder_sim.des.timeline import Spans, length_s, subtract, union
from ladder_sim.traces.graph import EARLIER, KERNEL_WAIT_S, SCOPE_SEPARATOR, TraceGraph
from ladder_sim.traces.replay import to_timeline

# of a module among those of its class
_NUMBER = re.compile(r"_\d+$")
# kinds that neither compute nor communicate
_NO_WORK = frozenset({"host", "launch", "sync", EARLIER})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTotal:
    """All ops of one kind and name, in all layers."""

    kind: str
    """As in `TraceOp`."""
    name: str
    """The name without a layer number."""
    count: int
    seconds: float
    """Sum of their times from start to end."""
    shortest_s: float
    longest_s: float
    deviation_s: float
    """Standard deviation of their times."""


class ModuleTotal(NamedTuple):
    """All ops that modules of one class, or ranges of one name, launched."""

    name: str
    """Without the number that PyTorch gives each module of a class."""
    calls: int
    """Modules of the class."""
    seconds: float
    """Sum of their ops' times from start to end, those of modules inside included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """Communication and computation of one rank."""

    rank: int
    comm_s: float
    """Time in which a collective runs."""
    exposed_s: float
    """The part of `comm_s` in which nothing computes."""
    busy_s: float
    """Time in which something computes."""

    @property
    def hidden_s(self) -> float:
        """The part of `comm_s` in which something computes."""
        return self.comm_s - self.exposed_s

    @classmethod
    def of(cls, graph: TraceGraph, rank: int) -> Self:
        """Return the summary of a rank's communication and computation in a run."""
        comm, compute = spans_of(graph, rank)
        exposed_s = length_s(subtract(comm, compute))
        return cls(rank=rank, comm_s=length_s(comm), exposed_s=exposed_s, busy_s=length_s(compute))


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
        """Seconds that a stream is idle, for whatever reason."""
        return self.host_s + self.kernel_s + self.other_s


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTime:
    """A step in one wiring."""

    seconds: float
    """Time of the step: of a predicted run a prefill, or a further token."""
    speedup: float
    """Time in the run's own wiring, as replayed, divided by `seconds`."""
    speedup_waits_stay: float | None = None
    """Speedup if no wiring shortens the waits for ranks without a trace; None if the trace has no such waits."""
    comm: RankSummary
    """Communication and computation of the first rank."""
    graph: TraceGraph
    """Ops at their simulated times."""
    unrecorded: tuple[str, ...] = ()
    """Kernels that a predicted run does not hold, by name without their layer: they take what is predicted for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Totals of a run."""

    seconds: float
    """First start to last end."""
    totals: tuple[OpTotal, ...]
    """Totals by op, longest time first."""
    ranks: tuple[RankSummary, ...]
    idle: tuple[IdleTime, ...]
    """Idle times of the streams of devices."""
    modules: tuple[ModuleTotal, ...]
    """Totals by module, longest time first; none without recorded modules or annotations."""
    critical_s: dict[str, float]
    """Time of each kind on the critical path; "waiting" is time that no op on it explains."""


def summarize_run(graph: TraceGraph) -> RunSummary:
    """Sum up a run at the times of its ops, recorded or simulated."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for op in graph.ops:
        totals[op.kind, op.name_in_layer].append(op.end_s - op.start_s)
    seconds = max((op.end_s for op in graph.ops), default=0.0) - min((op.start_s for op in graph.ops), default=0.0)
    ordered = sorted(totals.items(), key=lambda item: -sum(item[1]))
    return RunSummary(
        seconds=seconds,
        totals=tuple(
            OpTotal(
                kind=kind,
                name=name,
                count=len(times),
                seconds=sum(times),
                shortest_s=min(times),
                longest_s=max(times),
                deviation_s=pstdev(times),
            )
            for (kind, name), times in ordered
        ),
        ranks=tuple(RankSummary.of(graph, rank) for rank in graph.ranks),
        idle=tuple(idle_times(graph)),
        modules=tuple(module_totals(graph)),
        critical_s=_critical(graph, seconds),
    )


def idle_times(graph: TraceGraph) -> list[IdleTime]:
    """Return the idle time of every stream of every device."""
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


def module_totals(graph: TraceGraph) -> list[ModuleTotal]:
    """Time of all modules and ranges by class, longest first."""
    seconds: dict[str, float] = defaultdict(float)
    members: dict[str, set[str]] = defaultdict(set)
    for op in graph.ops:
        scopes = [scope for scope in op.scope.split(SCOPE_SEPARATOR) if scope]
        for name in dict.fromkeys(_NUMBER.sub("", scope) for scope in scopes):
            seconds[name] += op.end_s - op.start_s
        for scope in scopes:
            members[_NUMBER.sub("", scope)].add(scope)
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [ModuleTotal(name, len(members[name]), total_s) for name, total_s in ordered]


def spans_of(graph: TraceGraph, rank: int) -> tuple[Spans, Spans]:
    """Return the spans in which a rank communicates, and those in which it computes."""
    own = [op for op in graph.ops if graph.lanes[op.lane].rank == rank and op.kind not in _NO_WORK]
    comm = union((op.start_s, op.end_s) for op in own if op.communicates)
    compute = union((op.start_s, op.end_s) for op in own if not op.communicates)
    return comm, compute


def exposed_spans(graph: TraceGraph, rank: int) -> Spans:
    """Return the spans in which a rank communicates and computes nothing."""
    return subtract(*spans_of(graph, rank))


def _critical(graph: TraceGraph, seconds: float) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)

    # end of the path so far
    front_s = float("-inf")
    for index in to_timeline(graph).critical_path():
        op = graph.ops[index]
        shares[op.kind] += max(0.0, op.end_s - max(op.start_s, front_s))
        front_s = max(op.end_s, front_s)
    shares["waiting"] = max(0.0, seconds - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
