"""What simulated passes were made of."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Self, TypeVar, get_args

from ladder_sim.costs.estimate import Estimate
from ladder_sim.des.timeline import Timeline, overlap_s
from ladder_sim.graph.ops import CollectiveKind, Op
from ladder_sim.kernels import Gpu
from ladder_sim.simulate.lower import COMM, COMPUTE, Schedule
from ladder_sim.specs.cluster import GpuSpec

# an all-reduce with a norm is as far off as one without
ERROR_KINDS: Mapping[str, str] = {"all_reduce_norm": "all_reduce"}

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOp:
    """One simulated op."""

    op: Op
    """What it is."""
    estimate: Estimate
    """Cost of the op alone."""
    seconds: float
    """Start to end, as simulated."""
    repeats: int
    """Identical ops it stands for."""
    critical: bool
    """On the critical path."""


def simulated_ops(
    schedule: Schedule, distinct: Sequence[Op], estimates: Sequence[Estimate], timeline: Timeline, critical: Set[int]
) -> list[SimulatedOp]:
    """Return every op of a simulated pass, in issue order.

    `distinct` and `estimates` are of each role in the layout: the op at the size of the pass, and its cost. `timeline`
    has launches first, then ops; `critical` are the tasks on its critical path.
    """
    launches = len(timeline.end_s) - len(schedule.ops)
    span_s = (timeline.end_s - timeline.start_s).tolist()
    repeats = schedule.layout.wiring.repeats
    return [
        SimulatedOp(
            op=replace(op, shape=distinct[like].shape),
            estimate=estimates[like],
            seconds=span_s[index],
            repeats=repeats.get(op.layer, 1),
            critical=index in critical,
        )
        for index, (op, like) in enumerate(zip(schedule.ops, schedule.layout.same_as, strict=True), launches)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Sums over the ops of a pass, every layer counted, or of several passes; seconds."""

    busy_s: Mapping[str, float]
    """Time of all ops by kind, overlapped or not."""
    limits_s: Mapping[str, float]
    """What the critical path waits for; sums to the length of the pass."""
    errors_s: Mapping[str, float]
    """Error of the critical path by op kind, half-width of the 90 % interval."""
    sources_s: Mapping[tuple[str, str], float]
    """Critical path by (source of the estimate, op kind); "measured" here means in range too."""
    comm_s: float
    """Collectives, hidden or not."""
    exposed_comm_s: float
    """Collectives while nothing computes."""
    slowed_s: float
    """What kernels lose to the collectives that run at the same time."""

    @property
    def collectives_s(self) -> float:
        """Collectives on the critical path."""
        return math.fsum(seconds for (_, kind), seconds in self.sources_s.items() if kind in get_args(CollectiveKind))

    @property
    def hidden_share(self) -> float:
        """Share of the collectives' time that overlaps computation."""
        return 1.0 - self.exposed_comm_s / self.comm_s if self.comm_s else 0.0

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        distinct: Sequence[Op],
        estimates: Sequence[Estimate],
        timeline: Timeline,
        critical: Set[int],
        gpu: GpuSpec,
    ) -> Self:
        """Return the breakdown of one pass on `gpu`; the other arguments are as in `simulated_ops`."""
        repeats = schedule.layout.wiring.repeats
        compute = timeline.busy([COMPUTE])
        figures = Gpu.of(gpu)
        busy_s: dict[str, float] = defaultdict(float)
        limits_s: dict[str, float] = defaultdict(float)
        errors_s: dict[str, float] = defaultdict(float)
        sources_s: dict[tuple[str, str], float] = defaultdict(float)
        comm_s = hidden_s = slowed_s = 0.0
        ready, start, end = timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist()
        layout, outline, costs = schedule.layout, timeline.program.outline, timeline.program.costs
        launches = len(end) - len(layout.names)
        # end of the last task so far of each stream, if it is on the critical path
        ended: dict[int, float] = {}
        for index, layer in enumerate(layout.layers[:launches]):
            if index in critical:
                limits_s["launches"] += repeats.get(layer, 1) * (end[index] - start[index])
        limits: dict[int, str] = {}
        ops = zip(layout.kinds, layout.layers, layout.same_as, outline.streams[launches:], strict=True)
        for index, (kind, layer, like, stream) in enumerate(ops, launches):
            times, span_s, estimate = repeats.get(layer, 1), end[index] - start[index], estimates[like]
            busy_s[kind] += times * span_s
            if stream == COMM:
                comm_s += times * span_s
                hidden_s += times * overlap_s((start[index], end[index]), compute)
            else:
                slowed_s += times * (span_s - float(costs[outline.kinds[index]].duration_s))
            if index in critical:
                limit = limits.get(like) or limits.setdefault(like, _limit(distinct[like], figures))
                limits_s[limit] += times * span_s
                before_s = [end[before] for before in outline.after[index] if before in critical]
                noticed_s = ready[index] - max([*before_s, ended.get(stream, 0.0)])
                limits_s["waits"] += times * (start[index] - ready[index] + noticed_s)
                errors_s[ERROR_KINDS.get(kind, kind)] += times * float(estimate.error) * span_s
                sources_s[estimate.source, kind] += times * span_s
            ended[stream] = end[index] if index in critical else 0.0
        return cls(
            busy_s=dict(busy_s),
            limits_s=dict(limits_s),
            errors_s=dict(errors_s),
            sources_s=dict(sources_s),
            comm_s=comm_s,
            exposed_comm_s=comm_s - hidden_s,
            slowed_s=slowed_s,
        )

    @classmethod
    def total(cls, parts: Sequence[tuple["Breakdown", float]]) -> Self:
        """Return the sum of several breakdowns, each as often as its weight says."""
        return cls(
            busy_s=_summed((part.busy_s, times) for part, times in parts),
            limits_s=_summed((part.limits_s, times) for part, times in parts),
            errors_s=_summed((part.errors_s, times) for part, times in parts),
            sources_s=_summed((part.sources_s, times) for part, times in parts),
            comm_s=math.fsum(part.comm_s * times for part, times in parts),
            exposed_comm_s=math.fsum(part.exposed_comm_s * times for part, times in parts),
            slowed_s=math.fsum(part.slowed_s * times for part, times in parts),
        )


def _summed(parts: Iterable[tuple[Mapping[_Key, float], float]]) -> dict[_Key, float]:
    sums: dict[_Key, float] = defaultdict(float)
    for values, times in parts:
        for key, value in values.items():
            sums[key] += value * times
    return dict(sums)


def _limit(op: Op, gpu: Gpu) -> str:
    """Return what bounds an op: a link, tensor cores, memory bandwidth, or a small kernel's fixed cost."""
    if op.stream == "comm":
        return op.kind
    arithmetic_s = op.shape.arithmetic_s(gpu)
    traffic_s = op.shape.moved_bytes / gpu.hbm_bandwidth_Bps
    if max(arithmetic_s, traffic_s) < gpu.kernel_s:
        return "small kernels"
    return "tensor cores" if arithmetic_s > traffic_s else "memory bandwidth"
