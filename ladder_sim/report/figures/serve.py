"""Requests under load."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ladder_sim.report.figures.style import figure, variant_colour
from ladder_sim.serve import Capacity, Outcome

if TYPE_CHECKING:
    import plotly.graph_objects as go

_POINTS = np.linspace(0.0, 1.0, 201)


def times_figure(subtitle: str, outcomes: Mapping[str, Outcome]) -> "go.Figure":
    """Share of requests whose time to first token, and time per token, is no longer."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.06)
    panels.update_layout(figure("Times that requests see", subtitle).layout)
    for name, outcome in outcomes.items():
        for column, values in enumerate(
            ([each.ttft_s for each in outcome.answers], [each.tpot_s for each in outcome.answers]), start=1
        ):
            line = go.Scatter(
                x=1e3 * np.quantile(values, _POINTS),
                y=100.0 * _POINTS,
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                line={"color": variant_colour(name)},
            )
            panels.add_trace(line, 1, column)
    for column, what in enumerate(("time to first token", "time per output token"), start=1):
        panels.update_xaxes(title=f"{what} (ms), or less", rangemode="tozero", col=column)
    panels.update_yaxes(range=(0, 101))
    panels.update_yaxes(title="requests (%)", col=1)
    return panels


def capacity_figure(subtitle: str, needs: Mapping[str, Capacity]) -> "go.Figure":
    """GPUs of each variant."""
    gpus = [need.gpus for need in needs.values()]
    bars = {
        "type": "bar",
        "y": list(needs),
        "x": gpus,
        "orientation": "h",
        "width": 0.6,
        "marker": {"color": [variant_colour(name) for name in needs]},
        "text": [str(number) if number else "no number keeps it" for number in gpus],
        "textposition": "outside",
        "cliponaxis": False,
    }
    layout = {
        "xaxis": {"title": {"text": "GPUs"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed"},
        "height": 200 + 60 * len(needs),
    }
    return figure("GPUs that keep the promise", subtitle, data=[bars], layout=layout)
