"""The closed form against its own laws, against its limits, and against a simulation of the engine step by step."""

import math
import random
import statistics
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.closed_loop.cycle import FrontEnd, LoopTimes, Served, lockstep, steady

MILLISECONDS = st.floats(0.1, 200.0).map(lambda value: value * 1e-3)
CONCURRENCIES = st.one_of(st.integers(1, 16), st.integers(1, 4096))
STEPS = st.integers(1, 4000)
SLOTS = st.one_of(st.floats(1.0, 64.0), st.just(1e9))


@st.composite
def step_times(draw: st.DrawFn) -> LoopTimes:
    """Steps that take longer the more requests they decode; prompts that slow down the more of the time they take."""
    floor_s, prompt_s, added_s = draw(MILLISECONDS), draw(MILLISECONDS), draw(st.floats(0.0, 0.01))
    slower = draw(st.floats(0.0, 0.6))
    return lambda n, duty: (floor_s * (1.0 + added_s * n), prompt_s * (1.0 + slower * duty))


def cycle_s(served: Served, steps: int) -> Any:
    return served.ttft_s + steps * served.tpot_s


@given(step_times(), CONCURRENCIES, STEPS, SLOTS, st.floats(0.0, 16.0), st.booleans(), MILLISECONDS)
def test_the_engine_does_all_the_work_of_a_cycle_and_nothing_else(
    times: LoopTimes, concurrency: int, steps: int, slots: float, prompt_steps: float, mixed: bool, outside_s: float
) -> None:
    tokens = {"prompt_steps": prompt_steps, "filled": prompt_steps + 1e-3 * steps} if mixed else {}
    front_end = FrontEnd(outside_s, 2.0)
    served = steady(times, concurrency=concurrency, steps=steps, slots=slots, front_end=front_end, **tokens)
    assert served.front_end_s == pytest.approx(outside_s + 2.0 * served.tpot_s)
    engine_s = cycle_s(served, steps) - served.front_end_s
    work_s = served.in_engine * served.prompt_s + served.cycle_steps * served.decode_s
    assert engine_s == pytest.approx(work_s, rel=1e-9)
    # Little's law, of the requests in the engine, as the others find them
    others = (concurrency - 1) * engine_s / (engine_s + served.front_end_s)
    assert served.in_engine == pytest.approx(1.0 + others, rel=1e-5)
    assert 1.0 - 1e-9 <= served.running <= min(served.in_engine, slots) * (1.0 + 1e-9)
    assert served.decoding <= served.running
    assert served.tpot_s >= served.decode_s
    assert served.ttft_s >= served.front_end_s + served.prompt_s
    assert 0.0 < served.duty <= 1.0
    # every step has room for its tokens
    assert served.in_engine * tokens.get("filled", 0.0) <= served.cycle_steps * (1.0 + 1e-9)


@given(step_times(), CONCURRENCIES, STEPS, SLOTS, st.floats(1.0, 64.0))
def test_in_lockstep_every_round_pays_each_prompt_once(
    times: LoopTimes, concurrency: int, steps: int, slots: float, together: float
) -> None:
    served = lockstep(times, concurrency=concurrency, steps=steps, slots=slots, together=together)
    rounds = concurrency / min(concurrency, slots)
    work_s = concurrency * served.prompt_s + rounds * steps * served.decode_s + served.decode_s
    assert cycle_s(served, steps) == pytest.approx(work_s, rel=1e-9)
    if slots >= concurrency:
        in_step = min(concurrency, together)
        assert served.ttft_s - served.decode_s == pytest.approx((concurrency + in_step) / 2 * served.prompt_s)


@given(step_times(), STEPS, st.floats(1.0, 64.0))
def test_one_request_in_flight_is_a_static_batch_of_one(times: LoopTimes, steps: int, together: float) -> None:
    alone = [
        steady(times, concurrency=1, steps=steps, slots=1e9),
        lockstep(times, concurrency=1, steps=steps, slots=1e9, together=together),
    ]
    for served in alone:
        assert served.tpot_s == pytest.approx(served.decode_s, rel=1e-12)
        assert served.ttft_s == pytest.approx(served.prompt_s + served.decode_s, rel=1e-9)


@given(step_times(), st.integers(2, 4096), STEPS, st.floats(1.0, 64.0))
def test_beyond_the_slots_more_requests_wait_and_nothing_else_changes(
    times: LoopTimes, concurrency: int, steps: int, slots: float
) -> None:
    full = steady(times, concurrency=int(1e7), steps=steps, slots=slots)
    assert full.running == slots
    served = steady(times, concurrency=concurrency, steps=steps, slots=slots)
    if served.running < slots:
        return
    one_more = steady(times, concurrency=concurrency + 1, steps=steps, slots=slots)
    added_s = served.prompt_s + served.cycle_steps / concurrency * served.decode_s
    assert cycle_s(one_more, steps) - cycle_s(served, steps) == pytest.approx(added_s, rel=1e-6)


@given(step_times(), st.integers(1, 2000), STEPS, SLOTS, st.booleans())
def test_more_requests_in_flight_never_serve_fewer_tokens(
    times: LoopTimes, concurrency: int, steps: int, slots: float, waves: bool
) -> None:
    fewer, more = (
        lockstep(times, concurrency=count, steps=steps, slots=slots, together=8.0)
        if waves
        else steady(times, concurrency=count, steps=steps, slots=slots)
        for count in (concurrency, concurrency + max(1, concurrency // 7))
    )
    # the times are found in a few steps of an iteration
    noise = 1.0 - 1e-6
    assert more.tpot_s >= noise * fewer.tpot_s
    assert more.ttft_s >= noise * fewer.ttft_s
    added = max(1, concurrency // 7) / concurrency
    assert (1.0 + added) / cycle_s(more, steps) >= noise / cycle_s(fewer, steps)


@given(step_times(), st.lists(CONCURRENCIES, min_size=1, max_size=5), STEPS, SLOTS)
def test_arrays_hold_what_numbers_give(times: LoopTimes, counts: list[int], steps: int, slots: float) -> None:
    array: Any = np.array(counts, np.float64)
    for solve in (steady, lambda times, **sizes: lockstep(times, together=4.0, **sizes)):
        together = solve(times, concurrency=array, steps=steps, slots=slots)
        for number, count in enumerate(counts):
            alone = solve(times, concurrency=count, steps=steps, slots=slots)
            assert together.tpot_s[number] == pytest.approx(alone.tpot_s, rel=1e-9)
            assert together.ttft_s[number] == pytest.approx(alone.ttft_s, rel=1e-9, abs=1e-12)


@dataclass(eq=False)
class _Request:
    tokens: int
    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0


def _engine(
    *,
    concurrency: int,
    steps: int,
    decode_s: Callable[[int], float],
    prompt_s: float,
    slots: int,
    together: int,
    mixed: bool,
    spread: float,
    rounds: int = 30,
) -> tuple[float, float]:
    """Mean TTFT and TPOT of clients that each send `rounds` requests to an engine that runs step after step.

    Answers differ in length by `spread` either way. Without mixed steps prompts go first, in steps of their own.
    """
    draw = random.Random(0)
    environment = simpy.Environment()
    waiting: list[tuple[_Request, simpy.Event]] = []
    arrival = [environment.event()]
    answered: list[_Request] = []

    def client() -> Generator[simpy.Event, Any, None]:
        for _ in range(rounds):
            length = max(1, round(steps * (1.0 + spread * draw.uniform(-1.0, 1.0))))
            request, done = _Request(length, environment.now), environment.event()
            waiting.append((request, done))
            if not arrival[0].triggered:
                arrival[0].succeed()
            yield done
            answered.append(request)

    def engine() -> Generator[simpy.Event, Any, None]:
        running: dict[_Request, tuple[int, simpy.Event]] = {}
        while True:
            if not running and not waiting:
                arrival[0] = environment.event()
                yield arrival[0]
            count = min(together, slots - len(running), len(waiting))
            started, waiting[:count] = waiting[:count], []
            decodes = bool(running) and (mixed or not started)
            # the weights are read in any step
            step_s = decode_s(len(running) if decodes else 0) + prompt_s * len(started)
            yield environment.timeout(step_s)
            for request in list(running) if decodes else ():
                left, done = running[request]
                running[request] = left - 1, done
                if left == 1:
                    request.last_s = environment.now
                    running.pop(request)[1].succeed()
            for request, done in started:
                request.first_s = environment.now
                running[request] = request.tokens, done
            # clients send their next requests before the next step
            yield environment.timeout(0.0)

    clients = [environment.process(client()) for _ in range(concurrency)]
    environment.process(engine())
    environment.run(simpy.AllOf(environment, clients))
    kept = answered[2 * concurrency :]
    return (
        statistics.fmean(request.first_s - request.sent_s for request in kept),
        statistics.fmean((request.last_s - request.first_s) / request.tokens for request in kept),
    )


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 4, 16, 48])
@pytest.mark.parametrize("prompt_s", [0.02, 0.1])
def test_time_per_token_is_that_of_a_simulated_engine(concurrency: int, prompt_s: float) -> None:
    def decode_s(n: Any) -> Any:
        return 0.010 + 1e-4 * n

    steps = 200
    served = steady(
        lambda n, duty: (decode_s(n), prompt_s),
        concurrency=concurrency,
        steps=steps,
        slots=float(concurrency),
        prompt_steps=1 / 8,
        filled=1 / 8,
    )
    _, tpot_s = _engine(
        concurrency=concurrency,
        steps=steps,
        decode_s=decode_s,
        prompt_s=prompt_s,
        slots=concurrency,
        together=8,
        mixed=True,
        spread=0.3,
    )
    assert served.tpot_s == pytest.approx(tpot_s, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "concurrency"), [(8, 24), (16, 24), (16, 64)])
def test_requests_without_a_slot_wait_as_long_as_in_a_simulated_engine(
    slots: int, concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, prompt_s = 200, 0.03
    # the first round is left out here
    monkeypatch.setattr("ladder_sim.closed_loop.cycle.ROUNDS", math.inf)
    served = steady(
        lambda n, duty: (0.012, prompt_s),
        concurrency=concurrency,
        steps=steps,
        slots=float(slots),
        prompt_steps=1 / 8,
        filled=1 / 8,
    )
    ttft_s, tpot_s = _engine(
        concurrency=concurrency,
        steps=steps,
        decode_s=lambda n: 0.012,
        prompt_s=prompt_s,
        slots=slots,
        together=8,
        mixed=True,
        spread=0.3,
    )
    assert served.tpot_s == pytest.approx(tpot_s, rel=0.02)
    assert served.ttft_s == pytest.approx(ttft_s, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "concurrency"), [(1, 1), (1, 2), (1, 3), (2, 3), (2, 9), (8, 24)])
@pytest.mark.parametrize(("steps", "prompt_s"), [(3, 1e-3), (20, 5e-3)])
def test_with_all_slots_taken_the_rate_is_that_of_a_simulated_engine(
    slots: int, concurrency: int, steps: int, prompt_s: float
) -> None:
    """Every request counts its own prompt: with one slot, more requests in flight serve as many tokens."""

    def decode_s(n: Any) -> Any:
        return 1e-3 * (1.0 + 0.05 * n)

    served = steady(lambda n, duty: (decode_s(n), prompt_s), concurrency=concurrency, steps=steps, slots=float(slots))
    ttft_s, tpot_s = _engine(
        concurrency=concurrency,
        steps=steps,
        decode_s=decode_s,
        prompt_s=prompt_s,
        slots=slots,
        together=8,
        mixed=True,
        spread=0.0,
        rounds=60,
    )
    assert cycle_s(served, steps) == pytest.approx(ttft_s + steps * tpot_s, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 6, 16, 40])
def test_prompts_of_one_length_that_go_first_fall_into_lockstep(concurrency: int) -> None:
    steps, prompt_s, together = 150, 0.08, 8
    served = lockstep(
        lambda n, duty: (0.012, prompt_s),
        concurrency=concurrency,
        steps=steps,
        slots=float(concurrency),
        together=float(together),
    )
    ttft_s, tpot_s = _engine(
        concurrency=concurrency,
        steps=steps,
        decode_s=lambda n: 0.012,
        prompt_s=prompt_s,
        slots=concurrency,
        together=together,
        mixed=False,
        spread=0.0,
    )
    assert served.tpot_s == pytest.approx(tpot_s, rel=0.03)
    assert served.ttft_s == pytest.approx(ttft_s, rel=0.06)
