"""Published quality as a table."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.console import table
from ladder_sim.quality.published import Measured

_COLUMNS = (
    "wiring",
    "model",
    "parameters",
    "tokens",
    "training",
    "source",
    "metric",
    "value",
    "standard",
    "difference",
    "spread",
)


def quality_report(rows: Sequence[Measured], unknown: Sequence[str]) -> RenderableType:
    """Every figure next to the standard model's, and the wirings of which nothing is known."""
    parts: list[RenderableType] = []
    if unknown:
        parts.append(Text(f"no published quality is known here of {', '.join(unknown)}", "bold"))
    if rows:
        cells = [
            (
                row.wiring,
                row.model,
                row.parameters_text,
                row.tokens_text,
                row.recipe,
                row.citation,
                row.metric,
                f"{row.value:g}",
                "-" if row.standard is None else f"{row.standard:g}",
                _difference(row),
                "-" if row.spread is None else f"{row.spread:g}",
            )
            for row in rows
        ]
        parts.append(table(_COLUMNS, cells, left=7))
    return Group(*parts)


def _difference(row: Measured) -> str:
    if row.difference is None:
        return "-"
    return f"{row.difference:+g} {'worse' if row.is_worse else 'better'}" if row.difference else "0"
