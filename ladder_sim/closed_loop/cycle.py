"""Latency with a number of requests kept in flight, from the times of an engine's steps; arithmetic only.

Each of C clients sends its next request when its last one is answered. In every step the engine decodes one token of
each running request, and prompts of new ones share the step. A request takes one cycle: it waits for its first token
(TTFT), then for `steps` further ones (TPOT each). It runs for `prompt_steps` + `steps` steps; before that it waits.
D(n) is the time of a step that decodes n requests, P what one prompt adds to steps. m requests run on average, of them
n = m * steps / (prompt_steps + steps) decode, and an engine that never idles does the work of all C in one cycle:

    cycle = TTFT + steps * TPOT = C P + C / m * (prompt_steps + steps) * D

While a request runs, each of the m - 1 others that run is followed by one prompt, so that
TPOT = D + (m - 1) P / (prompt_steps + steps). What is left to know is either TTFT or m: TTFT as long as every request
finds a slot, m once they are all taken.

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
    running: Number
    """Requests that do not wait, on average."""
    tpot_s: Number = 0.0
    """Mean time per further token."""
    decoding: Number = 0.0
    """Of them those that decode."""
    decode_s: Number = 0.0
    """A step that decodes this many and holds no prompt."""


# of so many decoding requests and of such a share of prompts: a decode step, and what one prompt adds
LoopTimes = Callable[[Number, Number], tuple[Number, Number]]


def steady(
    times: LoopTimes,
    *,
    concurrency: Number,
    steps: Number,
    slots: Number,
    prompt_steps: Number = 1.0,
    way_s: Number = 0.0,
) -> Served:
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
        Requests that can run at the same time. At least 1.
    prompt_steps
        Steps of each prompt.
    way_s
        Time of a prompt in pipeline stages other than the slowest.

    Examples
    --------
    >>> served = steady(lambda n, duty: (0.01 + 1e-4 * n, 0.1), concurrency=32, steps=255, slots=1000.0)
    >>> round(served.tpot_s, 4), round(served.ttft_s, 2), round(served.decoding, 1)
    (0.0243, 0.56, 29.8)
    """
    held = prompt_steps + steps
    share = steps / held
    most = minimum(concurrency, slots)
    decoding = share * most
    duty: Number = 1.0
    ahead = minimum(PROMPTS_AHEAD + concurrency / (2.0 * ROUNDS), concurrency)
    for _ in range(_ITERATIONS):
        decode_s, prompt_s = times(decoding, duty)
        prompts_s, decodes_s = concurrency * prompt_s, concurrency * held * decode_s
        # with a slot for every request, TTFT is known and the cycle is the larger root of its two expressions
        first_s = ahead * prompt_s + prompt_steps * decode_s + way_s
        alone_s = first_s + steps * decode_s - share * prompt_s
        free_s = 0.5 * (alone_s + prompts_s + ((alone_s - prompts_s) ** 2 + 4.0 * share * prompt_s * decodes_s) ** 0.5)
        running = minimum(decodes_s / (free_s - prompts_s), most)
        decoding = share * running
        cycle_s = prompts_s + decodes_s / running
        duty = prompts_s / cycle_s
    tpot_s = decode_s + (running - 1.0) * prompt_s / held
    return Served(
        ttft_s=cycle_s - steps * tpot_s,
        running=running,
        tpot_s=tpot_s,
        decoding=decoding,
        decode_s=decode_s,
        prompt_s=prompt_s,
        duty=duty,
    )


def lockstep(
    times: LoopTimes, *, concurrency: Number, steps: Number, slots: Number, together: Number, way_s: Number = 0.0
) -> Served:
    """Requests that start and end together: an engine that runs prompts first, `together` of them in one step.

    Parameters
    ----------
    times, concurrency, steps, slots, way_s
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
    return Served(
        ttft_s=ahead_s + (concurrency / decoding - 1.0) * round_s,
        running=decoding,
        tpot_s=decode_s + behind_s / steps,
        decoding=decoding,
        decode_s=decode_s,
        prompt_s=prompt_s,
        duty=duty,
    )
