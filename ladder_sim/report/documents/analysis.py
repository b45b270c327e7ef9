"""Answers of analyses as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.report.prediction import prediction_fields

if TYPE_CHECKING:
    from ladder_sim.analysis.breakeven import BreakEven
    from ladder_sim.analysis.compare import Candidate
    from ladder_sim.analysis.sensitivity import Sensitivity
    from ladder_sim.confidence import Interval


def breakeven_document(result: BreakEven) -> Document:
    """The crossings, and the scanned speedups as rows."""
    head = {
        "field": result.field,
        "variant": result.variant,
        "over": result.over,
        "target": result.target,
        "crossings": [
            {
                "value": crossing.value,
                "rising": crossing.direction == "rising",
                "direction": crossing.direction,
                **_ends("speedup", crossing.speedup),
            }
            for crossing in result.crossings
        ],
        "sure": [each._asdict() for each in result.sure],
    }
    scan = {result.field: result.values, "speedup": result.speedups}
    scan |= {"speedup_low": result.lows, "speedup_high": result.highs}
    rows = zip(*(values.tolist() for values in scan.values()), strict=True)
    return Document.of_rows(head, [dict(zip(scan, row, strict=True)) for row in rows])


def _ends(name: str, interval: Interval) -> dict[str, float]:
    """A figure and the ends of its interval, as in JSON and CSV."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def sensitivity_document(sensitivities: Sequence[Sensitivity], step: float) -> Document:
    """One row per figure and variant."""
    rows = [
        {"figure": figure.figure, "value": figure.value, "variant": variant, **asdict(response)}
        for figure in sensitivities
        for variant, response in figure.responses.items()
    ]
    return Document.of_rows({"step": step}, rows)


def comparison_document(candidates: Sequence[Candidate]) -> Document:
    """One row per candidate and variant."""
    rows = [
        {
            "name": candidate.name,
            **scenario_fields(candidate.scenario),
            "variant": variant,
            **prediction_fields(prediction),
            "usd_per_Mtoken": candidate.token_price(variant),
        }
        for candidate in candidates
        for variant, prediction in candidate.predictions.items()
    ]
    head = {
        "batching": candidates[0].scenario.workload.batching,
        "compared": [candidate.name for candidate in candidates],
    }
    return Document.of_rows(head, rows)
