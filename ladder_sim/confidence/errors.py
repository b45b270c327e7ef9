"""How far predicted requests may be off, from what is known about their ops, a fit and measured servings.

Numbers are of one prediction, or arrays of one value per configuration: a sweep's intervals are those of `predict`.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.closed_loop.checks import ServingCheck, first_token_widths, widths_of
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence.interval import NORMAL_90, Interval
from ladder_sim.confidence.runs import ROW_LOG_SD, RUN_NOISE, SHARED_LOG_SD, has_wiring
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile, IntervalScale, ServerMeasurement, StackFit
from ladder_sim.des.shared import Number, maximum, minimum
from ladder_sim.simulate.request import Request
from ladder_sim.specs.scenario import Scenario

# configurations times draws of a fit simulated at once: fewer or more take longer
MOST_DRAWN = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Half-widths of one variant's 90 % intervals, in the logarithm; of many configurations each is an array."""

    rate: float
    """Half-width of the throughput's interval."""
    speedup: float
    """Half-width of the interval of the speedup over standard."""
    tpot: float
    """Half-width of the interval of the time per token."""
    ttft_earlier: float
    """How much earlier than predicted a first token may come."""
    ttft_later: float
    """How much later than predicted a first token may come."""

    def ttft_interval(self, ttft_s: float) -> Interval:
        """Return the interval of a time to first token, seconds."""
        return Interval.around(ttft_s, self.ttft_earlier, self.ttft_later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """What a part of a scenario adds to errors if no prediction of it was compared with end-to-end runs.

    90 % intervals as a fraction either way.
    """

    kernels: Number = 0.0
    """Error of the time of all kernels together, as a fraction."""
    collectives: Number = 0.0
    """Error of the time of all collectives together, as a fraction."""


# Stack: nine tenths of the times per token that vLLM and TensorRT-LLM took on H100 lie within 19 % of a static batch's
# with the prefills between its steps (servings in aiconfigurator-core 0.12.0, systems/silicon_sample.csv); prefills of
# vLLM without all-reduces come out up to 13 % short, and its all-reduces up to 48 % long (TokenWeave's figure 11,
# github.com/microsoft/tokenweave); of what a small all-reduce takes, more than half is a launch that is assumed.
# tests/confidence/test_unchecked.py holds the intervals against these runs.
# Layers: half-widths from one model with experts would have to be 12 % (vLLM), 23 % (SGLang) and 3 % (TensorRT-LLM)
# wider to hold nine tenths of the rows of the other; with this and another family 92 to 100 % lie inside
# (`python -m tools.profiles.serving_fit serving_moe.csv`).
# Wiring: nine tenths of 33 gains of other wirings on one machine are missed by at most 6 %, where collectives take a
# third to a half of the time (docs/evidence.md).
# Experts in a format that was not measured on the GPU: gpt-oss-120b in MXFP4 on A100s, unpacked as w4a16, took 1.9 to
# 3.1 times as long as predicted on 1 to 4 GPUs (vllm-project/vllm#22331): as long as launches without CUDA graphs do.
# Technique: nine tenths of the gains that were measured are missed by at most 13 % (docs/evidence.md), where
# collectives take a third of the time.
# The others are judgement. GPU: nine tenths of 46 servings on H200 (SGLang, same file) lie within 34 %, and other
# generations are further from the GPU that was checked. Links: the formula misses logs of other fabrics by up to
# 64 % (docs/catalog.md), most by less than half. Model family: the same tables at other sizes, other small kernels;
# servings of Qwen3 and of Llama are missed alike. Plan: experts and messages of other shapes. Sizes outside the runs'
# range: the same tables at other shapes; start-up and skew of collectives were fitted at the runs' degrees. Precision:
# fp8 kernels of two engines differ by twice at a few rows, where GEMMs are half of a step.
UNCHECKED: Mapping[str, Unchecked] = {
    "stack": Unchecked(kernels=0.25, collectives=0.75),
    "wiring": Unchecked(kernels=0.05, collectives=0.2),
    "technique": Unchecked(kernels=0.1, collectives=0.4),
    "gpu": Unchecked(kernels=0.35),
    "links": Unchecked(collectives=0.5),
    "layers": Unchecked(kernels=0.2),
    "model_family": Unchecked(kernels=0.1),
    "precision": Unchecked(kernels=0.15),
    "experts": Unchecked(kernels=2.4),
    "plan": Unchecked(kernels=0.1, collectives=0.25),
    "model_size": Unchecked(kernels=0.1),
    "tp": Unchecked(collectives=0.25),
    "batch": Unchecked(kernels=0.1),
    "prompt": Unchecked(kernels=0.1),
    "gen": Unchecked(kernels=0.1),
}

# Of the variance of errors of times per token, what two plans of one model, GPU, engine and load share: of 1,649 ratios
# of measured servings (serving_dense.csv, serving_moe.csv) 95 % lie in intervals with it, 92 % of those of dense models
# and 98 % of those with experts. With none in common it would be 98 %, with all of it none
SHARED_BY_PLANS = 0.5


# Parts of scenarios that were left out in turn to find the widths of servings: most of what they add is in these. Of
# 1,576 servings 91 % lie inside intervals from other models if they add nothing, 93 % if they add a third, and 98 % if
# they add all; of 149 of a model and a format that set no width (serving_moe_more.csv) 72, 79 and 93 %
LEFT_OUT = frozenset({"gpu", "layers", "model_family", "model_size", "precision", "plan"})
LEFT_OUT_SHARE = 1.0 / 3.0


def unchecked(parts: Collection[str], *, left_out: float = 1.0) -> Unchecked:
    """Return the uncertainty that several unchecked parts add together; of those in `LEFT_OUT`, a share."""
    shares = {part: left_out if part in LEFT_OUT else 1.0 for part in parts}
    return Unchecked(
        kernels=math.hypot(*(share * float(UNCHECKED[part].kernels) for part, share in shares.items())),
        collectives=math.hypot(*(share * float(UNCHECKED[part].collectives) for part, share in shares.items())),
    )


def hypot(*widths: Number) -> Any:
    """Add half-widths in quadrature."""
    if np.ndarray in set(map(type, widths)):
        return np.sqrt(sum(np.square(width) for width in widths))
    return math.hypot(*widths)


def log1p(width: Number) -> Any:
    """Return the half-width in the logarithm, from one as a fraction."""
    return np.log1p(width) if isinstance(width, np.ndarray) else math.log1p(width)


def by_op(request: Request, standard: Request) -> Widths:
    """Return the errors of single ops, to first order along the critical path.

    An error of one kind of op is one error: shared by every layer and by both variants, so that most of it cancels in a
    speedup. Those of different kinds are independent.
    """
    share, base = (
        {kind: error / each.request_s for kind, error in each.path.errors_s.items()} for each in (request, standard)
    )
    apart = (share.get(kind, 0.0) - base.get(kind, 0.0) for kind in share | base)
    rate = log1p(hypot(*share.values()))
    return Widths(rate=rate, speedup=log1p(hypot(*apart)), tpot=rate, ttft_earlier=rate, ttft_later=rate)


def by_unchecked(request: Request, standard: Request, parts: Unchecked) -> Widths:
    """Return the errors of some parts of a scenario that were not compared, to first order.

    What errs in both variants alike cancels in a speedup: an error counts as far as they differ.
    """
    kernels, collectives = parts.kernels, parts.collectives
    (seconds, exposed_s), (base_s, base_exposed_s) = (
        (each.request_s, each.path.exposed_comm_s) for each in (request, standard)
    )
    share = request.path.collectives_s / seconds
    # a collective that ladder hides may be on the critical path, next to kernels; shorter, it would gain nothing
    waiting = hypot(kernels, collectives) * (base_exposed_s / base_s - exposed_s / seconds)
    computing = kernels * (1.0 - (seconds - exposed_s) / (base_s - base_exposed_s))
    rate = log1p(hypot(kernels * (1.0 - share), collectives * share))
    return Widths(rate=rate, speedup=log1p(hypot(waiting, computing)), tpot=rate, ttft_earlier=rate, ttft_later=rate)


def by_own_algorithms(request: Request, other: Request, parts: Collection[str] = ("stack",)) -> float:
    """Return the error of a ratio from collectives that the first request runs longer, with unchecked `parts`."""
    own_s, others_s = (_algorithms(each) for each in (request, other))
    apart_s = math.fsum(max(0.0, seconds - others_s.get(name, 0.0)) for name, seconds in own_s.items())
    exposed = request.breakdown.exposed_comm_s / float(request.request_s)
    collectives = float(unchecked(parts).collectives)
    return math.log1p(collectives * exposed * apart_s / (math.fsum(own_s.values()) or 1.0))


def by_own_plan(request: Request, other: Request, parts: Collection[str]) -> float:
    """Return the error of a ratio of two plans that the first request has of its own.

    `parts` are those that were not compared.
    They are errors of its collectives as far as it runs them longer, and of its kernels where no run had such a plan.
    """
    kernels = float(UNCHECKED["plan"].kernels) if "plan" in parts else 0.0
    share = request.breakdown.collectives_s / float(request.request_s)
    return math.hypot(by_own_algorithms(request, other, parts), math.log1p(kernels * (1.0 - share)))


def by_servings_of_plans(*tpots: Number) -> float:
    """Return the error of two plans' ratio from the half-widths of TPOT of measured servings."""
    return math.hypot(*(math.log1p(float(tpot)) for tpot in tpots)) * math.sqrt(1.0 - SHARED_BY_PLANS)


def _algorithms(request: Request) -> Mapping[str, float]:
    by_name: dict[str, float] = defaultdict(float)
    for step, times in request.passes:
        estimates = step.estimates(step.schedule)
        for (role, _), count in step.schedule.order.spans.items():
            estimate = estimates[role]
            if estimate.algorithm:
                by_name[estimate.algorithm] += float(times) * count * float(estimate.seconds)
    return by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What end-to-end runs say about errors."""

    unchecked: Mapping[str, Unchecked]
    """Errors that parts of a variant's scenario add if they were not compared, by variant."""
    of_times: Mapping[str, Unchecked]
    """Errors that these parts add to times: of requests in flight a share of those in `LEFT_OUT`."""
    gains: Unchecked
    """What a serving engine adds to errors of speedups: no serving of two wirings was measured."""
    tpot: Number
    """Half-width of the time per token of measured servings that are alike, as a fraction; 0: there are none."""
    ttft_earlier: Number
    """How much earlier than predicted first tokens of servings may come, in the logarithm."""
    ttft_later: Number
    """How much later than predicted they may come with as many requests in flight, in the logarithm."""
    served: bool
    """Whether the predictions are of requests in flight, which are compared with servings."""

    @classmethod
    def of(
        cls, scenario: Scenario, runs: StackFit | ServingCheck, validated: Mapping[str, bool], variants: Iterable[str]
    ) -> Self:
        """Return the basis of a scenario's errors: the most similar runs, and which of its parts they had."""
        tpot, earlier, later, left_out = 0.0, 0.0, 0.0, 1.0
        if served := isinstance(runs, ServingCheck):
            widths, first = widths_of(scenario.model, runs.stack, scenario.workload.dtype), first_token_widths()
            tpot, left_out = (widths.tpot, LEFT_OUT_SHARE) if validated["stack"] else (0.0, 1.0)
            # replicas are servers of their own
            earlier, later = first.earlier, first.later_of(max(1.0, scenario.workload.in_flight / scenario.plan.dp))
        # of a stack that was not compared, all speedups have its error anyway
        gains = unchecked(["stack"] if served and validated["stack"] else [])
        absent = {name: not_compared(name, scenario, runs, validated) for name in variants}
        return cls(
            unchecked={name: unchecked(parts) for name, parts in absent.items()},
            of_times={name: unchecked(parts, left_out=left_out) for name, parts in absent.items()},
            gains=gains,
            tpot=tpot,
            ttft_earlier=earlier,
            ttft_later=later,
            served=served,
        )

    @classmethod
    def by_configuration(cls, bases: Sequence["Basis"], which: NDArray[np.intp]) -> "Basis":
        """Return one basis for many configurations, given the place of each one's basis in a list."""
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
            of_times={name: both([basis.of_times[name] for basis in bases]) for name in bases[0].of_times},
            gains=both([basis.gains for basis in bases]),
            tpot=column(basis.tpot for basis in bases),
            ttft_earlier=column(basis.ttft_earlier for basis in bases),
            ttft_later=column(basis.ttft_later for basis in bases),
            served=bases[0].served,
        )


def not_compared(
    variant: str, scenario: Scenario, runs: StackFit | ServingCheck, validated: Mapping[str, bool]
) -> list[str]:
    """Return the parts of a variant's scenario that were not compared with runs."""
    wiring = [] if has_wiring(variant, scenario, runs) else ["wiring"]
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
        """Return the times of a scenario's requests over the draws of its stack's fit; None if no fit applies.

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
        scale = IntervalScale()
        if stack_fit.base == profile.tables_of:
            scale = stack_fit.scale(scenario.model.name, scenario.plan.tp, p2p=scenario.p2p)
        return cls(
            scale=scale,
            log_s=log_s if configurations else {name: values[0] for name, values in log_s.items()},
        )

    def request_width(self, name: str, by_op: float) -> Any:
        """Return the half-width of a variant's times, in the logarithm, with the errors of its ops; unscaled."""
        noise = NORMAL_90 * hypot(SHARED_LOG_SD, ROW_LOG_SD)
        return hypot(by_op, _spread(self.log_s[name]), noise)

    def speedup_width(self, name: str, base: "Fitted", base_name: str, by_op: float) -> Any:
        """Return the half-width, in the logarithm, of a variant's speed over that of one in this or another fit."""
        apart = self.log_s[name] - base.log_s[base_name]
        return self.scale.speedup * hypot(by_op, _spread(apart), RUN_NOISE)

    def plan_width(self, base: "Fitted", by_op: float) -> float:
        """Return the half-width, in the logarithm, of standard's speed over that on another plan.

        What runs of one plan share does not cancel.
        Ratios of plans were not among those that scales come from; 15 of 16 ratios of published runs lie inside.
        """
        noise = NORMAL_90 * math.sqrt(2.0) * math.hypot(SHARED_LOG_SD, ROW_LOG_SD)
        scale = max(figure for each in (self.scale, base.scale) for figure in (each.rate, each.speedup))
        spread = float(_spread(self.log_s["standard"] - base.log_s["standard"]))
        return scale * math.hypot(by_op, spread, noise)


class Errors:
    """Half-widths of intervals of simulated requests by variant, standard among them.

    `basis` and `fitted` are what runs and the stack's fit say of them, without a fit None; `measurement` is what a
    running server measured of the standard wiring.
    """

    def __init__(
        self,
        requests: Mapping[str, Request],
        basis: Basis,
        fitted: Fitted | None,
        measurement: ServerMeasurement | None = None,
    ) -> None:
        self.requests, self.basis, self.fitted, self.measurement = requests, basis, fitted, measurement

    def widths(self, name: str) -> Widths:
        """Return the half-widths of a variant's intervals."""
        request, standard = self.requests[name], self.requests["standard"]
        of_ops = by_op(request, standard)
        added, of_times = (
            by_unchecked(request, standard, each[name]) for each in (self.basis.unchecked, self.basis.of_times)
        )
        speedup = self.gain(name, self, "standard", standard)
        rate: Any = of_ops.rate
        earlier: Any = of_ops.ttft_earlier
        later: Any = of_ops.ttft_later
        if self.basis.served:
            # no narrower than the ops'
            rate = hypot(maximum(rate, log1p(self.basis.tpot)), speedup)
            earlier = maximum(earlier, self.basis.ttft_earlier)
            later = maximum(later, self.basis.ttft_later)
        tpot = rate
        if self.fitted and not self.basis.served:
            width, scale = self.fitted.request_width(name, of_ops.rate), self.fitted.scale
            rate, tpot = scale.rate * width, scale.tpot * width
            earlier = later = scale.ttft * width
        speedup = hypot(speedup, added.speedup)
        rate, tpot, earlier, later = (hypot(width, of_times.rate) for width in (rate, tpot, earlier, later))
        if self.measurement:
            rate, tpot = (minimum(width, hypot(self.measurement.tpot, speedup)) for width in (rate, tpot))
            earlier, later = (minimum(width, hypot(self.measurement.ttft, speedup)) for width in (earlier, later))
        return Widths(rate=rate, speedup=speedup, tpot=tpot, ttft_earlier=earlier, ttft_later=later)

    def over(self, name: str, base_name: str) -> Any:
        """Return the half-width of one variant's speed over another's."""
        request, base = self.requests[name], self.requests[base_name]
        # they differ in wiring alone
        own, other = (self.basis.unchecked[each] for each in (name, base_name))
        either = Unchecked(
            kernels=maximum(own.kernels, other.kernels), collectives=maximum(own.collectives, other.collectives)
        )
        width = hypot(self.gain(name, self, base_name, base), by_unchecked(request, base, either).speedup)
        # no less sure than if the two erred independently
        return minimum(width, hypot(*(self.widths(each).rate for each in (name, base_name))))

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
