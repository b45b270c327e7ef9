"""Published quality as tables."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.console import table
from ladder_sim.quality.published import Measured

_COLUMNS = ("model, parameters", "training", "metric", "value", "standard", "difference")


def quality_report(rows: Sequence[Measured], unknown: Sequence[str]) -> RenderableType:
    """The wirings of which nothing is known, and a table of each wiring and source, next to the standard model."""
    parts: list[RenderableType] = []
    if unknown:
        parts.append(Text(f"no published quality is known here of {', '.join(unknown)}", "bold"))
    for (wiring, citation), figures in groupby(rows, lambda row: (row.wiring, row.citation)):
        if parts:
            parts.append(Text())
        cells = list(_cells(list(figures)))
        parts.append(table(_COLUMNS, cells, left=3, wrapped=_COLUMNS[:3], title=f"{wiring}: {citation}"))
    return Group(*parts)


def _cells(rows: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """A row for each figure; model and training stand only in the first row that has them."""
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
