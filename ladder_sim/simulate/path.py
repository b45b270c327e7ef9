"""What errors of predictions depend on, for many configurations at once: their critical paths, and what is exposed.

`breakdown.py` says more, of one configuration. Both follow the same path: from the end of a pass back, each task to the
one whose end it waited for. Here a task is on the path of some configurations: a mask.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_
from typing import Any, Self, get_args

import numpy as np

from ladder_sim.costs.estimate import Estimate
from ladder_sim.des.program import Cost, Outline, Program
from ladder_sim.des.shared import Number, maximum, minimum
from ladder_sim.des.timeline import TaskTimes
from ladder_sim.graph.ops import CollectiveKind
from ladder_sim.simulate.breakdown import ERROR_KINDS
from ladder_sim.simulate.lower import COMM, COMPUTE, Schedule

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
    """Return True or False instead of a mask in which all elements are equal."""
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
