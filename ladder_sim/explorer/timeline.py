"""The timeline of one step, with what each op's time rests on and the communication that nothing hides."""

from collections.abc import Mapping
from typing import Any

from ladder_sim.explorer.answers import Found
from ladder_sim.report.figures.prediction import timeline_figure

_EXPOSED = "#D55E00"
# an all-reduce's colour


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
    steps = {name: one.prefill if phase == "prefill" else one.decode for name, one in found.predictions.items()}
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
