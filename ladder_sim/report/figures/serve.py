"""Requests under load: their times, what they need, and what happens along their rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.display.labels import interval_text
from ladder_sim.errors import UsageError
from ladder_sim.report.figures.style import (
    NOW_MARKER,
    SERIES_COLOURS,
    TEXT_COLOUR,
    Figure,
    error_bars,
    figure,
    variant_colour,
)
from ladder_sim.report.requests import bound_text, manner_label, requests_label
from ladder_sim.serving import SLO, Capacity, Outcome, Served
from ladder_sim.serving.requests.slo import Metric

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


def load_figure(served: Served) -> Figure:
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
    scenario, requests = served.scenario, requests_label(served.load)
    if served.steps:
        return f"steps of {served.steps.engine}{manner_label(served.service)}, {requests}"
    where = f"{scenario.plan} on {scenario.cluster.name}{manner_label(served.service)}"
    return f"{scenario.model.name}, {where}, {requests}, {scenario.stack.name}"


def _panels(title: str, subtitle: str, axes: Sequence[tuple[str, str]]) -> Figure:
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
    panels: Figure, row: int, x: Floats, y: Floats, name: str, colour: str, *, dash: str = "solid", legend: bool = False
) -> None:
    line = {"color": colour, "width": 2, "dash": dash}
    panels.add_scatter(
        x=x, y=y, mode="lines", name=name, legendgroup=name, showlegend=legend, line=line, row=row, col=1
    )


def _promised(panels: Figure, slo: SLO | None) -> None:
    """Draw a line at each bound on a time that is shown."""
    for bound in slo.bounds if slo else ():
        if bound.metric in _TIMES:
            row = list(_TIMES).index(bound.metric) + 1
            text = f"{bound.name.partition('_')[2]} \N{LESS-THAN OR EQUAL TO} {bound_text(bound.seconds)}"
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


def capacity_figure(capacity: Capacity) -> Figure:
    """Draw the GPUs of each variant, and the time that each bound limits against the rate."""
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
        panels.add_bar(
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
            row=1,
            col=1,
        )
        rates = np.array(list(each.curve)) / each.group_gpus
        for number in range(len(bounds)):
            values_ms = 1e3 * np.array([seconds[number] for seconds in each.curve.values()])
            _line(panels, 2 + number, rates, values_ms, name, colour, legend=number == 0)
    panels.update_yaxes(autorange="reversed", row=1)
    for number, bound in enumerate(bounds):
        limit_ms = 1e3 * bound.seconds
        line = {"color": SERIES_COLOURS[5], "dash": "dash", "width": 1.5}
        place = {"annotation": {"text": "SLO", "bgcolor": _PAPER}, "annotation_position": "top left"}
        panels.add_hline(y=limit_ms, row=2 + number, line=line, **place)
        # beyond its limit a replica's times grow without end
        panels.update_yaxes(range=(0.0, 1.6 * limit_ms), row=2 + number)
    return panels


def bound_figure(capacity: Capacity, number: int) -> Figure:
    """Plot the time that one bound of the SLO limits over the rate of one replica, as `capacity` simulated it.

    A bar at the bound is the 90 % interval of the rate at which a replica of each variant breaks the SLO; `number` is
    the bound's place in the SLO. The capacity must have curves.
    """
    bound = capacity.slo.bounds[number]
    limit_ms = 1e3 * bound.seconds
    data: list[Mapping[str, Any]] = []
    for place, (name, fleet) in enumerate(capacity.items()):
        colour, curve = variant_colour(name), fleet.curve
        times = {"x": list(curve), "y": [1e3 * seconds[number] for seconds in curve.values()]}
        line = {"type": "scatter", "mode": "lines", "name": name, "line": {"color": colour, "width": 2.5}}
        data.append({**line, **times, "hovertemplate": "%{y:.3g} ms at %{x:.3g} requests/s"})
        if bound.name in fleet.need.breaks and fleet.need.replicas:
            ends = error_bars([fleet.rate_limit])
            marker = {"color": colour, "size": 9}
            point = {"type": "scatter", "mode": "markers", "x": [fleet.rate_limit.value]}
            # bars on one line would hide each other
            below_ms = limit_ms * (1.0 - _APART * place)
            bar = {**ends, "color": colour, "thickness": 3}
            hover = f"breaks at {interval_text(fleet.rate_limit)} requests/s"
            shown = {"name": name, "showlegend": False, "text": [hover], "hovertemplate": "%{text}"}
            data.append({**point, **shown, "y": [below_ms], "marker": marker, "error_x": bar})
    limit = {"type": "line", "xref": "paper", "x0": 0.0, "x1": 1.0, "y0": limit_ms, "y1": limit_ms}
    text = {"xref": "paper", "x": 0.0, "y": limit_ms, "xanchor": "left", "xshift": 4, "yanchor": "bottom"}
    return figure(
        f"{bound.metric.upper()} by rate",
        requests_label(capacity.load),
        data=data,
        layout={
            "xaxis": {"title": {"text": "requests/s to one replica"}, "rangemode": "tozero"},
            # beyond its limit a replica's times grow without end
            "yaxis": {
                "title": {"text": f"{bound.metric.upper()} p{bound.percentile:g} (ms)"},
                "range": [0.0, _REACH * limit_ms],
            },
            "shapes": [{**limit, "line": {"color": NOW_MARKER["color"], "dash": "dash", "width": 1.5}}],
            "annotations": [{**text, "showarrow": False, "text": f"SLO: {bound_text(bound.seconds)}"}],
        },
    )


# how far an axis goes beyond the bound, and between bars, of the bound
_REACH, _APART = 1.6, 0.08
