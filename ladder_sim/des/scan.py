"""The fast engine: one pass over a program in issue order, for one configuration or thousands at once.

A task starts when earlier tasks end, and their ends are known when its turn comes, so one pass gives every time
exactly. Only kernels that share a GPU with a collective need more: a collective stays *open* while later kernels are
issued. Each kernel it overlaps slows both for as long as they run together. It is closed when a task waits for it.
Where durations are arrays, every step is a numpy operation over all configurations. These differ in numbers, not in
structure.

The results equal those of `engine.run` up to rounding. Sharing is possible in programs of one rank with one compute
stream and one communication stream. Programs of several ranks must share nothing.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ladder_sim.des.order import evaluation_order
from ladder_sim.des.program import NO_GROUP, Program
from ladder_sim.des.shared import Demand, Device, Number, any_true, maximum, minimum
from ladder_sim.des.timeline import Timeline

CANNOT_SHARE = (
    "this engine shares a GPU between one stream of kernels and one of collectives, which only kernels wait for; "
    "use engine.run"
)
# a task counts as done when less than this share of its work is left: sums round
SPENT = 1e-12

# of every task, seconds: numbers, or arrays where configurations differ
Times = list[Number]


def run(program: Program) -> Timeline:
    """Simulate `program` from time zero; as `ladder_sim.des.engine.run`."""
    ready_s, start_s, end_s = (np.array(times, np.float64) for times in scan(program))
    return Timeline(program=program, ready_s=ready_s, start_s=start_s, end_s=end_s)


def scan(program: Program) -> tuple[Times, Times, Times]:
    """Simulate a program whose durations, leads or memory demands may be arrays of one value per configuration.

    Returns
    -------
    tuple
        Ready, start and end times.

    Raises
    ------
    DeadlockError
        Tasks wait for each other.
    ValueError
        The program shares a GPU in a way that this engine does not support.
    """
    state = _Scan(program)
    state.run(evaluation_order(program, state.compute, state.comm))
    return state.ready_s, state.start_s, state.end_s


@dataclass(slots=True, eq=False)
class _OpenCollective:
    """A collective that later kernels may overlap."""

    index: int
    """Position of its task."""
    demand: Demand
    """The resources it uses."""
    own_ready_s: Number
    """When its own dependencies are met."""
    left_s: Number
    """Work left."""
    spent_s: Number
    """Work left below which it is done."""
    start_s: Number = inf
    """Infinite until decided."""
    decided: bool = False
    """The start is known in every configuration."""
    end_s: Number = inf
    """Infinite until done."""


class _Scan:
    def __init__(self, program: Program) -> None:
        self.tasks = program.tasks
        _, streams, durations_s, _, leads_s, demands, _ = (
            zip(*program.tasks, strict=True) if program.tasks else ((),) * 7
        )
        # of plain numbers, with Python's own functions, which are faster; or of arrays
        operations: tuple[Callable[..., Any], ...] = (
            (maximum, minimum, _where, any_true)
            if _varies(durations_s, leads_s, demands)
            else (max, min, _choose, bool)
        )
        self.maximum, self.minimum, self.where, self.any_true = operations
        count = len(program.tasks)
        self.ready_s: list[Number] = [0.0] * count
        self.start_s: list[Number] = [0.0] * count
        self.end_s: list[Number] = [0.0] * count

        # end of each stream's last task
        self.front_s: list[Number] = [0.0] * len(program.streams)

        # by task, in issue order
        self.open: dict[int, _OpenCollective] = {}

        # end of the last collective that is no longer open
        self.closed_s: Number = 0.0
        self.members = program.groups()
        self.device, self.compute, self.comm = _sharing(program, set(zip(streams, demands, strict=True)), self.members)
        self.rates: dict[tuple[Demand, Demand], tuple[Number, Number]] = {}

    def run(self, order: Sequence[int]) -> None:
        # one loop and local names, because most of the time of a scan goes here
        tasks, compute, comm, open_collectives, latest = self.tasks, self.compute, self.comm, self.open, self.maximum
        readies_s, starts_s, ends_s, fronts_s = self.ready_s, self.start_s, self.end_s, self.front_s
        for index in order:
            _, stream, duration_s, after, lead_s, _, group = tasks[index]
            if stream == comm:
                self._open(index)
                continue
            front_s = ready_s = fronts_s[stream]
            for before in after:
                if before in open_collectives:
                    if stream != compute:
                        raise ValueError(CANNOT_SHARE)
                    self._close_through(before)
                # the task before it on the stream ended at front_s
                end_s = ends_s[before]
                if end_s is not front_s:
                    ready_s = latest(ready_s, end_s)
            readies_s[index] = ready_s
            if group != NO_GROUP:
                # members of a group are next to each other in the order, after all that any of them waits for
                self._start_group(group, index)
                continue
            start_s = ready_s + lead_s
            if open_collectives and stream == compute:
                self._advance_alone(front_s, start_s)
                end_s = self._overlap(index, start_s) if open_collectives else start_s + duration_s
            else:
                end_s = start_s + duration_s
            starts_s[index] = start_s
            ends_s[index] = fronts_s[stream] = end_s
        if open_collectives:
            self._close_through(next(reversed(open_collectives)))

    def _set(self, index: int, ready_s: Number, start_s: Number, end_s: Number) -> None:
        self.ready_s[index], self.start_s[index], self.end_s[index] = ready_s, start_s, end_s
        self.front_s[self.tasks[index].stream] = end_s

    def _start_group(self, group: int, index: int) -> None:
        members, tasks = self.members[group], self.tasks
        if index != members[-1]:
            return
        start_s: Number = 0.0
        for member in members:
            start_s = self.maximum(start_s, self.ready_s[member] + tasks[member].lead_s)
        for member in members:
            self._set(member, self.ready_s[member], start_s, start_s + tasks[member].duration_s)

    def _open(self, index: int) -> None:
        task = self.tasks[index]
        ready_s: Number = 0.0
        for before in task.after:
            if before not in self.open:
                ready_s = self.maximum(ready_s, self.end_s[before])
        self.open[index] = _OpenCollective(index, task.demand, ready_s, task.duration_s, SPENT * task.duration_s)

    def _earliest(self, collective: _OpenCollective, before_s: Number) -> Number:
        """When `collective` can start, given the end of the collective before it."""
        ready_s: Number = self.maximum(collective.own_ready_s, before_s)
        return ready_s + self.tasks[collective.index].lead_s

    def _advance_alone(self, from_s: Number, to_s: Number) -> None:
        """Let open collectives run while the compute stream is idle."""
        if not self.any_true(to_s > from_s):
            return
        before_s = self.closed_s
        for collective in self.open.values():
            if not collective.decided:
                earliest_s = self._earliest(collective, before_s)
                self._start(collective, (collective.start_s == inf) & (earliest_s < to_s), earliest_s)
            begin_s = self.maximum(collective.start_s, from_s)
            span_s = self.minimum(self.maximum(to_s - begin_s, 0.0), collective.left_s)
            self._progress(collective, span_s, begin_s + span_s)
            before_s = collective.end_s
        self._drop_done()

    def _overlap(self, index: int, start_s: Number) -> Number:
        """Run a kernel that open collectives overlap. Returns its end."""
        task = self.tasks[index]
        now_s, left_s = start_s, task.duration_s
        before_s = self.closed_s
        for collective in self.open.values():
            if not collective.decided:
                self._decide_start(collective, index, before_s, (start_s, now_s, left_s))
            later = self.any_true(collective.start_s > now_s)
            if later:
                meet_s = self.minimum(self.maximum(collective.start_s, now_s), now_s + left_s)
                now_s, left_s = meet_s, self.maximum(0.0, left_s - (meet_s - now_s))
            rates = self.rates.get((task.demand, collective.demand))
            if rates is None:
                rates = self._pair_rates(task.demand, collective.demand)
            own_rate, its_rate = rates
            both_s = self.minimum(left_s / own_rate, collective.left_s / its_rate)
            if later:
                both_s = self.where(collective.start_s <= now_s, both_s, 0.0)
            now_s, left_s = now_s + both_s, self.maximum(0.0, left_s - both_s * own_rate)
            self._progress(collective, both_s * its_rate, now_s, started=not later)
            before_s = collective.end_s
        self._drop_done()
        return now_s + left_s

    def _pair_rates(self, kernel: Demand, collective: Demand) -> tuple[Number, Number]:
        rates = self.device.rate(kernel, [collective]), self.device.rate(collective, [kernel])
        self.rates[kernel, collective] = rates
        return rates

    def _decide_start(
        self, collective: _OpenCollective, index: int, before_s: Number, kernel_times: tuple[Number, Number, Number]
    ) -> None:
        """Start `collective` if it is due while the kernel runs; without free SMs it starts at the end of a wave."""
        start_s, now_s, left_s = kernel_times
        kernel = self.tasks[index]
        earliest_s = self._earliest(collective, before_s)
        due = (collective.start_s == inf) & (earliest_s < now_s + left_s)
        if not self.any_true(due):
            return
        drains = self.device.must_drain(collective.demand, kernel.demand)
        if self.any_true(drains):
            left_then_s = self.maximum(0.0, left_s - self.maximum(0.0, earliest_s - now_s))
            wait_s = self.device.left_in_wave(kernel.demand, left_then_s, kernel.duration_s)
            earliest_s = earliest_s + self.where(drains & due & (earliest_s > start_s), wait_s, 0.0)
        self._start(collective, due, earliest_s)

    def _start(self, collective: _OpenCollective, due: Any, start_s: Number) -> None:
        collective.start_s = self.where(due, start_s, collective.start_s)
        collective.decided = not self.any_true(collective.start_s == inf)

    def _progress(self, collective: _OpenCollective, work_s: Number, until_s: Number, *, started: bool = False) -> None:
        left_s = collective.left_s - work_s
        done = left_s <= collective.spent_s
        if not started:
            done = done & (collective.start_s <= until_s)
        collective.left_s = self.where(done, 0.0, left_s)
        # configurations in which it was done before keep their earlier end
        collective.end_s = self.minimum(collective.end_s, self.where(done, until_s, inf))

    def _drop_done(self) -> None:
        while self.open:
            collective = next(iter(self.open.values()))
            if self.any_true(collective.end_s == inf):
                return
            self._close(collective)

    def _close_through(self, index: int) -> None:
        """Finish every open collective up to task `index`, with no kernel running."""
        front_s = self.front_s[self.compute] if self.compute >= 0 else 0.0
        while index in self.open:
            collective = next(iter(self.open.values()))
            if not collective.decided:
                self._start(collective, collective.start_s == inf, self._earliest(collective, self.closed_s))
            alone_s = self.maximum(collective.start_s, front_s) + collective.left_s
            collective.end_s = self.where(collective.end_s == inf, alone_s, collective.end_s)
            self._close(collective)

    def _close(self, collective: _OpenCollective) -> None:
        self._set(
            collective.index, self.maximum(collective.own_ready_s, self.closed_s), collective.start_s, collective.end_s
        )
        self.closed_s = collective.end_s
        del self.open[collective.index]


def _sharing(
    program: Program, demands: Set[tuple[int, Demand]], groups: Mapping[int, Sequence[int]]
) -> tuple[Device, int, int]:
    """The device, its compute stream and its communication stream; streams are -1 where nothing is shared."""
    comm: set[int] = set()
    compute: set[int] = set()
    for stream, demand in demands:
        if demand.uses_shared:
            (comm if demand.is_collective else compute).add(stream)
    ranks = [program.streams[stream].rank for stream in comm | compute]
    if program.device is None or len(set(ranks)) == len(ranks):
        return Device(sms=1), -1, -1
    several_ranks = len(set(ranks)) > 1 or any(len(members) > 1 for members in groups.values())
    if several_ranks or len(comm) > 1 or len(compute) > 1 or comm & compute:
        raise ValueError(CANNOT_SHARE)
    return program.device, min(compute, default=-1), min(comm)


def _varies(durations_s: Sequence[Number], leads_s: Sequence[Number], demands: Sequence[Demand]) -> bool:
    """Whether any figure of a program is an array."""
    figures = {*map(type, durations_s), *map(type, leads_s)}
    for demand in set(demands):
        figures.update(type(getattr(demand, name)) for name in demand.__slots__)
    return np.ndarray in figures


def _choose(condition: Any, if_true: Number, if_false: Number) -> Number:
    return if_true if condition else if_false


def _where(condition: Any, if_true: Number, if_false: Number) -> Number:
    """Choose, element by element where there are arrays."""
    if isinstance(condition, np.ndarray):
        chosen: Number = np.where(condition, if_true, if_false)
        return chosen
    return _choose(condition, if_true, if_false)
