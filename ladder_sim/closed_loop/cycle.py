"""Latency with a number of requests kept in flight, from the times of an engine's steps; arithmetic only.

Each of C clients sends its next request when its last one is answered. In every step the engine decodes one token of
each running request, and prompts of new ones share the step. A request stays for `stay` steps: the one under way when
it comes, those of prompts before it, those of its own prompt, and `steps` that decode. A step holds so many tokens at
most, and so many requests run at most, so that a cycle may be longer: K steps, in which each client sends one prompt.
D(n) is the time of a step that decodes n requests, P what one prompt adds to steps:

    cycle = C P + K D = TTFT + steps * TPOT

TPOT = D + u P, with u prompts in each step that decodes. While a request stays, each of the m - 1 others that stay is
followed by one prompt. As many of these as share steps with the request before its first token do not delay later ones.
What a server adds outside of the engine is time in which a client has no request there.

Where all prompts go first and requests are of one length, they fall into lockstep: all prompts, then all answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ladder_sim.des.shared import Number, maximum, minimum

# requests that each client sends in a measured serving: in the first round all prompts come at once
ROUNDS = 8.2
# each narrows duty and requests in the engine at least fourfold
_ITERATIONS = 12


class FrontEnd(NamedTuple):
    """What a server adds to a first token outside of the engine."""

    seconds: Number = 0.0
    steps: Number = 0.0
    """More of it, in times per further token."""
    prompt_s: Number = 0.0
    """More of it for a prompt of the mean length, in proportion to a prompt's length."""

    def outside_s(self, tpot_s: Number, length: float = 1.0) -> Number:
        """Time of a request outside of the engine, whose prompt is `length` times as long as the mean."""
        return self.seconds + self.steps * tpot_s + self.prompt_s * length


NO_FRONT_END = FrontEnd()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Requests in flight at a steady state: numbers, or arrays of one value per configuration."""

    ttft_s: Number
    """Mean time to first token, waiting and the front end included."""
    prompt_s: Number
    """What one prompt adds to steps."""
    duty: Number
    """Share of the engine's time that prompts take."""
    running: Number
    """Requests that do not wait, on average."""
    tpot_s: Number = 0.0
    """Mean time per further token."""
    decoding: Number = 0.0
    """Requests that decode, on average."""
    decode_s: Number = 0.0
    """Time of a step that decodes as many requests and holds no prompt."""
    cycle_steps: Number = 1.0
    """Steps from a request to the next of the same client."""
    in_engine: Number = 1.0
    """Requests that are not in the front end, on average; at least 1."""
    front_end_s: Number = 0.0
    """Time of a request outside of the engine, before its first token."""


# of so many decoding requests and of such a share of prompts: a decode step, and what one prompt adds
LoopTimes = Callable[[Number, Number], tuple[Number, Number]]


def steady(
    times: LoopTimes,
    *,
    concurrency: Number,
    steps: Number,
    slots: Number,
    prompt_steps: Number = 0.0,
    filled: Number = 0.0,
    way_s: Number = 0.0,
    front_end: FrontEnd = NO_FRONT_END,
) -> Served:
    """Return the steady state of requests that arrive spread over time, each when another one ends.

    Parameters
    ----------
    times
        Of steps.
    concurrency
        Requests in flight.
    steps
        Decode steps of each: its tokens less one. Above 0.
    slots
        Requests that can run at the same time. At least 1.
    prompt_steps
        Steps that the tokens of a prompt fill: below 1, prompts share one.
    filled
        Steps that all tokens of a request fill; 0: prompts go first, in steps of their own.
    way_s
        Time of a prompt in pipeline stages other than the slowest.
    front_end
        Of the server.

    Examples
    --------
    >>> served = steady(lambda n, duty: (0.01 + 1e-4 * n, 0.1), concurrency=32, steps=255, slots=1000.0)
    >>> round(served.tpot_s, 4), round(served.ttft_s, 2), round(served.decoding, 1)
    (0.0244, 0.36, 31.9)
    """
    shares = np.any(filled)
    # until the first iteration every request decodes, and prompts take all of the time
    decoding: Number = minimum(concurrency, slots)
    duty: Number = 1.0
    in_engine = concurrency
    for _ in range(_ITERATIONS):
        decode_s, prompt_s = times(decoding, duty)
        # one alone meets nobody
        company = minimum(in_engine - 1.0, 1.0)
        # a prompt that begins anywhere in a step takes half a step more
        own = maximum(prompt_steps + 0.5 * company, 1.0)
        held = own + steps
        # prompts that it waits for, as before a server that others keep busy with service of one length (Pollaczek and
        # Khinchine). Where prompts share steps, a long step is followed by a long one, as more requests come meanwhile
        busy = duty * (minimum(in_engine, slots) - 1.0) / in_engine
        queue = 0.5 * busy / (1.0 - busy) * (1.0 + maximum(1.0 - filled, 0.0) * busy / (1.0 + busy))
        # a step is under way or scheduled when it comes, unless prompts go first. Who waits for a slot meanwhile does
        # not wait for these again
        wait = company + filled * queue
        finds_slot = maximum(1.0 - held * maximum(in_engine / slots - 1.0, 0.0) / maximum(wait, 1.0), 0.0)
        queue = finds_slot * queue
        stay = held + (finds_slot * wait if shares else 0.0)
        cycle = maximum(maximum(stay, in_engine * filled), in_engine * held / slots)
        others = minimum(in_engine * stay / cycle, slots) - 1.0
        before = stay - steps
        # prompts of others before its first token: those steps hold no more than their tokens
        shared = minimum(others * before / stay + queue, others)
        if shares:
            shared = maximum(minimum(shared, before / filled - 1.0), 0.0)
        # in the first round, those that have a slot begin together
        first_round = maximum(0.5 * others - shared, 0.0) * finds_slot / ROUNDS
        tpot_s = decode_s + (others - shared - first_round) / steps * prompt_s
        decoding = in_engine * steps / cycle
        cycle_s = in_engine * prompt_s + cycle * decode_s
        duty = in_engine * prompt_s / cycle_s
        outside_s = front_end.outside_s(tpot_s) + way_s
        served = Served(
            ttft_s=cycle_s - steps * tpot_s + outside_s,
            running=in_engine * held / cycle,
            tpot_s=tpot_s,
            decoding=decoding,
            decode_s=decode_s,
            prompt_s=prompt_s,
            duty=duty,
            cycle_steps=cycle,
            in_engine=in_engine,
            front_end_s=outside_s - way_s,
        )
        in_engine = 1.0 + (concurrency - 1.0) * cycle_s / (cycle_s + outside_s)
    return served


def lockstep(
    times: LoopTimes,
    *,
    concurrency: Number,
    steps: Number,
    slots: Number,
    together: Number,
    way_s: Number = 0.0,
    front_end: FrontEnd = NO_FRONT_END,
) -> Served:
    """Return the steady state of requests that start and end together.

    The engine runs prompts first, `together` of them in one step.

    Parameters
    ----------
    times, concurrency, steps, slots, way_s, front_end
        As in `steady`.
    together
        Prompts in one step.

    Examples
    --------
    >>> served = lockstep(lambda n, duty: (0.01, 0.1), concurrency=32, steps=255, slots=1000.0, together=8)
    >>> round(served.tpot_s, 4), round(served.ttft_s, 2)
    (0.0147, 2.01)
    """
    decoding = minimum(concurrency, slots)
    duty: Number = 1.0
    for _ in range(_ITERATIONS):
        decode_s, prompt_s = times(decoding, duty)
        round_s = decoding * prompt_s + steps * decode_s
        duty = decoding * prompt_s / round_s
    in_step = minimum(decoding, together)
    # those of the first step wait for the prompts behind them, those of the last for all before them
    behind_s = (decoding - in_step) / 2.0 * prompt_s
    ahead_s = (decoding + in_step) / 2.0 * prompt_s + decode_s + way_s
    tpot_s = decode_s + behind_s / steps
    front_end_s = front_end.outside_s(tpot_s)
    return Served(
        ttft_s=ahead_s + (concurrency / decoding - 1.0) * round_s + front_end_s,
        running=decoding,
        tpot_s=tpot_s,
        decoding=decoding,
        decode_s=decode_s,
        prompt_s=prompt_s,
        duty=duty,
        cycle_steps=concurrency / decoding * steps + 1.0,
        in_engine=concurrency,
        front_end_s=front_end_s,
    )
