"""Requests kept in flight, served step by step: what their steps take.

Which requests share a step is a `schedule`, made with lengths of standard's steps on links as the catalogue has them.
Other figures of a link change what steps take and move no request to another one, so that a faster link lengthens no
request. Only the front end, of so many seconds, then lasts for more steps: times are linear between schedules in which
requests leave it in the middle of a step. How much of a request comes before its first token does depend on links: the
longer prompts take next to decode, the more requests come while one runs, and share the next step. This is taken from a
schedule with lengths of its own, unless with these all requests come in as many steps.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.schedule import Clients, ClientTimes, Lengths, Schedule, Scheduling, schedule
from ladder_sim.des.shared import Number, minimum
from ladder_sim.specs.workload import ROUNDS, SPREAD

# over how long the power limit and the heat of a GPU average, seconds: the same servings err by 5.6 % in TPOT with 1,
# by 5.4 % with 10, and by 0.1 points less with 30
POWER_S = 10.0
# decode steps that a front end is simulated with: hardly any, and in the middle of one. Times are linear between them,
# and a longer front end, next to which those in the engine are lost in rounding, only adds its own time
_DELAYS = (1e-6, 0.5, 1.5, 2.5, 3.5, *((steps << power) - 0.5 for power in range(30) for steps in (5, 6, 7, 8)))
# of a step: requests that are in the front end for as many steps, but for this, meet alike. TTFT and TPOT of 168 random
# answers move by 0.03 % at most with it
_ALIKE = 0.02


class FrontEnd(NamedTuple):
    """What a server adds to a first token outside of the engine; seconds."""

    seconds: Number = 0.0
    """Time of every request."""
    steps: Number = 0.0
    """Further time, in times per further token."""
    prompt_s: Number = 0.0
    """Further time for a prompt of the mean length, in proportion to a prompt's length."""

    @property
    def uneven(self) -> float:
        """Share of the time of every request that grows with its prompt."""
        return float(self.prompt_s / (self.seconds + self.prompt_s)) if self.prompt_s else 0.0

    def outside_s(self, tpot_s: Number) -> Number:
        """Return the time of a request outside of the engine."""
        return self.seconds + self.steps * tpot_s + self.prompt_s


NO_FRONT_END = FrontEnd()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Requests in flight on average: numbers, or arrays of one value per configuration."""

    ttft_s: Number
    """Mean time to first token, waiting and the front end included."""
    ttft_p50_s: Number
    """Median time to first token."""
    prompt_s: Number
    """What one prompt adds to steps."""
    duty: Number
    """Share of the engine's time that prompts take."""
    running: Number
    """Mean number of requests that do not wait."""
    tpot_s: Number = 0.0
    """Mean time per further token."""
    decoding: Number = 0.0
    """Mean number of requests that decode."""
    decode_s: Number = 0.0
    """Mean time of a step that decodes requests and holds no prompt."""
    cycle_steps: Number = 1.0
    """Steps from a request to the next of the same client."""
    prompt_steps: Number = 1.0
    """Share of the steps that hold a prompt."""
    in_engine: Number = 1.0
    """Mean number of requests that are not in the front end."""
    front_end_s: Number = 0.0
    """Time of a request outside of the engine, before its first token."""

    def lasting(self, other: "Served", steps: float) -> "Served":
        """Return the requests with the times in the engine all longer or shorter, so that they take as long as others.

        The `other` ones are of the same load; `steps` that decode serve a request on average.
        """
        own_s, other_s = (each.ttft_s - each.front_end_s + steps * each.tpot_s for each in (self, other))
        scale, outside_s = other_s / own_s, other.front_end_s
        tpot_s = scale * self.tpot_s
        return replace(
            self,
            ttft_s=outside_s + scale * (self.ttft_s - self.front_end_s),
            ttft_p50_s=outside_s + scale * (self.ttft_p50_s - self.front_end_s),
            tpot_s=tpot_s,
            decode_s=minimum(self.decode_s, tpot_s),
            front_end_s=outside_s,
        )

    def behind(self, fewer: "Served", times: float) -> "Served":
        """Return the requests of more clients behind a queue that never empties: they only wait longer.

        Waits grow in proportion, as from `fewer` clients, whose queue never empties either, to these: `times` is how
        many clients are added for each client that these have more than `fewer`.
        """
        waits = ("ttft_s", "ttft_p50_s", "in_engine", "cycle_steps")
        now, before = ([getattr(each, name) for name in waits] for each in (self, fewer))
        longer = {name: one + times * (one - other) for name, one, other in zip(waits, now, before, strict=True)}
        return replace(self, **longer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How long steps take: linear between those that were simulated."""

    decode_s: Sequence[float]
    """A step without prompts, by the number of requests that decode; of none, what one of prompts has besides them."""
    tokens: Sequence[float]
    """Tokens of prompts in a step, increasing."""
    added_s: Sequence[float]
    """What so many add to a step, while prompts take all of the time."""
    cold: float = 1.0
    """Share of this that they add while prompts take hardly any of the time: the power limit has not set in."""
    least_s: float = 0.0
    """What a step with prompts takes at least, for its launches by the CPU."""

    @property
    def lengths(self) -> Lengths:
        """Lengths of these steps."""
        requests = tuple(range(len(self.decode_s)))
        return Lengths(requests, tuple(self.decode_s), tuple(self.tokens), tuple(self.added_s), self.least_s)

    @classmethod
    def between(
        cls,
        decode_s: Mapping[float, float],
        added_s: Mapping[float, float],
        *,
        most: int,
        mixed: bool,
        **more: float,
    ) -> Self:
        """Return the times of steps up to `most` requests, interpolated between simulated steps.

        Decoding is interpolated by the number of requests, prompts by their tokens. What prompts add is of whole steps
        where they go first, which are not `mixed`.
        """
        numbers, seconds = zip(*sorted(decode_s.items()), strict=True)
        tokens, more_s = zip(*sorted(added_s.items()), strict=True)
        between_s = np.interp(np.arange(most + 1), numbers, seconds).tolist()
        # a longer chunk never takes less
        longer_s = list(accumulate(more_s, max))
        return cls(decode_s=between_s if mixed else [0.0, *between_s[1:]], tokens=tokens, added_s=longer_s, **more)

    def added(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds that so many tokens of prompts add to a step, while prompts take all of the time."""
        return np.maximum(tokens / self.tokens[-1], 1.0) * np.interp(tokens, self.tokens, self.added_s)


class _Priced(NamedTuple):
    """A schedule whose steps take so long; seconds."""

    plan: Schedule
    """The schedule."""
    runs_s: NDArray[np.float64]
    """What each run takes."""
    times_s: ClientTimes
    """Times of all requests together."""
    prompts_s: float
    """What prompts added to steps."""
    tokens_s: float
    """Times of the steps that decode for each of the tokens, without prompts."""
    delay: float
    """Decode steps that requests are in the front end for."""

    @classmethod
    def of(cls, plan: Schedule, times: Steps, delay: float) -> Self:
        """Return what the steps of a schedule take."""
        alone_s, prompts = np.asarray(times.decode_s)[plan.decodes], plan.prompts
        added_s = times.added(plan.held)
        if times.cold < 1.0:
            added_s *= times.cold + (1.0 - times.cold) * _duties(alone_s, added_s, times.cold, plan)
        runs_s = plan.counts * alone_s
        added_s = np.maximum(added_s, times.least_s - runs_s[prompts])
        runs_s[prompts] += added_s
        tokens_s = float((plan.steps * plan.decodes) @ alone_s)
        times_s, prompts_s = ClientTimes(*(plan.times @ runs_s).tolist()), float(plan.steps[prompts] @ added_s)
        return cls(plan, runs_s, times_s, prompts_s, tokens_s, delay)

    def front_end_s(self, front_end: FrontEnd) -> float:
        """Return the time of a request in the front end."""
        return float(front_end.outside_s(self.times_s.further / self.plan.tokens))

    def late_s(self, front_end: FrontEnd) -> float:
        """Return by how much requests leave the front end later than they should."""
        return float(self.times_s.outside / (self.plan.requests - self.plan.begun)) - self.front_end_s(front_end)

    def waits_s(self, front_end_s: float, late_s: float) -> NDArray[np.float64]:
        """Return the time to first token of each request, without a time by which all are late."""
        passed_s = np.concatenate([[0.0], np.cumsum(self.runs_s)])
        # first requests were sent at the beginning, but for their front end
        waits_s: NDArray[np.float64] = passed_s[self.plan.first] - passed_s[self.plan.sent]
        waits_s += np.where(self.plan.begins, front_end_s, -late_s)
        return waits_s


def _duties(
    alone_s: NDArray[np.float64], added_s: NDArray[np.float64], cold: float, plan: Schedule
) -> NDArray[np.float64]:
    """Return the share of the time that prompts took before each run that holds any."""
    prompts = plan.prompts
    # it stays as it is where the engine waits
    quiet_s = np.where(plan.steps > 0.0, plan.counts * alone_s, 0.0)
    quiet_s[prompts] = 0.0
    before_s = np.cumsum(quiet_s)[prompts]
    before_s[1:] -= before_s[:-1].copy()
    faded = np.exp(-before_s / POWER_S)
    duty, duties = 0.0, []
    columns = (faded, alone_s[prompts], cold * added_s, (1.0 - cold) * added_s, plan.decodes[prompts])
    for left, step_s, cold_s, hot_s, decodes in zip(*(column.tolist() for column in columns), strict=True):
        duty *= left
        duties.append(duty)
        part_s = cold_s + hot_s * duty
        whole_s = step_s + part_s
        kept = math.exp(-whole_s / POWER_S)
        duty = kept * duty + (1.0 - kept) * (part_s / whole_s if decodes else 1.0)
    return np.array(duties)


def simulate(
    times: Steps,
    scheduling: Scheduling,
    *,
    concurrency: int,
    prompt: int,
    steps: int,
    slots: float,
    spread: float = SPREAD,
    rounds: float = ROUNDS,
    front_end: FrontEnd = NO_FRONT_END,
    lengths: Lengths | None = None,
    own: Lengths | None = None,
) -> Served:
    """Simulate clients that send their first requests together, and each further one after an answer.

    Prompts have a mean length, and `steps`, above 0, decode a request on average: its tokens less one. Lengths vary by
    their `spread` around the mean, either way; of one length, requests that begin together stay together. Of the
    requests in flight 1 to `slots` can run at a time; each client sends `rounds` of them, at least 2. Requests are
    scheduled by `lengths` of steps, by default those of `times`; before and after its first token one takes as much of
    its time as scheduled by lengths of its `own`, if given.

    Examples
    --------
    >>> scheduling = Scheduling(step_tokens=8192, mixed_steps=True, ahead=True)
    >>> times = Steps(decode_s=[0.01] * 9, tokens=[16, 8192], added_s=[1e-3, 0.1])
    >>> served = simulate(times, scheduling, concurrency=8, prompt=8192, steps=1, slots=100.0)
    >>> round(served.tpot_s, 3), round(served.ttft_s, 2)
    (0.11, 0.73)
    """
    clients = Clients(concurrency, prompt, steps, int(min(slots, concurrency)), spread, rounds, front_end.uneven)
    lengths = lengths or times.lengths
    parts = _parts(times, scheduling, clients, front_end, lengths)
    served = _served(parts, clients, front_end)
    if own is None:
        return served
    outside = clients.longest * parts[-1][1].delay
    usual_steps, own_steps = (each.within(parts[-1][1].plan, outside * each.decode[-1]) for each in (lengths, own))
    if np.abs(own_steps - usual_steps).max() <= _ALIKE or (len(parts) == 1 and own_steps.max() <= 1.0):
        return served
    return _served(_parts(times, scheduling, clients, front_end, own), clients, front_end).lasting(served, steps)


def _parts(
    times: Steps, scheduling: Scheduling, clients: Clients, front_end: FrontEnd, lengths: Lengths
) -> list[tuple[float, _Priced]]:
    """Return the schedules between which requests leave the front end in time, each with its share."""

    def priced(steps: float) -> _Priced:
        return _Priced.of(schedule(scheduling, clients, lengths, steps * lengths.decode[-1]), times, steps)

    if front_end == NO_FRONT_END:
        return [(1.0, priced(0.0))]
    last = len(_DELAYS) - 1
    number = bisect_left(_DELAYS, (front_end.seconds + front_end.prompt_s) / times.decode_s[-1], 1, last)
    low = high = priced(_DELAYS[number])
    while low.late_s(front_end) > 0.0 and number:
        longest = clients.longest * _DELAYS[number] * lengths.decode[-1]
        if low.plan.steps.all() and lengths.within(low.plan, longest).max() <= 1.0:
            # all requests come within a step, as after any shorter delay
            return [(1.0, low)]
        number -= 1
        low, high = priced(_DELAYS[number]), low
    while high.late_s(front_end) <= 0.0:
        if number == last:
            return [(1.0, high)]
        number += 1
        low, high = high, priced(_DELAYS[number])
    before_s, after_s = low.late_s(front_end), high.late_s(front_end)
    share = min(max(before_s / (before_s - after_s), 0.0), 1.0)
    return [(1.0 - share, low), (share, high)]


def _served(parts: Sequence[tuple[float, _Priced]], clients: Clients, front_end: FrontEnd) -> Served:
    """Return the means over schedules, each with its share."""

    def mean(of: Callable[[_Priced], Any]) -> float:
        return sum(share * float(of(each)) for share, each in parts)

    requests, now_s = parts[0][1].plan.requests, mean(lambda each: each.times_s.now)
    most = max(clients.slots, 1)
    further_s = mean(lambda each: each.times_s.further)
    tpot_s = further_s / mean(lambda each: each.plan.tokens)
    front_end_s = float(front_end.outside_s(tpot_s))
    # one schedule stands for any shorter front end, with which requests come as late, or for any longer one
    low, high = parts[0][1], parts[-1][1]
    longer = len(parts) > 1 or high.delay == _DELAYS[-1]
    outside_s = mean(lambda each: each.times_s.outside) if longer else (requests - low.plan.begun) * front_end_s
    prompt_s = (mean(lambda each: each.times_s.waited) - outside_s) / requests
    # a request joins a step as a whole, earlier or later, but no further apart
    late = 1.0 - 1.0 / max(high.delay - low.delay, 1.0) if len(parts) > 1 else float(longer)
    waits_s = np.concatenate([each.waits_s(front_end_s, late * each.late_s(front_end)) for _, each in parts])
    weights = np.concatenate([share * each.plan.weights for share, each in parts])
    engine_s = prompt_s + clients.steps * tpot_s
    in_engine = clients.concurrency * engine_s / (engine_s + front_end_s)
    steps = mean(lambda each: each.plan.all_steps)
    prompts_s = mean(lambda each: each.prompts_s)
    alone_s = mean(lambda each: each.tokens_s) / mean(lambda each: each.plan.step_tokens)
    return Served(
        ttft_s=front_end_s + prompt_s,
        ttft_p50_s=_weighted_median(waits_s, weights),
        prompt_s=prompts_s / (mean(lambda each: each.plan.prompt_tokens) / clients.prompt),
        duty=prompts_s / now_s,
        # where a schedule settles, requests that stand for more run next to those that do not: 0.4 % too many
        running=min(mean(lambda each: each.times_s.ran) / now_s, most),
        tpot_s=tpot_s,
        decoding=min(further_s / now_s, most),
        decode_s=min(alone_s, tpot_s),
        cycle_steps=steps * in_engine / requests,
        prompt_steps=min(mean(lambda each: each.plan.prompt_steps) / steps, 1.0),
        in_engine=in_engine,
        front_end_s=front_end_s,
    )


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Return the median of values that count as often as their weights say."""
    order = np.argsort(values)
    return float(np.interp(0.5 * weights.sum(), np.cumsum(weights[order]) - 0.5 * weights[order], values[order]))
