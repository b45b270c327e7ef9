"""What every serving keeps, whatever arrives and however it is scheduled."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.errors import UsageError
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.replicas.simulation import ROUTERS, Pool, Prefill, simulate
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.service import scheduler_spec
from tests.support.laws import law
from tests.support.replicas import LinearTimes
from tests.support.strategies import ODD

TIMES = LinearTimes(0.01, 1e-4)
# the client has an answer when the engine has it
AT_ONCE = {"frontend_s": 0.0, "frontend_steps": 0.0, "frontend_token_s": 0.0}
# tokens of the longest request
LONGEST = 600
ENGINES = ("vllm", "vllm@0.12", "sglang", "trtllm")
# of a request, but its prefix, which may name its parts as it likes
DRAFTS = (None, None, Speculation(acceptance=(0.8, 0.5), cost=0.02), Speculation(acceptance=(0.7,), cost=0.0))


class Serving(NamedTuple):
    """A load and what serves it."""

    requests: list[Request]
    pool: Pool
    prefill: Prefill | None
    how: dict[str, Any]

    def run(self) -> Outcome:
        return simulate("standard", self.pool, self.requests, prefill=self.prefill, record=True, **self.how)


@st.composite
def loads(draw: st.DrawFn) -> list[Request]:
    """Requests at all distances, of one token and many, that begin alike."""
    lengths = st.tuples(st.just(1) | st.integers(1, 500), st.just(1) | st.integers(1, 90))
    prefixes = st.lists(st.integers(0, 2), max_size=4).map(tuple)
    gaps_s = st.sampled_from([0.0, 0.0, 0.003, 0.1, 3.0])
    drawn = draw(st.lists(st.tuples(gaps_s, lengths, prefixes), min_size=1, max_size=25))
    arrivals_s = itertools.accumulate(gap_s for gap_s, *_ in drawn)
    return [
        Request(arrival_s=at_s, prompt=prompt, gen=gen, prefix=prefix, prefix_tokens=48)
        for at_s, (_, (prompt, gen), prefix) in zip(arrivals_s, drawn, strict=True)
    ]


@st.composite
def servings(draw: st.DrawFn) -> Serving:
    """An engine's scheduler with much or little room, some replicas of it, and maybe others that run prompts."""
    scenario = Scenario(model="8b", tp=1, pp=draw(st.sampled_from([1, 2])), stack=draw(st.sampled_from(ENGINES)))
    changed = {
        "step_tokens": draw(st.sampled_from([16, 100, 1000])),
        "step_requests": draw(st.sampled_from([1, 3, 16])),
        "prefix_cache": draw(st.booleans()),
        "speculation": draw(st.sampled_from(DRAFTS)),
        **AT_ONCE,
    }
    size = scheduler_spec(scenario, LONGEST).block_tokens
    changed["kv_blocks"] = draw(st.sampled_from([700, 1000, 8000])) // size
    spec = scheduler_spec(scenario, LONGEST, **changed)
    count = draw(st.integers(1, 2)) * scenario.plan.steps_at_once
    prefill = None
    if draw(st.booleans()):
        prompts = Pool(times=TIMES, spec=replace(spec, hands_over=True, speculation=None), replicas=count)
        prefill = Prefill(pool=prompts, latency_s=0.02, bandwidth_Bps=1e9, gpu_bytes=lambda tokens: 1e4 * tokens)
    how = {"router": draw(st.sampled_from(sorted(ROUTERS))), "concurrency": draw(st.sampled_from([0, 0, 1, 4]))}
    return Serving(draw(loads()), Pool(times=TIMES, spec=spec, replicas=count), prefill, how)


@law(examples=150)
@given(servings())
def test_times_between_tokens_add_up(serving: Serving) -> None:
    """Times between tokens and times to first token add up to end-to-end times, and without drafts each token has one.

    An engine with drafted tokens hands over several at a time, as clients see them.
    """
    outcome = serving.run()
    gaps_s = [gap for replica in outcome.replicas for gap in replica.gaps_s]
    total_s = sum(answer.request_s - answer.ttft_s for answer in outcome.answers)
    assert sum(gap_s * count for gap_s, count in gaps_s) == pytest.approx(total_s)
    assert all(gap_s > 0.0 and count > 0 for gap_s, count in gaps_s)
    further = sum(answer.request.gen - 1 for answer in outcome.answers)
    tokens = sum(count for _, count in gaps_s)
    assert -(-further // serving.pool.spec.rows) <= tokens <= further
    if not serving.pool.spec.speculation:
        assert tokens == further


@law(examples=150)
@given(servings())
def test_requests_are_conserved(serving: Serving) -> None:
    """Requests that have come are answered, run or wait, at every step, and in the end all are answered."""
    outcome = serving.run()
    assert [answer.number for answer in outcome.answers] == list(range(len(serving.requests)))
    for replica in outcome.replicas:
        assert (replica.load, replica.running, replica.waiting) == (0, 0, 0)
    # of a pool that takes KV caches, when they come is not known
    for replica in outcome.replicas[serving.pool.replicas if serving.prefill else 0 :]:
        for step in replica.steps:
            end_s = step.start_s + step.seconds
            answered = sum(answer.last_s <= end_s for answer in replica.answers)
            # who comes at that very moment may be counted already
            before, by_then = (
                sum(answer.request.arrival_s < limit_s for answer in replica.answers)
                for limit_s in (end_s - 1e-9, end_s + 1e-9)
            )
            assert before <= answered + step.running + step.waiting <= by_then


@law(examples=150)
@given(servings())
def test_the_kv_cache_is_never_more_than_full(serving: Serving) -> None:
    """The KV cache in use is from nothing to all of it at every step, and in the end nothing."""
    for replica in serving.run().replicas:
        assert all(0.0 <= step.kv_share <= 1.0 for step in replica.steps)
        assert replica.kv_share == 0.0


@law(examples=150)
@given(servings())
def test_tokens_come_after_their_requests(serving: Serving) -> None:
    """No token comes before a step of its request could end, and the last one comes after the first."""
    for answer, request in zip(serving.run().answers, serving.requests, strict=True):
        assert answer.request.arrival_s >= request.arrival_s
        assert answer.ttft_s >= TIMES.step_s
        # a step brings at most all drafts and one token more
        steps = -(-(request.gen - 1) // serving.pool.spec.rows)
        assert answer.request_s - answer.ttft_s >= 0.999 * steps * TIMES.step_s


@law(examples=100)
@given(servings())
def test_the_same_requests_are_answered_the_same(serving: Serving) -> None:
    """The same requests are served the same every time."""
    first, second = (serving.run() for _ in range(2))
    for one, other in zip(first.answers, second.answers, strict=True):
        assert (one.first_s, one.last_s, one.reused) == (other.first_s, other.last_s, other.reused)
    for mine, theirs in zip(first.replicas, second.replicas, strict=True):
        assert mine.steps == theirs.steps
        assert Counter(mine.gaps_s) == Counter(theirs.gaps_s)


@law(examples=150)
@given(servings())
def test_prefix_hits_are_common_beginnings(serving: Serving) -> None:
    """Of a prompt the prefix cache has at most what another one has in common with it, from the first token on."""
    outcome = serving.run()
    for answer in outcome.answers:
        others = [other.request for other in outcome.answers if other is not answer]
        # one that started again finds its own
        if not answer.preemptions:
            assert answer.reused <= max((alike(answer.request, other) for other in others), default=0)


def alike(one: Request, other: Request) -> int:
    """Tokens that two prompts begin with in common."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.prefix, other.prefix, strict=False))
    return min(one.prompt, other.prompt, one.prefix_tokens * sum(1 for _ in pairs))


@law(examples=300)
@given(st.dictionaries(st.sampled_from(["arrival_s", "prompt", "gen", "prefix_tokens"]), ODD), st.booleans())
def test_requests_are_refused_or_answered(odd: dict[str, Any], held_back: bool) -> None:
    """A request with any value in any field is refused or answered in finite time."""
    spec = scheduler_spec(Scenario(model="8b", tp=1, stack="vllm"), LONGEST)
    pool = Pool(times=TIMES, spec=spec)
    try:
        request = Request(**{"arrival_s": 0.0, "prompt": 16, "gen": 4, **odd})
        outcome = simulate("standard", pool, [request], concurrency=int(held_back))
    except UsageError:
        return
    (answer,) = outcome.answers
    assert 0.0 < answer.ttft_s <= answer.request_s < math.inf
