"""How sure predictions are: their intervals, the runs behind them, and what the reader should know."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ladder_sim.closed_loop.checks import ServingCheck
from ladder_sim.confidence.cost_warnings import cost_warnings
from ladder_sim.confidence.errors import (
    Basis,
    Errors,
    Fitted,
    Widths,
    by_op,
    by_own_algorithms,
    by_own_plan,
    by_servings_of_plans,
    by_unchecked,
    hypot,
    not_compared,
    unchecked,
)
from ladder_sim.confidence.interval import Interval
from ladder_sim.confidence.runs import Compared, has_wiring, most_alike, parts_alike
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse
from ladder_sim.costs.profile import NO_PROFILE
from ladder_sim.simulate.request import Request
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import scenario_warnings


# no slots: each part is computed on first access
@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure the predictions of a scenario's variants are."""

    scenario: Scenario
    """What was predicted."""
    _requests: Mapping[str, Request]
    """Simulated requests by variant, standard among them."""
    costs: KernelCosts
    """What the times of requests are based on."""
    _memory: MemoryUse
    """Memory use of one GPU."""

    def request(self, name: str) -> Request:
        """Return the simulated request of a variant; that of standard is always there."""
        return self._requests[name]

    def request_s(self, name: str) -> float:
        """Time of a variant's request, in seconds."""
        return float(self._requests[name].request_s)

    @property
    def profile(self) -> str:
        """Name of the measured profile, or "none"."""
        return self.costs.profile.name if self.costs.profile else NO_PROFILE

    @cached_property
    def compared(self) -> Compared:
        """The runs that are the most like the scenario, those of its stack first."""
        return most_alike(self.scenario, self.costs.profile)

    @property
    def variants(self) -> tuple[str, ...]:
        """Variants that were simulated, standard among them."""
        return tuple(self._requests)

    @property
    def unchecked_wirings(self) -> list[str]:
        """Variants whose wiring no measured run had."""
        return [name for name in self._requests if not has_wiring(name, self.scenario, self.compared.runs)]

    @cached_property
    def validated(self) -> Mapping[str, bool]:
        """Whether predictions of each part of the scenario (`UNCHECKED`) were compared with end-to-end runs."""
        return parts_alike(self.scenario, self.costs.profile, self.compared, self._requests)

    @cached_property
    def widths(self) -> Mapping[str, Widths]:
        """Half-widths of each variant's intervals."""
        return {name: self._errors.widths(name) for name in self._requests}

    @cached_property
    def _errors(self) -> Errors:
        basis = Basis.of(self.scenario, self.compared.runs, self.validated, self._requests)
        fitted = None if basis.served else Fitted.of(self.scenario, self._requests, self.costs.profile)
        measurement = self.costs.profile.measurement if self.costs.profile else None
        if measurement and measurement.at != (self.scenario.model, self.scenario.plan, self.scenario.workload):
            measurement = measurement._replace(tpot=measurement.tpot_elsewhere, ttft=math.inf)
        return Errors(self._requests, basis, fitted, measurement)

    def over(self, name: str, base: "Confidence", base_name: str, plain: "Confidence") -> Interval:
        """Return how many times as fast a variant is as one of a scenario with other techniques or all-reduces.

        What errs in both alike cancels. Of a technique that was not compared with runs, the error is of what it gains;
        of another all-reduce, of the time that it takes itself. `plain` is of the same scenario without techniques, and
        has both variants.
        """
        request, other = self._requests[name], base._requests[base_name]
        every = {*self._unchecked(name), *base._unchecked(base_name)}
        same_stack = self.scenario.stack == base.scenario.stack
        apart = {"technique"} if same_stack else {"technique", "stack"}
        widths: list[float] = [
            self._errors.gain(name, base._errors, base_name, other if same_stack else self._requests["standard"]),
            by_unchecked(request, other, unchecked(sorted(every - apart))).speedup,
        ]
        if not same_stack:
            sides = ((self, request, other), (base, other, request))
            widths += (by_own_algorithms(own, others) for side, own, others in sides if not side.validated["stack"])
        if self.scenario.techniques != base.scenario.techniques:
            widths += (
                by_unchecked(each._requests[of], plain._requests[of], unchecked(["technique"])).speedup
                for each, of in ((self, name), (base, base_name))
                if not each.validated["technique"]
            )
        elif not self.validated["technique"]:
            widths.append(by_unchecked(request, other, unchecked(["technique"])).speedup)
        return Interval.around(float(other.request_s) / float(request.request_s), float(hypot(*widths)))

    def ratio(self, name: str, base_name: str) -> Interval:
        """Return how many times as fast one variant is as another of the same scenario: what errs alike cancels."""
        return Interval.around(
            self.request_s(base_name) / self.request_s(name), float(self._errors.over(name, base_name))
        )

    def over_plan(self, base: "Confidence") -> Interval:
        """Return how many times as fast standard is as on another plan of the same model, hardware, stack and load.

        Errors of kernels that both run cancel; those of collectives as far as both run them.
        """
        sides = ((self, self._requests["standard"]), (base, base._requests["standard"]))
        (_, request), (_, other) = sides
        of_ops = by_op(request, other).speedup
        if isinstance(self.compared.runs, ServingCheck):
            widths = [max(of_ops, by_servings_of_plans(*(each._errors.basis.tpot for each, _ in sides)))]
        elif self._errors.fitted and base._errors.fitted:
            widths = [self._errors.fitted.plan_width(base._errors.fitted, of_ops)]
        else:
            widths = [of_ops]
        every = {*self._unchecked("standard"), *base._unchecked("standard")}
        widths.append(by_unchecked(request, other, unchecked(sorted(every - {"plan"}))).speedup)
        widths += (
            by_own_plan(own, others, each._unchecked("standard"))
            for each, own, others in ((self, request, other), (base, other, request))
        )
        return Interval.around(float(other.request_s) / float(request.request_s), math.hypot(*widths))

    def _unchecked(self, name: str) -> list[str]:
        return not_compared(name, self.scenario, self.compared.runs, self.validated)

    @cached_property
    def measured_fraction(self) -> float:
        """Share of standard's request time that comes from in-range measurements of this GPU and this fabric."""
        standard = self._requests["standard"]
        sources_s = standard.breakdown.sources_s.items()
        measured_s = math.fsum(seconds for (source, _), seconds in sources_s if source == "measured")
        return measured_s / float(standard.request_s)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What the reader should know, one sentence each."""
        return (
            *scenario_warnings(self.scenario),
            *cost_warnings(self.scenario, self.costs, self._memory, self._requests),
        )
