"""The public function of the package: `predict`, and what it returns."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ladder_sim.confidence import NO_PROFILE, Confidence, Interval
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse, memory_use
from ladder_sim.costs.profile import JITTER_KEY, CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import MemoryFitError, UnknownNameError, UsageError
from ladder_sim.graph.variants import DEFAULT_VARIANTS, canonical, wiring
from ladder_sim.simulate.breakdown import Breakdown
from ladder_sim.simulate.passes import ENGINES, Engine
from ladder_sim.simulate.ranks import Jitter
from ladder_sim.simulate.request import Request, simulate_request
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes

# larger lognormal spreads are not meaningful
MOST_JITTER = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One variant of a scenario; seconds.

    Times are computed eagerly, breakdowns and intervals on first access.
    """

    variant: str
    """Canonical name."""
    ttft_s: float
    """Time to first token: prefill."""
    tpot_s: float | None
    """Mean time per further token; None when only one token is asked for."""
    request_s: float
    """Prefill and every decode step."""
    rate: float
    """Batch * gen / request_s, tokens per second."""
    request_speedup: float
    """Standard's request_s over this one's."""
    ttft_speedup: float
    """The same for prefill."""
    tpot_speedup: float | None
    """The same for decode."""
    memory: MemoryUse
    """Of one GPU."""
    request: Request
    """What was simulated: forward passes, their ops and timelines."""
    confidence: Confidence
    """How sure the predictions of the scenario's variants are, and what they are based on."""

    @property
    def breakdown(self) -> Breakdown:
        """What the request's time is made of."""
        return self.request.breakdown

    @property
    def unevenness(self) -> "Unevenness | None":
        """With jitter: how steps spread."""
        return _unevenness(self.request, self.confidence.scenario.workload.gen - 1)

    @property
    def tokens_per_s(self) -> Interval:
        """Throughput: ``batch * gen / request_s``."""
        return Interval.around(self.rate, self.confidence.widths[self.variant].rate)

    @property
    def speedup(self) -> Interval:
        """Standard's ``request_s`` over this one's."""
        return Interval.around(self.request_speedup, self.confidence.widths[self.variant].speedup)

    @property
    def limited_by(self) -> str:
        """What takes the largest share of the critical path."""
        limits_s = self.breakdown.limits_s
        return max(limits_s, key=lambda name: limits_s[name])

    def limit_share(self, limit: str) -> float:
        """Share of the request's time that the critical path waits for one limit."""
        return self.breakdown.limits_s.get(limit, 0.0) / self.request_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Unevenness:
    """Spread of step times, and what ranks wait for each other; seconds."""

    ttft_p50_s: float
    """Median prefill."""
    ttft_p95_s: float
    """Its 95th percentile."""
    tpot_p50_s: float | None
    """Median decode step; None when only one token is asked for."""
    tpot_p95_s: float | None
    """Its 95th percentile."""
    waiting_s: float
    """In a request, at collectives for ranks that arrive later, mean over ranks; not part of any transfer time."""


def predict(
    scenario: Scenario,
    variants: Sequence[str] | None = None,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    jitter: float | Literal["measured"] = 0.0,
    seed: int = 0,
) -> dict[str, Prediction]:
    """Predict latency, throughput and speedup over standard for several residual wirings.

    Parameters
    ----------
    scenario
        Everything but the variant.
    variants
        Names such as ``"ladder"`` or ``"hybrid-ladder:16"``; by default standard, parallel, ladder and upper-bound.
        Standard is simulated in any case, because speedups are over it.
    profile
        Measured profile: a name, a path, or a loaded one; by default the cluster's own, ``"none"`` for the roofline.
    ignore_memory
        Predict even if the model does not fit.
    engine
        ``"fast"`` (vectorised) or ``"des"`` (event by event on simpy); they agree.
    jitter
        Random spread of each kernel's time (standard deviation of its logarithm), or ``"measured"`` for the profile's.
        Above 0 every rank is simulated, on simpy, and times are means over replicates.
    seed
        Of the random numbers: the same seed gives the same result.

    Returns
    -------
    dict
        Variant name -> `Prediction`, in the order asked for.

    Raises
    ------
    MemoryFitError
        The model does not fit its GPUs.
    UsageError
        A variant or a profile is unknown.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> predictions = predict(Scenario.of(model="405b", nodes=2), ["ladder", "upper-bound"])
    >>> 1 < predictions["ladder"].speedup.value < predictions["upper-bound"].speedup.value
    True
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    names = list(dict.fromkeys(canonical(name) for name in variants or default_variants(scenario)))
    for name in names:
        wiring(name, scenario.model.layers, scenario.model.ladder_layers)
    measured = resolve_profile(scenario, profile)
    costs = KernelCosts(scenario, measured)
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed {seed!r}: must be a whole number, 0 or more", hint="for example 0")
    uneven = Jitter(sigma=_sigma(jitter, measured), seed=seed)
    memory = memory_use(scenario)
    if not memory.fits and not ignore_memory:
        raise _does_not_fit(scenario, memory)
    simulated = list(dict.fromkeys(["standard", *names]))
    requests = simulate_request(scenario, simulated, costs, engine=engine, jitter=uneven)
    confidence = Confidence(scenario, requests, costs, memory)
    return {name: _prediction(requests[name], requests["standard"], memory, confidence) for name in names}


def default_variants(scenario: Scenario) -> tuple[str, ...]:
    """Variants compared by default: the usual four, with the model's own hybrid in place of ladder if it has one."""
    ladder_layers = len(scenario.model.ladder_layers)
    if 0 < ladder_layers < scenario.model.layers:
        return tuple(f"hybrid-ladder:{ladder_layers}" if name == "ladder" else name for name in DEFAULT_VARIANTS)
    return DEFAULT_VARIANTS


def resolve_profile(scenario: Scenario, profile: str | CalibrationProfile | None) -> CalibrationProfile | None:
    """The profile to use: the one given, else the cluster's own with its stack's fit; None for the roofline."""
    if isinstance(profile, CalibrationProfile):
        return profile
    name = scenario.cluster.profile if profile is None else profile
    if name in ("", NO_PROFILE):
        return None
    measured = load_profile(name)
    if profile is not None or not scenario.stack.profile:
        return measured
    calibrated = load_profile(scenario.stack.profile)
    if calibrated.base == measured.name:
        return calibrated
    return _with_fit(measured, calibrated)


@lru_cache(maxsize=32)
def _with_fit(measured: CalibrationProfile, calibrated: CalibrationProfile) -> CalibrationProfile:
    """A GPU's profile with a stack's fit; the same object for the same two, whose tables are laid out once."""
    return dataclasses.replace(measured, stack_fit=calibrated.stack_fit)


def _prediction(request: Request, standard: Request, memory: MemoryUse, confidence: Confidence) -> Prediction:
    workload = confidence.scenario.workload
    steps = workload.gen - 1
    ttft_s, decode_s, request_s = (float(seconds) for seconds in (request.ttft_s, request.decode_s, request.request_s))
    return Prediction(
        variant=request.variant,
        ttft_s=ttft_s,
        tpot_s=decode_s / steps if steps else None,
        request_s=request_s,
        rate=workload.batch * workload.gen / request_s,
        request_speedup=float(standard.request_s) / request_s,
        ttft_speedup=float(standard.ttft_s) / ttft_s,
        tpot_speedup=float(standard.decode_s) / decode_s if steps else None,
        memory=memory,
        request=request,
        confidence=confidence,
    )


def _unevenness(request: Request, steps: int) -> Unevenness | None:
    if not request.ranked:
        return None
    prefill, *decode = request.ranked
    return Unevenness(
        ttft_p50_s=prefill.p50_s,
        ttft_p95_s=prefill.p95_s,
        tpot_p50_s=decode[0].p50_s if decode else None,
        tpot_p95_s=decode[0].p95_s if decode else None,
        waiting_s=prefill.waiting_s + (steps * decode[0].waiting_s if decode else 0.0),
    )


def _sigma(jitter: float | Literal["measured"], profile: CalibrationProfile | None) -> float:
    if jitter == "measured":
        measured = profile.overheads.get(JITTER_KEY) if profile else None
        if measured is None:
            raise UsageError(
                f"profile '{profile.name if profile else NO_PROFILE}' holds no measured jitter",
                hint="give a number, for example 0.05",
            )
        jitter = measured
    if not isinstance(jitter, int | float) or not 0.0 <= jitter <= MOST_JITTER:
        raise UsageError(f"jitter {jitter} is not between 0 and {MOST_JITTER:g}", hint="0.05 spreads kernels by 5 %")
    return float(jitter)


def _does_not_fit(scenario: Scenario, memory: MemoryUse) -> MemoryFitError:
    message = (
        f"{scenario.model.name} needs {format_bytes(memory.total_bytes)} per GPU at TP {scenario.tp}, and "
        f"{scenario.cluster.gpu.name} has {format_bytes(memory.capacity_bytes)}"
    )
    fitting = smallest_fitting_tp(scenario)
    way_out = (
        "no tensor-parallel degree that divides it fits" if fitting is None else f"smallest TP that fits: {fitting}"
    )
    if fitting is not None and fitting > scenario.nodes * scenario.cluster.gpus_per_node:
        way_out += f" (--nodes {-(-fitting // scenario.cluster.gpus_per_node)})"
    return MemoryFitError(message, hint=f"{way_out}; --ignore-memory predicts all the same")


def smallest_fitting_tp(scenario: Scenario) -> int | None:
    """The smallest tensor-parallel degree at which the model fits, on as many nodes as it takes; None if none does."""
    per_node = scenario.cluster.gpus_per_node
    widest = dataclasses.replace(scenario, tp=1, nodes=-(-scenario.model.heads // per_node))
    for tp in widest.tp_degrees():
        if memory_use(dataclasses.replace(widest, tp=tp)).fits:
            return tp
    return None
