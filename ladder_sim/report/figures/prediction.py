"""One prediction: where the time goes, and what runs when."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.prediction import Prediction
from ladder_sim.report.figures.style import asked, figure
from ladder_sim.simulate.lower import COMM, COMPUTE
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.scenario import Scenario

if TYPE_CHECKING:
    import plotly.graph_objects as go

# of a request's time; less is not seen
SHOWN_SHARE = 0.002
_LIMIT_COLOURS = {
    "device memory": "#0072B2",
    "tensor cores": "#56B4E9",
    "small kernels": "#009E73",
    "all_reduce": "#D55E00",
    "all_gather": "#CC79A7",
    "broadcast": "#CC79A7",
    "waits": "#F0E442",
    "launches": "#E69F00",
}
OTHER_COLOUR = "#595959"
# name and colour of an op's kind; all others are small kernels
_KINDS = {
    "gemm": ("GEMM", "#0072B2"),
    "lm_head": ("GEMM", "#0072B2"),
    "attention": ("attention", "#56B4E9"),
    "all_reduce": ("all-reduce", "#D55E00"),
    "all_gather": ("all-gather, broadcast", "#CC79A7"),
    "broadcast": ("all-gather, broadcast", "#CC79A7"),
}
_SMALL = ("small kernels", "#009E73")
_LANES = {COMPUTE: "compute", COMM: "communication"}
_TIMELINE_LAYERS = 2


class _Bar(NamedTuple):
    """One op on the timeline."""

    kind: tuple[str, str]
    """Name and colour."""
    lane: str
    """Its stream."""
    start_us: float
    """From the left edge."""
    length_us: float
    """As far as it is drawn."""
    op: str
    """Its name."""


def breakdown_figure(scenario: Scenario, predictions: Mapping[str, Prediction]) -> "go.Figure":
    """What the critical path of every variant waits for, stacked."""
    total_s = max(found.request_s for found in predictions.values())
    names = [
        name for name in _LIMIT_COLOURS if any(_share(found, name) > SHOWN_SHARE for found in predictions.values())
    ]
    bars = []
    for name in names:
        shares = [_share(found, name) for found in predictions.values()]
        bars.append(
            {
                "type": "bar",
                "y": list(predictions),
                "x": [found.breakdown.limits_s.get(name, 0.0) for found in predictions.values()],
                "name": name.replace("_", "-"),
                "orientation": "h",
                "marker": {"color": _LIMIT_COLOURS.get(name, OTHER_COLOUR)},
                "text": [f"{share:.0%}" if share > 0.05 else "" for share in shares],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "customdata": shares,
                "hovertemplate": "%{y}: %{x:.3g} s, %{customdata:.1%} of the request<extra>%{fullData.name}</extra>",
            }
        )
    speedups = [
        {"x": found.request_s, "y": name, "text": f"{found.speedup.value:.2f}x"} for name, found in predictions.items()
    ]
    return figure(
        "Where a request's time goes",
        asked(scenario),
        data=bars,
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "height": 140 + 70 * len(predictions),
            "xaxis": {
                "title": {"text": "seconds per request, with the speedup over standard"},
                "range": [0, total_s * 1.08],
            },
            "yaxis": {"autorange": "reversed"},
            "legend": {"traceorder": "normal"},
            "uniformtext": {"mode": "hide", "minsize": 10},
            "annotations": [{**one, "showarrow": False, "xanchor": "left", "xshift": 6} for one in speedups],
        },
    )


def timeline_figure(scenario: Scenario, predictions: Mapping[str, Prediction], phase: str = "decode") -> "go.Figure":
    """Two layers in the middle of a forward pass: what each stream of a GPU does when, one pair of lanes per variant.

    Raises
    ------
    UsageError
        There is no decode step, because only one token is asked for.
    """
    import plotly.graph_objects as go

    drawn = figure(f"Two layers of one {phase} step", asked(scenario))
    bars: list[_Bar] = []
    for variant, found in predictions.items():
        step = found.request.prefill if phase == "prefill" else found.request.decode
        if step is None:
            raise UsageError("one new token needs no decode step", hint="ask for more with --gen")
        bars += [bar._replace(lane=f"{variant}<br>{bar.lane}") for bar in _window(step)]
    lanes = [f"{variant}<br>{lane}" for variant in predictions for lane in _LANES.values()]
    for name, colour in sorted({bar.kind for bar in bars}):
        members = [bar for bar in bars if bar.kind == (name, colour)]
        drawn.add_trace(
            go.Bar(
                y=[bar.lane for bar in members],
                base=[bar.start_us for bar in members],
                x=[bar.length_us for bar in members],
                customdata=[bar.op for bar in members],
                hovertemplate="%{customdata}: %{x:.1f} us<extra></extra>",
                name=name,
                orientation="h",
                marker={"color": colour, "line": {"color": "white", "width": 0.5}},
            )
        )
    return drawn.update_layout(
        barmode="overlay",
        bargap=0.2,
        height=150 + 46 * len(lanes),
        xaxis={"title": {"text": "microseconds"}, "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": lanes[::-1], "tickfont": {"size": 12}, "showgrid": False},
    )


def _window(step: ForwardPass) -> Iterator[_Bar]:
    """Ops of the second and third simulated layer, cut off where the layer after them begins to compute."""
    timeline, ops = step.timeline, step.simulated[0].ops
    first = len(timeline.end_s) - len(ops)
    kept = sorted({op.layer for op in ops if op.layer >= 0})
    chosen = kept[1 : 1 + _TIMELINE_LAYERS] or kept
    inside = [first + number for number, op in enumerate(ops) if op.layer in chosen and op.stream == "compute"]
    begin = float(np.min(timeline.start_s[inside]))
    after = [first + number for number, op in enumerate(ops) if op.layer not in chosen and number > inside[-1] - first]
    finish = min(
        (float(timeline.start_s[number]) for number in after if timeline.program.tasks[number].stream == COMPUTE),
        default=timeline.makespan_s,
    )
    for number, op in enumerate(ops, first):
        start = max(float(timeline.start_s[number]), begin) - begin
        end = min(float(timeline.end_s[number]), finish) - begin
        if end > start:
            lane = _LANES[timeline.program.tasks[number].stream]
            yield _Bar(_KINDS.get(op.kind, _SMALL), lane, start * 1e6, (end - start) * 1e6, op.name)


def _share(found: Prediction, limit: str) -> float:
    return found.breakdown.limits_s.get(limit, 0.0) / found.request_s
