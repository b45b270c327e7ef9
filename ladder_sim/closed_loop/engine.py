"""Requests kept in flight, step by step: what the closed form of `cycle` cannot say of short answers.

When a request stays for a few steps only, it matters which prompt shares which step. So the engine's scheduler decides
here on each step, as in `ladder_sim.serving`. Steps in which nobody comes or ends are taken together, so that a load
costs as much as it has requests, whatever the length of its answers.
"""

import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np

from ladder_sim.closed_loop.cycle import NO_FRONT_END, ROUNDS, FrontEnd, Served
from ladder_sim.specs.scenario import Scenario

# requests at least, of few clients
_LEAST = 200
# of lengths around their mean, either way, as measured servings have it where nothing else is known: judgement
SPREAD = 0.2
# over how long the power limit of a GPU averages, seconds: judgement; nvidia-smi reports the last second
POWER_S = 1.0
# fractional parts of their multiples are spread evenly over a square (M. Roberts, "The Unreasonable Effectiveness of
# Quasirandom Sequences", 2018)
_EVEN = (0.7548776662466927, 0.5698402909980532)
# multiples left out at the beginning: next to 0 lengths of a few clients grow with their number
_SKIPPED = 1000


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    prompt: int
    steps: int
    """Number of steps that decode the request."""
    arrival_s: float
    left: int = 0
    """Tokens of its prompt that have not run."""
    admitted_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How an engine schedules."""

    step_tokens: int
    """Most tokens of one step."""
    mixed_steps: bool
    """Prompts share a step with requests that decode; else they go first, in steps of their own."""
    ahead: bool
    """The next step is scheduled while one runs."""

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Return how a scenario's stack schedules."""
        stack = scenario.stack
        return cls(step_tokens=scenario.step_tokens, mixed_steps=stack.mixed_steps, ahead=stack.schedules_ahead)


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


def simulate(
    times: Steps,
    scheduling: Scheduling,
    *,
    concurrency: int,
    prompt: int,
    steps: int,
    slots: float,
    front_end: FrontEnd = NO_FRONT_END,
) -> Served:
    """Simulate clients that send their first requests together, and each further one after an answer.

    Parameters
    ----------
    times
        Of steps.
    scheduling
        Of the engine.
    concurrency, steps, slots, front_end
        As in `ladder_sim.closed_loop.cycle.steady`.
    prompt
        Mean tokens of prompts. Lengths of prompts and answers are spread by `SPREAD` either way.

    Examples
    --------
    >>> scheduling = Scheduling(step_tokens=8192, mixed_steps=True, ahead=True)
    >>> times = Steps(decode_s=[0.01] * 9, tokens=[16, 8192], added_s=[1e-3, 0.1])
    >>> served = simulate(times, scheduling, concurrency=8, prompt=8192, steps=1, slots=100.0)
    >>> round(served.tpot_s, 3), round(served.ttft_s, 2)
    (0.11, 0.76)
    """
    total = round(max(ROUNDS, _LEAST / concurrency) * concurrency)
    # those that will arrive, and when
    coming: list[tuple[float, int, _Request]] = []
    sent: list[_Request] = []

    def send(at_s: float) -> None:
        number = len(sent)
        prompt_tokens, answer_tokens = (
            round(mean * (1.0 + SPREAD * (2.0 * ((_SKIPPED + number) * each % 1.0) - 1.0)))
            for mean, each in zip((prompt, steps + 1), _EVEN, strict=True)
        )
        request = _Request(prompt=max(1, prompt_tokens), steps=max(1, answer_tokens - 1), arrival_s=at_s)
        request.left = request.prompt
        sent.append(request)
        heapq.heappush(coming, (at_s, number, request))

    for _ in range(concurrency):
        send(0.0)
    # requests that decode, by the step that decodes their last token
    ending: list[tuple[int, int, _Request]] = []
    waiting: deque[_Request] = deque()
    running = decoding = tick = ended = busy_steps = begun = 0
    prompts_s = tokens_s = tokens = now_s = scheduled_s = duty = 0.0
    mixed, ahead, decode_s = scheduling.mixed_steps, scheduling.ahead, times.decode_s
    while ended < total:
        while coming and coming[0][0] <= scheduled_s:
            waiting.append(heapq.heappop(coming)[2])
        # what the step holds
        room = scheduling.step_tokens - (decoding if mixed else 0)
        held, first = 0, []
        while waiting and room > 0:
            request = waiting[0]
            if request.left == request.prompt:
                if running and running + 1 > slots:
                    break
                running += 1
                request.admitted_s = now_s
            part = min(request.left, room)
            request.left -= part
            room -= part
            held += part
            if request.left == 0:
                first.append(waiting.popleft())
        decodes = decoding if mixed or not held else 0
        if not held and not decodes:
            now_s = scheduled_s = max(now_s, coming[0][0])
            continue
        alone_s, count = decode_s[decodes], 1
        if held:
            added_s = times.prompts_s(held, duty)
            step_s = alone_s + added_s
            share = added_s / step_s if decodes else 1.0
            prompts_s += added_s
        else:
            # as many like it until one ends, or comes
            step_s, share = alone_s, 0.0
            count = ending[0][0] - tick
            if coming and not waiting:
                count = max(1, min(count, math.ceil((coming[0][0] - now_s) / step_s) + ahead))
        kept = math.exp(-count * step_s / POWER_S)
        duty = kept * duty + (1.0 - kept) * share
        begin_s, now_s = now_s + (count - 1) * step_s, now_s + count * step_s
        # the next one holds what has come by then
        scheduled_s = begin_s if ahead else now_s
        busy_steps += count
        tokens += count * decodes
        tokens_s += count * decodes * alone_s
        last: list[_Request] = []
        if decodes:
            tick += count
            while ending and ending[0][0] <= tick:
                last.append(heapq.heappop(ending)[2])
            decoding -= len(last)
        for request in first:
            request.first_s = now_s
            heapq.heappush(ending, (tick + request.steps, begun, request))
            begun += 1
            decoding += 1
        for request in last:
            request.last_s = now_s
            running -= 1
            ended += 1
            # all its tokens come later by what it was in the front end
            send(now_s + float(front_end.outside_s(request.tpot_s, request.prompt / prompt)))
    done = [request for request in sent if request.last_s]
    further_s = sum(request.last_s - request.first_s for request in done) / sum(request.steps for request in done)
    first_s = sum(request.first_s - request.arrival_s for request in done) / len(done)
    outside_s = float(front_end.outside_s(further_s))
    engine_s = first_s + steps * further_s
    in_engine = concurrency * engine_s / (engine_s + outside_s)
    return Served(
        ttft_s=first_s + outside_s,
        prompt_s=prompts_s / (sum(request.prompt - request.left for request in sent) / prompt),
        duty=prompts_s / now_s,
        running=min(sum(request.last_s - request.admitted_s for request in done) / now_s, concurrency),
        tpot_s=further_s,
        decoding=min(sum(request.last_s - request.first_s for request in done) / now_s, concurrency),
        decode_s=min(tokens_s / tokens, further_s),
        cycle_steps=busy_steps * in_engine / ended,
        in_engine=in_engine,
        front_end_s=outside_s,
    )
