"""Requests under load: their times, what they need, and what happens along their rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.report.figures.style import (
    GRID_COLOUR,
    NOW_MARKER,
    SERIES_COLOURS,
    TEXT_COLOUR,
    error_bars,
    figure,
    variant_colour,
)
from ladder_sim.report.requests import load_label, manner_label
from ladder_sim.serving import SLO, Capacity, Need, Outcome, Served
from ladder_sim.serving.requests.slo import Metric
from ladder_sim.units import format_seconds

if TYPE_CHECKING:
    import plotly.graph_objects as go

_POINTS = np.linspace(0.0, 1.0, 201)
# of a timeline: each is a mean over its part of the load
_BINS = 120
_PANEL_PX, _HEAD_PX = 190, 190
# below the last axis and its title
_LEGEND_PX = 64
# characters of a subtitle that a phone shows in a line
_LINE = 50
# behind what is written over curves
_PAPER = "rgba(255, 255, 255, 0.8)"
_TIMES: Mapping[Metric, str] = {
    "ttft": "time to first token (ms), or less",
    "tpot": "time per output token (ms), or less",
}


def load_figure(served: Served) -> "go.Figure":
    """Draw times that requests see, and what a replica does meanwhile; raise UsageError where steps were not kept."""
    if not any(replica.steps for replica in served[served.first].outcome.replicas):
        raise UsageError("the steps that the figure shows were not kept", hint="serve with record=True keeps them")
    axes = [(title, "requests (%)") for title in _TIMES.values()]
    axes += [("", "running<br>(dotted: waiting)"), ("", "KV cache (%)"), ("time (s)", "arrivals/s")]
    panels = _panels("Requests under load", _subtitle(served), axes)
    for name, each in served.items():
        outcome, colour = each.outcome, variant_colour(name)
        for row, metric in enumerate(_TIMES, start=1):
            # without further tokens a request has no TPOT
            values_s = outcome.values_s(metric)
            times_ms = 1e3 * np.quantile(values_s, _POINTS) if len(values_s) else values_s
            _line(panels, row, times_ms, 100.0 * _POINTS, name, colour, legend=row == 1)
        at_s, running, waiting, kv_share = _timeline(outcome)
        _line(panels, 3, at_s, running, name, colour)
        _line(panels, 3, at_s, waiting, f"{name}, waiting", colour, dash="dot")
        _line(panels, 4, at_s, 100.0 * kv_share, name, colour)
    first = served[served.first]
    arrivals, edges = np.histogram([answer.request.arrival_s for answer in first.outcome.recorded.answers], _BINS // 2)
    _line(panels, 5, edges[:-1], arrivals / np.diff(edges), "arrivals", TEXT_COLOUR)
    for row in (4, 5):
        panels.update_xaxes(matches="x3", row=row)
    _promised(panels, served.slo)
    return panels


def _subtitle(served: Served) -> str:
    """Return what is served where, by names."""
    scenario, requests = served.scenario, load_label(served.load)
    if served.steps:
        return f"steps of {served.steps.engine}{manner_label(served.service)}, {requests}"
    where = f"{scenario.plan} on {scenario.cluster.name}{manner_label(served.service)}"
    return f"{scenario.model.name}, {where}, {requests}, {scenario.stack.name}"


def _panels(title: str, subtitle: str, axes: Sequence[tuple[str, str]]) -> "go.Figure":
    """Return panels below each other, each with its axes' titles: as readable on a phone as on a desk."""
    from plotly.subplots import make_subplots

    height = _PANEL_PX * len(axes)
    lines = "<br>".join(wrap(subtitle, _LINE, break_on_hyphens=False))
    # below, where it may have as many rows as it takes
    legend = {"y": -_LEGEND_PX / height, "yanchor": "top"}
    panels = make_subplots(len(axes), 1, vertical_spacing=0.3 / len(axes))
    panels.update_layout(figure(title, lines, layout={"height": _HEAD_PX + height, "legend": legend}).layout)
    panels.update_layout(title={"xref": "container", "pad": {"l": 16, "t": 20}})
    for row, (x_title, y_title) in enumerate(axes, start=1):
        panels.update_xaxes(title=x_title, rangemode="tozero", row=row)
        panels.update_yaxes(title=y_title, rangemode="tozero", row=row)
    return panels


def _line(
    panels: "go.Figure",
    row: int,
    x: Floats,
    y: Floats,
    name: str,
    colour: str,
    *,
    dash: str = "solid",
    legend: bool = False,
) -> None:
    import plotly.graph_objects as go

    line = {"color": colour, "width": 2, "dash": dash}
    panels.add_trace(
        go.Scatter(x=x, y=y, mode="lines", name=name, legendgroup=name, showlegend=legend, line=line), row, 1
    )


def _promised(panels: "go.Figure", slo: SLO | None) -> None:
    """Draw a line at each bound on a time that is shown."""
    for bound in slo.bounds if slo else ():
        if bound.metric in _TIMES:
            row = list(_TIMES).index(bound.metric) + 1
            text = f"{bound.name.partition('_')[2]} \N{LESS-THAN OR EQUAL TO} {format_seconds(bound.seconds)}"
            line = {"color": SERIES_COLOURS[5], "dash": "dash", "width": 1.5}
            place = {"annotation": {"text": text, "bgcolor": _PAPER}, "annotation_position": "bottom left"}
            panels.add_vline(x=1e3 * bound.seconds, row=row, line=line, **place)
            axis = panels.layout.annotations[-1].xref
            slowest_ms = max(max(each.x, default=0.0) for each in panels.data if each.xaxis == axis)
            panels.update_xaxes(range=(0.0, 1.04 * max(1e3 * bound.seconds, slowest_ms)), row=row)


def _timeline(outcome: Outcome) -> tuple[Floats, Floats, Floats, Floats]:
    """Return a replica's timeline: times, requests that run and wait, and share of the KV cache."""
    steps = outcome.recorded.steps
    columns = np.array([(each.start_s, each.running, each.waiting, each.kv_share) for each in steps])
    parts = np.array_split(columns, min(_BINS, len(columns)))
    at_s, running, waiting, kv_share = np.array([part.mean(axis=0) for part in parts]).T
    return at_s, running, waiting, kv_share


def capacity_figure(capacity: Capacity) -> "go.Figure":
    """Draw the GPUs of each variant, and the time that each bound limits against the rate."""
    import plotly.graph_objects as go

    bounds = capacity.slo.bounds
    axes = [("GPUs that keep the SLO", ""), *(("", f"{bound.name} (ms)") for bound in bounds)]
    axes[-1] = ("requests/s per GPU", axes[-1][1])
    scenario = capacity.scenario
    where = f"{scenario.model.name}, {scenario.cluster.name}, {scenario.stack.name}"
    panels = _panels("Capacity under an SLO", f"{where}, {capacity.load.rate:g} requests/s", axes)
    for name, each in capacity.items():
        gpus, colour = each.gpus, variant_colour(name)
        known = math.isfinite(gpus.value)
        # as long as the bar where no number of slower replicas keeps it
        shown = gpus if math.isfinite(gpus.high) else replace(gpus, high=2.0 * gpus.value)
        bar = go.Bar(
            x=[gpus.value if known else 0],
            y=[name],
            orientation="h",
            # light enough for the interval and the number on it
            marker={"color": colour, "opacity": 0.5},
            text=f"{gpus.value:.0f}" if known else "no number keeps it",
            textposition="inside" if known else "outside",
            textfont={"color": TEXT_COLOUR},
            insidetextanchor="start",
            error_x=error_bars([shown]) if known else None,
            showlegend=False,
            width=0.6,
        )
        panels.add_trace(bar, 1, 1)
        rates = np.array(list(each.curve)) / each.group_gpus
        for number in range(len(bounds)):
            values_ms = 1e3 * np.array([seconds[number] for seconds in each.curve.values()])
            _line(panels, 2 + number, rates, values_ms, name, colour, legend=number == 0)
    panels.update_yaxes(autorange="reversed", row=1)
    for number, bound in enumerate(bounds):
        limit_ms = 1e3 * bound.seconds
        line = {"color": SERIES_COLOURS[5], "dash": "dash", "width": 1.5}
        place = {
            "annotation": {"text": "SLO", "bgcolor": _PAPER},
            "annotation_position": "top left",
        }
        panels.add_hline(y=limit_ms, row=2 + number, line=line, **place)
        # beyond its limit a replica's times grow without end
        panels.update_yaxes(range=(0.0, 1.6 * limit_ms), row=2 + number)
    return panels


_RATE = "requests/s to one replica"
# between panels, of the whole height; and how far an axis goes beyond the bound
_GAP, _REACH = 0.08, 2.0
# by variant: what became of requests to one replica, by their rate
Curves = Mapping[str, Mapping[float, Outcome]]


def goodput_figure(subtitle: str, curves: Curves, needs: Mapping[str, Need]) -> "go.Figure":
    """Plot the rate of requests that keep the SLO over the rate at which requests come to one replica.

    The line is dotted where the SLO is broken.

    Parameters
    ----------
    subtitle
        What is served, and its SLO.
    curves
        All with an SLO.
    needs
        Of each variant, which show as what one of its replicas does.
    """
    highest = max(rate for outcomes in curves.values() for rate in outcomes)
    everything = {**_curve([0.0, highest], [0.0, highest]), "line": {"color": GRID_COLOUR, "width": 7}}
    data: list[Mapping[str, Any]] = [{**everything, "hoverinfo": "skip", "showlegend": False}]
    for name, outcomes in curves.items():
        colour, rates = variant_colour(name), sorted(outcomes)
        goods = [rate * outcomes[rate].good_share for rate in rates]
        # one line in two pieces, with a point in common
        last = max((number for number, rate in enumerate(rates) if outcomes[rate].kept), default=-1)
        for part, dash in ((slice(last + 1), "solid"), (slice(max(last, 0), None), "dot")):
            data.append(
                {
                    **_curve(rates[part], goods[part]),
                    "name": name,
                    "legendgroup": name,
                    "showlegend": (dash == "solid") == (last >= 0),
                    "line": {"color": colour, "width": 2.5, "dash": dash},
                    "hovertemplate": "%{y:.3g} of %{x:.3g} requests/s keep their bounds",
                }
            )
        marks = []
        if last >= 0:
            marks.append((rates[last], goods[last], "circle", "highest rate at which one replica keeps the SLO"))
        if name in needs and needs[name].replicas:
            need = needs[name]
            share = need.rate / need.replicas
            text = f"one of {need.replicas} replicas, which share {need.rate:g} requests/s"
            marks.append((share, share * need.outcome.good_share, "diamond", text))
        for x, y, symbol, text in marks:
            marker = {**NOW_MARKER, "color": colour, "symbol": symbol, "size": 13 if symbol == "diamond" else 10}
            point = {"type": "scatter", "mode": "markers", "x": [x], "y": [y], "marker": marker, "showlegend": False}
            data.append({**point, "name": name, "legendgroup": name, "hovertemplate": f"{text}: %{{x:.3g}} requests/s"})
    axes = {
        "xaxis": {"title": {"text": _RATE}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "requests/s that keep their bounds"}, "rangemode": "tozero"},
        "annotations": [
            {
                "text": "all requests",
                "x": highest,
                "y": highest,
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "bottom",
            }
        ],
    }
    return figure("Goodput of one replica", subtitle, data=data, layout=axes)


def latency_figure(subtitle: str, curves: Curves, slo: SLO) -> "go.Figure":
    """Draw percentiles of times along the rate of requests to one replica, a panel for each bound of the SLO.

    A thick line is the percentile that the SLO bounds, a thin one the median.
    """
    count = len(slo.bounds)
    data, shapes, axes = [], [], {}
    for row, bound in enumerate(slo.bounds):
        number = str(row + 1) if row else ""
        top = 1.0 - row / count
        axes[f"yaxis{number}"] = {
            "title": {"text": f"{bound.metric.upper()} (ms)"},
            "domain": [top - (1.0 - _GAP * (count - 1)) / count if row + 1 < count else 0.0, top],
            "range": [0.0, _REACH * 1e3 * bound.seconds],
        }
        shape = {"type": "line", "xref": "paper", "x0": 0.0, "x1": 1.0, "yref": f"y{number}"}
        limit = {"y0": 1e3 * bound.seconds, "y1": 1e3 * bound.seconds}
        shapes.append({**shape, **limit, "line": {"color": NOW_MARKER["color"], "dash": "dash", "width": 1.5}})
        for name, outcomes in curves.items():
            rates = sorted(outcomes)
            for percentile, width in ((50, 1.0), (bound.percentile, 2.5)):
                data.append(
                    {
                        **_curve(rates, [1e3 * outcomes[rate].seconds(bound.metric, percentile) for rate in rates]),
                        "yaxis": f"y{number}",
                        "name": name,
                        "legendgroup": name,
                        "showlegend": not row and percentile != 50,
                        "line": {"color": variant_colour(name), "width": width},
                        "hovertemplate": f"p{percentile} %{{y:.3g}} ms at %{{x:.3g}} requests/s",
                    }
                )
    axes["xaxis"] = {"title": {"text": _RATE}, "rangemode": "tozero", "anchor": f"y{count if count > 1 else ''}"}
    return figure("Times that requests see", subtitle, data=data, layout={**axes, "shapes": shapes})


def _curve(x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y)}
