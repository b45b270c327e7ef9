"""How sure predictions are: half-widths of their intervals, the runs behind them, and what the reader should know."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.checks import ServingCheck, checks_of
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence.cost_warnings import cost_warnings
from ladder_sim.confidence.interval import NORMAL_90, Interval
from ladder_sim.confidence.runs import (
    ROW_LOG_SD,
    RUN_NOISE,
    SHARED_LOG_SD,
    Compared,
    has_wiring,
    most_alike,
    parts_alike,
)
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse
from ladder_sim.costs.profile import NO_PROFILE, CalibrationProfile, IntervalScale
from ladder_sim.simulate.request import Request
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import scenario_warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Half-widths of one variant's 90 % intervals, in the logarithm."""

    rate: float
    """Of its throughput."""
    speedup: float
    """Of its speedup over standard."""
    ttft: float
    """Of its time to first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """What a part of a scenario adds to errors if no prediction of it was compared with end-to-end runs.

    90 % intervals as a fraction either way.
    """

    kernels: float = 0.0
    """Of the time of all kernels together."""
    collectives: float = 0.0
    """Of the time of all collectives together."""


# Stack: nine tenths of the times per token that vLLM and TensorRT-LLM took on H100 lie within 19 % of a static batch's
# with the prefills between its steps (servings in aiconfigurator-core 0.12.0, systems/silicon_sample.csv); prefills of
# vLLM without all-reduces come out up to 13 % short, and its all-reduces up to 48 % long (TokenWeave's figure 11,
# github.com/microsoft/tokenweave); of what a small all-reduce takes, more than half is a launch that is assumed.
# tests/confidence/test_unchecked.py holds the intervals against these runs.
# Layers: half-widths from one model with experts would have to be 12 % (vLLM), 23 % (SGLang) and 3 % (TensorRT-LLM)
# wider to hold nine tenths of the rows of the other; with this and another family 92 to 100 % lie inside
# (`python -m tools.profiles.serving_fit serving_moe.csv`).
# Wiring: nine tenths of 33 gains of other wirings on one machine are missed by at most 6 %, where collectives take a
# third to a half of the time (docs/crosscheck.md).
# Experts in a format that was not measured on the GPU: gpt-oss-120b in MXFP4 on A100s, unpacked as w4a16, took 1.9 to
# 3.1 times as long as predicted on 1 to 4 GPUs (vllm-project/vllm#22331).
# Technique: nine tenths of the gains that were measured are missed by at most 13 % (docs/versus.md), where collectives
# take a third of the time.
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

# Of the variance of errors of times per token, what two plans of one model, GPU, engine and load share: 90 % of
# 756 ratios of measured servings (serving_dense.csv, serving_moe.csv) lie in intervals with it, 91 % of those of dense
# models and 89 % of those with experts. With none in common it would be 97 %, with all of it 72 %.
SHARED_BY_PLANS = 0.5


def by_op(request: Request, standard: Request) -> Widths:
    """Of single ops, to first order along the critical path.

    An error of one kind of op is one error: shared by every layer and by both variants, so that most of it cancels in a
    speedup. Those of different kinds are independent.
    """
    share, base = (
        {kind: error / float(each.request_s) for kind, error in each.breakdown.errors_s.items()}
        for each in (request, standard)
    )
    apart = (share.get(kind, 0.0) - base.get(kind, 0.0) for kind in share | base)
    rate = math.log1p(math.hypot(*share.values()))
    return Widths(rate=rate, speedup=math.log1p(math.hypot(*apart)), ttft=rate)


def by_servings(
    scenario: Scenario, of_ops: Widths, speedup: float, servings: ServingCheck, alike: Mapping[str, bool]
) -> tuple[float, float]:
    """Of rate and time to first token of requests in flight: no narrower than the ops'.

    Waiting is missed most where an engine or a GPU is another one.
    """
    tpot = servings.tpot if alike["stack"] else 0.0
    ttft = servings.ttft if alike["stack"] and alike["gpu"] else max(each.ttft for each in checks_of(scenario.model))
    return math.hypot(max(of_ops.rate, math.log1p(tpot)), speedup), max(of_ops.ttft, math.log1p(ttft))


def by_unchecked(request: Request, standard: Request, parts: Collection[str]) -> Widths:
    """Of some parts of a scenario, to first order.

    What errs in both variants alike cancels in a speedup: an error counts as far as they differ.
    """
    kernels = math.hypot(*(UNCHECKED[part].kernels for part in parts))
    collectives = math.hypot(*(UNCHECKED[part].collectives for part in parts))
    (seconds, exposed_s), (base_s, base_exposed_s) = (
        (float(each.request_s), each.breakdown.exposed_comm_s) for each in (request, standard)
    )
    share = request.breakdown.collectives_s / seconds
    # a collective that ladder hides may be on the critical path, next to kernels; shorter, it would gain nothing
    waiting = math.hypot(kernels, collectives) * (base_exposed_s / base_s - exposed_s / seconds)
    computing = kernels * (1.0 - (seconds - exposed_s) / (base_s - base_exposed_s))
    rate = math.log1p(math.hypot(kernels * (1.0 - share), collectives * share))
    return Widths(rate=rate, speedup=math.log1p(math.hypot(waiting, computing)), ttft=rate)


def by_own_algorithms(request: Request, other: Request, parts: Collection[str] = ("stack",)) -> float:
    """Of a ratio: the error of collectives that the first request runs longer, with parts that were not compared."""
    own_s, others_s = (_algorithms(each) for each in (request, other))
    apart_s = math.fsum(max(0.0, seconds - others_s.get(name, 0.0)) for name, seconds in own_s.items())
    exposed = request.breakdown.exposed_comm_s / float(request.request_s)
    collectives = math.hypot(*(UNCHECKED[part].collectives for part in parts))
    return math.log1p(collectives * exposed * apart_s / (math.fsum(own_s.values()) or 1.0))


def by_own_plan(request: Request, other: Request, parts: Collection[str]) -> float:
    """Of a ratio of two plans: what the first request errs by on its own, in parts that were not compared.

    Its collectives as far as it runs them longer, and its kernels where no run had such a plan.
    """
    kernels = UNCHECKED["plan"].kernels if "plan" in parts else 0.0
    share = request.breakdown.collectives_s / float(request.request_s)
    return math.hypot(by_own_algorithms(request, other, parts), math.log1p(kernels * (1.0 - share)))


def by_servings_of_plans(*servings: ServingCheck | None) -> float:
    """Of a ratio of two plans, from the times per token of measured servings; None: of a stack that had none."""
    return math.hypot(*(math.log1p(each.tpot) for each in servings if each)) * math.sqrt(1.0 - SHARED_BY_PLANS)


def _algorithms(request: Request) -> Mapping[str, float]:
    """Seconds of collectives by what they run."""
    by_name: dict[str, float] = defaultdict(float)
    for step, times in request.passes:
        estimates = step.estimates(step.schedule)
        for (role, _), count in step.schedule.order.spans.items():
            estimate = estimates[role]
            if estimate.algorithm:
                by_name[estimate.algorithm] += float(times) * count * float(estimate.seconds)
    return by_name


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
        self.scenario, self._requests, self.costs, self._memory = scenario, requests, costs, memory

    def request(self, name: str) -> Request:
        """The simulated request of a variant; standard's is always there."""
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
    def unchecked_wirings(self) -> list[str]:
        """Variants whose wiring no measured run had."""
        return [name for name in self._requests if not has_wiring(name)]

    @cached_property
    def validated(self) -> Mapping[str, bool]:
        """By part of the scenario (`UNCHECKED`), whether predictions of it were compared with end-to-end runs."""
        return parts_alike(self.scenario, self.costs.profile, self.compared, self._requests)

    @cached_property
    def widths(self) -> Mapping[str, Widths]:
        """Half-widths of each variant's intervals."""
        return {name: self._widths(name) for name in self._requests}

    def _widths(self, name: str) -> Widths:
        request, standard = self._requests[name], self._requests["standard"]
        of_ops = by_op(request, standard)
        added = by_unchecked(request, standard, self._unchecked(name))
        speedup = self._speedup_width(name, self, "standard")
        runs = self.compared.runs
        rate, ttft = of_ops.rate, of_ops.ttft
        if isinstance(runs, ServingCheck):
            rate, ttft = by_servings(self.scenario, of_ops, speedup, runs, self.validated)
        elif self._fitted:
            rate = ttft = self._fitted.rate_width(name, of_ops.rate)
        return Widths(
            rate=math.hypot(rate, added.rate),
            speedup=math.hypot(speedup, added.speedup),
            ttft=math.hypot(ttft, added.ttft),
        )

    def over(self, name: str, base: "Confidence", base_name: str, plain: "Confidence") -> Interval:
        """How many times as fast a variant is as one of a scenario with other techniques or all-reduces.

        What errs in both alike cancels. Of a technique that was not compared with runs, the error is of what it gains;
        of another all-reduce, of the time that it takes itself. `plain` is of the same scenario without techniques, and
        has both variants.
        """
        request, other = self._requests[name], base._requests[base_name]
        every = {*self._unchecked(name), *base._unchecked(base_name)}
        same_stack = self.scenario.stack == base.scenario.stack
        apart = {"technique"} if same_stack else {"technique", "stack"}
        widths = [
            self._speedup_width(name, base, base_name),
            by_unchecked(request, other, sorted(every - apart)).speedup,
        ]
        if not same_stack:
            sides = ((self, request, other), (base, other, request))
            widths += (by_own_algorithms(own, others) for side, own, others in sides if not side.validated["stack"])
        if self.scenario.techniques != base.scenario.techniques:
            widths += (
                by_unchecked(each._requests[of], plain._requests[of], ["technique"]).speedup
                for each, of in ((self, name), (base, base_name))
                if not each.validated["technique"]
            )
        elif not self.validated["technique"]:
            widths.append(by_unchecked(request, other, ["technique"]).speedup)
        return Interval.around(float(other.request_s) / float(request.request_s), math.hypot(*widths))

    def over_plan(self, base: "Confidence") -> Interval:
        """How many times as fast standard is as on another plan, with the same model, hardware, stack and load.

        Errors of kernels that both run cancel; those of collectives as far as both run them.
        """
        sides = ((self, self._requests["standard"]), (base, base._requests["standard"]))
        (_, request), (_, other) = sides
        of_ops = by_op(request, other).speedup
        if isinstance(self.compared.runs, ServingCheck):
            servings = (each.compared.runs if each.validated["stack"] else None for each, _ in sides)
            widths = [max(of_ops, by_servings_of_plans(*(each for each in servings if isinstance(each, ServingCheck))))]
        elif self._fitted and base._fitted:
            widths = [self._fitted.plan_width(base._fitted, of_ops)]
        else:
            widths = [of_ops]
        every = {*self._unchecked("standard"), *base._unchecked("standard")}
        widths.append(by_unchecked(request, other, sorted(every - {"plan"})).speedup)
        widths += (
            by_own_plan(own, others, each._unchecked("standard"))
            for each, own, others in ((self, request, other), (base, other, request))
        )
        return Interval.around(float(other.request_s) / float(request.request_s), math.hypot(*widths))

    def _speedup_width(self, name: str, base: "Confidence", base_name: str) -> float:
        """Of one request's speed over another's, without what was not compared."""
        request, other = self._requests[name], base._requests[base_name]
        of_ops = by_op(request, other).speedup
        if isinstance(self.compared.runs, ServingCheck):
            # all servings were of standard: speedups are those of a stack that was not compared. Its part is added with
            # all others if nothing was compared
            apart = ["stack"] if self.validated["stack"] else []
            alike = other if self.scenario.stack == base.scenario.stack else self._requests["standard"]
            return math.hypot(of_ops, by_unchecked(request, alike, apart).speedup)
        if not self._fitted or not base._fitted:
            return of_ops
        if request is other:
            return 0.0
        return self._fitted.speedup_width(name, base._fitted, base_name, of_ops)

    def _unchecked(self, name: str) -> list[str]:
        """Parts of a variant's scenario that were not compared."""
        wiring = [] if has_wiring(name) else ["wiring"]
        return [part for part, checked in self.validated.items() if not checked and part != "wiring"] + wiring

    @cached_property
    def _fitted(self) -> "_Fitted | None":
        """What the stack's fit says of the requests, where it has one."""
        return _Fitted.of(self.scenario, self._requests, self.costs.profile)

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


class _Fitted(NamedTuple):
    """A stack's fit, for some requests."""

    scale: IntervalScale
    """What it took to hold runs that a fit had not seen."""
    log_s: Mapping[str, NDArray[np.float64]]
    """Times by variant, over the fit's draws."""

    @classmethod
    def of(cls, scenario: Scenario, variants: Iterable[str], profile: CalibrationProfile | None) -> Self | None:
        """That of a scenario's stack; None: it has none."""
        stack_fit = profile.fit_of(scenario.stack.name) if profile else None
        names = Hardware.stated(scenario, profile).fitted(scenario, profile)
        if profile is None or stack_fit is None or not names:
            return None
        draws = dict(zip(stack_fit.figures, np.array(stack_fit.draws).T, strict=True))
        columns = {name: values for name, values in draws.items() if name in names}
        requests = simulate_requests(scenario, columns, list(variants), profile)
        same_tables = stack_fit.base == profile.tables_of
        return cls(
            scale=stack_fit.scale(scenario.model.name, scenario.plan.tp) if same_tables else IntervalScale(),
            log_s={name: np.log(request.request_s) for name, request in requests.items()},
        )

    def rate_width(self, name: str, by_op: float) -> float:
        """Of a variant's throughput, with the errors of its ops."""
        noise = NORMAL_90 * math.hypot(SHARED_LOG_SD, ROW_LOG_SD)
        return self.scale.rate * math.hypot(by_op, _spread(self.log_s[name]), noise)

    def speedup_width(self, name: str, base: "_Fitted", base_name: str, by_op: float) -> float:
        """Of a variant's speed over that of one in another fit, or in this one."""
        apart = self.log_s[name] - base.log_s[base_name]
        return self.scale.speedup * math.hypot(by_op, _spread(apart), RUN_NOISE)

    def plan_width(self, base: "_Fitted", by_op: float) -> float:
        """Of standard's speed over that on another plan: what runs of one plan share does not cancel.

        Ratios of plans were not among those that scales come from; 15 of 16 ratios of published runs lie inside.
        """
        noise = NORMAL_90 * math.sqrt(2.0) * math.hypot(SHARED_LOG_SD, ROW_LOG_SD)
        scale = max(figure for each in (self.scale, base.scale) for figure in (each.rate, each.speedup))
        return scale * math.hypot(by_op, _spread(self.log_s["standard"] - base.log_s["standard"]), noise)


def _spread(log_s: NDArray[np.float64]) -> float:
    return NORMAL_90 * float(np.std(log_s, ddof=1))
