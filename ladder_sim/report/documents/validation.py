"""Comparisons with measurements as JSON and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.specs.workload import STATIC

if TYPE_CHECKING:
    from ladder_sim.validation.compare import Comparison, ComparisonsByLevel, ErrorStats, GroupSummary, Quantity
    from ladder_sim.validation.dataset import Dataset
    from ladder_sim.validation.load import LoadComparison
    from ladder_sim.validation.nearest import Likeness
    from ladder_sim.validation.serving import ServingComparison


def validation_document(data: Dataset, comparisons: ComparisonsByLevel) -> Document:
    """Every run and the summaries by level; errors, shares and half-widths are fractions."""
    from ladder_sim.validation.compare import evidence, summarize
    from ladder_sim.validation.dataset import PROTOCOLS

    rows = {level: list(map(_comparison_fields, members)) for level, members in comparisons.items()}
    content = {
        "batching": STATIC,
        "dataset": data.name,
        "protocols": {
            name: {"fit_variants": protocol.variants, "fit_tp": protocol.tps} for name, protocol in PROTOCOLS.items()
        },
        "levels": {
            level: {
                "evidence": evidence(level),
                "rows": rows[level],
                "summary": list(map(_summary_fields, summarize(members))),
            }
            for level, members in comparisons.items()
        },
    }
    return Document(
        content=content, rows=[{"level": level, **row} for level, members in rows.items() for row in members]
    )


def _comparison_fields(comparison: Comparison) -> dict[str, Any]:
    run, configuration = comparison.measurement, comparison.measurement.configuration
    return {
        "line": run.line,
        "source": configuration.source,
        "model": configuration.model,
        "cluster": configuration.cluster,
        "nodes": configuration.nodes,
        "tp": configuration.tp,
        "p2p": configuration.p2p,
        "stack": configuration.stack,
        "dtype": configuration.dtype,
        "variant": run.variant,
        "batch": configuration.batch,
        "prompt": configuration.prompt,
        "gen": configuration.gen,
        "use": "fit" if comparison.seen else "test",
        **_quantity_fields("tokens_per_s", comparison.tokens_per_s),
        # measured, whether or not it can be predicted
        "tokens_per_s_measured": run.tokens_per_s,
        **_quantity_fields("speedup", comparison.speedup),
        "note": comparison.note,
    }


def servings_document(name: str, comparisons: Sequence[ServingComparison]) -> Document:
    """Every serving, and errors of all and by group; seconds, errors and shares as fractions."""
    from ladder_sim.validation.serving import summarize_servings, summary

    def errors(pair: tuple[ErrorStats | None, ErrorStats | None]) -> dict[str, Any]:
        return {time: _error_fields(each) if each else None for time, each in zip(("tpot", "ttft"), pair, strict=True)}

    groups = {
        by: {value: errors(pair) for value, pair in values.items()}
        for by, values in summarize_servings(comparisons).items()
    }
    missing = Counter(each.note for each in comparisons if each.ttft is None)
    head = {
        "batching": "continuous",
        "dataset": name,
        "summary": errors(summary(comparisons)),
        "by": groups,
        "not_predicted": dict(missing),
    }
    return Document.of_rows(head, list(map(_serving_fields, comparisons)))


def _serving_fields(comparison: ServingComparison) -> dict[str, Any]:
    row, setup = comparison.serving, comparison.serving.setup
    fields = asdict(setup)
    plan = fields.pop("plan")
    return {
        "line": row.line,
        "source": row.source,
        **fields,
        **plan,
        "concurrency": row.concurrency,
        "prompt": row.prompt,
        "gen": row.gen,
        **_quantity_fields("tpot_s", comparison.tpot),
        **_quantity_fields("ttft_s", comparison.ttft),
        # measured, whether or not they can be predicted
        "tpot_s_measured": row.tpot_s,
        "ttft_s_measured": row.ttft_s,
        "note": comparison.note,
    }


def loads_document(name: str, comparisons: Sequence[LoadComparison]) -> Document:
    """A row for each figure of each load, and errors by figure; seconds, errors and shares as fractions."""
    from ladder_sim.validation.load import summarize_loads

    rows = []
    for number, each in enumerate(comparisons, 1):
        scenario = each.scenario.fields() if each.scenario else {}
        load = {
            "load": number,
            "tool": each.result.tool,
            **{key: scenario.get(key) for key in ("model", "cluster", "stack", "dtype", "tp", "ep", "attention_dp")},
            "concurrency": each.result.concurrency or None,
        }
        figures = each.figures or dict.fromkeys(each.result.figures)
        for figure, quantity in figures.items():
            fields = {**_quantity_fields("", quantity), "measured": each.result.figures[figure]}
            rows.append({**load, "figure": figure, **fields, "note": each.note})
    head = {
        "batching": "continuous",
        "dataset": name,
        "summary": {figure: _error_fields(errors) for figure, errors in summarize_loads(comparisons).items()},
    }
    return Document.of_rows(head, rows)


def nearest_document(runs: Sequence[Likeness]) -> Document:
    """One row per measured run, in this order: what it was, what it does not share with a scenario, and its error."""
    rows = [
        {
            **scenario_fields(each.run.scenario),
            "apart": ", ".join(each.apart),
            "figure": each.run.figure,
            **_quantity_fields("", each.run.quantity),
            "seen": each.run.seen,
        }
        for each in runs
    ]
    return Document.of_rows({}, rows)


def _quantity_fields(name: str, quantity: Quantity | None) -> dict[str, Any]:
    before = f"{name}_" if name else ""
    keys = [f"{before}{part}" for part in ("measured", "predicted", "low", "high", "error", "inside")]
    if quantity is None:
        return dict.fromkeys(keys)
    predicted = quantity.predicted
    values = (quantity.measured, predicted.value, predicted.low, predicted.high, quantity.error, quantity.inside)
    return dict(zip(keys, values, strict=True))


def _summary_fields(summary: GroupSummary) -> dict[str, Any]:
    return {
        "variant": summary.variant,
        "p2p": summary.p2p,
        "tp": summary.tps,
        "rows": summary.rows,
        "unseen": summary.unseen,
        **_spread_fields("speedup", summary.speedup),
        **_spread_fields("tokens_per_s", summary.tokens_per_s),
    }


def _spread_fields(name: str, errors: ErrorStats | None) -> dict[str, Any]:
    parts = ("mean_error", "max_error", "inside", "half_width")
    fields = {f"{name}_rows": errors.rows if errors else 0}
    return fields | {f"{name}_{part}": getattr(errors, part) if errors else None for part in parts}


def _error_fields(errors: ErrorStats) -> dict[str, Any]:
    return {
        "n": errors.rows,
        "mean_abs_error": errors.mean_error,
        "median_abs_error": errors.median_error,
        "bias": errors.bias,
        "inside_90": errors.inside,
        "half_width": errors.half_width,
    }
