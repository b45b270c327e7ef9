"""Requests under load along their rate."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ladder_sim.report.figures.style import GRID_COLOUR, NOW_MARKER, figure, variant_colour
from ladder_sim.serving import SLO, Need, Outcome

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
        What is served, and what is promised.
    curves
        All with an SLO.
    needs
        Of each variant, which show as what one of its replicas does.
    """
    highest = max(rate for outcomes in curves.values() for rate in outcomes)
    everything = {**_line([0.0, highest], [0.0, highest]), "line": {"color": GRID_COLOUR, "width": 7}}
    data: list[Mapping[str, Any]] = [{**everything, "hoverinfo": "skip", "showlegend": False}]
    for name, outcomes in curves.items():
        colour, rates = variant_colour(name), sorted(outcomes)
        goods = [rate * outcomes[rate].good_share for rate in rates]
        # one line in two pieces, with a point in common
        last = max((number for number, rate in enumerate(rates) if outcomes[rate].kept), default=-1)
        for part, dash in ((slice(last + 1), "solid"), (slice(max(last, 0), None), "dot")):
            data.append(
                {
                    **_line(rates[part], goods[part]),
                    "name": name,
                    "legendgroup": name,
                    "showlegend": (dash == "solid") == (last >= 0),
                    "line": {"color": colour, "width": 2.5, "dash": dash},
                    "hovertemplate": "%{y:.3g} of %{x:.3g} requests/s keep their bounds",
                }
            )
        marks = []
        if last >= 0:
            marks.append((rates[last], goods[last], "circle", "highest rate at which one replica keeps the promise"))
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

    A thick line is the percentile that is promised, a thin one the median.
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
                        **_line(rates, [1e3 * outcomes[rate].seconds(bound.metric, percentile) for rate in rates]),
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


def _line(x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y)}
