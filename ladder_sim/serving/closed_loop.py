"""Latency with a number of requests kept in flight, from the times of an engine's steps; arithmetic only.

Each of C clients sends its next request when its last one is answered. In every step the engine decodes one token of
each running request, and prompts of new ones share the step. A request takes one cycle: it waits for its first token
(TTFT), then for `steps` further ones (TPOT each). With D(n) the time of a step that decodes n requests and P(n) what
one prompt adds to steps, the engine never idles, so that

    cycle = TTFT + steps * TPOT = (C - 1) P + C / n * steps * D

where n requests decode on average: C * steps * TPOT / cycle (Little's law). While a request decodes it meets the
prompts of the C - 1 others, so that TPOT = D + (1 - 1/C) n P / steps. What is left to know is either TTFT or n: TTFT as
long as every request finds a slot, n once they are all taken.

Where all prompts go first and requests are of one length, they fall into lockstep: all prompts, then all answers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ladder_sim.des.shared import Number, minimum

# how many prompts a request waits for at its first token, its own included, beyond those of the start: requests that
# end together send the next ones together. Fitted to the times to first token of 577 measured servings
PROMPTS_AHEAD = 3.5
# requests that each client sends in a measured serving: in the first round all prompts come at once
ROUNDS = 8.2
# each narrows D(n) and P(n) at least tenfold
_ITERATIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Requests in flight at a steady state: numbers, or arrays of one value per configuration."""

    ttft_s: Number
    """Mean time to first token, waiting included."""
    prompt_s: Number
    """What one prompt adds to steps."""
    duty: Number
    """Share of the time that prompts take."""
    tpot_s: Number = 0.0
    """Mean time per further token."""
    decoding: Number = 0.0
    """Requests that decode, on average."""
    decode_s: Number = 0.0
    """A step that decodes this many and holds no prompt."""


# of so many decoding requests and of such a share of prompts: a decode step, and what one prompt adds
StepTimes = Callable[[Number, Number], tuple[Number, Number]]


def steady(times: StepTimes, *, concurrency: Number, steps: Number, slots: Number) -> Served:
    """Requests that arrive spread over time, each when another one ends.

    Parameters
    ----------
    times
        Of steps.
    concurrency
        Requests in flight.
    steps
        Decode steps of each: its tokens less one. Above 0.
    slots
        Requests that can decode at the same time.

    Examples
    --------
    >>> served = steady(lambda n, duty: (0.01 + 1e-4 * n, 0.1), concurrency=32, steps=255, slots=1000.0)
    >>> round(served.tpot_s, 4), round(served.ttft_s, 2), round(served.decoding, 1)
    (0.0241, 0.56, 29.3)
    """
    decoding = minimum(concurrency, slots)
    duty: Number = 1.0
    ahead = minimum(PROMPTS_AHEAD + concurrency / (2.0 * ROUNDS), concurrency)
    for _ in range(_ITERATIONS):
        decode_s, prompt_s = times(decoding, duty)
        first_s, others_s = ahead * prompt_s + decode_s, (concurrency - 1) * prompt_s
        # the larger root of cycle = first + steps * decode + others * (1 - first / cycle)
        total_s = first_s + steps * decode_s + others_s
        free_s = (total_s + (total_s**2 - 4.0 * others_s * first_s) ** 0.5) / 2.0
        decoding = minimum(concurrency * (1.0 - first_s / free_s), slots)
        cycle_s = others_s + concurrency / decoding * steps * decode_s
        duty = minimum(concurrency * prompt_s / cycle_s, 1.0)
    tpot_s = decode_s + decoding / concurrency * others_s / steps
    return Served(
        ttft_s=cycle_s - steps * tpot_s,
        tpot_s=tpot_s,
        decoding=decoding,
        decode_s=decode_s,
        prompt_s=prompt_s,
        duty=duty,
    )


def lockstep(times: StepTimes, *, concurrency: Number, steps: Number, slots: Number, together: Number) -> Served:
    """Requests that start and end together: an engine that runs prompts first, `together` of them in one step.

    Parameters
    ----------
    times, concurrency, steps, slots
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
    ahead_s = (decoding + in_step) / 2.0 * prompt_s + decode_s
    return Served(
        ttft_s=ahead_s + (concurrency / decoding - 1.0) * round_s,
        tpot_s=decode_s + behind_s / steps,
        decoding=decoding,
        decode_s=decode_s,
        prompt_s=prompt_s,
        duty=duty,
    )
