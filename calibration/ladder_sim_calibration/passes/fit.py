"""Makes a profile of observed passes.

Fitted to: kernels of passes without communication, collectives alone and during a pass, and standard on one link, which
shows what a computation loses by waiting. Everything else is predicted.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from ladder_sim.costs.hardware import NOTHING_ADDED
from ladder_sim.costs.in_place import NO_WAIT, InPlace, OpKey, Wait
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import CalibrationProfile, ProfileSource
from ladder_sim.kernels import GemmShape, Gpu, Phase
from ladder_sim.simulate.request import simulate_request
from ladder_sim.specs.cluster import THIS_MACHINE, this_machine
from ladder_sim.specs.scenario import Scenario
from ladder_sim_calibration.fit.samples import SizedTimes
from ladder_sim_calibration.fit.tables import table_of
from ladder_sim_calibration.passes.observations import (
    ELEMENT_BYTES,
    PHASES,
    Observations,
    OnLink,
    all_reduces,
    message_bytes,
    ops_of,
    scenario_of,
    steps,
)
from ladder_sim_runtime.runs import RequestTimes

# of its time alone that a message takes after a computation, whatever noise makes of the difference
MIN_MESSAGE_SHARE = 0.01


def profile_of(observed: Observations, *, created: str) -> CalibrationProfile:
    """Fit all observations but the runs that are predicted; `created` is an ISO date."""
    link, kernels = observed.calibration_link, _kernels(observed)
    emulated = observed.emulated.get(link)
    curves = _curves(observed) if emulated is None else emulated_collectives(emulated)
    without_waits = InPlace(element_bytes=ELEMENT_BYTES, kernels=kernels, collectives=curves, waits={})
    cluster = this_machine()
    profile = CalibrationProfile(
        name=THIS_MACHINE,
        cluster=cluster,
        cluster_name=cluster.name,
        created=created,
        environment=observed.environment,
        sources=(ProfileSource(what="all", version="", licence="", files=(), citation="passes on this machine"),),
        reference=Gpu.of(cluster.gpu),
        gemm={"bf16": table_of("gemm", "bf16", _gemms(kernels), Gpu.of(cluster.gpu))},
        attention_prefill={},
        attention_decode={},
        collectives={},
        overheads=NOTHING_ADDED,
        in_place=without_waits,
    )
    run = OnLink(link, "standard")
    waits: dict[float, Wait] = {}
    seconds = {kind: curve.seconds.copy() for kind, curve in curves.items()}
    lasts = zip(PHASES, times_of(observed.scenario, "standard", profile), observed.at_pace(run), strict=True)
    for phase, predicted_s, measured_s in lasts:
        messages = all_reduces(observed.scenario, phase)
        each_s = (measured_s - predicted_s) / len(messages) / max(1, len(steps(observed.scenario, phase)))
        alone_s, _ = curves["all_reduce"].seconds_at(message_bytes(messages[-1]))
        sizes = _sizes(observed, phase)
        waits |= dict.fromkeys(sizes, NO_WAIT._replace(wake_s=max(0.0, each_s)))
        if emulated is None:
            # a real link can be faster for ranks that come from a computation than for ranks that do nothing else: by
            # the same share for every message of a phase
            share = max(MIN_MESSAGE_SHARE, 1.0 + min(0.0, each_s / float(alone_s)))
            for kind, curve in curves.items():
                chosen = np.isin(curve.size_bytes, list(sizes)) & (kind != "broadcast")
                seconds[kind] = np.where(chosen, share * curve.seconds, seconds[kind])
    fitted = {kind: replace(curve, seconds=seconds[kind]) for kind, curve in curves.items()}
    for size, times in observed.overlaps.items():
        during_s, lost_s = (median(column) for column in zip(*times, strict=True))
        alone_s, _ = fitted["all_reduce"].seconds_at(size)
        waits[size] = waits.get(size, NO_WAIT)._replace(
            core_share=float(np.clip(lost_s / during_s, 0.0, 1.0)), slowed=max(0.0, during_s / float(alone_s) - 1.0)
        )
    return replace(profile, in_place=replace(without_waits, collectives=fitted, waits=waits))


def times_of(scenario: Scenario, variant: str, profile: CalibrationProfile) -> RequestTimes:
    """Predict one request of a variant, as `OnLink` names it."""
    scenario = scenario_of(scenario, variant)
    request = simulate_request(scenario, [scenario.variant], KernelCosts(scenario, profile))[scenario.variant]
    return RequestTimes(float(request.ttft_s), float(request.decode_s))


def on_link(profile: CalibrationProfile, all_reduce: Curve | None) -> CalibrationProfile:
    """Return the profile with collectives of an emulated link; unchanged if `all_reduce` is None."""
    if all_reduce is None or profile.in_place is None:
        return profile
    return replace(profile, in_place=replace(profile.in_place, collectives=emulated_collectives(all_reduce)))


def emulated_collectives(all_reduce: Curve) -> dict[str, Curve]:
    """Return the curves of a link's collectives as the runtime emulates them, by kind."""
    half = replace(all_reduce, seconds=0.5 * all_reduce.seconds)
    return {"all_reduce": all_reduce, **dict.fromkeys(("all_gather", "reduce_scatter", "broadcast"), half)}


def _sizes(observed: Observations, phase: Phase) -> set[float]:
    """Return the bytes of the messages of a phase that computations wait for."""
    return {
        message_bytes(op)
        for variant in {"standard", *(run.variant for run in observed.requests)}
        for op in ops_of(observed.scenario, variant, phase)
        if op.stream == "comm" and op.kind != "broadcast"
    }


def _kernels(observed: Observations) -> dict[OpKey, float]:
    """Return the median of every kernel, scaled so that the upper bound's sum is an untimed pass."""
    known: dict[OpKey, float] = {}
    for phase, phase_s in zip(PHASES, zip(*observed.compute_only, strict=True), strict=True):
        if not observed.kernels[phase]:
            # a single new token has no decode
            continue
        medians = {key: median(seconds) for key, seconds in observed.kernels[phase].items()}
        passes = [ops_of(observed.scenario, "upper-bound", phase, step) for step in steps(observed.scenario, phase)]
        total_s = sum(medians[op.kind, op.shape] for ops in passes for op in ops if op.stream == "compute")
        for key, seconds in medians.items():
            known.setdefault(key, seconds * median(phase_s) / total_s if total_s else seconds)
    return known


def _gemms(kernels: Mapping[OpKey, float]) -> SizedTimes:
    """Return the whole GEMMs by m, n and k, between which GEMMs of other wirings are interpolated."""
    return {
        (float(shape.m), float(shape.n), float(shape.k)): seconds
        for (_, shape), seconds in kernels.items()
        if isinstance(shape, GemmShape) and shape.chunks == 1
    }


def _curves(observed: Observations) -> dict[str, Curve]:
    curves = {}
    for kind in {kind for kind, _ in observed.collectives}:
        points = sorted((size, median(times)) for (name, size), times in observed.collectives.items() if name == kind)
        sizes, seconds = np.array(points).T
        curves[kind] = Curve(size_bytes=sizes, seconds=seconds)
    return curves
