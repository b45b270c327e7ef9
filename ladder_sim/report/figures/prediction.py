"""Figures of one prediction: where the time goes, and what runs when."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.des.timeline import subtract, union
from ladder_sim.display.labels import kind_label, scenario_label, wiring_label
from ladder_sim.errors import UsageError
from ladder_sim.prediction import Prediction
from ladder_sim.report.figures.style import Figure, figure
from ladder_sim.simulate.lower import COMM, COMPUTE
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.scenario import Scenario

# of a request's time; less is not visible
SHOWN_SHARE = 0.002
_LIMIT_COLOURS = {
    # P. Tol, vibrant scheme: no variant's colour, which a dark page exchanges for that of tensor cores
    "memory bandwidth": "#0077BB",
    "tensor cores": "#56B4E9",
    "small kernels": "#009E73",
    "all_reduce": "#D55E00",
    "all_reduce_norm": "#EE9F73",
    "all_gather": "#CC79A7",
    "reduce_scatter": "#882255",
    "all_to_all": "#CC79A7",
    "dispatch": "#CC79A7",
    "combine": "#882255",
    "broadcast": "#CC79A7",
    "send": "#CC79A7",
    "waits": "#F0E442",
    "launches": "#E69F00",
    "host": "#999999",
}
# name and colour of an op's kind; all others are small kernels
_KINDS = {
    **dict.fromkeys(("gemm", "lm_head", "router", "bmm", "expand"), ("GEMM", "#0072B2")),
    "experts": ("experts", "#332288"),
    "attention": ("attention", "#56B4E9"),
    **dict.fromkeys(("all_reduce", "all_reduce_norm"), ("all-reduce", "#D55E00")),
    **dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "broadcast", "send"),
        ("other messages", "#CC79A7"),
    ),
}
_SMALL = ("small kernels", "#009E73")
_LANES = {COMPUTE: "compute", COMM: "communication"}
_TIMELINE_LAYERS = 2


class Bar(NamedTuple):
    """One op on the timeline."""

    kind: tuple[str, str]
    """Name and colour."""
    stream: int
    """As in `ladder_sim.simulate.lower`."""
    start_us: float
    """From the left edge."""
    end_us: float
    """As far as it is drawn."""
    op: str
    source: str
    """Source of the op's time."""


def breakdown_figure(scenario: Scenario, predictions: Mapping[str, Prediction], *, compact: bool = False) -> Figure:
    """Draw what the critical path of every variant waits for, stacked; `compact` for a part of a page."""
    names = {name: wiring_label(name).strip("()") for name in predictions}
    longest_s = max(prediction.request_s for prediction in predictions.values())
    limits = [
        limit
        for limit in _LIMIT_COLOURS
        if any(prediction.limit_share(limit) > SHOWN_SHARE for prediction in predictions.values())
    ]
    bars = []
    for limit in limits:
        shares = [prediction.limit_share(limit) for prediction in predictions.values()]
        bars.append(
            {
                "type": "bar",
                "y": list(names.values()),
                "x": [prediction.breakdown.limits_s.get(limit, 0.0) for prediction in predictions.values()],
                "name": kind_label(limit),
                "orientation": "h",
                "marker": {"color": _LIMIT_COLOURS[limit]},
                "text": [f"{share:.0%}" if share > 0.05 else "" for share in shares],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "customdata": shares,
                "hovertemplate": "%{y}: %{x:.3g} s, %{customdata:.1%} of the request<extra>%{fullData.name}</extra>",
            }
        )
    speedups = [
        {"x": prediction.request_s, "y": names[name], "text": f"{prediction.speedup.value:.2f}x"}
        for name, prediction in predictions.items()
    ]
    return figure(
        "Where a request's time goes",
        scenario_label(scenario),
        data=bars,
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "height": 140 + 70 * len(predictions),
            "xaxis": {
                "title": {"text": f"seconds per request{'' if compact else ', with the speedup over standard'}"},
                # room for the speedups, on a phone too
                "range": [0, longest_s * (1.2 if compact else 1.08)],
            },
            "yaxis": {"autorange": "reversed"},
            "legend": {"traceorder": "normal"},
            "uniformtext": {"mode": "hide", "minsize": 10},
            "annotations": [{**speedup, "showarrow": False, "xanchor": "left", "xshift": 6} for speedup in speedups],
        },
    )


def timeline_figure(
    scenario: Scenario, predictions: Mapping[str, Prediction], phase: str = "decode", *, compact: bool = False
) -> Figure:
    """Draw two layers in the middle of a forward pass: what each stream of a GPU does, two lanes a variant.

    Hatched is communication while nothing computes. A `compact` figure is a part of a page, which explains that itself.
    Raises UsageError if there is no decode step, because only one token is asked for.
    """
    bars: list[tuple[str, Bar]] = []
    exposed: list[tuple[str, float, float]] = []
    for variant, prediction in predictions.items():
        step = prediction.request.prefill if phase == "prefill" else prediction.request.decode
        if step is None:
            raise UsageError("one new token needs no decode step", hint="ask for more with --gen")
        window = list(step_bars(step))
        bars += [(_lane(variant, bar.stream), bar) for bar in window]
        exposed += [(_lane(variant, COMM), start, end) for start, end in exposed_us(window)]
    lanes = [_lane(variant, stream) for variant in predictions for stream in _LANES]
    edge = {"color": "white", "width": 0.5}
    data: list[dict[str, Any]] = []
    for name, colour in sorted({bar.kind for _, bar in bars}):
        members = [(lane, bar) for lane, bar in bars if bar.kind == (name, colour)]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [lane for lane, _ in members],
                "base": [bar.start_us for _, bar in members],
                "x": [bar.end_us - bar.start_us for _, bar in members],
                "customdata": [(bar.op, bar.source) for _, bar in members],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:.2f} us, %{customdata[1]}<extra></extra>",
                "marker": {"color": colour, "line": edge},
            }
        )
    data.append(
        {
            "type": "bar",
            "orientation": "h",
            "name": "exposed",
            "y": [lane for lane, _, _ in exposed],
            "base": [start for _, start, _ in exposed],
            "x": [end - start for _, start, end in exposed],
            "showlegend": not compact,
            # the background is stated for the legend, where there is no bar below
            "marker": {
                "pattern": {"shape": "/", "bgcolor": _KINDS["all_reduce"][1], "fgcolor": "white", "size": 6},
                "line": edge,
            },
            "hoverinfo": "skip",
        }
    )
    layout = {
        "barmode": "overlay",
        "bargap": 0.2,
        "height": 150 + 46 * len(lanes),
        "xaxis": {"title": {"text": "microseconds"}, "rangemode": "tozero"},
        "yaxis": {"categoryorder": "array", "categoryarray": lanes[::-1], "tickfont": {"size": 12}, "showgrid": False},
    }
    return figure(f"Two layers of one {phase} step", scenario_label(scenario), data=data, layout=layout)


def exposed_us(bars: Iterable[Bar]) -> Iterator[tuple[float, float]]:
    """Yield begin and end of communication while nothing computes, microseconds."""
    bars = list(bars)
    computing, communicating = (
        union((bar.start_us, bar.end_us) for bar in bars if bar.stream == stream) for stream in (COMPUTE, COMM)
    )
    yield from subtract(communicating, computing)


def _lane(variant: str, stream: int) -> str:
    return f"{variant}<br>{_LANES[stream]}"


def step_bars(step: ForwardPass) -> Iterator[Bar]:
    """Yield the ops of two layers of the longest run of equal ones, up to the next layer's first computation."""
    timeline, schedule = step.timeline, step.simulated[0]
    ops = schedule.ops
    first = len(timeline.end_s) - len(ops)
    sources = {summary.op.name: summary.estimate.source for summary in step.ops}
    kept = [layer.index for layer in schedule.layout.wiring.layers]
    # the second layer where none is left out
    at = kept.index(max(kept[1:] or kept, key=lambda index: schedule.layout.wiring.repeats[index]))
    chosen = kept[at : at + _TIMELINE_LAYERS]
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
            stream = timeline.program.tasks[number].stream
            yield Bar(_KINDS.get(op.kind, _SMALL), stream, start * 1e6, end * 1e6, op.name, sources[op.name])
