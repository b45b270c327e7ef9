"""What simulated passes were made of: ops, collectives, and sums along the critical path.

`Breakdown` is of one configuration, `PathSums` of many at once. Both follow the same path: from the end of a pass back,
each task to the one whose end it waited for. Of many configurations a task is on the path of some: a mask.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_
from typing import Any, NamedTuple, Self, TypeVar, get_args

import numpy as np

from ladder_sim.costs.estimate import Estimate
from ladder_sim.des.program import Cost, Outline, Program
from ladder_sim.des.shared import Number, maximum, minimum
from ladder_sim.des.timeline import TaskTimes, Timeline, overlap_s
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
    if op.stream == "comm":
        return op.kind
    arithmetic_s = op.shape.arithmetic_s(gpu)
    traffic_s = op.shape.moved_bytes / gpu.hbm_bandwidth_Bps
    if max(arithmetic_s, traffic_s) < gpu.kernel_s:
        return "small kernels"
    return "tensor cores" if arithmetic_s > traffic_s else "memory bandwidth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives of one name that can be hidden alike, of all layers."""

    name: str
    """As its op, without the layer, e.g. "mlp.dispatch"."""
    count: int
    """In the pass."""
    message_bytes: float
    """Message of each, bytes."""
    after: str
    """The last op whose result it waits for."""
    next_to: tuple[str, ...]
    """Kernels that can run meanwhile: issued after it, and before any that needs its result."""
    needed_by: str
    """The first kernel that does, or that of a collective behind it on the same stream; empty: the pass ends."""
    seconds: float
    """Seconds of all these collectives, hidden or not."""
    hidden_s: float
    """Part of these seconds in which kernels run."""


class _Place(NamedTuple):
    """Where a collective stands among the ops around it."""

    name: str
    after: str
    next_to: tuple[str, ...]
    needed_by: str


def collectives(schedule: Schedule, distinct: Sequence[Op], timeline: Timeline) -> list[Collective]:
    """Return a simulated pass's collectives in issue order, from arguments of `simulated_ops`."""
    compute = timeline.busy([COMPUTE])
    launches = len(timeline.end_s) - len(schedule.layout.names)
    spans = list(zip(timeline.start_s[launches:].tolist(), timeline.end_s[launches:].tolist(), strict=True))
    repeats = schedule.layout.wiring.repeats
    # shared experts may take no time of their own, next to routed ones
    lasting = {number for number, (start_s, end_s) in enumerate(spans) if end_s > start_s}
    members: dict[_Place, list[int]] = defaultdict(list)
    for number, stream in enumerate(schedule.order.streams):
        if stream == COMM:
            members[_place(schedule, number, lasting)].append(number)
    times = {
        number: repeats.get(schedule.layout.layers[number], 1) for numbers in members.values() for number in numbers
    }
    shapes: Any = [op.shape for op in distinct]
    return [
        Collective(
            **place._asdict(),
            count=sum(times[number] for number in numbers),
            message_bytes=float(shapes[schedule.layout.same_as[numbers[0]]].message_bytes),
            seconds=sum(times[number] * (spans[number][1] - spans[number][0]) for number in numbers),
            hidden_s=sum(times[number] * overlap_s(spans[number], compute) for number in numbers),
        )
        for place, numbers in members.items()
    ]


def _place(schedule: Schedule, number: int, lasting: Set[int]) -> _Place:
    """Look for the first kernel that waits for a collective, or for one behind it on the same stream."""
    waiting, next_to = {number}, []
    needed_by = ""
    for later in range(number + 1, len(schedule.layout.names)):
        if schedule.order.streams[later] == COMM:
            waiting.add(later)
        elif not waiting.isdisjoint(schedule.layout.after[later]):
            needed_by = _name(schedule, later)
            break
        elif later in lasting:
            next_to.append(_name(schedule, later))
    after = max(schedule.layout.after[number])
    return _Place(_name(schedule, number), _name(schedule, after), tuple(next_to), needed_by)


def _name(schedule: Schedule, number: int) -> str:
    name = schedule.layout.names[number]
    return name.partition(".")[2] if schedule.layout.layers[number] >= 0 else name


_COLLECTIVES = get_args(CollectiveKind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathSums:
    """Sums over the ops of a pass, every layer counted, or of several passes; seconds, one value per configuration."""

    errors_s: Mapping[str, Number]
    """Error of the critical path by op kind, half-width of the 90 % interval."""
    collectives_s: Number
    """Collectives on the critical path."""
    exposed_comm_s: Number
    """Collectives while nothing computes."""

    @classmethod
    def in_turn(cls, schedule: Schedule, estimates: Sequence[Estimate], durations_s: Sequence[Number]) -> Self:
        """Return the sums of a pass without overlap and launch waits, given each role's seconds `durations_s`."""
        errors_s: dict[str, Number] = defaultdict(float)
        collectives_s: Number = 0.0
        exposed_s: Number = 0.0
        order, kinds = schedule.order, dict(zip(schedule.layout.same_as, schedule.layout.kinds, strict=True))
        roles = zip(order.role_streams, order.counts, estimates, durations_s, strict=True)
        for number, (stream, count, estimate, duration_s) in enumerate(roles):
            kind, spent_s = kinds[number], count * duration_s
            name = ERROR_KINDS.get(kind, kind)
            errors_s[name] = errors_s[name] + estimate.error * spent_s
            if kind in _COLLECTIVES:
                collectives_s = collectives_s + spent_s
            if stream == COMM:
                exposed_s = exposed_s + spent_s
        return cls(errors_s=dict(errors_s), collectives_s=collectives_s, exposed_comm_s=exposed_s)

    @classmethod
    def of(cls, schedule: Schedule, errors: Sequence[Number], program: Program, times: TaskTimes) -> Self:
        """Return the sums of a simulated pass, given the error of each role."""
        layout, (_, starts_s, ends_s) = schedule.layout, times
        critical = _critical(program.outline, program.costs, ends_s)
        repeats = layout.wiring.repeats
        launches = len(program.outline.streams) - len(layout.names)
        errors_s: dict[str, Number] = defaultdict(float)
        collectives_s: Number = 0.0
        exposed_s: Number = 0.0
        overlapped = _overlapped(program.outline)
        rows = zip(layout.kinds, layout.layers, layout.same_as, critical[launches:], strict=True)
        for index, (kind, layer, like, mask) in enumerate(rows, launches):
            collective = program.outline.streams[index] == COMM
            if mask is False and not collective:
                continue
            spent_s = repeats.get(layer, 1) * (ends_s[index] - starts_s[index])
            if mask is not False:
                on_path_s = spent_s if mask is True else mask * spent_s
                name = ERROR_KINDS.get(kind, kind)
                errors_s[name] = errors_s[name] + errors[like] * on_path_s
                if kind in _COLLECTIVES:
                    collectives_s = collectives_s + on_path_s
            if collective:
                hidden_s: Number = 0.0
                for other in overlapped[index]:
                    until_s = minimum(ends_s[index], ends_s[other])
                    hidden_s = hidden_s + maximum(0.0, until_s - maximum(starts_s[index], starts_s[other]))
                exposed_s = exposed_s + spent_s - repeats.get(layer, 1) * hidden_s
        return cls(errors_s=dict(errors_s), collectives_s=collectives_s, exposed_comm_s=exposed_s)

    @classmethod
    def total(cls, parts: Sequence[tuple[Any, Number]]) -> Self:
        """Return the sum of several parts, or of breakdowns, each as often as its weight says."""
        errors_s: dict[str, Number] = defaultdict(float)
        for part, times in parts:
            for kind, error_s in part.errors_s.items():
                errors_s[kind] = errors_s[kind] + error_s * times
        return cls(
            errors_s=dict(errors_s),
            collectives_s=sum((part.collectives_s * times for part, times in parts), start=0.0),
            exposed_comm_s=sum((part.exposed_comm_s * times for part, times in parts), start=0.0),
        )

    @classmethod
    def joined(cls, parts: Sequence[tuple[Any, "PathSums"]], count: int) -> "PathSums":
        """Return the sums of `count` configurations from parts with some rows each; the last part of a row counts."""
        kinds = {kind: None for _, part in parts for kind in part.errors_s}
        errors_s: dict[str, Any] = {kind: np.zeros(count) for kind in kinds}
        collectives_s, exposed_s = np.zeros(count), np.zeros(count)
        for rows, part in parts:
            for kind, error_s in errors_s.items():
                error_s[rows] = part.errors_s.get(kind, 0.0)
            collectives_s[rows], exposed_s[rows] = part.collectives_s, part.exposed_comm_s
        return cls(errors_s=errors_s, collectives_s=collectives_s, exposed_comm_s=exposed_s)


def _critical(outline: Outline, costs: Sequence[Cost], ends_s: Sequence[Number]) -> list[Any]:
    """Return, by task, the configurations in which it is critical: True for all, False for none, or a mask."""
    critical: list[Any] = [False] * len(outline.streams)
    last = sorted(outline.last_tasks)
    _mark(critical, last, [ends_s[task] for task in last], True)
    for index in reversed(range(len(critical))):
        tasks, own = _before(outline)[index], outline.streams[index]
        if critical[index] is False or not tasks:
            continue
        noticed_s = [
            ends_s[task] + (0.0 if outline.streams[task] == own else costs[outline.kinds[task]].wake_s)
            for task in tasks
        ]
        _mark(critical, tasks, noticed_s, critical[index])
    return critical


def _mark(critical: list[Any], tasks: Sequence[int], noticed_s: Sequence[Number], where: Any) -> None:
    """Put on the path of some configurations the task whose end was noticed last; of equals the first."""
    *others, final = tasks
    for number, task in enumerate(others):
        latest = reduce(and_, (np.greater_equal(noticed_s[number], later_s) for later_s in noticed_s[number + 1 :]))
        own = latest & where
        critical[task] = _simple(critical[task] | own)
        where = _simple(where & ~own)
        if where is False:
            return
    critical[final] = _simple(critical[final] | where)


def _simple(mask: Any) -> Any:
    if mask is True or mask is False:
        return mask
    return True if mask.all() else mask if mask.any() else False


@lru_cache(maxsize=1024)
def _before(outline: Outline) -> Sequence[Sequence[int]]:
    """Return, by task, the tasks whose ends it may have waited for: on its stream, and on others."""
    latest: dict[int, int] = {}
    before = []
    for index, (stream, _, across) in enumerate(outline.rows):
        before.append((*across, *((latest[stream],) if stream in latest else ())))
        latest[stream] = index
    return before


@lru_cache(maxsize=1024)
def _overlapped(outline: Outline) -> Mapping[int, Sequence[int]]:
    """Return, by collective, the kernels that may run at the same time: neither waits for the other."""
    kernels = [index for index, stream in enumerate(outline.streams) if stream == COMPUTE]
    comms = [index for index, stream in enumerate(outline.streams) if stream == COMM]
    place = {kernel: number for number, kernel in enumerate(kernels)}
    # kernels before this many have ended when a collective starts: its own and earlier ones' wait for them
    ended, first = 0, {}
    for comm in comms:
        ended = max([ended, *(1 + place[task] for task in outline.rows[comm][2] if task in place)])
        first[comm] = ended
    # those from this one on wait for it, or for a later one
    waiting = {comm: len(kernels) for comm in comms}
    for number, kernel in reversed(list(enumerate(kernels))):
        for task in outline.rows[kernel][2]:
            if task in waiting:
                waiting[task] = number
    end = len(kernels)
    overlapped = {}
    for comm in reversed(comms):
        end = min(end, waiting[comm])
        overlapped[comm] = kernels[first[comm] : end]
    return overlapped
