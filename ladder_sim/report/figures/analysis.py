"""The answers of `ladder_sim.analysis`: break-even, tornado, Pareto front, comparison."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ladder_sim.analysis.advise import Advice
from ladder_sim.analysis.breakeven import BreakEven
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import SEEN, Sensitivity
from ladder_sim.report.figures.style import (
    SERIES_COLOURS,
    TEXT_COLOUR,
    figure,
    log_axis,
    value_axis,
    variant_colour,
    work,
)
from ladder_sim.report.labels import axis_values, field_label, field_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

# of a tornado
MOST_BARS = 12
_LOWER, _HIGHER = "#E69F00", "#0072B2"


def breakeven_figure(found: BreakEven, subtitle: str = "") -> "go.Figure":
    """The speedup along the field, and where it passes the bound."""
    import plotly.graph_objects as go

    drawn = figure(f"Speedup of {found.variant} over {found.over} by {field_label(found.field)}", subtitle)
    values, axis = value_axis(found.field, found.values)
    drawn.add_trace(
        go.Scatter(
            x=values,
            y=found.speedups,
            mode="lines",
            line={"color": variant_colour(found.variant), "width": 2.5},
            name=found.variant,
            showlegend=False,
        )
    )
    drawn.add_hline(y=found.bound, line={"color": TEXT_COLOUR, "dash": "dot", "width": 1.5})
    # in the unit of the axis: the largest value decides it
    _, marked = axis_values(found.field, [*(crossing.value for crossing in found.crossings), found.values[-1]])
    for crossing, value in zip(found.crossings, marked, strict=False):
        drawn.add_trace(
            go.Scatter(
                x=[value],
                y=[found.bound],
                mode="markers+text",
                marker={"color": TEXT_COLOUR, "size": 11},
                text=[field_text(found.field, crossing.value)],
                textposition="top center" if crossing.rising else "bottom center",
                showlegend=False,
            )
        )
    return drawn.update_layout(xaxis=axis, yaxis={"title": {"text": f"speedup over {found.over}"}})


def tornado_figure(found: Sequence[Sensitivity], variant: str, step: float, subtitle: str = "") -> "go.Figure":
    """Change of one variant's request time as each figure falls and rises."""
    import plotly.graph_objects as go

    shown_ones = [one for one in found if one.widest(variant) >= SEEN]
    shown_ones = sorted(shown_ones, key=lambda one: -one.widest(variant))[:MOST_BARS]
    names = [f"{field_label(one.figure)} ({field_text(one.figure, one.value)})" for one in shown_ones]
    drawn = figure(f"What the request time of {variant} hangs on", subtitle)
    for name, colour, changes in (
        (f"figure divided by {1 + step:g}", _LOWER, [one.responses[variant].request_lower for one in shown_ones]),
        (f"figure times {1 + step:g}", _HIGHER, [one.responses[variant].request_higher for one in shown_ones]),
    ):
        drawn.add_trace(
            go.Bar(
                y=names,
                x=[100.0 * change for change in changes],
                name=name,
                orientation="h",
                marker={"color": colour},
                text=[f"{change:+.1%}" for change in changes],
                textposition="outside",
                cliponaxis=False,
            )
        )
    widest = max((abs(bar) for trace in drawn.data for bar in trace.x), default=1.0)
    return drawn.update_layout(
        barmode="overlay",
        bargap=0.3,
        height=190 + 34 * len(names),
        xaxis={
            "title": {"text": "change of the request time (%)"},
            "zeroline": True,
            "zerolinecolor": TEXT_COLOUR,
            "range": [-1.25 * widest, 1.25 * widest],
        },
        yaxis={"autorange": "reversed", "showgrid": False},
    )


def pareto_figure(found: Advice, subtitle: str = "") -> "go.Figure":
    """Time per token against tokens per GPU: every option, and the front."""
    import plotly.graph_objects as go

    drawn = figure("Latency against throughput", subtitle)
    front = found.front
    drawn.add_trace(
        go.Scatter(
            x=[1e3 * one.tpot_s for one in front],
            y=[one.tokens_per_gpu for one in front],
            mode="lines+text",
            line={"color": TEXT_COLOUR, "width": 1.5, "dash": "dot"},
            text=[f"TP {one.tp}, batch {one.batch}" for one in front],
            textposition="top left",
            textfont={"size": 11},
            cliponaxis=False,
            name="Pareto front",
        )
    )
    for variant in dict.fromkeys(one.variant for one in found.options):
        members = [one for one in found.options if one.variant == variant]
        drawn.add_trace(
            go.Scatter(
                x=[1e3 * one.tpot_s for one in members],
                y=[one.tokens_per_gpu for one in members],
                mode="markers",
                marker={"color": variant_colour(variant), "size": 9, "line": {"color": "white", "width": 1}},
                name=variant,
                text=[f"TP {one.tp}, batch {one.batch}" for one in members],
                hovertemplate="%{text}: %{x:.1f} ms, %{y:.1f} tok/s per GPU<extra></extra>",
            )
        )
    return drawn.update_layout(
        xaxis=log_axis("time per output token (ms)", [1e3 * one.tpot_s for one in found.options]),
        yaxis=log_axis("tokens per second and GPU", [one.tokens_per_gpu for one in found.options]),
    )


def comparison_figure(found: Sequence[Candidate]) -> "go.Figure":
    """Tokens per second of every variant on every candidate, with the 90 % intervals."""
    import plotly.graph_objects as go

    scenario = found[0].scenario
    drawn = figure(
        "Tokens per second, and in the bars the speedup over standard",
        f"{scenario.model.name}, {work(scenario)}; 90 % intervals",
    )
    for candidate, colour in zip(found, SERIES_COLOURS, strict=False):
        rates = [one.tokens_per_s for one in candidate.predictions.values()]
        drawn.add_trace(
            go.Bar(
                x=list(candidate.predictions),
                y=[rate.value for rate in rates],
                name=candidate.name,
                marker={"color": colour},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [rate.high - rate.value for rate in rates],
                    "arrayminus": [rate.value - rate.low for rate in rates],
                    "thickness": 1.2,
                    "width": 4,
                },
                text=[f"{one.speedup.value:.2f}x" for one in candidate.predictions.values()],
                textposition="inside",
                insidetextanchor="start",
                hovertemplate="%{x}: %{y:.1f} tok/s<extra></extra>",
            )
        )
    return drawn.update_layout(
        barmode="group",
        bargap=0.3,
        yaxis={"title": {"text": "tokens per second"}},
    )
