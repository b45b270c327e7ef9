"""Requests served step by step against their own laws, against limits, and against another simulation of an engine."""

import random
import statistics
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.closed_loop.engine import FrontEnd, Served, Steps, simulate
from ladder_sim.closed_loop.schedule import Scheduling, schedule

MILLISECONDS = st.floats(0.1, 200.0).map(lambda value: value * 1e-3)
CONCURRENCIES = st.integers(1, 64)
STEPS = st.one_of(st.integers(1, 8), st.integers(1, 4000))
SLOTS = st.one_of(st.floats(1.0, 64.0), st.just(1e9))
BUDGET = 8192


@st.composite
def step_times(draw: st.DrawFn) -> Steps:
    """Steps that take longer the more requests they decode; prompts that slow down the more of the time they take."""
    floor_s, prompt_s, added_s = draw(MILLISECONDS), draw(MILLISECONDS), draw(st.floats(0.0, 0.01))
    return Steps(
        decode_s=[floor_s * (1.0 + added_s * number) for number in range(128)],
        tokens=[1, BUDGET],
        added_s=[0.1 * prompt_s, prompt_s],
        cold=draw(st.floats(0.5, 1.0)),
    )


def scheduling(*, mixed: bool) -> Scheduling:
    return Scheduling(step_tokens=BUDGET, mixed_steps=mixed, ahead=mixed)


def cycle_s(served: Served, steps: int) -> float:
    return float(served.ttft_s + steps * served.tpot_s)


@given(step_times(), CONCURRENCIES, STEPS, SLOTS, st.integers(1, 20000), st.booleans(), MILLISECONDS)
def test_means_are_of_one_load(
    times: Steps, concurrency: int, steps: int, slots: float, prompt: int, mixed: bool, outside_s: float
) -> None:
    load = {"concurrency": concurrency, "prompt": prompt, "steps": steps, "slots": slots}
    served = simulate(times, scheduling(mixed=mixed), front_end=FrontEnd(outside_s, 2.0), **load)
    assert served.front_end_s == pytest.approx(outside_s + 2.0 * served.tpot_s)
    assert 0.0 < served.decoding <= served.running <= min(concurrency, max(slots, 1.0)) * (1.0 + 1e-9)
    assert 0.0 < served.decode_s <= served.tpot_s
    assert served.ttft_s >= served.front_end_s
    assert 0.0 < served.duty <= 1.0
    assert 0.0 < served.prompt_steps <= 1.0
    assert 0.0 < served.in_engine <= concurrency


@given(step_times(), CONCURRENCIES, STEPS, st.integers(1, 20000), st.booleans(), MILLISECONDS, st.floats(0.3, 1.0))
def test_faster_steps_lengthen_no_request(
    times: Steps, concurrency: int, steps: int, prompt: int, mixed: bool, outside_s: float, factor: float
) -> None:
    """Whatever the front end takes: with the same lengths of steps requests share the same ones."""
    times = replace(times, cold=1.0)
    faster = replace(times, decode_s=[factor * seconds for seconds in times.decode_s])
    load: dict[str, Any] = {"concurrency": concurrency, "prompt": prompt, "steps": steps, "slots": 1e9}
    load |= {"front_end": FrontEnd(outside_s), "lengths": times.lengths}
    before_s, after_s = (cycle_s(simulate(each, scheduling(mixed=mixed), **load), steps) for each in (times, faster))
    assert after_s <= 1.01 * before_s


LOAD: dict[str, Any] = {"concurrency": 16, "prompt": 1024, "steps": 100, "slots": 1e9}
TIMES = Steps(decode_s=[0.01] * 17, tokens=[16, BUDGET], added_s=[0.001, 0.4])


def test_requests_that_all_come_within_a_step_meet_alike_and_are_scheduled_once() -> None:
    """Regression: a schedule of those who come at once was made next to it, and both gave the same times."""
    schedule.cache_clear()
    short, shorter = (simulate(TIMES, scheduling(mixed=True), front_end=FrontEnd(s), **LOAD) for s in (4e-3, 1e-3))
    assert schedule.cache_info().misses == 1
    at_once = simulate(TIMES, scheduling(mixed=True), front_end=FrontEnd(1e-9), **LOAD)
    for served in (short, shorter):
        assert served.tpot_s == pytest.approx(at_once.tpot_s, rel=1e-9)
        # what is left of the step in which a request comes is waited for in any case
        assert served.ttft_s - served.front_end_s <= at_once.ttft_s


@pytest.mark.parametrize("outside_s", [4e-3, 0.021, 0.15])
@pytest.mark.parametrize(("longer", "schedules"), [(1.0004, 0), (3.0, 1)])
def test_lengths_of_their_own_schedule_requests_again_where_they_meet_others(
    outside_s: float, longer: float, schedules: int
) -> None:
    """Regression: wirings whose steps differ by a digit had schedules of their own, whoever comes in which step."""
    schedule.cache_clear()
    given, front_end = TIMES.lengths, FrontEnd(outside_s)
    usual = simulate(TIMES, scheduling(mixed=True), front_end=front_end, **LOAD)
    before = schedule.cache_info().misses
    prompts = tuple(longer * each for each in given.prompts)
    own = given._replace(decode=tuple(longer * each for each in given.decode[:-1]) + given.decode[-1:], prompts=prompts)
    served = simulate(TIMES, scheduling(mixed=True), front_end=front_end, own=own, **LOAD)
    made = schedule.cache_info().misses - before
    assert min(made, 1) == schedules * (outside_s > 0.01)
    assert cycle_s(served, 100) == pytest.approx(cycle_s(usual, 100), rel=1e-9)
    assert served.tpot_s == pytest.approx(usual.tpot_s, rel=0.1 if made else 1e-9)


@given(step_times(), STEPS, st.booleans())
def test_one_request_in_flight_is_a_static_batch_of_one(times: Steps, steps: int, mixed: bool) -> None:
    one = {"concurrency": 1, "steps": steps, "slots": 1e9, "spread": 0.0}
    served = simulate(times, scheduling(mixed=mixed), prompt=BUDGET, **one)
    assert served.tpot_s == pytest.approx(times.decode_s[1], rel=1e-9)
    added_s = served.ttft_s - times.decode_s[0]
    assert times.cold * times.added_s[-1] * (1.0 - 1e-9) <= added_s <= times.added_s[-1] * (1.0 + 1e-9)


@given(st.integers(2, 40), st.integers(40, 400), st.floats(0.001, 0.1))
def test_requests_of_one_length_stay_in_lockstep_where_prompts_go_first(
    concurrency: int, steps: int, prompt_s: float
) -> None:
    """All prompts, of which eight share a step, and then all answers."""
    times = Steps(decode_s=[0.0, *[0.012] * concurrency], tokens=[1024, 8192], added_s=[prompt_s, 8.0 * prompt_s])
    load = {"concurrency": concurrency, "prompt": 1024, "steps": steps, "slots": 1e9, "spread": 0.0}
    served = simulate(times, scheduling(mixed=False), **load)
    # requests before each one's first token, its own step's included
    ahead = statistics.fmean(min(8 * (number // 8 + 1), concurrency) for number in range(concurrency))
    assert served.ttft_s == pytest.approx(ahead * prompt_s)
    assert served.tpot_s == pytest.approx(0.012 + (concurrency - ahead) * prompt_s / steps)


@given(step_times(), STEPS, st.floats(0.0, 300.0), st.booleans())
def test_a_front_end_of_any_length_only_adds_its_time(times: Steps, steps: int, power: float, mixed: bool) -> None:
    """Guards one of more steps than were simulated, which was an IndexError, and requests for less than no time."""
    load: dict[str, Any] = {"concurrency": 8, "prompt": 300, "steps": steps, "slots": 1e9}
    outside_s = 10.0**power
    served = simulate(times, scheduling(mixed=mixed), front_end=FrontEnd(outside_s), **load)
    assert 0.0 < served.in_engine <= 8.0
    # no step holds more than all clients
    longest_s = max(times.decode_s) + 8 * times.added_s[-1]
    assert outside_s <= served.ttft_s * (1.0 + 1e-9)
    # each waits for others at most, and half of them may join a step earlier
    for ttft_s in (served.ttft_s, served.ttft_p50_s):
        assert (outside_s - 2.0 * longest_s) * (1.0 - 1e-9) <= ttft_s <= (outside_s + 20.0 * longest_s) * (1.0 + 1e-9)
    assert 0.0 < served.tpot_s <= 2.0 * longest_s


def test_more_requests_than_slots_wait_and_nothing_else_changes() -> None:
    times = Steps(decode_s=[0.012] * 129, tokens=[1024, 8192], added_s=[0.03, 0.24])
    load = {"prompt": 1024, "steps": 200, "slots": 8.0}
    fewer, more = (simulate(times, scheduling(mixed=True), concurrency=count, **load) for count in (24, 64))
    assert more.running == pytest.approx(8.0, rel=0.01)
    assert more.tpot_s == pytest.approx(fewer.tpot_s, rel=0.01)
    assert 64 / cycle_s(more, 200) == pytest.approx(24 / cycle_s(fewer, 200), rel=0.02)


@pytest.mark.parametrize("concurrency", [8, 32, 96])
def test_a_first_token_waits_for_two_prompts_where_lengths_are_equal(concurrency: int) -> None:
    """Each client comes back while its neighbour's prompt runs, in a step of its own; the first ones come at once."""
    prompt_s, decode_s = 0.1, 0.01
    times = Steps(decode_s=[decode_s] * 128, tokens=[16, 4096], added_s=[prompt_s * 16 / 4096, prompt_s])
    one_a_step = Scheduling(step_tokens=4096 + 128, mixed_steps=True, ahead=False, chunked_prompts=False)
    load = {"concurrency": concurrency, "prompt": 4096, "steps": 1000, "slots": 1e9, "spread": 0.0}
    load["front_end"] = FrontEnd(0.4 * decode_s)
    always, measured = (simulate(times, one_a_step, rounds=rounds, **load) for rounds in (100_000, 10))
    assert always.ttft_p50_s == pytest.approx(2.0 * (prompt_s + decode_s))
    assert always.ttft_s == pytest.approx(always.ttft_p50_s, rel=0.1)
    # all prompts of the first round are ahead of half of them on average
    first_s = 0.5 * (concurrency + 1) * (prompt_s + decode_s)
    assert measured.ttft_p50_s == pytest.approx(always.ttft_p50_s)
    assert measured.ttft_s == pytest.approx(0.9 * always.ttft_s + 0.1 * first_s, rel=0.05)


def test_an_engine_that_looks_seldom_lets_requests_wait_for_half_of_the_steps_between() -> None:
    times = Steps(decode_s=[0.01] * 64, tokens=[16, BUDGET], added_s=[1e-6, 1e-5])
    load = {"concurrency": 16, "prompt": 100, "steps": 400, "slots": 1e9, "rounds": 1000}
    often, seldom = (
        simulate(times, Scheduling(step_tokens=BUDGET, mixed_steps=True, ahead=False, poll_steps=steps), **load)
        for steps in (1, 30)
    )
    assert seldom.ttft_s - often.ttft_s == pytest.approx(0.5 * 29 * 0.01, rel=0.1)
    assert seldom.tpot_s == pytest.approx(often.tpot_s, rel=1e-3)


def test_prompts_that_stay_whole_leave_room_in_steps() -> None:
    """Two prompts of three quarters of a step come at once, then one by one: split ones wait for a full step first."""
    times = Steps(decode_s=[0.01] * 8, tokens=[1, BUDGET], added_s=[0.1 / BUDGET, 0.1])
    load = {"concurrency": 2, "prompt": 6144, "steps": 5000, "slots": 1e9, "spread": 0.0, "rounds": 2}
    whole, split = (
        simulate(times, Scheduling(step_tokens=BUDGET, mixed_steps=True, ahead=False, chunked_prompts=chunked), **load)
        for chunked in (False, True)
    )
    own_s, full_s, both_s = 0.01 + 0.075, 0.01 + 0.1, 2.0 * 0.01 + 2.0 * 0.075
    assert whole.ttft_s == pytest.approx((own_s + both_s + 2.0 * own_s) / 4.0)
    assert split.ttft_s == pytest.approx((full_s + both_s + 2.0 * own_s) / 4.0)


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
    requests: int,
) -> tuple[float, float]:
    """Mean TTFT and TPOT of the first requests that an engine answers, which runs step after step.

    Answers differ in length by `spread` either way. Without mixed steps prompts go first, in steps of their own.
    """
    draw = random.Random(0)
    environment = simpy.Environment()
    waiting: list[tuple[_Request, simpy.Event]] = []
    arrival = [environment.event()]
    answered: list[_Request] = []

    def client() -> Generator[simpy.Event, Any, None]:
        while True:
            length = max(1, round(steps * (1.0 + spread * draw.uniform(-1.0, 1.0))))
            request, done = _Request(length, environment.now), environment.event()
            waiting.append((request, done))
            if not arrival[0].triggered:
                arrival[0].succeed()
            yield done
            answered.append(request)
            if len(answered) == requests:
                enough.succeed()

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

    enough = environment.event()
    for _ in range(concurrency):
        environment.process(client())
    environment.process(engine())
    environment.run(enough)
    return (
        statistics.fmean(request.first_s - request.sent_s for request in answered),
        statistics.fmean((request.last_s - request.first_s) / request.tokens for request in answered),
    )


@pytest.mark.slow
@pytest.mark.parametrize("slots", [8, 48])
@pytest.mark.parametrize("concurrency", [1, 4, 16, 48])
@pytest.mark.parametrize(("steps", "prompt_s"), [(200, 0.02), (200, 0.1), (20, 0.02)])
def test_times_are_those_of_another_simulation(concurrency: int, slots: int, steps: int, prompt_s: float) -> None:
    def decode_s(n: int) -> float:
        return 0.010 + 1e-4 * n

    # prompts of one length, as there: answers' lengths spread
    times = Steps(
        decode_s=[decode_s(number) for number in range(49)], tokens=[1024, 8192], added_s=[prompt_s, 8.0 * prompt_s]
    )
    load = {"concurrency": concurrency, "prompt": 1024, "steps": steps, "slots": float(slots), "spread": 0.2}
    served = simulate(times, Scheduling(step_tokens=8192, mixed_steps=True, ahead=False), **load)
    ttft_s, tpot_s = _engine(
        concurrency=concurrency,
        steps=steps,
        decode_s=decode_s,
        prompt_s=prompt_s,
        slots=slots,
        together=8,
        mixed=True,
        spread=0.2,
        requests=max(8 * concurrency, 200),
    )
    assert served.tpot_s == pytest.approx(tpot_s, rel=0.05)
    assert cycle_s(served, steps) == pytest.approx(ttft_s + steps * tpot_s, rel=0.05)
