"""The scheduler and its replica: what holds whatever arrives, and queues whose waiting times are known."""

import itertools
from collections.abc import Generator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.replica import Replica, SimulatedReplica
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.requests.request import Request
from tests.support.replicas import Steps, serve, steps_and_answers
from tests.support.vllm_cases import CASES, TIMES, recorded

DRAFTS = Speculation(acceptance=(0.8, 0.6, 0.4), cost=0.02)
SPEC = SchedulerSpec(step_tokens=256, step_requests=16, kv_blocks=1000)

REQUESTS = st.lists(
    st.builds(
        lambda gap, prompt, gen, parts: (gap, prompt, gen, parts),
        st.sampled_from([0.0, 0.0, 0.003, 0.1]),
        st.integers(1, 500),
        st.integers(1, 90),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=30,
)
SPECS = st.builds(
    SchedulerSpec,
    step_tokens=st.sampled_from([16, 100, 1000]),
    step_requests=st.sampled_from([1, 3, 16]),
    kv_blocks=st.sampled_from([40, 60, 400]),
    mixed_steps=st.booleans(),
    chunked_prompts=st.booleans(),
    poll_steps=st.sampled_from([1, 1, 7]),
    prefix_cache=st.booleans(),
    ahead=st.booleans(),
    answer_share=st.sampled_from([0.0, 0.7, 1.0]),
    speculation=st.sampled_from([None, DRAFTS, Speculation(acceptance=(0.7,), cost=0.0)]),
    pads_prompts=st.booleans(),
)


def at_once(*sizes: tuple[int, int]) -> list[tuple[float, int, int, int]]:
    return [(0.0, prompt, gen, 0) for prompt, gen in sizes]


def decoded(number: int, gen: int, spec: SchedulerSpec) -> list[int]:
    """Tokens that a request decodes at least and at most, those that are rejected included."""
    speculation = spec.speculation
    if speculation is None or gen == 1:
        return [gen - 1, gen - 1]
    path = speculation.path(speculation.gains(number, gen), 0, ahead=spec.ahead)
    # steps of prompts alone give the time to learn that an answer is complete
    return [spec.rows * (len(path.beyond) if spec.mixed_steps else path.steps), spec.rows * len(path.beyond)]


PROMPTS_FIRST = SchedulerSpec(step_tokens=16, step_requests=3, kv_blocks=40, mixed_steps=False, prefix_cache=False)


# one starts again and ends at the very tick at which it would have ended
@example(at_once((1, 20), (1, 24), (133, 77), (55, 59), (1, 23), (259, 32)), PROMPTS_FIRST)
# one loses its blocks when its last token is on its way
@example(at_once((1, 3), (1, 22), (132, 78), (38, 76), (1, 23), (258, 32)), PROMPTS_FIRST)
# a prompt of one token has the rows of the request that decodes already
@example(at_once((1, 2), (1, 1)), replace(PROMPTS_FIRST, ahead=False, speculation=DRAFTS))
@given(REQUESTS, SPECS)
def test_tokens_and_blocks_are_conserved(drawn: list[tuple[float, int, int, int]], spec: SchedulerSpec) -> None:
    requests, now_s = [], 0.0
    for gap, prompt, gen, parts in drawn:
        now_s += gap
        prefix = tuple(range(parts))
        requests.append(Request(arrival_s=now_s, prompt=prompt, gen=gen, prefix=prefix, prefix_tokens=48))
    steps = Steps()
    answers = serve(requests, spec, steps)
    assert sorted(answer.number for answer in answers) == list(range(len(requests)))
    prompts = sum(request.prompt for request in requests)
    least, most = np.sum([decoded(number, request.gen, spec) for number, request in enumerate(requests)], axis=0)
    reused = sum(answer.reused for answer in answers)
    if spec.pads_prompts:
        # the last token of a prompt may have the rows of a request that decodes, if no other is left
        most += (spec.rows - 1) * sum(answer.request.prompt - answer.reused == 1 for answer in answers)
    # one whose last token was on its way has nothing left to run
    started_again = sum(answer.preemptions - (answer.produced == answer.request.gen) for answer in answers)
    # each token once, but those that were cached, and those of requests that had to start again
    run = steps.tokens + reused - prompts
    if not started_again:
        assert least <= run <= most
    elif not spec.speculation:
        assert run > most
    assert run >= sum(request.gen - 1 for request in requests)
    assert steps.replica is not None
    assert steps.replica.scheduler.blocks.free == spec.kv_blocks
    assert not (spec.answer_share == 1.0 and any(answer.preemptions for answer in answers))
    for answer in answers:
        assert answer.request.arrival_s < answer.first_s <= answer.last_s
        assert (answer.first_s == answer.last_s) == (answer.request.gen == 1)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.9])
def test_requests_that_are_served_one_by_one_wait_as_in_a_queue_of_one_server(load: float) -> None:
    """M/D/1: arrivals at random, one server, equal times of service."""
    random, service_s = Random(1), 0.01
    arrivals_s = list(itertools.accumulate(random.expovariate(load / service_s) for _ in range(20_000)))
    spec = SchedulerSpec(step_tokens=1, step_requests=1, kv_blocks=1, ahead=False)
    answers = serve([Request(arrival_s=at_s, prompt=1, gen=1) for at_s in arrivals_s], spec, Steps(service_s, 0.0))
    # who comes waits for what is left of the one before (Lindley)
    ends_s = itertools.accumulate(arrivals_s, lambda end_s, at_s: max(end_s, at_s) + service_s, initial=0.0)
    assert [answer.last_s for answer in answers] == pytest.approx(list(ends_s)[1:])
    if load < 0.9:
        # Pollaczek and Khinchine; near full load, means of so many requests still scatter
        waiting_s = sum(answer.ttft_s - service_s for answer in answers) / len(answers)
        assert waiting_s == pytest.approx(load * service_s / (2.0 * (1.0 - load)), rel=0.05)


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, speculation=DRAFTS)])
@pytest.mark.parametrize("rate", [1.0, 8.0, 30.0])
def test_requests_there_are_as_many_as_arrive_in_the_time_of_one(rate: float, spec: SchedulerSpec) -> None:
    """Little's law: the mean number of requests is their rate times their mean time, at every load."""
    random, seen = Random(2), list[int]()

    gaps = (random.expovariate(rate) for _ in range(3000))
    requests = [
        Request(arrival_s=at_s, prompt=random.randint(1, 300), gen=random.randint(1, 40))
        for at_s in itertools.accumulate(gaps)
    ]

    def watch(
        env: simpy.Environment, replica: Replica, answers: Sequence[Answer]
    ) -> Generator[simpy.Event, object, None]:
        while len(answers) < len(requests):
            seen.append(replica.load)
            yield env.timeout(random.expovariate(20.0 * rate))

    answers = serve(requests, spec, Steps(), watch)
    mean_s = sum(answer.request_s for answer in answers) / len(answers)
    through = len(answers) / max(answer.last_s for answer in answers)
    assert sum(seen) / len(seen) == pytest.approx(through * mean_s, rel=0.05)


def test_the_first_token_waits_for_the_step_that_was_decided_before() -> None:
    """A request that arrives during a step joins the next, or the one after it if the next was decided on ahead."""
    for ahead, joins in ((False, 1), (True, 2)):
        spec = SchedulerSpec(step_tokens=256, step_requests=16, kv_blocks=1000, ahead=ahead)
        requests = [Request(arrival_s=0.0, prompt=1, gen=50), Request(arrival_s=0.055, prompt=1, gen=1)]
        second = next(answer for answer in serve(requests, spec, Steps(0.01, 0.0)) if answer.number)
        assert second.ttft_s == pytest.approx(0.005 + 0.01 * joins)


def test_prompts_go_first_where_steps_are_not_mixed() -> None:
    spec = SchedulerSpec(step_tokens=100, step_requests=16, kv_blocks=1000, mixed_steps=False, ahead=False)
    requests = [Request(arrival_s=0.0, prompt=50, gen=10), Request(arrival_s=0.015, prompt=300, gen=1)]
    first, second = sorted(serve(requests, spec, Steps(0.01, 0.0)), key=lambda answer: answer.number)
    # it begins at 20 ms, and takes three steps in which nothing is decoded
    assert second.first_s == pytest.approx(0.05)
    assert first.last_s == pytest.approx(0.01 * (10 + 3))


def test_prompts_that_go_first_are_pauses_between_tokens() -> None:
    """Guards what SGLang's requests wait: a prompt's end is no token of those that decode."""
    spec = SchedulerSpec(step_tokens=100, step_requests=16, kv_blocks=1000, mixed_steps=False, ahead=False)
    requests = [Request(arrival_s=0.0, prompt=50, gen=10), Request(arrival_s=0.015, prompt=300, gen=1)]
    steps = Steps(0.01, 0.0)
    serve(requests, spec, steps)
    assert steps.replica is not None
    gaps_s = [gap_s for gap_s, count in steps.replica.gaps_s for _ in range(count)]
    # three steps of the prompt, and one that decodes
    assert gaps_s == pytest.approx([0.01, 0.04, *[0.01] * 7])


def test_prompts_of_one_token_are_no_tokens_of_answers() -> None:
    """Guards what an idle engine's requests wait: not for those before them."""
    spec, steps = replace(SPEC, ahead=False), Steps(0.01, 0.0)
    serve([Request(arrival_s=60.0 * number, prompt=1, gen=3) for number in range(3)], spec, steps)
    assert steps.replica is not None
    assert list(steps.replica.gaps_s) == [(pytest.approx(0.01), 1)] * 6


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_that_vllm_took(name: str) -> None:
    """Of vLLM 0.32.0, as recorded by `tests.support.vllm_cases`; tests/serving/test_vllm.py runs it."""
    requests, spec = CASES[name]
    mixes, answers = steps_and_answers(SimulatedReplica, requests, spec, TIMES)
    theirs = recorded()[name]
    assert mixes == theirs.mixes
    for own, their in zip(answers, theirs.answers, strict=True):
        assert (own.first_s, own.last_s) == pytest.approx((their.first_s, their.last_s))
        assert own.preemptions == their.preemptions
    # with blocks of 32 tokens memory is short as well
    assert any(answer.preemptions for answer in answers) == name.startswith(("little", "blocks"))


def test_a_part_of_a_prompt_is_cached_after_its_own_beginning_only() -> None:
    """Keys and values of a token depend on all tokens before it: the same part after another one is not the same."""
    requests = [
        Request(arrival_s=float(number), prompt=33, gen=1, prefix=prefix, prefix_tokens=16)
        for number, prefix in enumerate(["ab", "cd", "ad", "cd"])
    ]
    answers = sorted(serve(requests, SPEC, Steps()), key=lambda answer: answer.number)
    assert [answer.reused for answer in answers] == [0, 0, 16, 32]
