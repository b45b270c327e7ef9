"""Wirings and techniques side by side: what each gains, and where each gains most."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ladder_sim.analysis.versus import Versus
from ladder_sim.analysis.winners import Group, Winners
from ladder_sim.display.labels import field_label, field_text, scenario_label
from ladder_sim.graph.variants import is_variant
from ladder_sim.report.figures.style import (
    GRID_COLOUR,
    SERIES_COLOURS,
    TEXT_COLOUR,
    error_bars,
    figure,
    variant_colour,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

# of what is not told apart
_HATCH = {"symbol": "line-ne", "size": 28, "line": {"color": "white", "width": 3}}
# of cells with a number, and between panels
_PALE, _SPACE = 0.6, 0.06
_TECHNIQUE_COLOURS = ("#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#E69F00")
_LIMIT_COLOUR = "#A6A6A6"


def versus_figure(result: Versus) -> "go.Figure":
    """Draw a bar for each option, from standard's 1: without retraining, with retraining, limits."""
    import plotly.graph_objects as go

    groups = {"without retraining": result.own, "with retraining": result.retrained, "limits": result.limits}
    drawn = figure("Gain over standard without techniques", scenario_label(result.scenario))
    colours = (*SERIES_COLOURS[:2], _LIMIT_COLOUR)
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
                customdata=[each.gain.text for each in options],
                hovertemplate="%{y}: %{customdata}<extra></extra>",
            )
        )
    drawn.add_vline(x=1.0, line={"color": TEXT_COLOUR, "width": 1})
    bars = sum(map(len, groups.values()))
    return drawn.update_layout(
        width=1100,
        height=190 + 26 * bars,
        bargap=0.3,
        xaxis={"title": {"text": "gain, with 90 % intervals"}},
        yaxis={"autorange": "reversed", "showgrid": False},
    )


def winners_figure(winners: Winners) -> "go.Figure":
    """Draw what gains most, by link latency and requests: a panel without and one with retraining."""
    from plotly.subplots import make_subplots

    scenario = winners.scenario
    titles = list(winners.groups)
    subtitle = f"{scenario_label(scenario, batch=False)}; with a line: not told apart from the next best"
    drawn = make_subplots(cols=len(titles), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=_SPACE)
    drawn.update_layout(figure("What gains most, and how much", subtitle).layout)
    columns = [field_text(winners.latency, each) for each in winners.latencies_s]
    rows = [str(each) for each in winners.requests]
    for panel, (title, group) in enumerate(winners.groups.items(), 1):
        legend = f"legend{panel}" if panel > 1 else "legend"
        for trace in _panel(columns, rows, group, _over_plans(winners, group)):
            drawn.add_trace(trace.update(legend=legend), row=1, col=panel)
        # one below the other: next to each other they would be cut
        below = {"y": -0.13 - 0.12 * panel, "yanchor": "top", "title": {"text": f"{title}:"}}
        drawn.update_layout({legend: {"orientation": "h", "x": 0.0, **below}})
    drawn.update_xaxes(
        title={"text": field_label(winners.latency)}, type="category", showgrid=False, range=[-0.5, len(columns) - 0.5]
    )
    drawn.update_yaxes(type="category", showgrid=False, range=[-0.5, len(rows) - 0.5])
    load = scenario.workload.load_field
    drawn.update_yaxes(title={"text": "requests in flight" if load == "concurrency" else load}, col=1)
    return drawn.update_layout(width=1200, height=560, plot_bgcolor=GRID_COLOUR, margin={"t": 110, "b": 140})


def _panel(
    columns: Sequence[str], rows: Sequence[str], group: Group, hovers: Sequence[Sequence[str]]
) -> "Iterator[go.Heatmap | go.Scatter]":
    """Yield cells in the winner's colour, a line across those with a tied next best, and the gains."""
    import plotly.graph_objects as go

    names = list(dict.fromkeys(name for name in group.names.ravel() if name))
    colours = {
        name: variant_colour(name) if is_variant(name) else _TECHNIQUE_COLOURS[number % len(_TECHNIQUE_COLOURS)]
        for number, name in enumerate(names)
    }
    yield go.Heatmap(
        x=columns,
        y=rows,
        z=[[names.index(name) if name else None for name in row] for row in group.names],
        zmin=-0.5,
        zmax=len(names) - 0.5,
        colorscale=[(end / len(names), colours[name]) for at, name in enumerate(names) for end in (at, at + 1)],
        showscale=False,
        opacity=_PALE,
        xgap=1,
        ygap=1,
        customdata=hovers,
        hovertemplate="%{customdata}<extra></extra>",
    )
    for name, colour in colours.items():
        square = {"color": colour, "size": 12, "symbol": "square", "opacity": _PALE}
        yield go.Scatter(x=[None], y=[None], mode="markers", marker=square, name=name)
    tied = list(zip(*group.tied.nonzero(), strict=True))
    yield go.Scatter(
        x=[columns[column] for _, column in tied],
        y=[rows[row] for row, _ in tied],
        mode="markers",
        marker=_HATCH,
        showlegend=False,
        hoverinfo="skip",
    )
    there = list(zip(*(group.gains > 0.0).nonzero(), strict=True))
    yield go.Scatter(
        x=[columns[column] for _, column in there],
        y=[rows[row] for row, _ in there],
        text=[f"{group.gains[at]:.2f}" for at in there],
        mode="text",
        textfont={"color": TEXT_COLOUR},
        showlegend=False,
        hoverinfo="skip",
    )


def _over_plans(winners: Winners, group: Group) -> list[list[str]]:
    """Return hover texts: what gains most at each point, over standard on its plan and on a faster plan, if any."""
    hovers = [
        f"{name}: {gain:.2f}" + (f", over standard at {plan} {gain / behind:.2f}" if plan else "")
        for name, gain, plan, behind in zip(
            *(each.ravel() for each in (group.names, group.gains, winners.plans, winners.behind)), strict=True
        )
    ]
    width = len(winners.latencies_s)
    return [hovers[start : start + width] for start in range(0, len(hovers), width)]
