"""A sweep along one field, or over two."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.display.labels import axis_values, batching_label, field_label, field_text, field_title, with_unit
from ladder_sim.errors import UsageError
from ladder_sim.report.figures.style import (
    MAX_TICKS,
    NOW_MARKER,
    TEXT_COLOUR,
    figure,
    log_axis,
    round_ticks,
    value_axis,
    variant_colour,
)
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.table import SweepTable

if TYPE_CHECKING:
    import plotly.graph_objects as go

# speedup above which the axis is logarithmic: an upper bound would press all others flat
_LOG_SPEEDUP = 3.0
# names that have room below a map on a phone
_COMPACT_NAMES = 5
# cells of a map that have room for numbers
_NUMBERED_CELLS = 200
# around a number
_NOW_RING = {"color": "#56B4E9", "size": 38, "symbol": "circle-open", "line": {"width": 3}}


def sweep_figure(table: SweepTable, over: str = "standard") -> "go.Figure":
    """Draw lines along a sweep's field, or a map of speedup over two; raise UsageError for more or fewer."""
    if len(table.varied) == 1:
        return speedup_lines(table)
    if len(table.varied) == 2:
        return speedup_map(table, over=over)
    names = ", ".join(map(field_label, table.varied)) or "none"
    raise UsageError(
        f"{len(table.varied)} fields vary ({names}): a figure shows one or two",
        hint="hold the others at one value",
    )


def speedup_lines(
    table: SweepTable, *, compact: bool = False, now: tuple[float, Mapping[str, float]] | None = None
) -> "go.Figure":
    """Draw every variant's speedup over standard along the field that varies.

    Parameters
    ----------
    table
        A sweep of one field.
    compact
        For a part of a page: the axis has its title in words.
    now
        A scenario to mark: its value of the field, and its speedups by variant.
    """
    import plotly.graph_objects as go

    (field,) = table.varied
    drawn = figure(f"Speedup over standard by {field_label(field)}", _held(table))
    typed = table.units[field]
    values, axis = value_axis(field, table[field], title=field_title(field) if compact else "", typed=typed)
    compared = [variant for variant in table.variants if variant != "standard"]
    for variant in compared:
        drawn.add_trace(
            go.Scatter(
                x=values,
                y=table[f"{variant}.speedup"],
                name=variant,
                mode="lines+markers" if len(table) <= MAX_TICKS else "lines",
                line={"color": variant_colour(variant), "width": 2.5},
                marker={"size": 7},
                connectgaps=False,
                hovertemplate="%{y:.2f}x",
            )
        )
    level = {"color": variant_colour("standard"), "dash": "dot", "width": 2}
    drawn.add_hline(y=1.0, line=level, annotation_text="standard", annotation_position="bottom right")
    drawn.update_layout(xaxis=axis, yaxis={"title": {"text": "speedup over standard"}}, hovermode="x unified")
    if now is not None:
        value, speedups = now
        # in the unit of the axis, which the largest value decides
        unit, (place, _) = axis_values(field, [value, float(np.max(table[field]))], typed)
        drawn.update_layout(xaxis={"unifiedhovertitle": {"text": f"%{{x:.3~g}} {unit}"}})
        drawn.add_vline(x=place, line={"color": NOW_MARKER["color"], "width": 1, "dash": "dash"})
        drawn.add_trace(
            go.Scatter(
                x=[place] * len(speedups),
                y=list(speedups.values()),
                mode="markers",
                marker={**NOW_MARKER, "color": [variant_colour(variant) for variant in speedups]},
                name=f"now: {field_text(field, value, typed)}",
                hoverinfo="skip",
                showlegend=False,
            )
        )
    feasible = [value for variant in compared for value in table[f"{variant}.speedup"].tolist() if value > 0.0]
    if feasible and max(feasible) > _LOG_SPEEDUP:
        drawn.update_layout(yaxis=log_axis("speedup over standard", [min(1.0, *feasible), max(feasible)]))
        # an annotation's place on such an axis is the logarithm
        drawn.update_annotations(y=0.0)
    return drawn


def speedup_map(
    table: SweepTable,
    variant: str = "ladder",
    over: str = "standard",
    *,
    compact: bool = False,
    now: tuple[float, float] | None = None,
) -> "go.Figure":
    """Draw one variant's speedup over another as a heat map of the two fields that vary, with a line where it is 1.

    Parameters
    ----------
    table
        A sweep of two fields.
    variant, over
        Whose gain, over what.
    compact
        For a part of a page: cells without gaps, axes with titles in words, few names below.
    now
        A scenario to mark: its values to the right and upwards.
    """
    import plotly.graph_objects as go

    for name in (variant, over):
        if name not in table.variants:
            raise UsageError(f"the sweep holds no {name}", hint=f"it holds {', '.join(table.variants)}")
    row_field, column_field = table.varied
    rows, columns = _distinct(table[row_field]), _distinct(table[column_field])
    row_texts, column_texts = (
        [field_text(field, value, table.units[field]) for value in values]
        for field, values in ((row_field, rows), (column_field, columns))
    )
    # rows of a sweep lie in the grid's order
    ratio = (table[f"{variant}.tokens_per_s"] / table[f"{over}.tokens_per_s"]).reshape(len(rows), len(columns))
    # cells of equal size, whatever the values: a sweep's steps are of one factor or of one width
    drawn = figure(f"Speedup of {variant} over {over}", _held(table))
    drawn.add_trace(
        go.Heatmap(
            z=ratio,
            # on both sides of 1 two hues that part there
            **({"zmid": 1.0, "colorscale": "PuOr_r"} if np.nanmin(ratio) < 1.0 else {"colorscale": "Cividis"}),
            colorbar={"thickness": 10} if compact else {"title": {"text": "speedup"}, "thickness": 16},
            texttemplate="%{z:.2f}" if ratio.size <= _NUMBERED_CELLS else "",
            customdata=[
                [f"{field_label(column_field)} {column}, {field_label(row_field)} {row}" for column in column_texts]
                for row in row_texts
            ],
            hovertemplate="%{customdata}<br>speedup %{z:.3f}<extra></extra>",
            xgap=0 if compact else 1,
            ygap=0 if compact else 1,
        )
    )
    if np.nanmin(ratio) < 1.0 < np.nanmax(ratio):
        drawn.add_trace(_contour(ratio))
    if now is not None:
        drawn.add_trace(
            go.Scatter(
                x=[_place(now[0], columns)],
                y=[_place(now[1], rows)],
                mode="markers",
                marker=NOW_MARKER if ratio.size > _NUMBERED_CELLS else _NOW_RING,
                name="now",
                hoverinfo="skip",
                showlegend=False,
            )
        )
    x_axis, y_axis = (
        _cell_axis(field, values, table.units[field], compact=compact)
        for field, values in ((column_field, columns), (row_field, rows))
    )
    if compact:
        step = -(-len(x_axis["tickvals"]) // _COMPACT_NAMES)
        x_axis |= {"tickangle": 0, **{name: x_axis[name][::step] for name in ("tickvals", "ticktext")}}
    return drawn.update_layout(xaxis=x_axis, yaxis=y_axis, plot_bgcolor="#F5F5F5")


def _contour(ratio: NDArray[np.float64]) -> "go.Contour":
    """Return the contour where the speedup is 1."""
    import plotly.graph_objects as go

    return go.Contour(
        z=ratio,
        contours={"start": 1.0, "end": 1.0, "size": 1.0, "coloring": "none"},
        line={"color": TEXT_COLOUR, "width": 3, "smoothing": 0},
        showscale=False,
        hoverinfo="skip",
        name="break-even",
        showlegend=True,
    )


def _cell_axis(field: str, values: list[Any], typed: str, *, compact: bool) -> dict[str, Any]:
    """Return an axis with one cell per value, or with round numbers between cells for many ascending values."""
    title = field_title(field) if compact else field_label(field)
    unit, numbers = axis_values(field, values, typed)
    axis: dict[str, Any] = {"tickmode": "array", "showgrid": False}
    if len(values) > MAX_TICKS and numbers.dtype.kind in "if" and numbers[0] > 0 and (np.diff(numbers) > 0).all():
        ticks = round_ticks(numbers[0], numbers[-1])
        places = [_place(tick, numbers) for tick in ticks]
        names = [f"{tick:.4g}" for tick in ticks]
        return {**axis, "title": {"text": with_unit(title, unit)}, "tickvals": places, "ticktext": names}
    cells = range(0, len(values), -(-len(values) // 16))
    names = [field_text(field, values[cell], typed) for cell in cells]
    return {**axis, "title": {"text": title}, "tickvals": list(cells), "ticktext": names}


def _place(value: float, ascending: Any) -> float:
    """Return where a value lies among equal cells."""
    return float(np.interp(np.log(value), np.log(ascending), np.arange(len(ascending))))


def _distinct(values: NDArray[Any]) -> list[Any]:
    """Return the distinct values in the order they come."""
    return list(dict.fromkeys(values.tolist()))


def _held(table: SweepTable) -> str:
    """Return what does not vary in a sweep, as text."""
    names = ("model", "cluster", "nodes", "tp", "batch", "prompt", "gen", "dtype", "stack")
    parts = []
    for name in names:
        values = set(table[name].tolist()) - {None}
        if name not in table.varied and len(values) == 1:
            value = values.pop()
            parts.append(str(value) if ARGUMENTS[name].kind is not int else f"{name} {value}")
    return ", ".join([*parts, batching_label(table["batching"])])
