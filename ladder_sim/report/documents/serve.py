"""Serving under load as JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document

if TYPE_CHECKING:
    from ladder_sim.serving import Capacity, Fleet, Served

# arguments of a scenario that the load replaces
_REPLACED = ("batch", "prompt", "gen", "concurrency")


def serve_document(served: Served) -> Document:
    """One row per variant: figures with the ends of their intervals, and gains over the first variant."""
    rows = []
    for name, each in served.items():
        same = Interval(value=1.0, low=1.0, high=1.0)
        gains = {f"gain_{figure}": each.gains.get(figure, same) for figure in served.gained}
        rows.append(
            {
                "variant": name,
                "requests": len(each.outcome.answers),
                "gpus": each.outcome.gpus,
                **_ends(each.figures),
                "stable": each.stable,
                "promise_kept": each.kept,
                "broken": ",".join(each.broken),
                "unsure": ",".join(each.unsure),
                **_ends(gains),
            }
        )
    service = served.service
    about: dict[str, Any] = {}
    if speculation := service.speculation:
        about["speculation"] = asdict(speculation)
    if service.engine:
        about["engine"] = service.engine
    if service.prefill:
        about["prefill"] = {"replicas": service.prefill.plan.dp, "tp": service.prefill.plan.tp}
    slo = str(served.slo) if served.slo else None
    return Document.of_rows({**_asked(served), "seeds": served.seeds, "promise": slo, **about}, rows)


def _ends(figures: Mapping[str, Interval]) -> dict[str, float | None]:
    """Each with its ends; what is infinite is no number."""
    return {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, each in figures.items()
        for end, value in (("", each.value), ("_low", each.low), ("_high", each.high))
    }


def fleet_fields(fleet: Fleet) -> dict[str, Any]:
    """What one variant needs."""
    need = fleet.need
    return {
        "plan": fleet.plans,
        "replicas": need.replicas or None,
        "prefill_replicas": need.sizes.prefill,
        "group_gpus": fleet.group_gpus,
        **_ends({"gpus": fleet.gpus, "rate_limit": fleet.rate_limit}),
        "breaks": ", ".join(need.breaks),
    }


def capacity_document(capacity: Capacity) -> Document:
    """One row per variant, and what became of each plan."""
    rows = []
    for name, each in capacity.items():
        outcome = each.need.outcome
        figures = {"gpus_saved": each.saved, "rate_gain": each.gain}
        if price := capacity.usd_per_Mtoken(name):
            figures["usd_per_Mtoken"] = price
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
        for name, each in capacity.items()
        for tried in each.tried
    ]
    about = {"seeds": capacity.seeds, "promise": str(capacity.slo), "plans": plans}
    if capacity.speculation:
        about["speculation"] = asdict(capacity.speculation)
    return Document.of_rows({**_asked(capacity), **about}, rows)


def _asked(answer: Served | Capacity) -> dict[str, Any]:
    """What was served, and where."""
    requests = answer.load
    if isinstance(requests, Sequence):
        load: dict[str, Any] = {"requests": len(requests)}
    else:
        load = {
            name: value if isinstance(value, int | float | None) else str(value)
            for name, value in asdict(requests).items()
        }
        for name in ("prompt", "gen", "units"):
            # random ones have lengths, recorded ones units
            if hasattr(requests, name):
                load[name] = str(getattr(requests, name))
    given = {name: value for name, value in answer.scenario.fields().items() if name not in _REPLACED}
    return {"scenario": given, "load": load}
