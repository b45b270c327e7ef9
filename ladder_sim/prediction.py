"""The public function of the package: `predict`, and what it returns."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ladder_sim.costs.memory import MemoryUse, memory_use
from ladder_sim.costs.model import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile, load_profile
from ladder_sim.errors import MemoryFitError, UnknownNameError, UsageError
from ladder_sim.graph.variants import DEFAULT_VARIANTS, canonical, wiring
from ladder_sim.intervals import Interval, PredictionErrors
from ladder_sim.ranks import Jitter
from ladder_sim.requests import Request, simulate_request
from ladder_sim.specs.scenario import Scenario
from ladder_sim.steps import ENGINES, Engine, StepSummary
from ladder_sim.units import format_bytes

JITTER_KEY = "jitter_sigma"
# in a profile's overheads
MOST_JITTER = 1.0
# beyond this a lognormal spread is no model of anything
NO_PROFILE = "none"
# name that asks for datasheet figures only


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One variant of a scenario. Sums are over a whole request; times in seconds."""

    variant: str
    # canonical name
    ttft_s: float
    # time to first token: prefill
    tpot_s: float | None
    # mean time per further token; None when only one token is asked for
    request_s: float
    # prefill and every decode step
    rate: float
    # batch * gen / request_s, tokens per second
    request_speedup: float
    # standard's request_s over this one's
    ttft_speedup: float
    # the same for prefill
    tpot_speedup: float | None
    # the same for decode
    busy_s: Mapping[str, float]
    # time of all ops by kind, overlapped or not
    limits_s: Mapping[str, float]
    # what the critical path waits for; sums to request_s
    comm_s: float
    # collectives, hidden or not
    exposed_comm_s: float
    # collectives while nothing computes
    slowed_s: float
    # what kernels lose to the collectives beside them
    memory: MemoryUse
    # of one GPU
    sources_s: Mapping[tuple[str, str], float]
    # critical path by (source of the estimate, op kind)
    provenance: "Provenance"
    # what all variants of the scenario rest on
    unevenness: "Unevenness | None" = None
    # with jitter: how steps spread
    prefill: StepSummary
    # the simulated prefill
    decode: StepSummary | None
    # the simulated decode step at mid-answer context
    errors: PredictionErrors
    # of all variants of the scenario

    @property
    def tokens_per_s(self) -> Interval:
        """Throughput: ``batch * gen / request_s``."""
        return Interval.around(self.rate, self.errors.of(self.variant).rate)

    @property
    def speedup(self) -> Interval:
        """Standard's ``request_s`` over this one's."""
        return Interval.around(self.request_speedup, self.errors.of(self.variant).speedup)

    @property
    def limited_by(self) -> str:
        """What takes the largest share of the critical path."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Unevenness:
    """Spread of step times, and what ranks wait for each other; seconds."""

    ttft_p50_s: float
    # median prefill
    ttft_p95_s: float
    # its 95th percentile
    tpot_p50_s: float | None
    # median decode step; None when only one token is asked for
    tpot_p95_s: float | None
    # its 95th percentile
    waiting_s: float
    # in a request, at collectives for ranks that arrive later, mean over ranks; not part of any transfer time


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the predictions of a scenario rest on."""

    profile: str
    # name of the measured profile, or "none"
    measured_fraction: float
    # share of standard's request time that comes from in-range measurements of this GPU and this fabric
    warnings: tuple[str, ...]
    # what the reader should know, one sentence each


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
    >>> found = predict(Scenario.of(model="405b", nodes=2), ["ladder", "upper-bound"])
    >>> 1 < found["ladder"].speedup.value < found["upper-bound"].speedup.value
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
        raise UsageError(f"seed {seed!r} is no whole number from 0 on", hint="any will do, for example 0")
    uneven = Jitter(sigma=_sigma(jitter, measured), seed=seed)
    memory = memory_use(scenario)
    if not memory.fits and not ignore_memory:
        raise _does_not_fit(scenario, memory)
    requests = {
        name: simulate_request(dataclasses.replace(scenario, variant=name), costs, engine, uneven)
        for name in dict.fromkeys(["standard", *names])
    }
    provenance = _provenance(scenario, measured, costs, requests["standard"], memory)
    errors = PredictionErrors(scenario, requests, measured)
    return {
        name: _prediction(scenario, requests[name], requests["standard"], memory, provenance, errors) for name in names
    }


def default_variants(scenario: Scenario) -> tuple[str, ...]:
    """Variants compared when none is named: the usual four, or what the model's own config is wired as beside them."""
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
    return dataclasses.replace(measured, transfer=calibrated.transfer)


def _prediction(
    scenario: Scenario,
    request: Request,
    standard: Request,
    memory: MemoryUse,
    provenance: Provenance,
    errors: PredictionErrors,
) -> Prediction:
    workload, seconds = scenario.workload, request.seconds
    steps = workload.gen - 1
    return Prediction(
        variant=request.variant,
        ttft_s=request.prefill_s,
        tpot_s=request.decode_s / steps if steps else None,
        request_s=seconds,
        rate=workload.batch * workload.gen / seconds,
        request_speedup=standard.seconds / seconds,
        ttft_speedup=standard.prefill_s / request.prefill_s,
        tpot_speedup=standard.decode_s / request.decode_s if steps else None,
        busy_s=request.totals("busy_s"),
        limits_s=_limits_s(request),
        comm_s=request.total("comm_s"),
        exposed_comm_s=request.total("exposed_s"),
        slowed_s=request.total("slowed_s"),
        memory=memory,
        sources_s=request.totals("sources_s"),
        provenance=provenance,
        prefill=request.prefill,
        decode=request.middle,
        unevenness=_unevenness(request, steps),
        errors=errors,
    )


def _limits_s(request: Request) -> dict[str, float]:
    """The critical path's shares, and what jitter adds to it."""
    limits_s = request.totals("critical_s")
    if request.ranked:
        limits_s["uneven ranks"] = request.seconds - math.fsum(limits_s.values())
    return limits_s


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
        found = profile.overheads.get(JITTER_KEY) if profile else None
        if found is None:
            raise UsageError(
                f"profile '{profile.name if profile else NO_PROFILE}' holds no measured jitter",
                hint="give a number, for example 0.05",
            )
        jitter = found
    if not isinstance(jitter, int | float) or not 0.0 <= jitter <= MOST_JITTER:
        raise UsageError(f"jitter {jitter} is not between 0 and {MOST_JITTER:g}", hint="0.05 spreads kernels by 5 %")
    return float(jitter)


def _provenance(
    scenario: Scenario, profile: CalibrationProfile | None, costs: KernelCosts, standard: Request, memory: MemoryUse
) -> Provenance:
    measured_s = math.fsum(
        seconds for (source, _), seconds in standard.totals("sources_s").items() if source == "measured"
    )
    warnings = list(scenario.warnings())
    if profile is None:
        warnings.append("no measured profile: every time is a datasheet roofline")
    elif not costs.measured_here:
        warnings.append(
            f"profile '{profile.name}' was measured on {profile.gpu}, whose GPU or in-node link has other figures: its "
            "times are carried over by the ratio of the formulas"
        )
    transfer = profile.transfer if profile else None
    if profile and transfer and transfer.stack == scenario.stack.name and transfer.base != profile.tables_of:
        warnings.append(
            f"stack '{transfer.stack}' was fitted to runs on {transfer.base}; its figures are taken over unchanged"
        )
    if not memory.fits:
        warnings.append(
            f"does not fit: needs {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} per GPU"
        )
    if scenario.nodes_used > 1 and scenario.stack.allreduce not in ("nccl", "auto"):
        warnings.append(f"all-reduce '{scenario.stack.allreduce}' works inside a node only: across nodes NCCL is used")
    return Provenance(
        profile=NO_PROFILE if profile is None else profile.name,
        measured_fraction=measured_s / standard.seconds,
        warnings=tuple(warnings),
    )


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
