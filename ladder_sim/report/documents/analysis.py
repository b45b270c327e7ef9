"""Answers of analyses as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.report.prediction import prediction_fields
from ladder_sim.units import format_bytes

if TYPE_CHECKING:
    from ladder_sim.analysis.advice import Advice, Option, Unfit
    from ladder_sim.analysis.breakeven import BreakEven
    from ladder_sim.analysis.compare import Candidate
    from ladder_sim.analysis.sensitivity import Sensitivity
    from ladder_sim.confidence import Interval
    from ladder_sim.specs.scenario import Scenario


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


def advice_document(advice: Advice) -> Document:
    """One row per option, best first, then those that exceed a bound, then plans that cannot run."""
    rows = [
        *(_option_fields(advice, option) for option in (*advice.options, *advice.beyond)),
        *(
            _choice_fields(each.scenario, None, each.memory_bytes)
            | dict.fromkeys(_OPTION_FIGURES)
            | {"outcome": "infeasible" if each.problem else "memory", "reason": each.problem or _lacking(each)}
            for each in advice.unfit
        ),
    ]
    head = {
        "batching": advice.best.scenario.workload.batching,
        "objective": advice.objective,
        "max_gpus": advice.gpus,
        "plans": advice.plans,
        "unfit": len(advice.unfit),
        "beyond": len(advice.beyond),
    }
    return Document.of_rows(head, rows)


# of an option; a plan that cannot run has none
_OPTION_FIGURES = (
    "ttft_s",
    "tpot_s",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "tokens_per_s_per_gpu",
    "usd_per_Mtoken",
)


def _choice_fields(scenario: Scenario, variant: str | None, memory_bytes: float) -> dict[str, Any]:
    """A plan, its load and variant, as arguments of `predict`."""
    workload = scenario.workload
    return {
        "variant": variant,
        **asdict(scenario.plan),
        "gpus": scenario.plan.gpus,
        "nodes": scenario.nodes,
        "batch": workload.batch,
        "concurrency": workload.concurrency,
        "memory_bytes": memory_bytes,
    }


def _option_fields(advice: Advice, option: Option) -> dict[str, Any]:
    """Of an option; intervals of those that a table shows."""
    outcome, prediction = advice.outcome(option), advice.predictions.get(option)
    rate = prediction.tokens_per_s if prediction else None
    figures = (
        option.ttft_s,
        option.tpot_s,
        option.tokens_per_s,
        rate.low if rate else None,
        rate.high if rate else None,
        option.tokens_per_gpu,
        option.usd_per_Mtoken,
    )
    return {
        **_choice_fields(option.scenario, option.variant, option.memory_bytes),
        **dict(zip(_OPTION_FIGURES, figures, strict=True)),
        "outcome": outcome,
        "reason": f"no better than {advice.dominating(option)}" if outcome == "dominated" else "",
    }


def _lacking(unfit: Unfit) -> str:
    capacity_bytes = unfit.scenario.cluster.gpu.hbm_bytes
    return f"needs {format_bytes(unfit.memory_bytes)} of {format_bytes(capacity_bytes)} per GPU"


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
