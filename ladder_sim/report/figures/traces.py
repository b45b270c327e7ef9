"""A run as a figure: a row for each stream, a bar for each op."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ladder_sim.report.columns import cut
from ladder_sim.report.figures.style import SERIES_COLOURS, TEXT_COLOUR, figure
from ladder_sim.traces.graph import COLLECTIVES, HOST_KINDS, TraceGraph
from ladder_sim.traces.summary import exposed_spans

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MS = 1e3
_COMM, _EXPOSED, _HOST, _SYNC, _SMALL = "communication", "exposed communication", "CPU", "waiting CPU", "other kernels"
# kinds of bars, in the order of the legend
_COLOURS = {
    "gemm": SERIES_COLOURS[0],
    "attention": SERIES_COLOURS[1],
    _SMALL: SERIES_COLOURS[2],
    _COMM: SERIES_COLOURS[5],
    _EXPOSED: TEXT_COLOUR,
    _HOST: "#B5B5B5",
    _SYNC: SERIES_COLOURS[7],
}
_GROUPS = {
    **dict.fromkeys(("gemm", "lm_head", "router", "bmm", "expand", "experts"), "gemm"),
    "attention": "attention",
    "sync": _SYNC,
    **dict.fromkeys(COLLECTIVES, _COMM),
    **dict.fromkeys(HOST_KINDS, _HOST),
}
# characters of a kernel's name: C++ templates run to hundreds
SHOWN_NAME = 60
# height of a stream, and of title, axis and legend together
ROW_PX, MARGIN_PX = 36, 190
# bars of a run that a browser draws without delay
MAX_OPS = 20_000
# iterations whose names fit next to each other
MAX_STEPS = 12


def trace_figure(runs: Mapping[str, TraceGraph], title: str) -> "go.Figure":
    """Draw the timelines of one run, or of several below each other."""
    import plotly.graph_objects as go

    bars: dict[str, list[tuple[str, float, float, str]]] = {kind: [] for kind in _COLOURS}
    rows: list[str] = []
    for name, graph in runs.items():
        several = len({lane.rank for lane in graph.lanes}) > 1
        prefixes = {
            lane.rank: (f"{name}, " if len(runs) > 1 else "") + (f"rank {lane.rank} " if several else "")
            for lane in graph.lanes
        }
        for op in graph.ops[:MAX_OPS]:
            if op.end_s > op.start_s:
                lane = graph.lanes[op.lane]
                bars[_GROUPS.get(op.kind, _SMALL)].append(
                    (prefixes[lane.rank] + lane.name, op.start_s, op.end_s, cut(op.name, SHOWN_NAME))
                )
        communicating = graph.communication_lanes()
        for rank, prefix in prefixes.items():
            exposed = exposed_spans(graph, rank)
            bars[_EXPOSED] += [(f"{prefix}exposed", start_s, end_s, _EXPOSED) for start_s, end_s in exposed]
            own = [number for number, lane in enumerate(graph.lanes) if lane.rank == rank]
            rows += [prefix + graph.lanes[number].name for number in sorted(own, key=communicating.__contains__)]
            rows.append(f"{prefix}exposed")
    drawn_rows = {row for spans in bars.values() for row, *_ in spans}
    rows = [row for row in rows if row in drawn_rows]
    drawn = figure(
        title,
        data=[
            go.Bar(
                name=kind,
                orientation="h",
                y=[row for row, *_ in spans],
                base=[start_s * _MS for _, start_s, _, _ in spans],
                x=[(end_s - start_s) * _MS for _, start_s, end_s, _ in spans],
                hovertext=[name for *_, name in spans],
                marker={"color": _COLOURS[kind], "line": {"width": 0}},
            )
            for kind, spans in bars.items()
            if spans
        ],
    )
    drawn.update_layout(
        barmode="overlay",
        bargap=0.25,
        height=MARGIN_PX + ROW_PX * len(rows),
        xaxis_title="time (ms)",
        yaxis={"categoryorder": "array", "categoryarray": rows[::-1]},
        legend={"yref": "container", "y": 0.0, "yanchor": "bottom"},
        margin={"b": 110, "t": 60},
    )
    if len(runs) == 1:
        _mark_steps(drawn, *runs.values())
    return drawn


def _mark_steps(drawn: "go.Figure", graph: TraceGraph) -> None:
    """Mark where iterations begin, if there is room for their names."""
    for step, name in enumerate(graph.steps if len(graph.steps) <= MAX_STEPS else ()):
        start_s = min((op.start_s for op in graph.ops if op.step == step), default=None)
        if start_s is not None:
            drawn.add_vline(
                start_s * _MS,
                line={"color": TEXT_COLOUR, "width": 1, "dash": "dot"},
                annotation={"text": name, "font": {"size": 11}, "yref": "paper", "y": 1.0, "yanchor": "bottom"},
                annotation_position="top right",
            )
