"""Passes of many scenarios in one go: those whose tasks form the same program are simulated as configurations of one.

A step of numpy takes hardly longer for a thousand configurations than for ten, and plans of one model differ in sizes
more than in what they run.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.des import scan
from ladder_sim.des.program import Cost, Program, Tasks
from ladder_sim.des.shared import Demand, Device, Number
from ladder_sim.simulate.lower import Schedule
from ladder_sim.simulate.passes import Attempts, ForwardPass, added_seconds

_PARTS = attrgetter(*Demand.__slots__)


class _Pending(NamedTuple):
    """A pass, some configurations of which are not steady yet."""

    forward: ForwardPass
    """The pass."""
    attempts: Attempts
    """As the pass makes them."""
    schedule: Schedule
    """Its layers that are simulated next."""
    program: Program
    """Their tasks."""
    size: int
    """Configurations of the program."""

    @property
    def structure(self) -> Hashable:
        """What passes share that are simulated in one go."""
        outline, schedule = self.program.outline, self.schedule
        return outline.streams, outline.after, outline.kinds, schedule.order.periods, schedule.eager


def simulate_together(passes: Iterable[ForwardPass]) -> None:
    """Simulate passes of many configurations, for the seconds of each; others are left until these are read."""
    pending = []
    for forward in passes:
        if "seconds" not in vars(forward) and not forward.schedule.order.serial:
            attempts = forward.attempts()
            schedule, program, _ = next(attempts)
            figures = (each for cost in program.costs for each in (*cost, *_PARTS(cost.demand)))
            if size := max((len(each) for each in figures if isinstance(each, np.ndarray)), default=0):
                pending.append(_Pending(forward, attempts, schedule, program, size))
    while pending:
        alike: dict[Hashable, list[_Pending]] = defaultdict(list)
        for each in pending:
            alike[each.structure].append(each)
        pending = [left for members in alike.values() for left in _simulated(members)]


def _simulated(members: Sequence[_Pending]) -> Iterable[_Pending]:
    """Simulate passes of one structure, and yield those that have configurations which are not steady."""
    program = _joined([(each.program, each.size) for each in members])
    added = added_seconds(members[0].schedule, program, scan.scan(program))
    ends = np.cumsum([each.size for each in members])
    parts: Any = (np.split(np.broadcast_to(values, ends[-1]), ends[:-1]) for values in added)
    for each, makespan_s, added_s, steady in zip(members, *parts, strict=True):
        try:
            schedule, program, _ = each.attempts.send((makespan_s, added_s, steady))
        except StopIteration as done:
            each.forward.seconds = done.value
        else:
            yield each._replace(schedule=schedule, program=program, size=int(np.count_nonzero(~steady)))


def _joined(programs: Sequence[tuple[Program, int]]) -> Program:
    """Return a program of all the configurations of several with the same tasks, each with its number of them."""
    first, _ = programs[0]
    if len(programs) == 1:
        return first
    ends = list(accumulate(count for _, count in programs))
    places = [slice(end - count, end) for (_, count), end in zip(programs, ends, strict=True)]

    def joined(values: Sequence[Number]) -> Number:
        if np.ndarray not in map(type, values) and len(set(values)) == 1:
            return values[0]
        whole = np.empty(ends[-1])
        for place, each in zip(places, values, strict=True):
            whole[place] = each
        return whole

    demands: dict[tuple[Demand, ...], Demand] = {}
    costs = []
    for durations_s, leads_s, asked, wakes_s in (
        zip(*row, strict=True) for row in zip(*(each.costs for each, _ in programs), strict=True)
    ):
        if asked not in demands:
            parts: Any = map(joined, zip(*map(_PARTS, asked), strict=True))
            demands[asked] = Demand(**dict(zip(Demand.__slots__, parts, strict=True)))
        costs.append(Cost(joined(durations_s), joined(leads_s), demands[asked], joined(wakes_s)))
    device = first.device and Device(sms=first.device.sms)
    return Program(tasks=Tasks(first.outline, costs), streams=first.streams, device=device)
