"""Where the time of a run goes: ops, communication hidden and exposed, the critical path."""

from collections import defaultdict
from dataclasses import dataclass

from ladder_sim.des.spans import Spans, length_s, subtract, union
from ladder_sim.des.timeline import Timeline
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import to_timeline

# what a CPU does around the work
_NO_WORK = frozenset({"host", "launch", "sync"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTotal:
    """All ops of one kind and name, whatever their layer."""

    kind: str
    """As in `TraceOp`."""
    name: str
    """Without the number of a layer."""
    count: int
    """How many."""
    seconds: float
    """Start to end, summed over all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """Communication of one rank."""

    rank: int
    """Its number."""
    comm_s: float
    """Time in which any collective runs."""
    exposed_s: float
    """Of that, while nothing computes."""
    busy_s: float
    """Time in which anything computes."""

    @property
    def hidden_s(self) -> float:
        """Communication while something computes."""
        return self.comm_s - self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run, summed up."""

    seconds: float
    """First start to last end."""
    totals: tuple[OpTotal, ...]
    """Longest first."""
    ranks: tuple[RankSummary, ...]
    """Communication."""
    critical_s: dict[str, float]
    """Share of each kind along the critical path, "waiting" for what the graph does not explain."""


def summarise(graph: TraceGraph) -> Summary:
    """Sum up a run as recorded (or as simulated, if its times are)."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for op in graph.ops:
        totals[op.kind, op.kin].append(op.end_s - op.start_s)
    ranks = []
    for rank in sorted({lane.rank for lane in graph.lanes}):
        comm, compute = spans_of(graph, rank)
        ranks.append(
            RankSummary(
                rank=rank, comm_s=length_s(comm), exposed_s=length_s(subtract(comm, compute)), busy_s=length_s(compute)
            )
        )
    seconds = max((op.end_s for op in graph.ops), default=0.0) - min((op.start_s for op in graph.ops), default=0.0)
    ordered = sorted(totals.items(), key=lambda item: -sum(item[1]))
    return Summary(
        seconds=seconds,
        totals=tuple(
            OpTotal(kind=kind, name=name, count=len(times), seconds=sum(times)) for (kind, name), times in ordered
        ),
        ranks=tuple(ranks),
        critical_s=_critical(graph, to_timeline(graph), seconds),
    )


def spans_of(graph: TraceGraph, rank: int) -> tuple[Spans, Spans]:
    """When a rank communicates, and when it computes."""
    own = [op for op in graph.ops if graph.lanes[op.lane].rank == rank and op.kind not in _NO_WORK]
    comm = union((op.start_s, op.end_s) for op in own if op.communicates)
    compute = union((op.start_s, op.end_s) for op in own if not op.communicates)
    return comm, compute


def _critical(graph: TraceGraph, timeline: Timeline, seconds: float) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)
    reached_s: float | None = None
    for index in timeline.critical_path():
        op = graph.ops[index]
        start_s = op.start_s if reached_s is None else max(op.start_s, reached_s)
        shares[op.kind] += max(0.0, op.end_s - start_s)
        reached_s = op.end_s if reached_s is None else max(reached_s, op.end_s)
    shares["waiting"] = max(0.0, seconds - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
