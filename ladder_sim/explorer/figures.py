"""Every figure of the page, as `ladder_sim.report` draws it, with the scenario at hand marked."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ladder_sim.analysis.sensitivity import STEP
from ladder_sim.explorer import quantities
from ladder_sim.explorer.queries import Answers, Found
from ladder_sim.report.figures.analysis import comparison_figure, pareto_figure, tornado_figure
from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
from ladder_sim.report.figures.style import TEXT_COLOUR, asked, log_axis, round_ticks, variant_colour
from ladder_sim.report.figures.sweep import speedup_lines, speedup_map
from ladder_sim.report.labels import axis_values, field_label, field_text, with_unit

# of a map: with more, cells are too small for numbers
_LABELLED_CELLS = 200
# of an axis of the map: with more, round numbers are named instead
_NAMED_CELLS = 12
# speedup from which on the axis is logarithmic
_MUCH = 3.0
_HERE = {"color": "#D55E00", "size": 13, "symbol": "diamond", "line": {"color": "white", "width": 1.5}}
# around a number
_RING = {"color": "#56B4E9", "size": 38, "symbol": "circle-open", "line": {"width": 3}}


def breakdown(answers: Answers, query: str) -> Any:
    """What each variant's request waits for."""
    found = answers.found(query)
    drawn = breakdown_figure(found.scenario, found.predictions)
    longest_s = max(one.request_s for one in found.predictions.values())
    # room for the speedups on a phone
    return drawn.update_layout(xaxis={"title": {"text": "seconds per request"}, "range": [0, 1.2 * longest_s]})


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
    unit, (place, _) = axis_values(name, [here, float(np.max(table[name]))])
    compared = {variant: one for variant, one in found.predictions.items() if variant != "standard"}
    drawn.add_vline(x=place, line={"color": _HERE["color"], "width": 1, "dash": "dash"})
    drawn.add_trace(
        {
            "type": "scatter",
            "x": [place] * len(compared),
            "y": [one.request_speedup for one in compared.values()],
            "mode": "markers",
            "marker": {**_HERE, "color": [variant_colour(variant) for variant in compared]},
            "name": f"now: {field_text(name, here)}",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    drawn.update_traces(hovertemplate="%{y:.2f}x", selector={"hoverinfo": None})
    drawn.update_layout(
        xaxis={
            "title": {"text": with_unit(quantities.title(name), unit)},
            "unifiedhovertitle": {"text": f"%{{x:.3~g}} {unit}"},
        }
    )
    speedups = [value for variant in compared for value in table[f"{variant}.speedup"].tolist() if value > 0.0]
    if speedups and max(speedups) > _MUCH:
        # an upper bound would press all others flat
        drawn.update_layout(yaxis=log_axis("speedup over standard", [min(1.0, *speedups), max(speedups)]))
        # an annotation's place on such an axis is the logarithm
        drawn.update_annotations(y=0.0)
    return drawn


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
            "marker": _HERE if len(table) > _LABELLED_CELLS else _RING,
            "name": "now",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    drawn.update_layout(xaxis={"tickangle": 0})
    for axis, name in ((drawn.layout.xaxis, across), (drawn.layout.yaxis, up)):
        axis.update(_ticks(name, np.unique(table[name])))
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
    hanging = answers.sensitivity(query)
    drawn = tornado_figure(hanging, found.chosen.variant, STEP, asked(found.scenario))
    # a name above its value leaves room for the bars on a phone
    names = {
        f"{field_label(one.figure)} ({field_text(one.figure, one.value)})": (
            f"{quantities.title(one.figure)}<br>{field_text(one.figure, float(f'{one.value:.3g}'))}"
        )
        for one in hanging
    }
    for trace in drawn.data:
        trace.y = [names[name] for name in trace.y]
    drawn.update_traces(
        textfont={"size": 11}, hovertemplate="%{y}<br>request time %{x:+.2f} %<extra>%{fullData.name}</extra>"
    )
    low, high = drawn.layout.xaxis.range
    return drawn.update_layout(
        xaxis={"range": [1.4 * low, 1.4 * high], "title": {"text": "request time (%)"}, "nticks": 6},
        yaxis={"tickfont": {"size": 11}},
    )


def comparison(answers: Answers, query: str) -> Any:
    """The pinned scenarios beside the one at hand."""
    # the speedups stand in the table beside it
    drawn = comparison_figure(answers.candidates(answers.state(query)))
    return drawn.update_traces(text=None, error_y={"color": TEXT_COLOUR})


# by the name that links and the page use
FIGURES: Mapping[str, Callable[[Answers, str], Any]] = {
    "breakdown": breakdown,
    "curve": curve,
    "timeline": steps,
    "map": heat_map,
    "pareto": pareto,
    "tornado": tornado,
    "comparison": comparison,
}


def _place(found: Found, name: str, column: Any) -> float:
    """Where the scenario at hand lies among equal cells."""
    values = np.unique(column)
    return float(np.interp(np.log(found.current(name)), np.log(values), np.arange(len(values))))


def _ticks(name: str, values: Any) -> dict[str, Any]:
    """Names of some cells of an axis: round numbers where they are many, which lie between cells."""
    cells = np.arange(len(values), dtype=float)
    if len(values) <= _NAMED_CELLS:
        texts = [field_text(name, value) for value in values.tolist()]
        return {"title": {"text": quantities.title(name)}, "tickvals": cells.tolist(), "ticktext": texts}
    unit, drawn = axis_values(name, values)
    ticks = round_ticks(drawn[0], drawn[-1])
    return {
        "title": {"text": with_unit(quantities.title(name), unit)},
        "tickvals": np.interp(np.log(ticks), np.log(drawn), cells).tolist(),
        "ticktext": [f"{tick:.4g}" for tick in ticks],
    }


def _hover(drawn: Any, up: str, across: str, table: Any) -> None:
    """Values instead of the numbers of cells."""
    rows, columns = (
        [field_text(name, value) for value in dict.fromkeys(table[name].tolist())] for name in (up, across)
    )
    drawn.update_traces(
        customdata=[[f"{field_label(across)} {column}, {field_label(up)} {row}" for column in columns] for row in rows],
        hovertemplate="%{customdata}<br>speedup %{z:.3f}<extra></extra>",
        selector={"type": "heatmap"},
    )


# an all-reduce's colour
_EXPOSED = "#D55E00"


def timeline(found: Found) -> Any:
    """Lanes of every variant; hatched is a collective while nothing computes.

    Raises
    ------
    UsageError
        There is no decode step.
    """
    import plotly.graph_objects as go

    phase = found.state.phase
    drawn = timeline_figure(found.scenario, found.predictions, phase)
    steps = _sources(found, phase)
    lanes: dict[str, list[tuple[float, float]]] = {}
    for trace in drawn.data:
        trace.customdata = [
            (op, steps.get((_variant(lane), op), "")) for lane, op in zip(trace.y, trace.customdata, strict=True)
        ]
        trace.hovertemplate = "<b>%{customdata[0]}</b><br>%{x:.2f} us, %{customdata[1]}<extra></extra>"
        for lane, begin, length in zip(trace.y, trace.base, trace.x, strict=True):
            lanes.setdefault(lane, []).append((begin, begin + length))
    exposed = [
        (lane, start, end)
        for lane, spans in lanes.items()
        if lane.endswith("communication")
        for start, end in _uncovered(spans, lanes.get(f"{_variant(lane)}<br>compute", []))
    ]
    drawn.add_trace(
        go.Bar(
            y=[lane for lane, _, _ in exposed],
            base=[start for _, start, _ in exposed],
            x=[end - start for _, start, end in exposed],
            showlegend=False,
            orientation="h",
            marker={
                "color": _EXPOSED,
                "pattern": {"shape": "/", "fgcolor": "white", "size": 6, "solidity": 0.35},
                "line": {"color": "white", "width": 0.5},
            },
            hoverinfo="skip",
        )
    )
    return drawn


def _variant(lane: str) -> str:
    return lane.partition("<br>")[0]


def _sources(found: Found, phase: str) -> Mapping[tuple[str, str], str]:
    """What the time of each op rests on, by variant and op."""
    steps = {
        name: one.request.prefill if phase == "prefill" else one.request.decode
        for name, one in found.predictions.items()
    }
    return {(name, one.op.name): one.estimate.source for name, step in steps.items() if step for one in step.ops}


def _uncovered(spans: list[tuple[float, float]], cover: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of some spans that no other span covers.

    Examples
    --------
    >>> _uncovered([(0.0, 10.0)], [(2.0, 4.0), (3.0, 5.0), (9.0, 12.0)])
    [(0.0, 2.0), (5.0, 9.0)]
    """
    left = []
    for start, end in spans:
        at = start
        for begin, finish in sorted(cover):
            if begin > at:
                left.append((at, min(begin, end)))
            at = max(at, finish)
            if at >= end:
                break
        if at < end:
            left.append((at, end))
    return [(start, end) for start, end in left if end > start]
