"""The fast engine: one pass over a program in issue order, for one configuration or thousands at once.

A task starts when earlier tasks end, and their ends are known when its turn comes, so one pass gives every time
exactly. Only kernels that share a GPU with a collective need more: a collective stays open while later kernels are
issued, and is closed when a task waits for it. Each kernel that it overlaps slows both while they run together. Where
durations are arrays, every step is a numpy operation over all configurations, which differ in numbers, not in
structure: one queue of collectives follows a single configuration, kernel by kernel, the other all at once. Both give
the same times.

The results equal those of `engine.run` up to rounding. Sharing is possible in programs of one rank with one compute
stream and one communication stream. Programs of several ranks must share nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ladder_sim.des.program import NO_GROUP, Cost, Outline, Program
from ladder_sim.des.shared import Demand, Device, Number, any_true, maximum, minimum, where
from ladder_sim.des.timeline import TaskTimes, Timeline

CANNOT_SHARE = (
    "this engine shares a GPU between one stream of kernels and one of collectives, which only kernels wait for; "
    "use engine.run"
)

# a task counts as done when less than this share of its work is left: sums round
SPENT = 1e-12
# stands for the end of a collective that is not over
_OPEN = -1.0


def run(program: Program) -> Timeline:
    """Simulate `program` from time zero; as `ladder_sim.des.engine.run`."""
    return Timeline.of(program, scan(program))


def scan(program: Program) -> TaskTimes:
    """Simulate a program whose durations, leads or memory demands may be arrays of one value per configuration.

    Raises DeadlockError if tasks wait for each other; ValueError if the program shares a GPU in a way that this engine
    does not support.
    """
    varies, compute, comm = _streams(program)
    return (_scan_several if varies else _scan_one)(program, compute, comm)


def _scan_several(program: Program, compute: int, comm: int) -> TaskTimes:
    outline, costs = program.outline, program.costs
    times: TaskTimes = ([0.0] * len(outline.streams), [0.0] * len(outline.streams), [0.0] * len(outline.streams))
    readies_s, starts_s, ends_s = times
    # how much later than the end of a task of each kind those of other streams notice it
    wakes_s, kinds = [cost.wake_s for cost in costs], outline.kinds
    # end of each stream's last task
    fronts_s: list[Number] = [0.0] * len(program.streams)
    queue = VectorQueue(program.device or Device(sms=1), times)
    is_open = queue.open
    for index in evaluation_order(program, compute, comm):
        stream, kind, awaited = outline.rows[index]
        duration_s, lead_s, _, _ = cost = costs[kind]
        if stream == comm:
            ready_s: Number = 0.0
            for before in awaited:
                ready_s = maximum(ready_s, ends_s[before] + wakes_s[kinds[before]])
            queue.issue(index, cost, ready_s)
            continue
        # tasks before it on its stream have ended at front_s
        front_s = ready_s = fronts_s[stream]
        for before in awaited:
            if before in is_open:
                if stream != compute:
                    raise ValueError(CANNOT_SHARE)
                queue.close_through(before, front_s)
            ready_s = maximum(ready_s, ends_s[before] + wakes_s[kinds[before]])
        readies_s[index] = ready_s
        if outline.members and outline.groups[index] != NO_GROUP:
            _meet(program, index, times, fronts_s, maximum)
            continue
        starts_s[index] = start_s = ready_s + lead_s
        shares = is_open and stream == compute
        end_s = queue.run_next_to(cost, front_s, start_s) if shares else start_s + duration_s
        ends_s[index] = fronts_s[stream] = end_s
    if is_open:
        queue.close_through(next(reversed(is_open)), fronts_s[compute])
    return times


def _scan_one(program: Program, compute: int, comm: int) -> TaskTimes:
    """Simulate plain numbers: as `_scan_several`, but of open collectives only the first can be running.

    All in one function: calls and attributes would take most of its time.
    """
    # every number is plain, which the types of programs do not say
    costs: Any = program.costs
    outline, device = program.outline, program.device or Device(sms=1)
    rows, kinds, grouped = outline.rows, outline.kinds, bool(outline.members)
    wakes_s = [cost.wake_s for cost in costs]
    # of an open collective no end is known
    times: Any = ([_OPEN] * len(rows), [_OPEN] * len(rows), [_OPEN] * len(rows))
    readies_s, starts_s, ends_s = times
    fronts_s = [0.0] * len(program.streams)
    waiting: deque[tuple[int, Any, float]] = deque()

    # of the first of them, and the end of the last one that is over
    its_ready_s = its_start_s = its_left_s = its_spent_s = closed_s = 0.0
    its_demand: Any = None

    # speeds of kernels and of it next to each other
    pairs: dict[Demand, tuple[float, float]] = {}

    def begin() -> None:
        nonlocal its_ready_s, its_start_s, its_left_s, its_spent_s, its_demand, pairs
        _, (duration_s, lead_s, demand, _), ready_s = waiting[0]
        its_left_s, its_spent_s = duration_s, SPENT * duration_s
        its_ready_s = ready_s if ready_s > closed_s else closed_s
        its_start_s = its_ready_s + lead_s
        if demand is not its_demand:
            its_demand, pairs = demand, device.pairs_of(demand)

    def close(end_s: float) -> None:
        nonlocal closed_s
        index, _, _ = waiting.popleft()
        readies_s[index], starts_s[index], ends_s[index] = its_ready_s, its_start_s, end_s
        closed_s = end_s
        if waiting:
            begin()

    for index in evaluation_order(program, compute, comm):
        stream, kind, awaited = rows[index]
        duration_s, lead_s, demand, _ = cost = costs[kind]
        if stream == comm:
            ready_s = 0.0
            for before in awaited:
                noticed_s = ends_s[before] + wakes_s[kinds[before]]
                if noticed_s > ready_s:
                    ready_s = noticed_s
            waiting.append((index, cost, ready_s))
            if len(waiting) == 1:
                begin()
            continue
        front_s = ready_s = fronts_s[stream]
        for before in awaited:
            if ends_s[before] == _OPEN:
                if stream != compute:
                    raise ValueError(CANNOT_SHARE)
                while ends_s[before] == _OPEN:
                    close(max(its_start_s, front_s) + its_left_s)
            noticed_s = ends_s[before] + wakes_s[kinds[before]]
            if noticed_s > ready_s:
                ready_s = noticed_s
        readies_s[index] = ready_s
        if grouped and outline.groups[index] != NO_GROUP:
            _meet(program, index, times, fronts_s, max)
            continue
        starts_s[index] = now_s = ready_s + lead_s
        if not waiting or stream != compute:
            ends_s[index] = fronts_s[stream] = now_s + duration_s
            continue
        # collectives run alone before it starts
        while waiting and its_start_s < now_s:
            begin_s = its_start_s if its_start_s > front_s else front_s
            alone_s = now_s - begin_s
            if alone_s < its_left_s - its_spent_s:
                its_left_s -= alone_s
                break
            close(begin_s + min(alone_s, its_left_s))
        left_s = duration_s
        while waiting:
            if its_start_s > now_s:
                if its_start_s >= now_s + left_s:
                    break
                now_s, left_s = its_start_s, left_s - (its_start_s - now_s)
            own_rate, its_rate = pairs.get(demand) or device.pair(demand, its_demand)
            both_s = left_s / own_rate
            work_s = both_s * its_rate
            if work_s < its_left_s - its_spent_s:
                its_left_s -= work_s
                now_s, left_s = now_s + both_s, 0.0
                break
            both_s = min(both_s, its_left_s / its_rate)
            now_s, left_s = now_s + both_s, max(0.0, left_s - both_s * own_rate)
            close(now_s)
        ends_s[index] = fronts_s[stream] = now_s + left_s
    while waiting:
        close(max(its_start_s, fronts_s[compute]) + its_left_s)
    done: TaskTimes = times
    return done


def _meet(
    program: Program, index: int, times: TaskTimes, fronts_s: list[Any], latest: Callable[[Any, Any], Any]
) -> None:
    """Start the tasks of a group together, once the last of them is ready.

    They are next to each other in the order, after all that any of them waits for.
    """
    outline, costs, (readies_s, starts_s, ends_s) = program.outline, program.costs, times
    own = outline.members[outline.groups[index]]
    if index != own[-1]:
        return
    start_s: Any = 0.0
    for member in own:
        start_s = latest(start_s, readies_s[member] + costs[outline.kinds[member]].lead_s)
    for member in own:
        starts_s[member] = start_s
        ends_s[member] = fronts_s[outline.streams[member]] = start_s + costs[outline.kinds[member]].duration_s


def _streams(program: Program) -> tuple[bool, int, int]:
    """Whether a number is an array; the compute stream and the communication stream, -1 where nothing is shared."""
    varies = np.ndarray in {type(number) for cost in program.costs for number in (*cost[:2], cost.wake_s)}
    if program.device is None:
        return varies, -1, -1
    comm: set[int] = set()
    compute: set[int] = set()
    known = program.device.traits
    for stream, cost in zip(program.outline.kind_streams, program.costs, strict=True):
        traits = known.get(cost.demand) or program.device.traits_of(cost.demand)
        varies = varies or traits.varies
        if traits.uses_shared:
            (comm if traits.is_collective else compute).add(stream)
    ranks = [program.streams[stream].rank for stream in comm | compute]
    if len(set(ranks)) == len(ranks):
        return varies, -1, -1
    several_ranks = len(set(ranks)) > 1 or any(len(members) > 1 for members in program.outline.members.values())
    if several_ranks or len(comm) > 1 or len(compute) > 1 or comm & compute:
        raise ValueError(CANNOT_SHARE)
    return varies, min(compute), min(comm)


def evaluation_order(program: Program, compute: int, comm: int) -> Sequence[int]:
    """Return the task indices in an order in which dependencies come first, and collectives as early as possible.

    Members of a collective group are adjacent. A program that was issued in such an order keeps it. `compute` and
    `comm` are the streams of kernels and of collectives that share a GPU; -1 where nothing is shared. Raises
    DeadlockError if there is no such order.
    """
    # the same for any durations: a prediction asks several times for each of few outlines
    known = program.outline.in_order
    if (compute, comm) not in known:
        known[compute, comm] = _issued_in_order(program.outline, compute, comm)
    return range(len(program.tasks)) if known[compute, comm] else _topological(program, compute, comm)


def _issued_in_order(outline: Outline, compute: int, comm: int) -> bool:
    if outline.members:
        return False
    # the last kernel issued so far, and the last that the collectives so far wait for, one behind the other
    kernel = waited = -1
    for index, (stream, after) in enumerate(zip(outline.streams, outline.after, strict=True)):
        if after and max(after) >= index:
            return False
        if stream == comm:
            # it may overlap a kernel that it does not wait for, so it must come before that kernel
            waited = max(waited, *(before for before in after if outline.streams[before] == compute), -1)
            if waited < kernel:
                return False
        elif stream == compute:
            kernel = index
    return True


def _topological(program: Program, compute: int, comm: int) -> list[int]:
    # programs in order need none of it
    import networkx as nx

    unit_of = [task.group if task.group != NO_GROUP else -2 - index for index, task in enumerate(program.tasks)]
    members: dict[int, list[int]] = {}
    for index, unit in enumerate(unit_of):
        members.setdefault(unit, []).append(index)
    units: nx.DiGraph[int] = nx.DiGraph()
    units.add_nodes_from(members)
    units.add_edges_from((unit_of[before], unit_of[after]) for before, after in program.precedence().edges)

    def early(unit: int) -> tuple[bool, bool, int]:
        """Return the key that orders units: collectives first, then tasks that share nothing, kernels last."""
        first = members[unit][0]
        stream = program.tasks[first].stream
        return (stream != comm, stream == compute, first)

    try:
        return [index for unit in nx.lexicographical_topological_sort(units, key=early) for index in members[unit]]
    except nx.NetworkXUnfeasible:
        raise program.explain_deadlock(range(len(program.tasks))) from None


@dataclass(slots=True, eq=False)
class _OpenCollective:
    """A collective that later kernels may overlap."""

    cost: Cost
    """What it takes alone."""
    own_ready_s: Number
    """When its own dependencies are met."""
    left_s: Number
    """Work left."""
    spent_s: Number
    """Work left below which it is done."""
    start_s: Number = inf
    """Infinite while the one before it runs."""
    end_s: Number = inf
    """Infinite until done."""

    def start_after(self, before_s: Number) -> None:
        """Start it as soon as it can, given the end of the collective before it."""
        self.start_s = maximum(self.own_ready_s, before_s) + self.cost.lead_s


class VectorQueue:
    """Collectives of many configurations, in each of which another open one may be running."""

    def __init__(self, device: Device, times: TaskTimes) -> None:
        self._device, self._times = device, times
        self.open: dict[int, _OpenCollective] = {}

        # end of the last one that is over in every configuration
        self._closed_s: Number = 0.0
        self._rates: dict[tuple[Demand, Demand], tuple[Number, Number]] = {}

    def issue(self, index: int, cost: Cost, own_ready_s: Number) -> None:
        self.open[index] = _OpenCollective(cost, own_ready_s, cost.duration_s, SPENT * cost.duration_s)

    def run_next_to(self, kernel: Cost, front_s: Number, start_s: Number) -> Number:
        self._run_alone(front_s, start_s)
        now_s, left_s = start_s, kernel.duration_s
        before_s = self._closed_s
        for collective in self.open.values():
            collective.start_after(before_s)
            later = any_true(collective.start_s > now_s)
            if later:
                meet_s = minimum(maximum(collective.start_s, now_s), now_s + left_s)
                now_s, left_s = meet_s, maximum(0.0, left_s - (meet_s - now_s))
            own_rate, its_rate = self._pair(kernel.demand, collective.cost.demand)
            both_s = minimum(left_s / own_rate, collective.left_s / its_rate)
            if later:
                both_s = where(collective.start_s <= now_s, both_s, 0.0)
            now_s, left_s = now_s + both_s, maximum(0.0, left_s - both_s * own_rate)
            self._progress(collective, both_s * its_rate, now_s, started=not later)
            before_s = collective.end_s
        self._drop_done()
        return now_s + left_s

    def close_through(self, index: int, front_s: Number) -> None:
        while index in self.open:
            collective = next(iter(self.open.values()))
            collective.start_after(self._closed_s)
            alone_s = maximum(collective.start_s, front_s) + collective.left_s
            collective.end_s = where(collective.end_s == inf, alone_s, collective.end_s)
            self._close()

    def _run_alone(self, from_s: Number, to_s: Number) -> None:
        if not any_true(to_s > from_s):
            return
        before_s = self._closed_s
        for collective in self.open.values():
            collective.start_after(before_s)
            begin_s = maximum(collective.start_s, from_s)
            span_s = minimum(maximum(to_s - begin_s, 0.0), collective.left_s)
            self._progress(collective, span_s, begin_s + span_s)
            before_s = collective.end_s
        self._drop_done()

    def _pair(self, kernel: Demand, collective: Demand) -> tuple[Number, Number]:
        rates = self._rates.get((kernel, collective))
        if rates is None:
            rates = self._device.rate(kernel, [collective]), self._device.rate(collective, [kernel])
            self._rates[kernel, collective] = rates
        return rates

    def _progress(self, collective: _OpenCollective, work_s: Number, until_s: Number, *, started: bool = False) -> None:
        left_s = collective.left_s - work_s
        done = left_s <= collective.spent_s
        if not started:
            done = done & (collective.start_s <= until_s)
        collective.left_s = where(done, 0.0, left_s)
        # configurations in which it was done before keep their earlier end
        collective.end_s = minimum(collective.end_s, where(done, until_s, inf))

    def _drop_done(self) -> None:
        while self.open and not any_true(next(iter(self.open.values())).end_s == inf):
            self._close()

    def _close(self) -> None:
        index, collective = next(iter(self.open.items()))
        readies_s, starts_s, ends_s = self._times
        readies_s[index] = maximum(collective.own_ready_s, self._closed_s)
        starts_s[index], ends_s[index] = collective.start_s, collective.end_s
        self._closed_s = collective.end_s
        del self.open[index]
