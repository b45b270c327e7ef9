"""One cross-check from start to end: what runs, what is compared and judged by bounds, and the result as JSON."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.table_parts import in_place_entry
from ladder_sim.system.files import Schema
from ladder_sim.validation.runs import Compared, check_same, compare_requests
from ladder_sim_calibration.passes.fit import on_link, profile_of, times_of
from ladder_sim_calibration.passes.observations import Observations, OnLink, name_of, scenario_of, steps
from ladder_sim_calibration.passes.observe import Experiment, observe
from ladder_sim_runtime.environment import environment

SCHEMA = Schema(version=3)
# what a result calls quantities
NAMES = {"ttft_s": "prefill", "tpot_s": "decode", "request_s": "request", "speedup": "speedup"}


# largest errors allowed, by backend and quantity, as shares: the latencies of an emulated link are known exactly
BOUNDS: Mapping[str, Mapping[str, float]] = {
    "emulate": {"ttft_s": 0.10, "tpot_s": 0.10, "speedup": 0.05},
    "gloo": {"ttft_s": 0.15, "tpot_s": 0.15, "speedup": 0.08},
}


def compare(
    observed: Observations, profile: CalibrationProfile, variants: Sequence[str], bounds: Mapping[str, float]
) -> Iterator[tuple[str, Compared, float | None]]:
    """Compare every quantity of every run: link, row, and its bound; None: it is not judged, or was fitted to.

    Decode is that of all steps together.
    """
    for link in observed.links:
        on = on_link(profile, observed.emulated.get(link))
        requests = {
            variant: observed.requests[OnLink(link, variant)]
            for variant in variants
            if OnLink(link, variant) in observed.requests
        }
        predicted = {variant: times_of(observed.scenario, variant, on) for variant in requests}
        for row in compare_requests(requests, predicted, min(1, len(steps(observed.scenario, "decode")))):
            fitted = link == observed.calibration_link and row.variant == "standard"
            limit = row.quantity == "speedup" and row.variant == "upper-bound"
            yield link, row, None if fitted or limit else bounds.get(row.quantity)


def cross_check(experiment: Experiment) -> tuple[dict[str, Any], CalibrationProfile] | None:
    """Measure, predict and compare; returns the result as JSON, and the profile behind it.

    None on all ranks but the first, where torchrun began them.
    """
    # speedups are over standard, and a profile is fitted to it
    named = (name_of(scenario_of(experiment.scenario, variant)) for variant in experiment.runs)
    variants = tuple(dict.fromkeys(("standard", *named)))
    experiment = dataclasses.replace(experiment, variants=variants, runs=variants)
    if experiment.profile:
        check_same(experiment.profile, experiment.environment(), f"'{experiment.profile.name}'")
    observed = observe(experiment)
    if observed is None:
        return None
    profile = experiment.profile or profile_of(observed, created=date.today().isoformat())
    backend = experiment.links.backend
    in_place = in_place_entry(profile.in_place) if profile.in_place else {}
    result = SCHEMA.marked(
        run=_run_fields(experiment),
        environment={**environment(), "load": observed.load},
        fitted={"kernels": len(in_place["kernels"]), "waits": in_place["waits"]},
        rows=[
            {
                "link": link,
                "variant": row.variant,
                "quantity": NAMES[row.quantity],
                **{name: getattr(row, name) for name in ("predicted", "measured", "low", "high")},
                "bound": bound,
                "error": row.error,
                "beyond": bound is not None and row.exceeds(bound),
            }
            for link, row, bound in compare(observed, profile, variants, BOUNDS[backend])
        ],
    )
    return result, profile


def _run_fields(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that describe what ran: model, sizes, stack and precision."""
    scenario = experiment.scenario
    return {
        "model": scenario.model.name,
        **{name: getattr(scenario.model, name) for name in ("layers", "hidden", "vocab")},
        "stack": scenario.stack.name,
        "tp": scenario.plan.tp,
        **{name: getattr(scenario.workload, name) for name in ("batch", "prompt", "gen")},
        "backend": experiment.links.backend,
        "threads": experiment.threads,
        "shares": list(experiment.shares) if experiment.links.backend == "emulate" else [],
        "rounds": experiment.rounds,
    }
