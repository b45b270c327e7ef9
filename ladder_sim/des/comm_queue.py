"""The communication stream of a GPU: collectives that are issued and not over, and the kernels next to them.

Each kernel that an open collective overlaps slows both for as long as they run together; a collective without free SMs
starts at the end of a wave. One queue follows a single configuration, kernel by kernel, the other thousands at once, by
numpy operations over all of them. Both give the same times.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, cast

from ladder_sim.des.program import Cost
from ladder_sim.des.shared import Demand, Device, Number, any_true, maximum, minimum, where
from ladder_sim.des.timeline import TaskTimes

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

        # of the first; until its start is decided, it may have to wait for SMs then
        self._index = -1
        self._demand: Any = None
        self._ready_s = self._start_s = self._left_s = self._spent_s = 0.0
        self._decided = False

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
            if not self._decided:
                if begin_s >= now_s + left_s:
                    break
                if begin_s > start_s and self._device.must_drain(self._demand, demand):
                    left_then_s = left_s - max(0.0, begin_s - now_s)
                    begin_s += float(self._device.left_in_wave(demand, left_then_s, duration_s))
                    self._start_s = begin_s
                self._decided = True
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
            self._decided = True
            begin_s = self._start_s if self._start_s > from_s else from_s
            if to_s - begin_s < self._left_s - self._spent_s:
                self._left_s -= to_s - begin_s
                return
            self._close(begin_s + min(to_s - begin_s, self._left_s))

    def _begin(self, index: int, cost: Cost, own_ready_s: float) -> None:
        duration_s, lead_s, demand = cast(tuple[float, float, Demand], cost[:3])
        self._index, self._decided = index, False
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
    """Infinite until decided."""
    decided: bool = False
    """The start is known in every configuration."""
    end_s: Number = inf
    """Infinite until done."""

    def earliest_s(self, before_s: Number) -> Number:
        """When it can start, given the end of the collective before it."""
        return maximum(self.own_ready_s, before_s) + self.cost.lead_s


class VectorQueue:
    """The same of many configurations, in each of which another collective may be running."""

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
            if not collective.decided:
                self._decide_start(collective, kernel, before_s, (start_s, now_s, left_s))
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
            if not collective.decided:
                self._start(collective, collective.start_s == inf, collective.earliest_s(self._closed_s))
            alone_s = maximum(collective.start_s, front_s) + collective.left_s
            collective.end_s = where(collective.end_s == inf, alone_s, collective.end_s)
            self._close()

    def _run_alone(self, from_s: Number, to_s: Number) -> None:
        if not any_true(to_s > from_s):
            return
        before_s = self._closed_s
        for collective in self.open.values():
            if not collective.decided:
                earliest_s = collective.earliest_s(before_s)
                self._start(collective, (collective.start_s == inf) & (earliest_s < to_s), earliest_s)
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

    def _decide_start(
        self, collective: _OpenCollective, kernel: Cost, before_s: Number, kernel_times: tuple[Number, Number, Number]
    ) -> None:
        """Start `collective` if it is due while the kernel runs; without free SMs it starts at the end of a wave."""
        start_s, now_s, left_s = kernel_times
        earliest_s = collective.earliest_s(before_s)
        due = (collective.start_s == inf) & (earliest_s < now_s + left_s)
        if not any_true(due):
            return
        drains = self._device.must_drain(collective.cost.demand, kernel.demand)
        if any_true(drains):
            left_then_s = maximum(0.0, left_s - maximum(0.0, earliest_s - now_s))
            wait_s = self._device.left_in_wave(kernel.demand, left_then_s, kernel.duration_s)
            earliest_s = earliest_s + where(drains & due & (earliest_s > start_s), wait_s, 0.0)
        self._start(collective, due, earliest_s)

    def _start(self, collective: _OpenCollective, due: Any, start_s: Number) -> None:
        collective.start_s = where(due, start_s, collective.start_s)
        collective.decided = not any_true(collective.start_s == inf)

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
