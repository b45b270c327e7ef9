"""Requests kept in flight, served step by step: each of C clients sends its next request when its last one is answered.

The engine's scheduler decides on each step, as in `ladder_sim.serving`. Steps in which nobody comes or ends are taken
together, so that a load costs as much as it has requests, whatever the length of its answers.
"""

import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np

from ladder_sim.des.shared import Number
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import ROUNDS, SPREAD

# rounds of requests that are simulated; those after the second stand for all that follow: by then clients have met
_SIMULATED = 3
_SETTLING = 2
# requests that are simulated at least, of few clients
_LEAST = 200
# over how long the power limit and the heat of a GPU average, seconds: the same servings err by 5.6 % in TPOT with 1,
# by 5.4 % with 10, and by 0.1 points less with 30
POWER_S = 10.0
# fractional parts of their multiples are spread evenly over a square (M. Roberts, "The Unreasonable Effectiveness of
# Quasirandom Sequences", 2018)
_EVEN = (0.7548776662466927, 0.5698402909980532)
# multiples left out at the beginning: next to 0 lengths of a few clients grow with their number
_SKIPPED = 1000


class FrontEnd(NamedTuple):
    """What a server adds to a first token outside of the engine; seconds."""

    seconds: Number = 0.0
    """Time of every request."""
    steps: Number = 0.0
    """Further time, in times per further token."""
    prompt_s: Number = 0.0
    """Further time for a prompt of the mean length, in proportion to a prompt's length."""

    def outside_s(self, tpot_s: Number, length: float = 1.0) -> Number:
        """Return the time of a request outside of the engine, whose prompt is `length` times as long as the mean."""
        return self.seconds + self.steps * tpot_s + self.prompt_s * length


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How an engine schedules."""

    step_tokens: int
    """Most tokens of one step."""
    mixed_steps: bool
    """Prompts share a step with requests that decode; else they go first, in steps of their own."""
    ahead: bool
    """The next step is scheduled while one runs."""
    chunked_prompts: bool = True
    """A prompt that does not fit what is left of a step is split; else it waits, unless no step holds it whole."""
    poll_steps: int = 1
    """Decode steps from one look for new requests to the next; a step with prompts is followed by one at once."""

    @classmethod
    def of(cls, scenario: Scenario, step_tokens: int) -> Self:
        """Return how a scenario's stack schedules, with steps of so many tokens."""
        stack = scenario.stack
        return cls(
            step_tokens=step_tokens,
            mixed_steps=stack.mixed_steps,
            chunked_prompts=stack.chunked_prompts,
            ahead=scenario.schedules_ahead,
            poll_steps=stack.poll_steps,
        )


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

    @classmethod
    def between(
        cls,
        decode_s: Mapping[float, float],
        added_s: Mapping[float, float],
        *,
        most: int,
        mixed: bool,
        cold: float = 1.0,
    ) -> Self:
        """Return the times of steps up to `most` requests, interpolated between simulated steps.

        Decoding is interpolated by the number of requests, prompts by their tokens.

        Parameters
        ----------
        decode_s, added_s
            Seconds; the latter of whole steps where prompts go first, which are not `mixed`.
        """
        numbers, seconds = zip(*sorted(decode_s.items()), strict=True)
        tokens, more_s = zip(*sorted(added_s.items()), strict=True)
        between_s = np.interp(np.arange(most + 1), numbers, seconds).tolist()
        # a longer chunk never takes less
        longer_s = list(accumulate(more_s, max))
        return cls(decode_s=between_s if mixed else [0.0, *between_s[1:]], tokens=tokens, added_s=longer_s, cold=cold)

    def prompts_s(self, tokens: int, duty: float) -> float:
        """Return the seconds that prompt tokens add to a step, while prompts take a share `duty` of the time."""
        nodes, seconds = self.tokens, self.added_s
        number = bisect_left(nodes, tokens)
        if number == 0:
            busy_s = seconds[0]
        elif number == len(nodes):
            # beyond the largest that was simulated
            busy_s = seconds[-1] * tokens / nodes[-1]
        else:
            low, high = nodes[number - 1], nodes[number]
            busy_s = seconds[number - 1] + (tokens - low) / (high - low) * (seconds[number] - seconds[number - 1])
        return busy_s * (self.cold + (1.0 - self.cold) * duty)


class _Sums(NamedTuple):
    """What requests and steps so far add up to; seconds."""

    now_s: float
    """Time that has passed."""
    busy_steps: float
    """Steps."""
    prompt_steps: float
    """Those that hold a prompt."""
    prompts_s: float
    """What prompts added to steps."""
    prompt_tokens: float
    """Tokens of prompts that have run."""
    tokens: float
    """Tokens that steps decoded."""
    tokens_s: float
    """Times of these steps for each of the tokens, without prompts."""
    ended: float = 0.0
    """Requests that are answered; the rest is theirs."""
    steps: float = 0.0
    """Further tokens."""
    further_s: float = 0.0
    """From first tokens to last ones."""
    waited_s: float = 0.0
    """From arrivals to first tokens."""
    ran_s: float = 0.0
    """From admissions to last tokens."""

    @classmethod
    def weighted(cls, first: Self, simulated: Self, *, requests: float) -> Self:
        """Return the sums over so many requests: the first ones once, and the others as often as that takes."""
        weight = (requests - first.ended) / (simulated.ended - first.ended)
        return cls(*(once + weight * (both - once) for once, both in zip(first, simulated, strict=True)))

    def served(self, *, concurrency: int, prompt: int, steps: int, front_end: FrontEnd, ttft_p50_s: float) -> Served:
        """Return the means."""
        tpot_s, engine_s = self.further_s / self.steps, self.waited_s / self.ended
        front_end_s = float(front_end.outside_s(tpot_s))
        in_engine = concurrency * (engine_s + steps * tpot_s) / (engine_s + steps * tpot_s + front_end_s)
        return Served(
            ttft_s=engine_s + front_end_s,
            ttft_p50_s=ttft_p50_s,
            prompt_s=self.prompts_s / (self.prompt_tokens / prompt),
            duty=self.prompts_s / self.now_s,
            running=min(self.ran_s / self.now_s, concurrency),
            tpot_s=tpot_s,
            decoding=min(self.further_s / self.now_s, concurrency),
            decode_s=min(self.tokens_s / self.tokens, tpot_s),
            cycle_steps=self.busy_steps * in_engine / self.ended,
            prompt_steps=self.prompt_steps / self.busy_steps,
            in_engine=in_engine,
            front_end_s=front_end_s,
        )


@lru_cache(maxsize=64)
def _lengths(prompt: int, answer: int, spread: float, count: int) -> tuple[list[int], list[int]]:
    """Return the prompts' tokens and the further tokens of requests in the order in which they are sent."""
    multiples = _SKIPPED + np.arange(count)
    prompts, answers = (
        np.rint(mean * (1.0 + spread * (2.0 * (multiples * each % 1.0) - 1.0))).astype(int)
        for mean, each in zip((prompt, answer), _EVEN, strict=True)
    )
    return np.maximum(prompts, 1).tolist(), np.maximum(answers - 1, 1).tolist()


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
) -> Served:
    """Simulate clients that send their first requests together, and each further one after an answer.

    Parameters
    ----------
    times
        Times of steps.
    scheduling
        How the engine schedules.
    concurrency
        Requests in flight.
    prompt
        Mean tokens of prompts.
    steps
        Mean number of steps that decode a request: its tokens less one. Above 0.
    slots
        Requests that can run at the same time. At least 1.
    spread
        Spread of the lengths of prompts and answers around their mean, either way. Of one length, requests that begin
        together stay together.
    rounds
        Requests of each client. At least 2.
    front_end
        Front end of the server.

    Examples
    --------
    >>> scheduling = Scheduling(step_tokens=8192, mixed_steps=True, ahead=True)
    >>> times = Steps(decode_s=[0.01] * 9, tokens=[16, 8192], added_s=[1e-3, 0.1])
    >>> served = simulate(times, scheduling, concurrency=8, prompt=8192, steps=1, slots=100.0)
    >>> round(served.tpot_s, 3), round(served.ttft_s, 2)
    (0.11, 0.73)
    """
    total = max(_SIMULATED * concurrency, _LEAST)
    # more requests than those that end may be there, and as many end in the last step
    prompts, answers = _lengths(prompt, steps + 1, spread, total + 2 * concurrency)
    left = list(prompts)
    # times at which requests were sent, began to run and had their first token
    sent_s, admitted_s, first_s = ([0.0] * len(left) for _ in range(3))
    # those that will arrive, and when; those that decode, by the step that decodes their last token
    coming: list[tuple[float, int]] = [(0.0, number) for number in range(concurrency)]
    ending: list[tuple[int, int]] = []
    waiting: deque[int] = deque()
    sent = concurrency
    running = decoding = tick = ended = busy_steps = prompt_steps = tokens = prompt_tokens = ended_steps = 0
    prompts_s = tokens_s = now_s = scheduled_s = duty = waited_s = further_s = ran_s = 0.0
    mixed, chunked, ahead = scheduling.mixed_steps, scheduling.chunked_prompts, scheduling.ahead
    poll, decode_s = scheduling.poll_steps, times.decode_s
    # steps since the engine looked for new requests
    unpolled = 0
    sums, first_tokens_s = [], []
    for end in (_SETTLING * concurrency, total):
        ttfts_s: list[float] = []
        first_tokens_s.append(ttfts_s)
        while ended < end:
            while unpolled == 0 and coming and coming[0][0] <= scheduled_s:
                waiting.append(heapq.heappop(coming)[1])
            # what the step holds
            room = scheduling.step_tokens - (decoding if mixed else 0)
            held, first = 0, []
            while waiting and room > 0:
                number = waiting[0]
                if held and not chunked and left[number] > room:
                    break
                if left[number] == prompts[number]:
                    if running and running + 1 > slots:
                        break
                    running += 1
                    admitted_s[number] = now_s
                part = min(left[number], room)
                left[number] -= part
                room -= part
                held += part
                if left[number] == 0:
                    first.append(waiting.popleft())
            decodes = decoding if mixed or not held else 0
            if not held and not decodes:
                now_s = scheduled_s = max(now_s, coming[0][0])
                unpolled = 0
                continue
            alone_s, count = decode_s[decodes], 1
            if held:
                added_s = times.prompts_s(held, duty)
                step_s = alone_s + added_s
                share = added_s / step_s if decodes else 1.0
                prompts_s += added_s
                prompt_tokens += held
                prompt_steps += 1
                unpolled = 0
            else:
                # as many like it until one ends, or comes
                step_s, share = alone_s, 0.0
                count = ending[0][0] - tick
                if coming and not waiting:
                    arrives = max(1, math.ceil((coming[0][0] - now_s) / step_s) + ahead)
                    count = min(count, arrives + -(unpolled + arrives) % poll)
                unpolled = (unpolled + count) % poll
            kept = math.exp(-count * step_s / POWER_S)
            duty = kept * duty + (1.0 - kept) * share
            begin_s, now_s = now_s + (count - 1) * step_s, now_s + count * step_s
            # the next one holds what has come by then
            scheduled_s = begin_s if ahead else now_s
            busy_steps += count
            last: list[int] = []
            if decodes:
                tokens += count * decodes
                tokens_s += count * decodes * alone_s
                tick += count
                while ending and ending[0][0] <= tick:
                    last.append(heapq.heappop(ending)[1])
                decoding -= len(last)
            for number in first:
                first_s[number] = now_s
                heapq.heappush(ending, (tick + answers[number], number))
                decoding += 1
            for number in last:
                own_s = now_s - first_s[number]
                further_s += own_s
                waited_s += first_s[number] - sent_s[number]
                ran_s += now_s - admitted_s[number]
                ended_steps += answers[number]
                running -= 1
                ended += 1
                # all its tokens come later by what it was in the front end
                outside_s = float(front_end.outside_s(own_s / answers[number], prompts[number] / prompt))
                ttfts_s.append(first_s[number] - sent_s[number] + outside_s)
                sent_s[sent] = now_s + outside_s
                heapq.heappush(coming, (sent_s[sent], sent))
                sent += 1
        engine = _Sums(now_s, busy_steps, prompt_steps, prompts_s, prompt_tokens, tokens, tokens_s)
        sums.append(
            engine._replace(ended=ended, steps=ended_steps, further_s=further_s, waited_s=waited_s, ran_s=ran_s)
        )
    requests = max(rounds * concurrency, sums[0].ended)
    every = _Sums.weighted(*sums, requests=requests)
    share = (requests - sums[0].ended) / len(first_tokens_s[1])
    median_s = _weighted_median(*first_tokens_s, share=share)
    return every.served(concurrency=concurrency, prompt=prompt, steps=steps, front_end=front_end, ttft_p50_s=median_s)


def _weighted_median(once: Sequence[float], others: Sequence[float], *, share: float) -> float:
    """Return the median of values that count once, and of others of which each counts as `share` values."""
    values = np.array([*once, *others])
    weights = np.repeat([1.0, share], [len(once), len(others)])
    order = np.argsort(values)
    return float(np.interp(0.5 * weights.sum(), np.cumsum(weights[order]) - 0.5 * weights[order], values[order]))
