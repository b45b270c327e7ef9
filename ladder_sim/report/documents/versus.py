"""Wirings and techniques side by side, as JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.graph.variants import parse
from ladder_sim.quality.published import quality_of
from ladder_sim.report.capacity import FLEET
from ladder_sim.report.columns import fields_of
from ladder_sim.report.documents.quality import adaptation_fields
from ladder_sim.specs.techniques import with_sources

if TYPE_CHECKING:
    from ladder_sim.analysis.versus import Versus
    from ladder_sim.serving.sizing.fleet import Fleet


# of an option that is not told apart from the first of its group
TIED = "*"
# of groups, over several options
_TITLES = {"limit": "limits"}
# what limits are, where their names do not say it
_LIMITS = {"upper-bound": "no communication (upper-bound)"}


def versus_document(result: Versus, fleets: Mapping[str, Fleet] | None = None) -> Document:
    """One row per option, best first: without retraining, with retraining, limits; then what each part takes."""
    rows = []
    groups = {"without retraining": result.own, "with retraining": result.retrained, "limit": result.limits}
    for group, options in groups.items():
        tied = result.tied(options[0], options) if options and group != "limit" else []
        rows += [
            {
                "option": each.name,
                "variant": each.prediction.variant,
                "technique": each.scenario.techniques.name,
                "allreduce": each.scenario.stack.allreduce,
                "group": group,
                "gain": each.gain.value,
                "gain_low": each.gain.low,
                "gain_high": each.gain.high,
                "ttft_gain": each.ttft_gain,
                "tpot_gain": each.tpot_gain,
                "tied_with_best": each in tied,
                "lossy": each.lossy,
            }
            for each in options
        ]
    techniques = {
        name: {"answers": each.answers, "needs": each.needs, "engines": with_sources(each.support)}
        for name, each in result.techniques.items()
    }
    wirings = {}
    for name, each in result.wirings.items():
        quality = quality_of(name)
        wirings[name] = {
            "any_tp": each.is_shared,
            "engines": with_sources(parse(name).family.support),
            "quality": quality.sentence if quality else None,
        }
    best = result.best_standard
    head = {
        "scenario": scenario_fields(result.scenario),
        "verdict": result.verdict,
        "bound": result.bound,
        "best_standard": best.fields({name: each.gain for name, each in result.options.items()}) if best else None,
        "left_out": dict(result.left_out),
        "techniques": techniques,
        "wirings": wirings,
    }
    if result.cost:
        head["cost"] = adaptation_fields(result.cost)
    if fleets:
        head["under_load"] = {name: fields_of(FLEET, each) for name, each in fleets.items()}
    return Document.of_rows(head, rows)


def gain_cells(document: Document) -> Mapping[str, list[list[str]]]:
    """Name, gain, and gains of prefill and decode of each option, as text; by group."""
    groups: dict[str, list[list[str]]] = {}
    for row in document.rows:
        gain = Interval(value=row["gain"], low=row["gain_low"], high=row["gain_high"])
        groups.setdefault(_TITLES.get(row["group"], row["group"]), []).append(
            [
                f"{_LIMITS.get(row['option'], row['option'])}{TIED if row['tied_with_best'] else ''}",
                f"{gain.value:.2f}" if row["option"] == "standard" else gain.text,
                f"{row['ttft_gain']:.2f}",
                "-" if row["tpot_gain"] is None else f"{row['tpot_gain']:.2f}",
            ]
        )
    groups.setdefault(_TITLES["limit"], []).append(
        ["no communication, no norms", f"{document.content['bound']:.2f}", "", ""]
    )
    return groups
