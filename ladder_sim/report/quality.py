"""Published quality, and the price of adapting a model: tables, JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import range_text
from ladder_sim.quality.published import Measured
from ladder_sim.report.columns import Column
from ladder_sim.report.console import table
from ladder_sim.units import format_count

if TYPE_CHECKING:
    from ladder_sim.analysis.adaptation import Adaptation
    from ladder_sim.confidence import Interval

_COLUMNS = ("model, parameters", "training", "metric", "value", "standard", "difference")


def quality_report(rows: Sequence[Measured], unknown: Sequence[str]) -> RenderableType:
    """Return wirings without known quality, and a table of each wiring and source next to the standard model."""
    parts: list[RenderableType] = []
    if unknown:
        parts.append(Text(f"no published quality is known here of {', '.join(unknown)}", "bold"))
    for (wiring, citation), figures in groupby(rows, lambda row: (row.wiring, row.citation)):
        if parts:
            parts.append(Text())
        cells = list(_cells(list(figures)))
        parts.append(table(_COLUMNS, cells, left=3, wrapped=_COLUMNS[:3], title=f"{wiring}: {citation}"))
    return Group(*parts)


def adaptation_sentence(cost: Adaptation) -> str:
    """Return the GPU-hours, the tokens they are for, and when the wiring has paid for them."""
    of_paper = f", as published of {cost.published_tokens}" if cost.published_tokens else ""
    trained = f"adapting the model to {cost.serving.variant}, with {format_count(cost.tokens)} tokens{of_paper}"
    return f"{trained}: {price_text(cost)}"


def price_text(cost: Adaptation) -> str:
    """Return the GPU-hours, and after how many served tokens they are paid back."""
    hours = range_text(cost.gpu_hours, "{:,.0f}".format)
    return f"{hours} GPU-hours, {_paid_back(cost.break_even_tokens)}"


def _paid_back(tokens: Interval) -> str:
    if math.isfinite(tokens.value):
        after = range_text(tokens, lambda end: format_count(end) if math.isfinite(end) else "never")
        return f"paid back after {after} served tokens"
    least = f", at best after {format_count(tokens.low)} served tokens" if math.isfinite(tokens.low) else ""
    return f"never paid back{least}"


def _cells(rows: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each figure; model and training stand only in the first row that has them."""
    before = None
    for row in rows:
        model = f"{row.model}, {row.parameters_text}", f"{row.tokens_text} tokens, {row.recipe}"
        value = f"{row.value:g}" + (f" +- {row.spread:g}" if row.spread is not None else "")
        standard = "-" if row.standard is None else f"{row.standard:g}"
        yield (*(("", "") if model == before else model), row.metric, value, standard, _difference(row))
        before = model


def _difference(row: Measured) -> str:
    if row.difference is None:
        return "-"
    return f"{row.difference:+g} {'worse' if row.is_worse else 'better'}" if row.difference else "0"


# in JSON: the price of adapting a model, null where it never pays
ADAPTATION: Sequence[Column[Adaptation]] = (
    Column("variant", lambda cost: cost.serving.variant),
    Column("tokens", lambda cost: cost.tokens),
    Column("tokens_published_of", lambda cost: cost.published_tokens or None),
    Column("gpu_hours", lambda cost: cost.gpu_hours),
    Column("break_even_tokens", lambda cost: cost.break_even_tokens),
    Column("gain", lambda cost: cost.serving.speedup),
)


def quality_document(rows: Sequence[Measured], unknown: Sequence[str]) -> Document:
    """Return one row per figure; in CSV also one per wiring of which nothing is known, with its name alone."""
    figures = [asdict(row) | {"difference": row.difference} for row in rows]
    nothing: dict[str, Any] = dict.fromkeys([*(field.name for field in fields(Measured)), "difference"])
    return Document(
        content={"unknown": list(unknown), "rows": figures},
        rows=[*(nothing | {"wiring": name} for name in unknown), *figures],
    )
