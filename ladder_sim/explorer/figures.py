"""Every figure of the page, as `ladder_sim.report` draws it, with the scenario at hand marked."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ladder_sim.analysis.sensitivity import STEP
from ladder_sim.explorer import ranges
from ladder_sim.explorer.answers import Answers, Found
from ladder_sim.explorer.timeline import timeline
from ladder_sim.report.fields import label, scaled, shown
from ladder_sim.report.figures.answers import comparison_figure, pareto_figure, tornado_figure
from ladder_sim.report.figures.base import asked
from ladder_sim.report.figures.prediction import breakdown_figure
from ladder_sim.report.figures.sweep import speedup_lines, speedup_map
from ladder_sim.report.plots import variant_colour

_HERE = {"color": "#D55E00", "size": 13, "symbol": "diamond", "line": {"color": "white", "width": 1.5}}


def breakdown(answers: Answers, query: str) -> Any:
    """What each variant's request waits for."""
    found = answers.found(query)
    return breakdown_figure(found.scenario, found.predictions)


def steps(answers: Answers, query: str) -> Any:
    """What runs when."""
    return timeline(answers.found(query))


def curve(answers: Answers, query: str) -> Any:
    """Speedup of every variant along one field."""
    found, table = answers.found(query), answers.curve(query)
    drawn = speedup_lines(table)
    if len(table) > 12:
        drawn.update_traces(mode="lines")
    name = found.along
    here = found.current(name)
    # in the unit of the axis: the largest value decides it
    axis_title, (place, _) = scaled(name, [here, float(np.max(table[name]))])
    compared = {variant: one for variant, one in found.predictions.items() if variant != "standard"}
    drawn.add_vline(x=place, line={"color": _HERE["color"], "width": 1, "dash": "dash"})
    drawn.add_trace(
        {
            "type": "scatter",
            "x": [place] * len(compared),
            "y": [one.request_speedup for one in compared.values()],
            "mode": "markers",
            "marker": {**_HERE, "color": [variant_colour(variant) for variant in compared]},
            "name": f"now: {shown(name, here)}",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    drawn.update_traces(hovertemplate="%{y:.3f}", selector={"hoverinfo": None})
    unit = axis_title.removeprefix(label(name))
    return drawn.update_layout(xaxis={"title": {"text": f"{ranges.title(name)}{unit}"}})


def heat_map(answers: Answers, query: str) -> Any:
    """One variant's speedup over another, over two fields."""
    found, table = answers.found(query), answers.map(query)
    drawn = speedup_map(table, found.state.variant, found.state.over)
    up, across = table.varied
    places = {name: _place(found, name, table[name]) for name in (across, up)}
    drawn.update_traces(xgap=0, ygap=0, colorbar={"title": None, "thickness": 10}, selector={"type": "heatmap"})
    _hover(drawn, up, across, table)
    drawn.add_trace(
        {
            "type": "scatter",
            "x": [places[across]],
            "y": [places[up]],
            "mode": "markers",
            "marker": _HERE,
            "name": "now",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    drawn.update_xaxes(title={"text": ranges.title(across)}, tickangle=0)
    drawn.update_yaxes(title={"text": ranges.title(up)})
    for axis in (drawn.layout.xaxis, drawn.layout.yaxis):
        step = -(-len(axis.tickvals) // 4)
        axis.update(tickvals=axis.tickvals[::step], ticktext=axis.ticktext[::step])
    return drawn


def pareto(answers: Answers, query: str) -> Any:
    """Latency against throughput of all degrees and batches."""
    found, advice = answers.found(query), answers.advice(query)
    drawn = pareto_figure(advice, asked(found.scenario))
    now = found.chosen
    drawn.data[0].update(mode="lines")
    drawn.add_trace(
        {
            "type": "scatter",
            "x": [1e3 * (now.tpot_s or now.ttft_s)],
            "y": [now.rate / found.scenario.tp],
            "mode": "markers",
            "marker": _HERE,
            "name": f"now, {now.variant}",
            "hovertemplate": "now: %{x:.1f} ms, %{y:.1f} tok/s per GPU<extra></extra>",
        }
    )
    return drawn


def tornado(answers: Answers, query: str) -> Any:
    """What one variant's time hangs on."""
    found = answers.found(query)
    drawn = tornado_figure(answers.sensitivity(query), found.chosen.variant, STEP, asked(found.scenario))
    for trace in drawn.data:
        # a name above its value leaves room for the bars on a phone
        trace.y = [name.replace(" (", "<br>(") for name in trace.y]
    low, high = drawn.layout.xaxis.range
    return drawn.update_layout(xaxis={"range": [1.3 * low, 1.3 * high]}, yaxis={"tickfont": {"size": 11}})


def comparison(answers: Answers, query: str) -> Any:
    """The pinned scenarios beside the one at hand."""
    return comparison_figure(answers.candidates(answers.state(query)))


FIGURES: Mapping[str, Callable[[Answers, str], Any]] = {
    "breakdown": breakdown,
    "curve": curve,
    "timeline": steps,
    "map": heat_map,
    "pareto": pareto,
    "tornado": tornado,
    "comparison": comparison,
}
# by the name that links and the page use


def _place(found: Found, name: str, column: Any) -> float:
    """Where the scenario at hand lies among equal cells."""
    values = np.unique(column)
    return float(np.interp(np.log(found.current(name)), np.log(values), np.arange(len(values))))


def _hover(drawn: Any, up: str, across: str, table: Any) -> None:
    """Values instead of the numbers of cells."""
    rows, columns = ([shown(name, value) for value in dict.fromkeys(table[name].tolist())] for name in (up, across))
    drawn.update_traces(
        customdata=[[f"{label(across)} {column}, {label(up)} {row}" for column in columns] for row in rows],
        hovertemplate="%{customdata}<br>speedup %{z:.3f}<extra></extra>",
        selector={"type": "heatmap"},
    )
