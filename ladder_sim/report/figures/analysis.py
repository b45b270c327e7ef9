"""The answers of `ladder_sim.analysis`: break-even, tornado, Pareto front, comparison."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ladder_sim.analysis.advice import Advice, Option
from ladder_sim.analysis.breakeven import BreakEven
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import MIN_CHANGE, Sensitivities
from ladder_sim.display.labels import axis_values, field_label, field_text, field_title, workload_label
from ladder_sim.report.figures.style import (
    NOW_MARKER,
    SERIES_COLOURS,
    TEXT_COLOUR,
    error_bars,
    figure,
    log_axis,
    value_axis,
    variant_colour,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

# of a tornado
MAX_BARS = 12
# ratio of two figures of a Pareto front, from which both options are named
_APART = 1.15
_LOWER_COLOUR, _HIGHER_COLOUR = "#E69F00", "#0072B2"


def breakeven_figure(result: BreakEven, subtitle: str = "") -> "go.Figure":
    """Draw the speedup along the field, and where it passes the target."""
    import plotly.graph_objects as go

    drawn = figure(f"Speedup of {result.variant} over {result.over} by {field_label(result.field)}", subtitle)
    values, axis = value_axis(result.field, result.values, typed=result.unit)
    drawn.add_trace(
        go.Scatter(
            x=values,
            y=result.speedups,
            mode="lines",
            line={"color": variant_colour(result.variant), "width": 2.5},
            name=result.variant,
            showlegend=False,
        )
    )
    drawn.add_hline(y=result.target, line={"color": TEXT_COLOUR, "dash": "dot", "width": 1.5})
    # in the unit of the axis, which the largest value decides
    crossed = [*(crossing.value for crossing in result.crossings), result.values[-1]]
    _, places = axis_values(result.field, crossed, result.unit)
    for crossing, place in zip(result.crossings, places, strict=False):
        drawn.add_trace(
            go.Scatter(
                x=[place],
                y=[result.target],
                mode="markers+text",
                marker={"color": TEXT_COLOUR, "size": 11},
                text=[field_text(result.field, crossing.value, result.unit)],
                textposition="top center" if crossing.direction == "rising" else "bottom center",
                showlegend=False,
            )
        )
    return drawn.update_layout(xaxis=axis, yaxis={"title": {"text": f"speedup over {result.over}"}})


def tornado_figure(
    sensitivities: Sensitivities, variant: str, subtitle: str = "", *, compact: bool = False
) -> "go.Figure":
    """Change of one variant's request time as each figure falls and rises; `compact` for a part of a page."""
    import plotly.graph_objects as go

    step = sensitivities.step
    visible = [item for item in sensitivities if item.widest(variant) >= MIN_CHANGE]
    visible = sorted(visible, key=lambda item: -item.widest(variant))[:MAX_BARS]
    if compact:
        # a name above its value leaves room for the bars on a phone
        values = [float(f"{item.value:.3g}") for item in visible]
        names = [
            f"{field_title(item.figure)}<br>{field_text(item.figure, value, item.unit)}"
            for item, value in zip(visible, values, strict=True)
        ]
    else:
        names = [f"{field_label(item.figure)} ({field_text(item.figure, item.value, item.unit)})" for item in visible]
    drawn = figure(f"Sensitivity of {variant}'s request time", subtitle)
    for name, colour, changes in (
        (f"figure divided by {1 + step:g}", _LOWER_COLOUR, [item.responses[variant].request_lower for item in visible]),
        (f"figure times {1 + step:g}", _HIGHER_COLOUR, [item.responses[variant].request_higher for item in visible]),
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
                textfont={"size": 11} if compact else {},
                cliponaxis=False,
                hovertemplate="%{y}<br>request time %{x:+.2f} %<extra>%{fullData.name}</extra>",
            )
        )
    # room for the numbers at the bars
    reach = (1.75 if compact else 1.25) * max((abs(bar) for trace in drawn.data for bar in trace.x), default=1.0)
    drawn.update_layout(
        barmode="overlay",
        bargap=0.3,
        height=190 + 34 * len(names),
        xaxis={
            "title": {"text": "request time (%)" if compact else "change of the request time (%)"},
            "zeroline": True,
            "zerolinecolor": TEXT_COLOUR,
            "range": [-reach, reach],
        },
        yaxis={"autorange": "reversed", "showgrid": False},
    )
    return drawn.update_layout(xaxis={"nticks": 6}, yaxis={"tickfont": {"size": 11}}) if compact else drawn


def pareto_figure(
    advice: Advice, subtitle: str = "", *, compact: bool = False, now: tuple[str, float, float] | None = None
) -> "go.Figure":
    """Time per token against tokens per GPU: every option, and the front with its 90 % intervals.

    Parameters
    ----------
    advice
        The options.
    subtitle
        What they are for.
    compact
        For a part of a page: the front's options are not named and have no intervals.
    now
        A scenario to mark: its variant, seconds per token, and tokens per second and GPU.
    """
    import plotly.graph_objects as go

    drawn = figure("Latency against throughput", subtitle)
    front = advice.front
    heights = [option.tokens_per_gpu for option in advice.options]
    errors = None
    if not compact:
        rates = [(advice.predictions[option].tokens_per_s, option.plan.gpus) for option in front]
        errors = error_bars([rate for rate, _ in rates], [gpus for _, gpus in rates])
        heights += [end / gpus for rate, gpus in rates for end in (rate.low, rate.high)]
    drawn.add_trace(
        go.Scatter(
            x=[1e3 * option.tpot_s for option in front],
            y=[option.tokens_per_gpu for option in front],
            mode="lines" if compact else "lines+text",
            line={"color": TEXT_COLOUR, "width": 1.5, "dash": "dot"},
            text=_places(advice),
            textposition="top left",
            textfont={"size": 11},
            cliponaxis=False,
            name="Pareto front",
            error_y=errors,
        )
    )
    for variant in dict.fromkeys(option.variant for option in advice.options):
        options = [option for option in advice.options if option.variant == variant]
        drawn.add_trace(
            go.Scatter(
                x=[1e3 * option.tpot_s for option in options],
                y=[option.tokens_per_gpu for option in options],
                mode="markers",
                marker={"color": variant_colour(variant), "size": 9, "line": {"color": "white", "width": 1}},
                name=variant,
                text=[advice.place(option.scenario) for option in options],
                hovertemplate="%{text}: %{x:.1f} ms, %{y:.1f} tok/s per GPU<extra></extra>",
            )
        )
    if now is not None:
        variant, tpot_s, tokens_per_gpu = now
        drawn.add_trace(
            go.Scatter(
                x=[1e3 * tpot_s],
                y=[tokens_per_gpu],
                mode="markers",
                marker=NOW_MARKER,
                name=f"now, {variant}",
                hovertemplate="now: %{x:.1f} ms, %{y:.1f} tok/s per GPU<extra></extra>",
            )
        )
    return drawn.update_layout(
        xaxis=log_axis("time per output token (ms)", [1e3 * option.tpot_s for option in advice.options]),
        yaxis=log_axis("tokens per second and GPU", heights),
    )


def _places(advice: Advice) -> list[str]:
    """Return the names of the front's options; one that is close to the one before it has none."""
    texts: list[str] = []
    named: Option | None = None
    for option in advice.front:
        apart = (
            named is None or max(option.tpot_s / named.tpot_s, option.tokens_per_gpu / named.tokens_per_gpu) > _APART
        )
        texts.append(advice.place(option.scenario) if apart else "")
        named = option if apart else named
    return texts


def comparison_figure(candidates: Sequence[Candidate], *, compact: bool = False) -> "go.Figure":
    """Draw the tokens per second of every variant on every candidate, with the 90 % intervals.

    A `compact` one is a part of a page, where a table next to it has the speedups.
    """
    import plotly.graph_objects as go

    scenario = candidates[0].scenario
    drawn = figure(
        "Tokens per second, and in the bars the speedup over standard",
        f"{scenario.model.name}, {workload_label(scenario)}; 90 % intervals",
    )
    for candidate, colour in zip(candidates, SERIES_COLOURS, strict=False):
        rates = [prediction.tokens_per_s for prediction in candidate.predictions.values()]
        speedups = [f"{prediction.speedup.value:.2f}x" for prediction in candidate.predictions.values()]
        drawn.add_trace(
            go.Bar(
                x=list(candidate.predictions),
                y=[rate.value for rate in rates],
                name=candidate.name,
                marker={"color": colour},
                error_y=error_bars(rates),
                text=None if compact else speedups,
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
