"""What a buyer would run today instead: standard on the fastest plan for the same GPUs, or with weights in fp8."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder_sim.closed_loop.step import simulate_request
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.confidence.runs import RUN_NOISE, is_faster
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import memory_use
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs.legal_plans import legal_plans
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario

STANDARD = "standard"


# no slots: a dataclass with them cannot be extended by another one's fields
@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """Standard in another scenario than the one asked about, with the same load."""

    confidence: Confidence
    """How sure the prediction is; it holds the other scenario."""

    @property
    def scenario(self) -> Scenario:
        """The other scenario."""
        return self.confidence.scenario

    @property
    def request_s(self) -> float:
        """Time of a request, in seconds."""
        return self.confidence.request_s(STANDARD)

    @property
    def tokens_per_s(self) -> Interval:
        """Throughput, in tokens per second."""
        workload = self.scenario.workload
        rate = workload.in_flight * workload.gen / self.request_s
        return Interval.around(rate, self.confidence.widths[STANDARD].rate)


@dataclass(frozen=True, kw_only=True, eq=False)
class BestStandard(Standard):
    """Standard on the fastest plan for the GPUs and the load of a scenario, where that is not the scenario's own."""

    faster: Interval
    """Request time of standard on the plan asked about, divided by that on this one."""

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

    None if the plan asked about is the fastest, or within what runs alike differ by, or if the profile is of real
    passes on it. Of plans that are as close to the fastest one, the plan with the fewest kinds of parallelism.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> busy = Scenario(model="405b", nodes=2, stack="vllm", concurrency=32)
    >>> best = best_standard(predict(busy).confidence)
    >>> str(best.scenario.plan)
    'TP 8, PP 2'
    """
    scenario, profile = asked.scenario, asked.costs.profile
    if profile and profile.in_place is not None:
        # real passes of one plan price no other
        return None
    others = [_standard(scenario.having(plan=plan), profile) for plan in candidates(scenario)]
    faster = [each for each in others if each and _is_faster(each, asked)]
    if not faster:
        return None
    least_s = min(each.request_s(STANDARD) for each in faster)
    as_fast = [each for each in faster if each.request_s(STANDARD) < math.exp(RUN_NOISE) * least_s]
    best = min(as_fast, key=lambda each: _kinds(each.scenario.plan))
    return BestStandard(confidence=best, faster=best.over_plan(asked))


def in_fp8(asked: Confidence) -> Standard | None:
    """Find whether standard with the same weights in fp8 is faster, on as few of the nodes as hold it.

    None if it is not faster than standard as asked about, if the model's weights or the scenario's are quantised
    already, or if the GPU multiplies fp8 no faster than bf16. With tensor parallelism alone the degree is that of the
    nodes that are needed; other plans stay as they are.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> instead = in_fp8(predict(Scenario(model="405b", nodes=2)).confidence)
    >>> instead.scenario.nodes, f"{instead.tokens_per_s.value:.1f}"
    (1, '32.8')
    """
    scenario = asked.scenario
    gpu, plan = scenario.cluster.gpu, scenario.plan
    kept = {scenario.workload.dtype, scenario.model.weights_dtype} <= {"bf16", "fp16"}
    if not kept or gpu.fp8_flops <= gpu.bf16_flops or scenario.set_by_hand("workload.dtype"):
        return None
    # fewer nodes leave fewer ranks
    nodes = range(1, scenario.nodes + 1) if plan == Plan(tp=plan.tp) else [scenario.nodes]
    for number in nodes:
        tp = min(plan.tp, number * scenario.cluster.gpus_per_node)
        try:
            there = scenario.replace(dtype="fp8", nodes=number, tp=tp)
        except LadderSimError:
            # so many ranks do not divide the model
            continue
        found = _standard(there, asked.costs.profile)
        if found:
            return Standard(confidence=found) if _is_faster(found, asked) else None
    return None


def _standard(scenario: Scenario, profile: CalibrationProfile | None) -> Confidence | None:
    memory = memory_use(scenario)
    if not memory.fits:
        return None
    try:
        costs = KernelCosts(scenario, profile)
    except UsageError:
        # the all-reduce asked for does not run there
        return None
    return Confidence(scenario, simulate_request(scenario, [STANDARD], costs), costs, memory)


def _is_faster(other: Confidence, asked: Confidence) -> bool:
    """Whether standard is faster by more than runs alike differ by."""
    return asked.request_s(STANDARD) > math.exp(RUN_NOISE) * other.request_s(STANDARD)


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
    return sum(degree > 1 for degree in (plan.tp, plan.pp, plan.ep, plan.attention_dp, plan.dp))
