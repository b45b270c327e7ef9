"""The steps that serve clients: each sends its next request when its last one is answered.

The engine's scheduler decides on each step, as in `ladder_sim.serving`. Steps in which nobody comes or ends are taken
together, so that a load costs as much as it has requests, whatever the length of its answers. Time is counted in
steps: a schedule depends on no time, so that all wirings and links share it.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.specs.scenario import Scenario

# rounds of requests that are simulated; those after the second stand for all that follow: by then clients have met
_SIMULATED = 3
_SETTLING = 2
# requests that are simulated at least, of few clients
_LEAST = 200
# fractional parts of their multiples are spread evenly over a square (M. Roberts, "The Unreasonable Effectiveness of
# Quasirandom Sequences", 2018)
_EVEN = (0.7548776662466927, 0.5698402909980532)
# multiples left out at the beginning: next to 0 lengths of a few clients grow with their number
_SKIPPED = 1000
# of a run, where one takes no time; in the unit of lengths
_SHORTEST = 1e-12


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


class Clients(NamedTuple):
    """Clients, and the requests that they send."""

    concurrency: int
    """Clients, each with one request in flight."""
    prompt: int
    """Mean tokens of prompts."""
    steps: int
    """Mean number of steps that decode a request: its tokens less one."""
    slots: int
    """Requests that can run at the same time."""
    spread: float
    """Spread of the lengths of prompts and answers around their mean, either way."""
    rounds: float
    """Requests of each client."""
    uneven: float = 0.0
    """Share of the time in the front end that grows with the prompt."""

    @property
    def longest(self) -> float:
        """Longest time of a request in the front end over the mean one."""
        return 1.0 + self.uneven * (self.spread + 0.5 / self.prompt)


class Lengths(NamedTuple):
    """How long steps take, in any unit: linear between those that are given."""

    requests: tuple[float, ...]
    """Requests that decode in a step without prompts, increasing; 0: what a step of prompts has besides them."""
    decode: tuple[float, ...]
    """Length of such steps."""
    tokens: tuple[float, ...]
    """Tokens of prompts in a step, increasing."""
    prompts: tuple[float, ...]
    """What so many add to a step."""
    least: float = 0.0
    """Length of a step with prompts at least."""

    def decoding(self, most: int) -> list[float]:
        """Return the lengths of steps without prompts, up to `most` requests."""
        lengths: list[float] = np.interp(np.arange(most + 1), self.requests, self.decode).tolist()
        return lengths

    def added(self, tokens: int) -> float:
        """Return what tokens of prompts add to a step."""
        number = bisect_left(self.tokens, tokens)
        if number == 0:
            return self.prompts[0]
        if number == len(self.tokens):
            # beyond the largest that is given
            return self.prompts[-1] * tokens / self.tokens[-1]
        low, high = self.tokens[number - 1 : number + 1]
        shorter, longer = self.prompts[number - 1 : number + 1]
        return shorter + (tokens - low) / (high - low) * (longer - shorter)

    def within(self, plan: "Schedule", outside: float) -> NDArray[np.float64]:
        """Return for each run of a schedule how many steps like its own pass in so long."""
        lengths = np.interp(plan.decodes, self.requests, self.decode)
        added = np.interp(plan.held, self.tokens, self.prompts) * np.maximum(plan.held / self.tokens[-1], 1.0)
        lengths[plan.prompts] = np.maximum(lengths[plan.prompts] + added, self.least)
        return outside / np.maximum(lengths, _SHORTEST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Runs of equal steps, and the requests that they answer: sums of times are linear in what the runs take."""

    decodes: NDArray[np.int64]
    """Requests that decode in each step of a run; 1 where the engine waits for requests."""
    prompts: NDArray[np.int64]
    """Indices of the runs that hold prompts, each of one step."""
    held: NDArray[np.int64]
    """Tokens of prompts in each run of `prompts`."""
    counts: NDArray[np.float64]
    """Steps of a run."""
    steps: NDArray[np.float64]
    """Steps that a run stands for, 0 where the engine waits: in the first rounds its own, then those of all rounds."""
    times: NDArray[np.float64]
    """What each run adds to the times of `ClientTimes`, in proportion to the time that it takes."""
    requests: float
    """Requests that are answered."""
    begun: float
    """First requests of clients among them."""
    tokens: float
    """Further tokens of all requests."""
    step_tokens: float
    """Requests that decode in all steps together."""
    prompt_tokens: float
    """Tokens of all prompts."""
    all_steps: float
    """Number of steps."""
    prompt_steps: float
    """Number of steps that hold prompts."""
    begins: NDArray[np.bool_]
    """Whether each request is the first one of a client."""
    weights: NDArray[np.float64]
    """How often each request counts."""
    sent: NDArray[np.int64]
    """For each request, the runs before the client's previous one was answered; 0 for first requests."""
    first: NDArray[np.int64]
    """Runs before each request has its first token."""


class ClientTimes(NamedTuple):
    """Times of all requests together, or for each run what it adds to them."""

    now: Any
    """Time that has passed."""
    further: Any
    """From first tokens to last ones."""
    waited: Any
    """From answers to first tokens of the next requests, and from the beginning to those of first requests."""
    ran: Any
    """From admissions to last tokens."""
    outside: Any
    """From answers until the next requests have left the front end."""


@lru_cache(maxsize=64)
def _tokens(prompt: int, answer: int, spread: float, count: int) -> tuple[list[int], list[int]]:
    """Return the prompts' tokens and the further tokens of requests in the order in which they are sent."""
    multiples = _SKIPPED + np.arange(count)
    prompts, answers = (
        np.rint(mean * (1.0 + spread * (2.0 * (multiples * each % 1.0) - 1.0))).astype(int)
        for mean, each in zip((prompt, answer), _EVEN, strict=True)
    )
    return np.maximum(prompts, 1).tolist(), np.maximum(answers - 1, 1).tolist()


# a comparison of all wirings and techniques needs about two hundred
@lru_cache(maxsize=256)
def schedule(scheduling: Scheduling, clients: Clients, lengths: Lengths, delay: float) -> Schedule:
    """Schedule clients that send their first requests together, and each further one after an answer.

    The `delay` is from an answer until the client's next request has left the front end, on average, in the unit of
    lengths.
    """
    concurrency, slots = clients.concurrency, clients.slots
    alone = lengths.decoding(concurrency)
    total = max(_SIMULATED * concurrency, _LEAST)
    # more requests than those that end may be there, and as many end in the last step
    prompts, answers = _tokens(clients.prompt, clients.steps + 1, clients.spread, total + 2 * concurrency)
    delays = [delay * (1.0 + clients.uneven * (tokens / clients.prompt - 1.0)) for tokens in prompts]
    left = list(prompts)
    # of each request, when it arrives, and the runs before it is sent, admitted, and has its first token
    arrived = [0.0] * concurrency
    sent, admitted, first_token = [0] * concurrency, [0] * len(left), [0] * len(left)
    # those that will arrive; those that decode, by the decode step of their last token
    coming = [(0.0, number) for number in range(concurrency)]
    ending: list[tuple[int, int]] = []
    waiting: deque[int] = deque()

    # of each run: requests that decode (-1: the engine waits), tokens of prompts, steps and length
    runs: list[tuple[int, int, float, float]] = []

    # numbers of requests that are answered, and the runs before
    ended: list[int] = []
    last_token: list[int] = []
    running = decoding = decoded = 0
    now = seen = 0.0
    mixed, chunked, ahead = scheduling.mixed_steps, scheduling.chunked_prompts, scheduling.ahead
    poll, step_tokens, least = scheduling.poll_steps, scheduling.step_tokens, lengths.least
    # steps since the engine looked for new requests
    unpolled = 0
    settled = settled_answers = 0
    while len(ended) < total:
        if unpolled == 0:
            while coming and coming[0][0] <= seen:
                waiting.append(heappop(coming)[1])
        # what the step holds
        held = 0
        first = []
        room = 0 if not waiting else step_tokens - decoding if mixed else step_tokens
        while room > 0 and waiting:
            number = waiting[0]
            tokens = left[number]
            if tokens > room and held and not chunked:
                break
            if tokens == prompts[number]:
                if running and running >= slots:
                    break
                running += 1
                admitted[number] = len(runs)
            part = tokens if tokens < room else room
            left[number] = tokens - part
            room -= part
            held += part
            if part == tokens:
                first.append(waiting.popleft())
        decodes = decoding if mixed or not held else 0
        length = alone[decodes]
        if held:
            unpolled, count = 0, 1
            length += lengths.added(held)
            if length < least:
                length = least
        elif decodes:
            # as many like it until one ends, or comes
            count = ending[0][0] - decoded
            if coming and not waiting:
                arrives = max(1, math.ceil((coming[0][0] - now) / length) + ahead)
                count = min(count, arrives + -(unpolled + arrives) % poll)
            unpolled = (unpolled + count) % poll
        else:
            wait, unpolled = max(0.0, coming[0][0] - now), 0
            runs.append((-1, 0, wait, wait))
            now = seen = max(now, coming[0][0])
            continue
        runs.append((decodes, held, count, count * length))
        # the next one holds what has come by its start, or by that of the last one
        seen = now + (count - 1) * length if ahead else now + count * length
        now += count * length
        if decodes:
            decoded += count
            while ending and ending[0][0] <= decoded:
                ended.append(heappop(ending)[1])
                last_token.append(len(runs))
                own = now + delays[ended[-1]]
                heappush(coming, (own, len(sent)))
                sent.append(len(runs))
                arrived.append(own)
                decoding -= 1
                running -= 1
        for number in first:
            first_token[number] = len(runs)
            heappush(ending, (decoded + answers[number], number))
            decoding += 1
        if not settled and len(ended) >= _SETTLING * concurrency:
            settled, settled_answers = len(runs), len(ended)
    order = np.array(ended)
    moments = [*(np.array(column)[order] for column in (sent, admitted, first_token)), np.array(last_token)]
    return _summed(clients, runs, moments, np.array(arrived)[order], np.array(answers)[order], settled, settled_answers)


def _summed(
    clients: Clients,
    runs: Sequence[tuple[int, int, float, float]],
    moments: Sequence[NDArray[np.int64]],
    arrived: NDArray[np.float64],
    answers: NDArray[np.int64],
    settled: int,
    settled_answers: int,
) -> Schedule:
    """Return the schedule of runs of steps, whose first ones stand for themselves and the others for all that follow.

    A run has the requests that decode (-1: the engine waits), tokens of prompts, steps and length. Of answered requests
    there are the runs before each was sent and admitted, had its first and its last token (`moments`), when it arrived,
    and its further tokens. The first `settled` runs, which answer `settled_answers` requests, stand for themselves.
    """
    decodes, held, counts, spans = (np.array(column) for column in zip(*runs, strict=True))
    requests = max(clients.rounds * clients.concurrency, settled_answers)
    others = (requests - settled_answers) / (len(answers) - settled_answers)
    weights, often = (
        np.where(np.arange(size) < alone, 1.0, others)
        for size, alone in ((len(answers), settled_answers), (len(runs), settled))
    )
    ends = np.cumsum(spans)
    during = np.minimum(np.searchsorted(ends, arrived), len(runs) - 1)
    part = 1.0 - (ends[during] - arrived) / np.maximum(spans[during], _SHORTEST)
    # requests by the run in which they arrive, and those before that have passed each of their moments
    sent, admitted, first, last, arrives = (
        np.cumsum(np.bincount(each, weights, len(runs) + 1)[:-1]) for each in (*moments, during)
    )
    outside = sent - arrives + np.bincount(during, weights * part, len(runs))
    begins = arrived == 0.0
    times = ClientTimes(now=often, further=first - last, waited=sent - first, ran=admitted - last, outside=outside)
    steps = often * counts * (decodes >= 0)
    prompts = np.flatnonzero(held)
    return Schedule(
        decodes=np.abs(decodes),
        prompts=prompts,
        held=held[prompts],
        counts=counts,
        steps=steps,
        times=np.array(times),
        requests=requests,
        begun=float(weights @ begins),
        tokens=float(weights @ answers),
        step_tokens=float(steps @ np.abs(decodes)),
        prompt_tokens=float(steps @ held),
        all_steps=float(steps.sum()),
        prompt_steps=float(steps[prompts].sum()),
        begins=begins,
        weights=weights,
        sent=moments[0],
        first=moments[2],
    )
