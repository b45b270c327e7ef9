"""90 % intervals of predictions, from what is known about their errors.

Three parts, added in quadrature: single ops, by the source of their times; figures of a fit, by the values that explain
its runs about as well; and what runs differ by that are alike. Where a stack has been fitted to end-to-end runs, the
sum is scaled by what it took to hold runs that a fit had not seen (`ladder_sim.costs.profile.StackFit`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse
from ladder_sim.costs.profile import CalibrationProfile, IntervalScale, StackFit
from ladder_sim.simulate.request import Request, simulate_requests
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes

# name that asks for datasheet figures only
NO_PROFILE = "none"
# standard deviations either way that hold 90 % of a normal distribution
NORMAL_90 = 1.645
# of throughputs: an error that all runs of one TP degree and batch share, and one of each run. Repeats of the published
# 70B runs differ by about 0.8 % in a ratio of two; the shared 2 % is the feasibility study's for kernels against tables
SHARED_LOG_SD, ROW_LOG_SD = 0.02, 0.007


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and its 90 % interval."""

    value: float
    """Best estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @classmethod
    def around(cls, value: float, log_width: float) -> "Interval":
        """An interval of `log_width` either way in the logarithm."""
        return cls(value=value, low=value * math.exp(-log_width), high=value * math.exp(log_width))

    @property
    def log_width(self) -> float:
        """Half-width in the logarithm."""
        return 0.5 * math.log(self.high / self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Half-widths of one variant's 90 % intervals, in the logarithm."""

    rate: float
    """Of its throughput."""
    speedup: float
    """Of its speedup over standard."""


class Confidence:
    """How sure the predictions of a scenario's variants are; each part is computed on first access.

    Parameters
    ----------
    scenario
        What was predicted.
    requests
        Its simulated requests by variant, standard among them.
    costs
        What their times are based on.
    memory
        Of one GPU.
    """

    def __init__(
        self, scenario: Scenario, requests: Mapping[str, Request], costs: KernelCosts, memory: MemoryUse
    ) -> None:
        self.scenario, self._requests, self._costs, self._memory = scenario, requests, costs, memory

    @property
    def profile(self) -> str:
        """Name of the measured profile, or "none"."""
        return self._costs.profile.name if self._costs.profile else NO_PROFILE

    @cached_property
    def widths(self) -> Mapping[str, Widths]:
        """Half-widths of each variant's intervals."""
        return _widths(self.scenario, self._requests, self._costs.profile)

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
        return tuple(_warnings(self.scenario, self._costs, self._memory))


def _widths(
    scenario: Scenario, requests: Mapping[str, Request], profile: CalibrationProfile | None
) -> Mapping[str, Widths]:
    stack_fit = profile.fit_of(scenario.stack.name) if profile else None
    fitted = Hardware.stated(scenario, profile).fitted(scenario, profile)
    by_op = {name: _by_op(request, requests["standard"]) for name, request in requests.items()}
    if stack_fit is None or not fitted:
        return by_op
    by_figure = _by_figure(scenario, list(requests), profile, stack_fit, list(fitted))
    same_tables = profile is not None and stack_fit.base == profile.tables_of
    scale = stack_fit.scale(scenario.model.name, scenario.tp) if same_tables else IntervalScale()
    rate_noise = NORMAL_90 * math.hypot(SHARED_LOG_SD, ROW_LOG_SD)
    speedup_noise = NORMAL_90 * math.sqrt(2.0) * ROW_LOG_SD
    return {
        name: Widths(
            rate=scale.rate * math.hypot(by_op[name].rate, by_figure[name].rate, rate_noise),
            speedup=0.0
            if name == "standard"
            else scale.speedup * math.hypot(by_op[name].speedup, by_figure[name].speedup, speedup_noise),
        )
        for name in requests
    }


def _by_op(request: Request, standard: Request) -> Widths:
    """First order, along the critical path.

    An error of one kind of op is one error: shared by every layer and by both variants, so that most of it cancels in a
    speedup. Those of different kinds are independent.
    """
    share, base = (
        {kind: error / float(each.request_s) for kind, error in each.breakdown.errors_s.items()}
        for each in (request, standard)
    )
    apart = (share.get(kind, 0.0) - base.get(kind, 0.0) for kind in share | base)
    return Widths(rate=math.log1p(math.hypot(*share.values())), speedup=math.log1p(math.hypot(*apart)))


def _by_figure(
    scenario: Scenario,
    variants: list[str],
    profile: CalibrationProfile | None,
    stack_fit: StackFit,
    names: list[str],
) -> dict[str, Widths]:
    """Spread over the fit's draws."""
    draws = dict(zip(stack_fit.figures, np.array(stack_fit.draws).T, strict=True))
    columns = {name: values for name, values in draws.items() if name in names}
    requests = simulate_requests(scenario, columns, variants, profile)
    log_s = {name: np.log(request.request_s) for name, request in requests.items()}
    return {
        name: Widths(
            rate=NORMAL_90 * float(np.std(values, ddof=1)),
            speedup=NORMAL_90 * float(np.std(values - log_s["standard"], ddof=1)),
        )
        for name, values in log_s.items()
    }


def _warnings(scenario: Scenario, costs: KernelCosts, memory: MemoryUse) -> list[str]:
    profile = costs.profile
    warnings = list(scenario.warnings())
    if profile is None:
        warnings.append("no measured profile: every time is a datasheet roofline")
    elif not costs.measured_here:
        warnings.append(
            f"profile '{profile.name}' was measured on {profile.cluster_name}, whose GPU or in-node link has other "
            "figures: its times are carried over by the ratio of the formulas"
        )
    elif not profile.is_of(scenario.cluster.gpu):
        warnings.append(
            f"profile '{profile.name}' is said to be of {profile.cluster_name}, but was measured on "
            f"'{profile.environment['device']}'"
        )
    if profile and costs.links_profile and costs.links_profile.tables_of != profile.tables_of:
        warnings.append(
            f"collectives on {scenario.cluster.intra.fabric} are carried over from {costs.links_profile.cluster_name}, "
            "another GPU: none was measured on this one"
        )
    stack_fit = profile.fit_of(scenario.stack.name) if profile else None
    if profile and stack_fit and stack_fit.base != profile.tables_of:
        warnings.append(
            f"stack '{stack_fit.stack}' was fitted to runs on {stack_fit.base}; its figures are taken over unchanged"
        )
    if not memory.fits:
        warnings.append(
            f"does not fit: needs {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} per GPU"
        )
    if scenario.nodes_used > 1 and scenario.stack.allreduce not in ("nccl", "auto"):
        warnings.append(f"all-reduce '{scenario.stack.allreduce}' works inside a node only: across nodes NCCL is used")
    return warnings
