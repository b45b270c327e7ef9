"""The engine that takes steps together against one that takes them one by one: every request's times are equal."""

from collections import defaultdict
from collections.abc import Generator, Hashable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.serving import Lengths, Service, Traffic
from ladder_sim.serving.engine import replica
from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.kv_blocks import KvBlocks
from ladder_sim.serving.engine.replica import Calendar, Gaps, SimulatedReplica
from ladder_sim.serving.engine.scheduler import Scheduler, SchedulerSpec
from ladder_sim.serving.replicas import simulation
from ladder_sim.serving.replicas.simulation import MOST_MORE, ROUTERS, Pool, Router, simulate
from ladder_sim.serving.requests.request import Request
from tests.serving.step_by_step import StepByStep
from tests.support.laws import law
from tests.support.replicas import AnswerTimes, LinearTimes, steps_and_answers

SPEC = SchedulerSpec(step_tokens=256, step_requests=16, kv_blocks=1000)
SPECS = st.builds(
    SchedulerSpec,
    step_tokens=st.sampled_from([16, 100, 1000]),
    step_requests=st.sampled_from([1, 3, 16]),
    kv_blocks=st.sampled_from([40, 60, 400]),
    mixed_steps=st.booleans(),
    chunked_prompts=st.booleans(),
    prefix_cache=st.booleans(),
    ahead=st.booleans(),
    answer_share=st.sampled_from([0.0, 0.7, 1.0]),
)


@st.composite
def loads(draw: st.DrawFn) -> list[Request]:
    # no two events at one time, unless requests come together
    gaps_s = st.sampled_from([0.0, 0.0, 0.00301, 0.10037, 3.00071])
    # beginnings that are alike up to a part, whose ends are those of blocks or not
    names = st.integers(0, 4).map(lambda parts: tuple(range(parts))) | st.lists(st.integers(0, 1), max_size=4).map(
        tuple
    )
    lengths = st.tuples(gaps_s, st.just(1) | st.integers(1, 500), st.just(1) | st.integers(1, 90), names)
    requests, now_s, tokens = list[Request](), 0.0, draw(st.sampled_from([5, 48, 100]))
    for gap_s, prompt, gen, prefix in draw(st.lists(lengths, min_size=1, max_size=25)):
        now_s += gap_s
        requests.append(Request(arrival_s=now_s, prompt=prompt, gen=gen, prefix=prefix, prefix_tokens=tokens))
    return requests


@law(examples=150)
@given(loads(), SPECS)
def test_steps_taken_together_are_those_taken_one_by_one(requests: list[Request], spec: SchedulerSpec) -> None:
    """Whatever is scheduled, every request has its first and its last token when it has them step by step."""
    times = LinearTimes(0.0117, 1.3e-5)
    equal(steps_and_answers(SimulatedReplica, requests, spec, times)[1], StepByStep(requests, spec, times).run())


@law(examples=60)
@given(loads(), SPECS, st.sampled_from(list(ROUTERS)))
def test_replicas_that_run_alone_do_as_those_that_run_at_every_event(
    requests: list[Request], spec: SchedulerSpec, router: Router
) -> None:
    """A router sees each replica as it is when a request comes, also if that has not run up to then."""
    pool = Pool(times=LinearTimes(0.0117, 1.3e-5), spec=spec, replicas=3)

    def served(**how: Any) -> list[AnswerTimes]:
        answers = simulate("standard", pool, requests, router=router, **how).answers
        return [AnswerTimes(answer.first_s, answer.last_s, answer.preemptions) for answer in answers]

    alone = served()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "steps_to_evict", lambda _: 0)
        # a client that holds none back
        equal(alone, served(concurrency=len(requests)))


def test_a_router_sees_the_blocks_that_an_answer_has_taken_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are alike are taken together, but a growing answer evicts what others left step by step."""
    first = Request(arrival_s=0.0, prompt=70, gen=1, prefix=("a",), prefix_tokens=64)
    grows = Request(arrival_s=1.0, prompt=16, gen=300)

    def seen() -> list[int]:
        env, calendar, blocks = simpy.Environment(), Calendar(), list[int]()
        replica = SimulatedReplica(env, LinearTimes(0.01, 0.0), replace(SPEC, kv_blocks=20), lambda _: None)
        replica.calendar = calendar

        def look() -> Generator[simpy.Event, object, None]:
            for number, request in enumerate([first, grows]):
                yield env.timeout(request.arrival_s - env.now)
                replica.add(Answer(request=request, number=number))
            for _ in range(50):
                yield env.timeout(0.0603)
                calendar.catch_up(env.now)
                blocks.append(replica.cached(Answer(request=first, number=2)))

        env.process(look())
        env.run()
        return blocks

    blocks = seen()
    assert set(blocks) == {4, 3, 2, 1, 0}
    monkeypatch.setattr(Scheduler, "steps_to_evict", lambda _: 0)
    assert blocks == seen()


class Told(SimulatedReplica):
    """One that says what it is told."""

    def __init__(self, spec: SchedulerSpec) -> None:
        self.spec, self.load = spec, 0
        self.blocks = defaultdict[Hashable, int](int)

    def cached(self, answer: Answer) -> int:
        most = (answer.prompt - 1) // self.spec.block_tokens
        return min(most, self.blocks[answer.request.prefix[0]]) if self.spec.prefix_cache else 0


@law(examples=60)
@given(st.randoms(use_true_random=False), st.sampled_from([0, 2, 1000]), st.booleans())
def test_a_router_asks_few_replicas_but_chooses_as_if_it_asked_all(
    random: Random, most_names: int, prefix_cache: bool
) -> None:
    """Of those with few requests the one that has most of the prompt, then the one with the fewest requests."""
    replicas = [Told(replace(SPEC, prefix_cache=prefix_cache)) for _ in range(6)]
    choose = ROUTERS["prefix-aware"]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_MOST_PARTS", most_names)
        for number in range(40):
            name = random.choice("abcd")
            prompt = random.choice([16, 40, 70])
            request = Request(arrival_s=0.0, prompt=prompt, gen=1, prefix=(name,), prefix_tokens=64)
            answer = Answer(request=request, number=number)
            near = [each for each in replicas if each.load <= min(each.load for each in replicas) + MOST_MORE]
            best = max(near, key=lambda each: (each.cached(answer), -each.load))
            assert choose(replicas, answer) is best
            best.blocks[name] = random.randint(0, 4)
            for each in replicas:
                each.load = random.randint(0, 30)
                if random.random() < 0.1:
                    each.blocks[name] = 0


def test_a_long_beginning_is_one_run_of_blocks() -> None:
    """Asking a replica for a prompt of 100,000 tokens is a look at one run, not at 6,250 blocks."""
    blocks = KvBlocks(10_000, 16)
    answer = Answer(
        request=Request(arrival_s=0.0, prompt=100_000, gen=1, prefix=("a",), prefix_tokens=99_200), number=0
    )
    blocks.take(6250)
    answer.blocks = 6250
    blocks.publish(answer, 0, 100_000)
    blocks.release(answer, 100_000, answered=True)
    (held,) = blocks.cached(replace(answer, number=1))
    assert (held.start, held.stop, len(held.part.runs)) == (0, 6200, 1)
    # those of the first tokens go last
    blocks.take(3750 + 50 + 1200)
    (held,) = blocks.cached(replace(answer, number=1))
    assert (held.stop, blocks.idle([held]), blocks.free) == (5000, 5000, 5000)


@pytest.mark.slow
@pytest.mark.parametrize("little", [False, True])
@pytest.mark.parametrize("prefix", [0, 400])
@pytest.mark.parametrize(
    ("rate", "given"),
    [
        (1.0, {}),
        (10.0, {}),
        (8.0, {"stack": "sglang"}),
        (8.0, {"stack": "trtllm"}),
        (6.0, {"stack": "vllm@0.12"}),
        (10.0, {"technique": "token-split"}),
        (6.0, {"model": "qwen3-235b-a22b"}),
    ],
)
def test_predicted_steps_are_equal(rate: float, given: dict[str, Any], prefix: int, *, little: bool) -> None:
    """Of 70B and others, where a step's time bends with context: with and without preemption."""
    lengths = Lengths.parse("lognormal:600:0.7"), Lengths.parse("lognormal:100:0.8")
    load = Traffic(prompt=lengths[0], gen=lengths[1], rate=rate, requests=60, prefix=prefix, seed=5)
    service = Service.for_requests(Scenario(**{"model": "70b", "stack": "vllm", **given}), load)
    none = {"frontend_s": 0.0, "frontend_steps": 0.0, "frontend_token_s": 0.0}
    tokens = service.context + (1000 if little else 100_000)
    spec = replace(service.spec, **none, kv_blocks=tokens // service.spec.block_tokens, poll_steps=1)
    requests, times = list(load), service.times("ladder")
    taken = steps_and_answers(SimulatedReplica, requests, spec, times)[1]
    equal(taken, StepByStep(requests, spec, times).run())
    if little and rate > 1.0 and spec.answer_share < 1.0:
        assert any(answer.preemptions for answer in taken)


def equal(taken: list[AnswerTimes], step_by_step: list[AnswerTimes]) -> None:
    assert [answer.preemptions for answer in taken] == [answer.preemptions for answer in step_by_step]
    for own, their in zip(taken, step_by_step, strict=True):
        assert (own.first_s, own.last_s) == pytest.approx((their.first_s, their.last_s), rel=1e-9)


def test_times_between_tokens_that_hardly_differ_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, the mean stays, and no percentile moves by more than a thousandth."""
    exact = Gaps()
    random = np.random.default_rng(1)
    lines = [
        (int(count), float(first_s))
        for count, first_s in zip(random.integers(1, 99, 5000), random.gamma(2.0, 0.01, 5000), strict=True)
    ]
    monkeypatch.setattr(replica, "_MOST_LINES", 3000)
    joined = Gaps()
    for line in lines:
        joined.add(*line, 1e-6, 3)
    monkeypatch.setattr(replica, "_MOST_LINES", 10**6)
    for line in lines:
        exact.add(*line, 1e-6, 3)
    (few_s, few), (all_s, every) = joined.columns(), exact.columns()
    assert len(few_s) < len(all_s) / 2
    assert (few.sum(), (few * few_s).sum()) == pytest.approx((every.sum(), (every * all_s).sum()))
    for share in (0.5, 0.9, 0.99):
        assert quantile(few_s, few, share) == pytest.approx(quantile(all_s, every, share), rel=1e-3)


def quantile(values: Any, counts: Any, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
