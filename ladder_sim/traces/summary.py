"""Sums up a run: time of each op, hidden and exposed communication, idle time, the critical path."""

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import pstdev
from typing import NamedTuple

from ladder_sim.des.spans import Spans, length_s, subtract, union
from ladder_sim.traces.graph import EARLIER, SCOPE_SEPARATOR, TraceGraph
from ladder_sim.traces.idle import IdleTime, idle_times
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Totals of a run."""

    seconds: float
    """First start to last end."""
    totals: tuple[OpTotal, ...]
    """By time, longest first."""
    ranks: tuple[RankSummary, ...]
    idle: tuple[IdleTime, ...]
    """Of the streams of devices."""
    modules: tuple[ModuleTotal, ...]
    """By time, longest first; none without recorded modules or annotations."""
    critical_s: dict[str, float]
    """Time of each kind on the critical path; "waiting" is time that no op on it explains."""


def summarize_run(graph: TraceGraph) -> RunSummary:
    """Sum up a run at the times of its ops, recorded or simulated."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for op in graph.ops:
        totals[op.kind, op.name_in_layer].append(op.end_s - op.start_s)
    ranks = []
    for rank in graph.ranks:
        comm, compute = spans_of(graph, rank)
        ranks.append(
            RankSummary(
                rank=rank, comm_s=length_s(comm), exposed_s=length_s(subtract(comm, compute)), busy_s=length_s(compute)
            )
        )
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
        ranks=tuple(ranks),
        idle=tuple(idle_times(graph)),
        modules=tuple(module_totals(graph)),
        critical_s=_critical(graph, seconds),
    )


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
    """When a rank communicates, and when it computes."""
    own = [op for op in graph.ops if graph.lanes[op.lane].rank == rank and op.kind not in _NO_WORK]
    comm = union((op.start_s, op.end_s) for op in own if op.communicates)
    compute = union((op.start_s, op.end_s) for op in own if not op.communicates)
    return comm, compute


def exposed_spans(graph: TraceGraph, rank: int) -> Spans:
    """When a rank communicates and computes nothing."""
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
