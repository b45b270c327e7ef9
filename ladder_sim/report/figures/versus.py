"""Wirings and techniques side by side: what each gains, with its interval."""

from typing import TYPE_CHECKING

from ladder_sim.analysis.versus import Versus
from ladder_sim.display.labels import scenario_label
from ladder_sim.report.figures.style import SERIES_COLOURS, TEXT_COLOUR, error_bars, figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def versus_figure(result: Versus) -> "go.Figure":
    """A bar for each option, from standard's 1: without retraining, with retraining, limits."""
    import plotly.graph_objects as go

    groups = {"without retraining": result.own, "with retraining": result.retrained, "limits": result.limits}
    drawn = figure("Gain over standard", f"{scenario_label(result.scenario)}; 90 % intervals")
    colours = (SERIES_COLOURS[0], SERIES_COLOURS[1], SERIES_COLOURS[6])
    for (group, options), colour in zip(groups.items(), colours, strict=True):
        drawn.add_trace(
            go.Bar(
                y=[each.name for each in options],
                x=[each.gain.value - 1.0 for each in options],
                base=1.0,
                orientation="h",
                name=group,
                marker={"color": colour},
                error_x=error_bars([each.gain for each in options]),
                hovertemplate="%{y}: %{customdata}<extra></extra>",
                customdata=[f"{each.gain.value:.2f} ({each.gain.low:.2f}-{each.gain.high:.2f})" for each in options],
            )
        )
    drawn.add_vline(x=1.0, line={"color": TEXT_COLOUR, "width": 1})
    bars = sum(map(len, groups.values()))
    return drawn.update_layout(
        height=190 + 26 * bars,
        bargap=0.3,
        xaxis={"title": {"text": "gain over standard without techniques"}},
        yaxis={"autorange": "reversed", "showgrid": False},
    )
