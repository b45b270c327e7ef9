"""A replica whose steps take known times, and times that a server might have logged."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import simpy

from ladder_sim.serving import SLO, Outcome, Service, Traffic
from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.engine.replica import Replica, SimulatedReplica
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.replicas.simulation import Pool, simulate
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.service import SERVED_VARIANTS
from ladder_sim.serving.sizing.search import Need, Search
from ladder_sim.serving.steps.mix import Line, Mix, StepLimits
from ladder_sim.specs.scenario import Scenario
from ladder_sim.wirings.names import canonical_names

SERVER = MeasuredSteps(
    engine="vllm 0.32.0, TP 2",
    steps=1000,
    error=0.05,
    step_s=0.006,
    prompt_token_s=200e-6,
    decode_token_s=400e-6,
    context_token_s=2e-6,
    between_s=0.002,
    frontend_s=0.012,
    step_tokens=2048,
    step_requests=128,
    kv_tokens=32768,
    block_tokens=16,
    context=2048,
    prefix_cache=False,
    ahead=False,
)
"""A made-up one."""


class Steps:
    """Times of steps that a test knows, and a look at the replica at each."""

    def __init__(self, step_s: float = 0.01, token_s: float = 1e-4) -> None:
        self.step_s, self.token_s = step_s, token_s
        self.tokens = 0
        self.replica: SimulatedReplica | None = None

    def of_mix(self, mix: Mix, duty: float | None = None) -> float:
        if duty is not None:
            self.tokens += mix.tokens
            self.check(mix)
        return self.step_s + self.token_s * mix.tokens

    def line(self, mix: Mix) -> Line:
        return Line(self.of_mix(mix, 0.0), 0.0, 1)

    def check(self, mix: Mix) -> None:
        """No more blocks are held than there are; no step is larger than it may be."""
        assert self.replica is not None
        scheduler = self.replica.scheduler
        assert 0 <= scheduler.blocks.free <= scheduler.spec.kv_blocks
        assert mix.tokens <= scheduler.spec.step_tokens
        assert max(mix.decoding + mix.prompts, len(scheduler.running)) <= scheduler.spec.step_requests


class LinearTimes(NamedTuple):
    """Times of steps that grow with their tokens."""

    step_s: float
    token_s: float
    limits: StepLimits = StepLimits(1024, 8192, 32768)

    def of_mix(self, mix: Mix, duty: float = 0.0) -> float:
        return self.step_s + self.token_s * mix.tokens

    def line(self, mix: Mix) -> Line:
        return Line(self.of_mix(mix), 0.0, 1 << 30)

    def slower(self, factor: float) -> "LinearTimes":
        return self._replace(step_s=factor * self.step_s, token_s=factor * self.token_s)


class AnswerTimes(NamedTuple):
    """What became of a request."""

    first_s: float
    last_s: float
    preemptions: int


def steps_and_answers(
    kind: type[Replica], requests: Sequence[Request], spec: SchedulerSpec, times: LinearTimes
) -> tuple[list[Mix], list[AnswerTimes]]:
    """What a replica runs, and what becomes of the requests, in order of arrival."""
    pool = Pool(times=times, spec=spec, replica=kind)
    outcome = simulate("standard", pool, requests, record=True)
    return (
        [step.mix for step in outcome.recorded.steps],
        [AnswerTimes(answer.first_s, answer.last_s, answer.preemptions) for answer in outcome.answers],
    )


def serve(
    requests: Sequence[Request],
    spec: SchedulerSpec,
    steps: Steps,
    watch: Callable[[simpy.Environment, Replica, Sequence[Answer]], Generator[simpy.Event, object, None]] | None = None,
) -> list[Answer]:
    """What becomes of requests in one replica; `watch` is given it, and the answers so far, and waits in its time."""
    env, answers = simpy.Environment(), list[Answer]()
    steps.replica = replica = SimulatedReplica(env, steps, spec, answers.append)  # type: ignore[arg-type]

    def arrive() -> Generator[simpy.Event, object, None]:
        for number, request in enumerate(requests):
            yield env.timeout(request.arrival_s - env.now)
            replica.add(Answer(request=request, number=number))

    env.process(arrive())
    if watch:
        env.process(watch(env, replica, answers))
    env.run()
    return answers


def outcomes(
    scenario: Scenario, requests: Iterable[Request], variants: str | Sequence[str] = SERVED_VARIANTS, **given: Any
) -> dict[str, Outcome]:
    """What becomes of requests, with steps as predicted; `given` are fields of a service, concurrency and promise."""
    how = {name: given.pop(name) for name in ("concurrency", "slo", "steady") if name in given}
    service = Service.for_requests(scenario, requests, **given)
    return {name: service.run(name, requests, **how) for name in canonical_names(variants)}


def keywords(traffic: Traffic) -> dict[str, Any]:
    """Random requests as keywords of `ladder_sim.serve` and `capacity`."""
    return {each.name: getattr(traffic, each.name) for each in fields(traffic)}


def capacity(
    scenario: Scenario, traffic: Traffic, slo: SLO, variants: Sequence[str] = ("standard", "ladder")
) -> dict[str, Need]:
    """The fewest replicas on the plan of a scenario, with steps as predicted."""
    service = Service.for_requests(scenario, traffic)
    return {name: Search(service, name, traffic, slo).need() for name in variants}
