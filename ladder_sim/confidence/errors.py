"""How far predicted requests may be off, from what is known about their ops, a fit and measured servings.

Numbers are of one prediction, or arrays of one value per configuration: a sweep's intervals are those of `predict`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.closed_loop.checks import ServingCheck, checks_of
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence.interval import NORMAL_90
from ladder_sim.confidence.runs import ROW_LOG_SD, RUN_NOISE, SHARED_LOG_SD, has_wiring
from ladder_sim.confidence.widths import Unchecked, Widths, by_op, by_unchecked, hypot, log1p, unchecked
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile, IntervalScale, StackFit
from ladder_sim.des.shared import Number, maximum
from ladder_sim.simulate.request import Request
from ladder_sim.specs.scenario import Scenario

# configurations times draws of a fit simulated at once: fewer or more take longer
MOST_DRAWN = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What end-to-end runs say about errors."""

    unchecked: Mapping[str, Unchecked]
    """By variant: what the parts of its scenario that were not compared add."""
    gains: Unchecked
    """What a serving engine adds to errors of speedups: no serving of two wirings was measured."""
    tpot: Number
    """Half-width of the time per token of measured servings that are alike, as a fraction; 0: there are none."""
    ttft: Number
    """Half-width of the time to first token, likewise."""
    served: bool
    """Whether the predictions are of requests in flight, which are compared with servings."""

    @classmethod
    def of(
        cls, scenario: Scenario, runs: StackFit | ServingCheck, validated: Mapping[str, bool], variants: Iterable[str]
    ) -> Self:
        """That of a scenario, from the runs that are the most alike and the parts of it that they had."""
        tpot = ttft = 0.0
        if served := isinstance(runs, ServingCheck):
            tpot = runs.tpot if validated["stack"] else 0.0
            # waiting is missed most where an engine or a GPU is another one
            alike = validated["stack"] and validated["gpu"]
            ttft = runs.ttft if alike else max(each.ttft for each in checks_of(scenario.model))
        # of a stack that was not compared, all speedups have its error anyway
        gains = unchecked(["stack"] if served and validated["stack"] else [])
        return cls(
            unchecked={name: unchecked(not_compared(name, validated)) for name in variants},
            gains=gains,
            tpot=tpot,
            ttft=ttft,
            served=served,
        )

    @classmethod
    def by_configuration(cls, bases: Sequence["Basis"], which: NDArray[np.intp]) -> "Basis":
        """One for many configurations, given the place of each one's in a list."""
        if len(bases) == 1:
            return bases[0]

        def column(values: Iterable[Number]) -> Any:
            return np.array(list(values))[which]

        def both(parts: Sequence[Unchecked]) -> Unchecked:
            return Unchecked(
                kernels=column(part.kernels for part in parts), collectives=column(part.collectives for part in parts)
            )

        return cls(
            unchecked={name: both([basis.unchecked[name] for basis in bases]) for name in bases[0].unchecked},
            gains=both([basis.gains for basis in bases]),
            tpot=column(basis.tpot for basis in bases),
            ttft=column(basis.ttft for basis in bases),
            served=bases[0].served,
        )


def not_compared(variant: str, validated: Mapping[str, bool]) -> list[str]:
    """Parts of a variant's scenario that were not compared with runs."""
    wiring = [] if has_wiring(variant) else ["wiring"]
    return [part for part, checked in validated.items() if not checked and part != "wiring"] + wiring


class Fitted(NamedTuple):
    """A stack's fit, for some requests."""

    scale: IntervalScale
    """What it took to hold runs that a fit had not seen."""
    log_s: Mapping[str, NDArray[np.float64]]
    """Times by variant, over the fit's draws: the last axis."""

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        variants: Iterable[str],
        profile: CalibrationProfile | None,
        configurations: Mapping[str, ArrayLike] | None = None,
    ) -> Self | None:
        """That of a scenario's stack; None: it has none.

        `configurations` have values of their own of some figures and sizes, as `simulate_requests` takes them.
        """
        stack_fit = profile.fit_of(scenario.stack.name) if profile else None
        names = Hardware.stated(scenario, profile).fitted(scenario, profile)
        if profile is None or stack_fit is None or not names:
            return None
        draws = dict(zip(stack_fit.figures, np.array(stack_fit.draws).T, strict=True))
        given = {name: np.asarray(values) for name, values in (configurations or {}).items()}
        count, each = len(next(iter(given.values()), [None])), len(stack_fit.draws)
        most = max(1, MOST_DRAWN // each)
        parts = []
        for start in range(0, count, most):
            some = {name: np.repeat(values[start : start + most], each) for name, values in given.items()}
            columns = {name: np.tile(draws[name], min(most, count - start)) for name in names}
            parts.append(simulate_requests(scenario, {**columns, **some}, list(variants), profile))
        log_s = {
            name: np.log(np.concatenate([part[name].request_s for part in parts])).reshape(count, each)
            for name in parts[0]
        }
        same_tables = stack_fit.base == profile.tables_of
        return cls(
            scale=stack_fit.scale(scenario.model.name, scenario.plan.tp) if same_tables else IntervalScale(),
            log_s=log_s if configurations else {name: values[0] for name, values in log_s.items()},
        )

    def rate_width(self, name: str, by_op: float) -> Any:
        """Of a variant's throughput, with the errors of its ops."""
        noise = NORMAL_90 * hypot(SHARED_LOG_SD, ROW_LOG_SD)
        return self.scale.rate * hypot(by_op, _spread(self.log_s[name]), noise)

    def speedup_width(self, name: str, base: "Fitted", base_name: str, by_op: float) -> Any:
        """Of a variant's speed over that of one in another fit, or in this one."""
        apart = self.log_s[name] - base.log_s[base_name]
        return self.scale.speedup * hypot(by_op, _spread(apart), RUN_NOISE)

    def plan_width(self, base: "Fitted", by_op: float) -> float:
        """Of standard's speed over that on another plan: what runs of one plan share does not cancel.

        Ratios of plans were not among those that scales come from; 15 of 16 ratios of published runs lie inside.
        """
        noise = NORMAL_90 * math.sqrt(2.0) * math.hypot(SHARED_LOG_SD, ROW_LOG_SD)
        scale = max(figure for each in (self.scale, base.scale) for figure in (each.rate, each.speedup))
        spread = float(_spread(self.log_s["standard"] - base.log_s["standard"]))
        return scale * math.hypot(by_op, spread, noise)


class Errors:
    """Half-widths of intervals.

    Parameters
    ----------
    requests
        Simulated requests by variant, standard among them.
    basis, fitted
        What runs and the stack's fit say of them; without a fit, None.
    """

    def __init__(self, requests: Mapping[str, Request], basis: Basis, fitted: Fitted | None) -> None:
        self.requests, self.basis, self.fitted = requests, basis, fitted

    def widths(self, name: str) -> Widths:
        """Return the half-widths of a variant's intervals."""
        request, standard = self.requests[name], self.requests["standard"]
        of_ops = by_op(request, standard)
        added = by_unchecked(request, standard, self.basis.unchecked[name])
        speedup = self.gain(name, self, "standard", standard)
        rate: Any = of_ops.rate
        ttft: Any = of_ops.ttft
        if self.basis.served:
            # no narrower than the ops'
            rate = hypot(maximum(rate, log1p(self.basis.tpot)), speedup)
            ttft = maximum(ttft, log1p(self.basis.ttft))
        elif self.fitted:
            rate = ttft = self.fitted.rate_width(name, of_ops.rate)
        return Widths(rate=hypot(rate, added.rate), speedup=hypot(speedup, added.speedup), ttft=hypot(ttft, added.ttft))

    def over(self, name: str, base_name: str) -> Any:
        """Return the half-width of one variant's speed over another's."""
        request, base = self.requests[name], self.requests[base_name]
        # they differ in wiring alone
        own, other = (self.basis.unchecked[each] for each in (name, base_name))
        either = Unchecked(
            kernels=maximum(own.kernels, other.kernels), collectives=maximum(own.collectives, other.collectives)
        )
        return hypot(self.gain(name, self, base_name, base), by_unchecked(request, base, either).speedup)

    def gain(self, name: str, base: "Errors", base_name: str, alike: Request) -> Any:
        """Return that of one request's speed over another's, without what was not compared.

        `alike` is the request of the same stack that gains of servings are over.
        """
        request, other = self.requests[name], base.requests[base_name]
        of_ops = by_op(request, other).speedup
        if self.basis.served:
            return hypot(of_ops, by_unchecked(request, alike, self.basis.gains).speedup)
        if not self.fitted or not base.fitted:
            return of_ops
        if request is other:
            return 0.0
        return self.fitted.speedup_width(name, base.fitted, base_name, of_ops)


def _spread(log_s: NDArray[np.float64]) -> Any:
    spread = NORMAL_90 * np.std(log_s, axis=-1, ddof=1)
    return spread if spread.ndim else float(spread)
