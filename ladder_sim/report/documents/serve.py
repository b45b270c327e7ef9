"""Serving under load as JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.sweeps.price import token_price

if TYPE_CHECKING:
    from ladder_sim.serving import Estimate, Estimates, Fleet, Fleets, Trace, Traffic
    from ladder_sim.specs.scenario import Scenario


def serve_document(
    scenario: Scenario,
    requests: Traffic | Trace,
    how: Mapping[str, Any],
    estimates: Estimates,
    usd_per_gpu_hour: float | None,
) -> Document:
    """One row per variant: figures with the ends of their intervals, and gains over the first variant."""
    rows = []
    for name, each in estimates.variants.items():
        figures = dict(each.figures)
        if usd_per_gpu_hour is not None:
            figures["usd_per_Mtoken"] = estimate_price(each, usd_per_gpu_hour)
        same = Interval(value=1.0, low=1.0, high=1.0)
        gains = {f"gain_{figure}": each.gains.get(figure, same) for figure in estimates.gained}
        rows.append(
            {
                "variant": name,
                "requests": len(each.outcome.answers),
                "gpus": each.outcome.gpus,
                **_ends(figures),
                "stable": each.stable,
                "promise_kept": each.kept,
                "broken": ",".join(each.broken),
                "unsure": ",".join(each.unsure),
                **_ends(gains),
            }
        )
    promise = estimates.variants[estimates.first].promise
    about = {"seeds": estimates.seeds, "promise": str(promise) if promise else None}
    return _load_document(scenario, requests, how, rows, **about)


def estimate_price(estimate: Estimate, usd_per_gpu_hour: float) -> Interval:
    """US dollars for a million new tokens, at its throughput."""
    rate, gpus = estimate.figures["tokens_per_s"], estimate.outcome.gpus
    value, low, high = (token_price(usd_per_gpu_hour, gpus, each) for each in (rate.value, rate.high, rate.low))
    return Interval(value=value, low=low, high=high)


def fleet_price(fleet: Fleet, traffic: Traffic, usd_per_gpu_hour: float) -> Interval:
    """US dollars for a million new tokens, at the rate that is served."""
    gpus, rate = fleet.gpus, traffic.rate * traffic.gen.mean
    value, low, high = (token_price(usd_per_gpu_hour, each, rate) for each in (gpus.value, gpus.low, gpus.high))
    return Interval(value=value, low=low, high=high)


def _ends(figures: Mapping[str, Interval]) -> dict[str, float | None]:
    """Each with its ends; what is infinite is no number."""
    return {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, each in figures.items()
        for end, value in (("", each.value), ("_low", each.low), ("_high", each.high))
    }


def fleet_fields(fleet: Fleet) -> dict[str, Any]:
    """What one variant needs."""
    need = fleet.capacity
    return {
        "plan": fleet.plans,
        "replicas": need.replicas or None,
        "prefill_replicas": need.sizes.prefill,
        "group_gpus": fleet.group_gpus,
        **_ends({"gpus": fleet.gpus, "rate_limit": fleet.rate_limit}),
        "breaks": ", ".join(need.breaks),
    }


def capacity_document(
    scenario: Scenario, how: Mapping[str, Any], fleets: Fleets, usd_per_gpu_hour: float | None
) -> Document:
    """One row per variant, and what became of each plan."""
    rows = []
    for name, each in fleets.variants.items():
        outcome = each.capacity.outcome
        figures = {"gpus_saved": each.saved, "rate_gain": each.gain}
        if usd_per_gpu_hour is not None:
            figures["usd_per_Mtoken"] = fleet_price(each, fleets.traffic, usd_per_gpu_hour)
        rows.append(
            {
                "variant": name,
                **fleet_fields(each),
                **_ends(figures),
                "ttft_p95_s": outcome.seconds("ttft", 95),
                "tpot_p95_s": outcome.seconds("tpot", 95),
                "reasons": "; ".join(each.reasons),
            }
        )
    plans = [
        {"variant": name, "plan": tried.plans, "gpus": tried.gpus or None, "reason": tried.reason}
        for name, each in fleets.variants.items()
        for tried in each.tried
    ]
    about = {"seeds": fleets.seeds, "promise": str(fleets.promise), "plans": plans}
    return _load_document(scenario, fleets.traffic, how, rows, **about)


def _load_document(
    scenario: Scenario,
    requests: Traffic | Trace,
    how: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    **content: Any,
) -> Document:
    """What was served, `how` (fields of a `ladder_sim.serving.Service`) and what came out."""
    load = {
        name: value if isinstance(value, int | float | None) else str(value) for name, value in asdict(requests).items()
    }
    for name in ("prompt", "gen", "units"):
        # random ones have lengths, recorded ones units
        if hasattr(requests, name):
            load[name] = str(getattr(requests, name))
    given = {
        name: value
        for name, value in scenario.fields().items()
        if name not in ("batch", "prompt", "gen", "concurrency")
    }
    if speculation := how["changed"].get("speculation"):
        content["speculation"] = asdict(speculation)
    if engine := how.get("engine"):
        content["engine"] = engine
    if prefill := how.get("prefill"):
        content["prefill"] = {"replicas": prefill.plan.dp, "tp": prefill.plan.tp}
    return Document.of_rows({"scenario": given, "load": load, **content}, rows)
