"""A request from its forward passes: one prefill, then decode over a growing context."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.costs.base import CostModel
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.model import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.ranks import Jitter, RankedStep, simulate_ranks
from ladder_sim.specs.scenario import Scenario
from ladder_sim.steps import Engine, StepSummary, simulate, simulate_many

CONTEXT_NODES = ((2.0, 3), (8.0, 5), (math.inf, 9))
# decode steps simulated for a context-dependent attention, by how much the context grows; the rest are interpolated
# between them. The sum differs from simulating every step by less than 0.1 % (tests/test_prediction.py)
NO_JITTER = Jitter(sigma=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A simulated request of one variant; times in seconds."""

    variant: str
    # canonical name
    prefill: StepSummary
    # the whole prompt
    decode: Sequence[tuple[StepSummary, float]]
    # decode steps and how many each stands for
    ranked: Sequence[RankedStep] = ()
    # with jitter: the prefill and the middle decode step on all ranks

    @property
    def prefill_s(self) -> float:
        return self.ranked[0].mean_s if self.ranked else self.prefill.seconds

    @property
    def decode_s(self) -> float:
        """Every decode step; jitter lengthens each as it does the middle one."""
        even_s = math.fsum(step.seconds * times for step, times in self.decode)
        return even_s * self.ranked[1].mean_s / self.middle.seconds if self.ranked and self.middle else even_s

    @property
    def middle(self) -> StepSummary | None:
        """The decode step at mid-answer context."""
        return self.decode[len(self.decode) // 2][0] if self.decode else None

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s

    def total(self, field: str) -> float:
        """Sum of a scalar of the steps."""
        return math.fsum(getattr(step, field) * times for step, times in self._steps())

    def totals(self, field: str) -> dict[Any, float]:
        """Sum of a mapping of the steps, key by key."""
        sums: dict[Any, float] = defaultdict(float)
        for step, times in self._steps():
            for key, value in getattr(step, field).items():
                sums[key] += value * times
        return dict(sums)

    def _steps(self) -> list[tuple[StepSummary, float]]:
        return [(self.prefill, 1.0), *self.decode]


def simulate_request(scenario: Scenario, costs: CostModel, engine: Engine, jitter: Jitter = NO_JITTER) -> Request:
    """Simulate one request of the scenario's variant; with jitter its steps on all ranks too."""
    prefill = simulate(scenario, "prefill", scenario.workload.prompt, costs, engine_name=engine)
    decode = [
        (simulate(scenario, "decode", kv_len, costs, engine_name=engine), times)
        for kv_len, times in decode_contexts(scenario)
    ]
    if not jitter.sigma:
        return Request(variant=scenario.variant, prefill=prefill, decode=decode)
    ranked = [simulate_ranks(scenario, "prefill", scenario.workload.prompt, costs, jitter)]
    if decode:
        kv_len = decode_contexts(scenario)[len(decode) // 2][0]
        ranked.append(simulate_ranks(scenario, "decode", kv_len, costs, jitter))
    return Request(variant=scenario.variant, prefill=prefill, decode=decode, ranked=ranked)


def decode_contexts(scenario: Scenario) -> list[tuple[int, float]]:
    """Context lengths to simulate for decode, and how many of the ``gen - 1`` steps each stands for.

    A static-cache attention costs the same at every step. Otherwise steps between two simulated contexts are
    interpolated linearly, and the weights are those of the sum over every step.
    """
    workload = scenario.workload
    first, last = workload.prompt + 1, workload.prompt + workload.gen - 1
    if workload.gen == 1:
        return []
    if scenario.stack.attention == "math":
        return [(first, float(workload.gen - 1))]
    count = next(nodes for growth, nodes in CONTEXT_NODES if last <= growth * first)
    nodes = [int(node) for node in np.unique(np.round(np.linspace(first, last, count)))]
    weights = [0.0] * len(nodes)
    weights[0] = 1.0
    for index, (left, right) in enumerate(itertools.pairwise(nodes)):
        # steps left + 1 to right: the sum of the hat functions over them
        width = right - left
        weights[index] += (width - 1) / 2.0
        weights[index + 1] += (width + 1) / 2.0
    return list(zip(nodes, weights, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTimes:
    """One variant's request in many configurations; every array has one value for each, seconds."""

    ttft_s: NDArray[np.float64]
    # prefill
    decode_s: NDArray[np.float64]
    # every decode step together

    @property
    def request_s(self) -> NDArray[np.float64]:
        """Prefill and decode."""
        total: NDArray[np.float64] = self.ttft_s + self.decode_s
        return total


def simulate_requests(
    scenario: Scenario,
    figures: Mapping[str, ArrayLike],
    variants: Sequence[str],
    profile: CalibrationProfile | None,
) -> dict[str, RequestTimes]:
    """Simulate requests on many kinds of hardware at once.

    Parameters
    ----------
    scenario
        Everything that does not vary.
    figures
        Arrays of one length by figure, e.g. ``{"inter.bandwidth_Bps": [25e9, 50e9]}`` (`Hardware.vary`); SI units.
    variants
        Residual wirings.
    profile
        Measured tables; None for the roofline.

    Returns
    -------
    dict
        Variant -> times, shape (configurations,).
    """
    costs = KernelCosts(scenario, profile, Hardware.of(scenario, profile).vary(figures))
    found = {}
    for name in variants:
        variant = replace(scenario, variant=name)
        ttft_s = simulate_many(variant, "prefill", scenario.workload.prompt, costs)
        decode_s = np.zeros_like(ttft_s)
        for kv_len, times in decode_contexts(scenario):
            decode_s += times * simulate_many(variant, "decode", kv_len, costs)
        found[name] = RequestTimes(ttft_s=ttft_s, decode_s=decode_s)
    return found
