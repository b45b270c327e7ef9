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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import numpy as np

from ladder_sim.des.program import NO_GROUP, Cost, Outline, Program
from ladder_sim.des.shared import Demand, Device, Number, any_true, maximum, minimum, where
from ladder_sim.des.timeline import TaskTimes, Timeline

CANNOT_SHARE = (
    "this engine shares a GPU between one stream of kernels and one of collectives, which only kernels wait for; "
    "use engine.run"
)


def run(program: Program) -> Timeline:
    """Simulate `program` from time zero; as `ladder_sim.des.engine.run`."""
    return Timeline.of(program, scan(program))


def scan(program: Program) -> TaskTimes:
    """Simulate a program whose durations, leads or memory demands may be arrays of one value per configuration.

    Raises DeadlockError if tasks wait for each other; ValueError if the program shares a GPU in a way that this engine
    does not support.
    """
    outline, costs, device = program.outline, program.costs, program.device or Device(sms=1)
    streams, groups, members, rows = outline.streams, outline.groups, outline.members, outline.rows
    varies, compute, comm = _streams(program)
    times: TaskTimes = ([0.0] * len(streams), [0.0] * len(streams), [0.0] * len(streams))
    readies_s, starts_s, ends_s = times
    # how much later than the end of a task of each kind those of other streams notice it
    wakes_s, kinds = [cost.wake_s for cost in costs], outline.kinds
    # end of each stream's last task
    fronts_s: list[Number] = [0.0] * len(program.streams)

    # of plain numbers, with Python's own functions, which are faster; or of arrays
    latest: Callable[..., Any] = maximum if varies else max
    queue: Any = (VectorQueue if varies else SingleQueue)(device, times)
    is_open = queue.open
    for index in evaluation_order(program, compute, comm):
        stream, kind, awaited = rows[index]
        duration_s, lead_s, _, _ = cost = costs[kind]
        if stream == comm:
            ready_s: Any = 0.0
            for before in awaited:
                ready_s = latest(ready_s, ends_s[before] + wakes_s[kinds[before]])
            queue.issue(index, cost, ready_s)
            continue
        # tasks before it on its stream have ended at front_s
        front_s = ready_s = fronts_s[stream]
        for before in awaited:
            if before in is_open:
                if stream != compute:
                    raise ValueError(CANNOT_SHARE)
                queue.close_through(before, front_s)
            ready_s = latest(ready_s, ends_s[before] + wakes_s[kinds[before]])
        readies_s[index] = ready_s
        if members and groups[index] != NO_GROUP:
            # members of a group are next to each other in the order, after all that any of them waits for
            own = members[groups[index]]
            if index != own[-1]:
                continue
            start_s: Any = 0.0
            for member in own:
                start_s = latest(start_s, readies_s[member] + costs[kinds[member]].lead_s)
            for member in own:
                starts_s[member] = start_s
                ends_s[member] = fronts_s[streams[member]] = start_s + costs[kinds[member]].duration_s
            continue
        starts_s[index] = start_s = ready_s + lead_s
        shares = is_open and stream == compute
        end_s = queue.run_next_to(cost, front_s, start_s) if shares else start_s + duration_s
        ends_s[index] = fronts_s[stream] = end_s
    if is_open:
        queue.close_through(next(reversed(is_open)), fronts_s[compute])
    return times


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


# a task counts as done when less than this share of its work is left: sums round
SPENT = 1e-12


class SingleQueue:
    """Collectives of one configuration, of which only the first open one can be running."""

    def __init__(self, device: Device, times: TaskTimes) -> None:
        self._device, self._times = device, times
        # by task, those that are not over for certain
        self.open: dict[int, tuple[Cost, float]] = {}

        # end of the last one that is over
        self._closed_s = 0.0

        # of the first
        self._index = -1
        self._demand: Any = None
        self._ready_s = self._start_s = self._left_s = self._spent_s = 0.0

        # speeds of kernels and of it next to each other
        self._pairs: dict[Demand, tuple[float, float]] = {}

    def issue(self, index: int, cost: Cost, own_ready_s: float) -> None:
        """Append a collective whose dependencies are met at a time."""
        self.open[index] = cost, own_ready_s
        if len(self.open) == 1:
            self._begin(index, cost, own_ready_s)

    def run_next_to(self, kernel: Cost, front_s: float, start_s: float) -> float:
        """Run a kernel, none having run after `front_s`, while a collective is open. Returns the kernel's end."""
        if self._start_s < start_s:
            self._run_alone(front_s, start_s)
        duration_s, _, demand = cast(tuple[float, float, Demand], kernel[:3])
        now_s, left_s = start_s, duration_s
        while self.open:
            begin_s = self._start_s
            if begin_s > now_s:
                if begin_s >= now_s + left_s:
                    break
                now_s, left_s = begin_s, left_s - (begin_s - now_s)
            own_rate, its_rate = self._pairs.get(demand) or self._device.pair(demand, self._demand)
            both_s = left_s / own_rate
            work_s = both_s * its_rate
            if work_s < self._left_s - self._spent_s:
                self._left_s -= work_s
                return now_s + both_s
            both_s = min(both_s, self._left_s / its_rate)
            now_s, left_s = now_s + both_s, max(0.0, left_s - both_s * own_rate)
            self._close(now_s)
        return now_s + left_s

    def close_through(self, index: int, front_s: float) -> None:
        """Finish every open collective up to one, no kernel running after `front_s`."""
        while index in self.open:
            self._close(max(self._start_s, front_s) + self._left_s)

    def _run_alone(self, from_s: float, to_s: float) -> None:
        while self.open and self._start_s < to_s:
            begin_s = self._start_s if self._start_s > from_s else from_s
            if to_s - begin_s < self._left_s - self._spent_s:
                self._left_s -= to_s - begin_s
                return
            self._close(begin_s + min(to_s - begin_s, self._left_s))

    def _begin(self, index: int, cost: Cost, own_ready_s: float) -> None:
        duration_s, lead_s, demand = cast(tuple[float, float, Demand], cost[:3])
        self._index = index
        self._left_s, self._spent_s = duration_s, SPENT * duration_s
        self._ready_s = own_ready_s if own_ready_s > self._closed_s else self._closed_s
        self._start_s = self._ready_s + lead_s
        if demand is not self._demand:
            self._demand, self._pairs = demand, self._device.pairs_of(demand)

    def _close(self, end_s: float) -> None:
        index, (readies_s, starts_s, ends_s) = self._index, self._times
        readies_s[index], starts_s[index], ends_s[index] = self._ready_s, self._start_s, end_s
        self._closed_s = end_s
        del self.open[index]
        for following, (cost, own_ready_s) in self.open.items():
            self._begin(following, cost, own_ready_s)
            break


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
