"""A sweep along one field, or over two."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.errors import UsageError
from ladder_sim.report.figures.style import TEXT_COLOUR, figure, value_axis, variant_colour
from ladder_sim.report.labels import field_label, field_text
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.table import SweepTable

if TYPE_CHECKING:
    import plotly.graph_objects as go


def sweep_figure(table: SweepTable, variant: str = "ladder", over: str = "standard") -> "go.Figure":
    """The figure that suits a sweep: lines along one field, a map of one variant's speedup over two fields.

    Raises
    ------
    UsageError
        More fields vary, or none does.
    """
    if len(table.varied) == 1:
        return speedup_lines(table)
    if len(table.varied) == 2:
        return speedup_map(table, variant, over)
    names = ", ".join(map(field_label, table.varied)) or "none"
    raise UsageError(
        f"{len(table.varied)} fields vary ({names}): a figure shows one or two",
        hint="hold the others at one value",
    )


def speedup_lines(table: SweepTable) -> "go.Figure":
    """Every variant's speedup over standard along the field that varies."""
    import plotly.graph_objects as go

    (field,) = table.varied
    drawn = figure(f"Speedup over standard by {field_label(field)}", _held(table))
    values, axis = value_axis(field, table[field])
    for variant in table.variants:
        if variant == "standard":
            continue
        drawn.add_trace(
            go.Scatter(
                x=values,
                y=table[f"{variant}.speedup"],
                name=variant,
                mode="lines+markers",
                line={"color": variant_colour(variant), "width": 2.5},
                marker={"size": 7},
                connectgaps=False,
            )
        )
    level = {"color": variant_colour("standard"), "dash": "dot", "width": 2}
    drawn.add_hline(y=1.0, line=level, annotation_text="standard", annotation_position="bottom right")
    return drawn.update_layout(xaxis=axis, yaxis={"title": {"text": "speedup over standard"}}, hovermode="x unified")


def speedup_map(table: SweepTable, variant: str = "ladder", over: str = "standard") -> "go.Figure":
    """One variant's speedup over another as a heat map over the two fields that vary, with a line where it is 1."""
    import plotly.graph_objects as go

    for name in (variant, over):
        if name not in table.variants:
            raise UsageError(f"the sweep holds no {name}", hint=f"it holds {', '.join(table.variants)}")
    row_field, column_field = table.varied
    rows, columns = _distinct(table[row_field]), _distinct(table[column_field])
    # rows of a sweep lie in the grid's order
    ratio = (table[f"{variant}.tokens_per_s"] / table[f"{over}.tokens_per_s"]).reshape(len(rows), len(columns))
    # cells of equal size, whatever the values: a sweep's steps are of one factor or of one width
    drawn = figure(f"Speedup of {variant} over {over}", _held(table))
    drawn.add_trace(
        go.Heatmap(
            z=ratio,
            # on both sides of 1 two hues that part there
            **({"zmid": 1.0, "colorscale": "PuOr_r"} if np.nanmin(ratio) < 1.0 else {"colorscale": "Cividis"}),
            colorbar={"title": {"text": "speedup"}, "thickness": 16},
            texttemplate="%{z:.2f}" if ratio.size <= 200 else "",
            hovertemplate="%{x}, %{y}: %{z:.3f}<extra></extra>",
            xgap=1,
            ygap=1,
        )
    )
    if np.nanmin(ratio) < 1.0 < np.nanmax(ratio):
        drawn.add_trace(_contour(ratio))
    return drawn.update_layout(
        xaxis=_cells(column_field, columns), yaxis=_cells(row_field, rows), plot_bgcolor="#F5F5F5"
    )


def _contour(ratio: NDArray[np.float64]) -> "go.Contour":
    """Where the speedup is 1."""
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


def _cells(field: str, values: list[Any]) -> dict[str, Any]:
    """An axis with one cell per value."""
    step = -(-len(values) // 16)
    at = list(range(0, len(values), step))
    return {
        "title": {"text": field_label(field)},
        "tickmode": "array",
        "tickvals": at,
        "ticktext": [field_text(field, values[index]) for index in at],
        "showgrid": False,
    }


def _distinct(values: NDArray[Any]) -> list[Any]:
    """Values in the order they come."""
    return list(dict.fromkeys(values.tolist()))


def _held(table: SweepTable) -> str:
    """What does not vary."""
    names = ("model", "cluster", "nodes", "tp", "batch", "prompt", "gen", "dtype", "stack")
    parts = []
    for name in names:
        values = set(table[name].tolist()) - {None}
        if name not in table.varied and len(values) == 1:
            value = values.pop()
            parts.append(str(value) if ARGUMENTS[name].kind is not int else f"{name} {value}")
    return ", ".join(parts)
