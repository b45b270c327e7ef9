"""An archive of measured runs: one table, one figure, one document."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.report.console import table
from ladder_sim.report.figures.style import TEXT_COLOUR, figure, log_axis, variant_colour
from ladder_sim.units import format_seconds
from ladder_sim.validation.archive import FIGURES, Archive, Row

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = (
    "run",
    "variant",
    *(f"{label}{what}" for label in FIGURES.values() for what in (" (95 %)", ", predicted", ", error")),
)
NOT_MEASURED = "-"


def archive_report(archive: Archive) -> RenderableType:
    """Return the table, the sentence, and what was not measured."""
    rows = [tuple(_cells(row)) for row in archive.measured]
    lines = [archive.sentence, *missing(archive), *archive.failures]
    return Group(*([table(COLUMNS, rows)] if rows else []), *map(Text, lines))


def markdown(archive: Archive) -> str:
    """Return the table as Markdown under the sentence, to be quoted."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(_cells(row)) for row in archive.measured)]
    made = f"Predicted by ladder-sim {archive.version}, commit {archive.commit or 'unknown'}, before the runs."
    return "\n".join([archive.sentence, "", *lines, "", made, *missing(archive), *archive.failures, ""])


def missing(archive: Archive) -> list[str]:
    """Return a line of the runs that were not measured; none if all were."""
    runs = dict.fromkeys(row.run for row in archive.rows if not row.measured)
    done = {row.run for row in archive.measured}
    left = [name for name in runs if name not in done]
    return [f"Not measured: {', '.join(left)}."] if left else []


def archive_document(archive: Archive) -> Document:
    """Return the rows in plain values, those that were not measured too."""
    rows: list[dict[str, Any]] = [
        {
            "run": row.run,
            "variant": row.variant,
            **{
                f"{name}.{what}": values.get(name)
                for name in FIGURES
                for what, values in (("measured", row.measured), ("predicted", row.predicted), ("now", row.now))
            },
        }
        for row in archive.rows
    ]
    head = {name: getattr(archive, name) for name in ("name", "version", "commit", "cluster", "gpu", "rehearsal")}
    return Document.of_rows({**head, "sentence": archive.sentence, "failures": list(archive.failures)}, rows)


def archive_figure(archive: Archive) -> "go.Figure":
    """Draw predicted over measured times, decode and prefill apart, and speedups."""
    import plotly.graph_objects as go

    drawn = figure(f"Predicted before, and measured: {archive.name}", archive.sentence)
    for number, (name, label) in enumerate(FIGURES.items(), 1):
        axis = "" if number == 1 else str(number)
        left = (number - 1) * 0.36
        rows = [row for row in archive.measured if name in row.measured and name in row.predicted]
        values = [value for row in rows for value in (row.measured[name], row.predicted[name])]
        if not values:
            continue
        ends = [min(values), max(values)]
        unit = "" if name == "speedup" else ", s"
        drawn.update_layout(
            {
                f"xaxis{axis}": {**log_axis(f"measured {label}{unit}", values), "domain": [left, left + 0.28]},
                f"yaxis{axis}": {**log_axis(f"predicted {label}{unit}", values), "anchor": f"x{axis}"},
            }
        )
        axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": number == 1}
        line = {"color": TEXT_COLOUR, "width": 1}
        drawn.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=line, **{**axes, "showlegend": False}))
        for variant in dict.fromkeys(row.variant for row in rows):
            own = [row for row in rows if row.variant == variant]
            drawn.add_trace(
                go.Scatter(
                    x=[row.measured[name] for row in own],
                    y=[row.predicted[name] for row in own],
                    text=[row.run for row in own],
                    mode="markers",
                    name=variant,
                    marker={"color": variant_colour(variant)},
                    **axes,
                )
            )
    return drawn


def figure_text(name: str, value: float) -> str:
    """Return a value of the figure of a name in `FIGURES` as text."""
    return f"{value:.2f}" if name == "speedup" else format_seconds(value)


def _cells(row: Row) -> Iterator[str]:
    yield from (row.run, row.variant)
    for name in FIGURES:
        measured, predicted, error = row.measured.get(name), row.predicted.get(name), row.error(name)
        ends = "-".join(figure_text(name, end) for end in row.interval.get(name, ()))
        yield NOT_MEASURED if measured is None else figure_text(name, measured) + (f" ({ends})" if ends else "")
        yield NOT_MEASURED if predicted is None else figure_text(name, predicted)
        yield NOT_MEASURED if error is None else f"{error:+.1%}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
