"""The plan on which standard serves a load fastest on the GPUs that were asked about: what a buyer would run today."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ladder_sim.closed_loop.step import simulate_request
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.confidence.runs import RUN_NOISE, is_faster
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import memory_use
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.specs.legal_plans import legal_plans
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario

STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestStandard:
    """Standard on the fastest plan for the GPUs and the load of a scenario, where that is not the scenario's own."""

    confidence: Confidence
    """How sure the prediction on that plan is; it holds the scenario with that plan."""
    request_s: float
    """Time of a request there, in seconds."""
    faster: Interval
    """Request time of standard on the plan asked about, divided by that on this one."""

    @property
    def scenario(self) -> Scenario:
        """The scenario asked about, with this plan."""
        return self.confidence.scenario

    @property
    def tokens_per_s(self) -> Interval:
        """Throughput of standard on this plan, in tokens per second."""
        workload = self.scenario.workload
        rate = workload.in_flight * workload.gen / self.request_s
        return Interval.around(rate, self.confidence.widths[STANDARD].rate)

    @property
    def surely_faster(self) -> bool:
        """Whether the interval of `faster` leaves out 1."""
        return is_faster(self.faster)

    def gain(self, speedup: Interval) -> Interval:
        """Return the gain over standard on this plan, given the speedup over standard on the plan asked about.

        Errors of the two ratios are taken as independent. That is wide: what makes links slow makes both larger.
        """
        width = math.hypot(speedup.log_width, self.faster.log_width)
        return Interval.around(speedup.value / self.faster.value, width)

    def fields(self, speedups: Mapping[str, Interval]) -> dict[str, Any]:
        """Return its figures as in JSON, with the gain of each variant whose speedup is given."""
        return {
            "plan": str(self.scenario.plan),
            **dataclasses.asdict(self.scenario.plan),
            "tokens_per_s": self.tokens_per_s.value,
            "tokens_per_s_low": self.tokens_per_s.low,
            "tokens_per_s_high": self.tokens_per_s.high,
            "surely_faster": self.surely_faster,
            "gains": {
                name: {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
                for name, gain in ((name, self.gain(speedup)) for name, speedup in speedups.items())
            },
        }


def best_standard(asked: Confidence) -> BestStandard | None:
    """Find the plan on which standard is fastest on the same GPUs, with the same load.

    Parameters
    ----------
    asked
        Of the predictions of a scenario.

    Returns
    -------
    BestStandard or None
        None if the plan asked about is the fastest, or within what runs alike differ by. Of plans that are as close to
        the fastest one, the plan with the fewest kinds of parallelism.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> busy = Scenario(model="405b", nodes=2, stack="vllm", concurrency=32)
    >>> best = best_standard(predict(busy).confidence)
    >>> str(best.scenario.plan)
    'TP 8, PP 2'
    """
    own_s = asked.request_s(STANDARD)
    found = [each for each in _others(asked.scenario, asked.costs.profile) if own_s > math.exp(RUN_NOISE) * each[0]]
    if not found:
        return None
    least_s = min(seconds for seconds, _ in found)
    as_fast = [confidence for seconds, confidence in found if seconds < math.exp(RUN_NOISE) * least_s]
    best = min(as_fast, key=lambda each: _kinds(each.scenario.plan))
    return BestStandard(confidence=best, request_s=best.request_s(STANDARD), faster=best.over_plan(asked))


def _others(scenario: Scenario, profile: CalibrationProfile | None) -> Iterator[tuple[float, Confidence]]:
    """Request times of standard on the other plans that fit the memory."""
    for plan in candidates(scenario):
        there = scenario.having(plan=plan)
        memory = memory_use(there)
        if not memory.fits:
            continue
        costs = KernelCosts(there, profile)
        requests = simulate_request(there, [STANDARD], costs)
        confidence = Confidence(there, requests, costs, memory)
        yield confidence.request_s(STANDARD), confidence


def candidates(scenario: Scenario) -> list[Plan]:
    """Return the plans that are compared with a scenario's own: those that every engine runs, with most replicas.

    Experts are spread over all ranks of a stage, or none: vLLM has nothing between (--enable-expert-parallel).
    """
    gpus = scenario.plan.gpus
    if gpus == 1:
        return []
    most: dict[Plan, Plan] = {}
    for plan in legal_plans(scenario, gpus, {}).legal:
        if plan.ep in (1, plan.ranks):
            alone = dataclasses.replace(plan, dp=1)
            most[alone] = max(most.get(alone, plan), plan, key=lambda each: each.dp)
    return [plan for plan in most.values() if plan != scenario.plan]


def _kinds(plan: Plan) -> int:
    """How many degrees are above 1."""
    return sum(degree > 1 for degree in (plan.tp, plan.pp, plan.ep, plan.attention_dp, plan.dp))
