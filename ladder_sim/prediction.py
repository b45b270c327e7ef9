"""Predicts a request from its forward passes: one prefill, then decode over a growing context.

The public function of the package: `predict`.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder_sim.costs.base import CostModel
from ladder_sim.costs.memory import MemoryUse, memory_use
from ladder_sim.costs.model import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile, load_profile
from ladder_sim.errors import MemoryFitError
from ladder_sim.graph.variants import DEFAULT_VARIANTS, canonical, wiring
from ladder_sim.specs.scenario import Scenario
from ladder_sim.steps import Engine, StepSummary, simulate
from ladder_sim.units import format_bytes

CONTEXT_NODES = ((2.0, 3), (8.0, 5), (math.inf, 9))
# decode steps simulated for a context-dependent attention, by how much the context grows; the rest are interpolated
# between them. The sum differs from simulating every step by less than 0.1 % (tests/test_prediction.py)
NO_PROFILE = "none"
# name that asks for datasheet figures only


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and its 90 % interval."""

    value: float
    # best estimate
    low: float
    # lower end
    high: float
    # upper end


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
    tokens_per_s: Interval
    # batch * gen / request_s
    speedup: Interval
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
    prefill: StepSummary
    # the simulated prefill
    decode: StepSummary | None
    # the simulated decode step at mid-answer context

    @property
    def limited_by(self) -> str:
        """What takes the largest share of the critical path."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the predictions of a scenario rest on."""

    profile: str
    # name of the measured profile, or "none"
    measured_fraction: float
    # share of standard's request time that comes from in-range measurements of this GPU and this fabric
    warnings: tuple[str, ...]
    # what the reader should know, one sentence each


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A simulated request of one variant."""

    variant: str
    prefill: StepSummary
    decode: Sequence[tuple[StepSummary, float]]
    # decode steps and how many each stands for

    @property
    def decode_s(self) -> float:
        return math.fsum(step.seconds * times for step, times in self.decode)

    @property
    def seconds(self) -> float:
        return self.prefill.seconds + self.decode_s

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


def predict(
    scenario: Scenario,
    variants: Sequence[str] | None = None,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
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
    names = list(dict.fromkeys(canonical(name) for name in variants or default_variants(scenario)))
    for name in names:
        wiring(name, scenario.model.layers, scenario.model.ladder_layers)
    measured = resolve_profile(scenario, profile)
    costs = KernelCosts(scenario, measured)
    memory = memory_use(scenario)
    if not memory.fits and not ignore_memory:
        raise _does_not_fit(scenario, memory)
    requests = {
        name: _simulate_request(dataclasses.replace(scenario, variant=name), costs, engine)
        for name in dict.fromkeys(["standard", *names])
    }
    provenance = _provenance(scenario, measured, costs, requests["standard"], memory)
    return {name: _prediction(scenario, requests[name], requests["standard"], memory, provenance) for name in names}


def default_variants(scenario: Scenario) -> tuple[str, ...]:
    """Variants compared when none is named: the usual four, or what the model's own config is wired as beside them."""
    ladder_layers = len(scenario.model.ladder_layers)
    if 0 < ladder_layers < scenario.model.layers:
        return tuple(f"hybrid-ladder:{ladder_layers}" if name == "ladder" else name for name in DEFAULT_VARIANTS)
    return DEFAULT_VARIANTS


def resolve_profile(scenario: Scenario, profile: str | CalibrationProfile | None) -> CalibrationProfile | None:
    """The profile to use: the one given, else the cluster's own; None for the roofline."""
    if isinstance(profile, CalibrationProfile):
        return profile
    name = scenario.cluster.profile if profile is None else profile
    return None if name in ("", NO_PROFILE) else load_profile(name)


def _simulate_request(scenario: Scenario, costs: CostModel, engine: Engine) -> _Request:
    prefill = simulate(scenario, "prefill", scenario.workload.prompt, costs, engine_name=engine)
    decode = [
        (simulate(scenario, "decode", kv_len, costs, engine_name=engine), times)
        for kv_len, times in decode_contexts(scenario)
    ]
    return _Request(variant=scenario.variant, prefill=prefill, decode=decode)


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


def _prediction(
    scenario: Scenario, request: _Request, standard: _Request, memory: MemoryUse, provenance: Provenance
) -> Prediction:
    workload = scenario.workload
    seconds = request.seconds
    errors, base_errors = request.totals("error_s"), standard.totals("error_s")
    share = {kind: error / seconds for kind, error in errors.items()}
    base_share = {kind: error / standard.seconds for kind, error in base_errors.items()}
    # an error of one kind of op is one error: shared by every layer and by both variants, so most of it cancels
    own = math.sqrt(math.fsum(value**2 for value in share.values()))
    relative = math.sqrt(
        math.fsum((share.get(kind, 0.0) - base_share.get(kind, 0.0)) ** 2 for kind in share | base_share)
    )
    steps = workload.gen - 1
    comm_s = request.total("comm_s")
    return Prediction(
        variant=request.variant,
        ttft_s=request.prefill.seconds,
        tpot_s=request.decode_s / steps if steps else None,
        request_s=seconds,
        tokens_per_s=_interval(workload.batch * workload.gen / seconds, own),
        speedup=_interval(standard.seconds / seconds, relative),
        ttft_speedup=standard.prefill.seconds / request.prefill.seconds,
        tpot_speedup=standard.decode_s / request.decode_s if steps else None,
        busy_s=request.totals("busy_s"),
        limits_s=request.totals("critical_s"),
        comm_s=comm_s,
        exposed_comm_s=comm_s - request.total("hidden_s"),
        slowed_s=request.total("slowed_s"),
        memory=memory,
        sources_s=request.totals("sources_s"),
        provenance=provenance,
        prefill=request.prefill,
        decode=request.decode[len(request.decode) // 2][0] if request.decode else None,
    )


def _provenance(
    scenario: Scenario, profile: CalibrationProfile | None, costs: KernelCosts, standard: _Request, memory: MemoryUse
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


def _interval(value: float, error: float) -> Interval:
    return Interval(value=value, low=value / (1.0 + error), high=value * (1.0 + error))


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
