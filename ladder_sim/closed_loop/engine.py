"""Requests kept in flight, step by step: what the closed form of `cycle` cannot say of short answers.

When a request stays for a few steps only, it matters which prompt shares which step. So the engine's scheduler decides
here on each step, as in `ladder_sim.serve`, with times that are linear in what a step holds.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ladder_sim.closed_loop.cycle import NO_FRONT_END, ROUNDS, FrontEnd, Served
from ladder_sim.specs.scenario import Scenario

# requests at least, of few clients
_LEAST = 200
# of lengths around their mean, either way, as measured servings have it where nothing else is known: judgement
SPREAD = 0.2
# fractional parts of their multiples are spread evenly over a square (M. Roberts, "The Unreasonable Effectiveness of
# Quasirandom Sequences", 2018)
_EVEN = (0.7548776662466927, 0.5698402909980532)


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    prompt: int
    steps: int
    """That decode."""
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
        """How a scenario's stack does."""
        stack = scenario.stack
        return cls(step_tokens=scenario.step_tokens, mixed_steps=stack.mixed_steps, ahead=stack.schedules_ahead)


def simulate(
    decode_s: Sequence[float],
    prompt_s: float,
    scheduling: Scheduling,
    *,
    concurrency: int,
    prompt: int,
    steps: int,
    slots: float,
    front_end: FrontEnd = NO_FRONT_END,
) -> Served:
    """Requests that arrive spread over time, each when another one ends.

    Parameters
    ----------
    decode_s
        A step without prompts, by the number of requests that decode.
    prompt_s
        What one prompt adds to steps.
    scheduling
        Of the engine.
    concurrency, steps, slots, front_end
        As in `ladder_sim.closed_loop.cycle.steady`.
    prompt
        Tokens of each prompt.

    Examples
    --------
    >>> scheduling = Scheduling(step_tokens=8192, mixed_steps=True, ahead=True)
    >>> sizes = {"concurrency": 8, "prompt": 8192, "steps": 1, "slots": 100.0}
    >>> served = simulate([0.01] * 9, 0.1, scheduling, **sizes)
    >>> round(served.tpot_s, 3), round(served.ttft_s, 2)
    (0.11, 0.76)
    """
    rounds = max(ROUNDS, _LEAST / concurrency)
    total = round(rounds * concurrency)

    # those that will arrive, and when
    coming: list[tuple[float, int, _Request]] = []
    sent: list[_Request] = []

    def send(now_s: float) -> None:
        number = len(sent)
        spread = [1.0 + SPREAD * (2.0 * (number * each % 1.0) - 1.0) for each in _EVEN]
        answer = spread[1] * steps
        if number < concurrency:
            # they end spread over time
            answer *= (number + 0.5) / concurrency
        request = _Request(prompt=max(1, round(spread[0] * prompt)), steps=max(1, round(answer)), arrival_s=now_s)
        request.left = request.prompt
        sent.append(request)
        heapq.heappush(coming, (now_s, number, request))

    for _ in range(concurrency):
        send(0.0)
    waiting: deque[_Request] = deque()
    ending: defaultdict[int, list[_Request]] = defaultdict(list)
    running = decoding = tick = ended = busy_steps = 0
    prompts_s = tokens_s = tokens = now_s = scheduled_s = 0.0
    while ended < total:
        while coming and coming[0][0] <= scheduled_s:
            waiting.append(heapq.heappop(coming)[2])
        # what the step holds
        room = scheduling.step_tokens - (decoding if scheduling.mixed_steps else 0)
        share, first = 0.0, []
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
            share += part / prompt
            if request.left == 0:
                first.append(waiting.popleft())
        decodes = decoding if scheduling.mixed_steps or not share else 0
        if not share and not decodes:
            now_s = scheduled_s = max(now_s, coming[0][0])
            continue
        step_s = decode_s[decodes] + share * prompt_s
        begin_s, now_s = now_s, now_s + step_s
        # the next one holds what has come by then
        scheduled_s = begin_s if scheduling.ahead else now_s
        busy_steps += 1
        prompts_s += share * prompt_s
        tokens += decodes
        tokens_s += decodes * decode_s[decodes]
        last: list[_Request] = []
        if decodes:
            tick += 1
            last = ending.pop(tick, [])
            decoding -= len(last)
        for request in first:
            request.first_s = now_s
            ending[tick + request.steps].append(request)
            decoding += 1
        for request in last:
            request.last_s = now_s
            running -= 1
            ended += 1
            # all its tokens come later by what it was in the front end
            send(now_s + float(front_end.outside_s(request.tpot_s)))
    done = [request for request in sent if request.last_s]
    # the first ones were short
    whole = [request for request in sent[concurrency:] if request.last_s]
    further_s = sum(request.last_s - request.first_s for request in whole) / sum(request.steps for request in whole)
    first_s = sum(request.first_s - request.arrival_s for request in done) / len(done)
    outside_s = float(front_end.outside_s(further_s))
    engine_s = first_s + steps * further_s
    in_engine = concurrency * engine_s / (engine_s + outside_s)
    return Served(
        ttft_s=first_s + outside_s,
        prompt_s=prompt_s,
        duty=prompts_s / now_s,
        running=min(sum(request.last_s - request.admitted_s for request in done) / now_s, concurrency),
        tpot_s=further_s,
        decoding=min(sum(request.last_s - request.first_s for request in done) / now_s, concurrency),
        decode_s=min(tokens_s / tokens, further_s),
        cycle_steps=busy_steps * in_engine / ended,
        in_engine=in_engine,
        front_end_s=outside_s,
    )
