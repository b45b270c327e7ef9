"""Requests under load."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ladder_sim.report.figures.style import figure, variant_colour
from ladder_sim.serve import Capacity, Outcome

if TYPE_CHECKING:
    import plotly.graph_objects as go

_POINTS = np.linspace(0.0, 1.0, 201)


def times_figure(label: str, outcomes: Mapping[str, Outcome]) -> "go.Figure":
    """Share of requests whose time to first token, and time per token, is no longer."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    drawn = figure(label)
    panels = make_subplots(1, 2, subplot_titles=("Time to first token", "Time per token"))
    panels.update_layout(drawn.layout)
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
    panels.update_xaxes(title="ms", rangemode="tozero")
    panels.update_yaxes(title="requests, %", range=(0, 100))
    return panels


def capacity_figure(label: str, needs: Mapping[str, Capacity]) -> "go.Figure":
    """GPUs of each variant."""
    import plotly.graph_objects as go

    drawn = figure(label)
    drawn.add_trace(
        go.Bar(
            x=list(needs),
            y=[need.gpus for need in needs.values()],
            marker={"color": [variant_colour(name) for name in needs]},
        )
    )
    drawn.update_yaxes(title="GPUs", rangemode="tozero")
    return drawn
