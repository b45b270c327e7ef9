"""A cross-check's predictions against its measurements: latencies by parity, speedups by link; and its page."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from ladder_sim.report.figures.page import figure_html, page
from ladder_sim.report.figures.style import TEXT_COLOUR, figure, log_axis, variant_colour
from ladder_sim.report.tables.crosscheck import COLUMNS, Result, fitted_to, rows_of, title, verdict

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SYMBOLS = {"prefill": "circle", "decode": "diamond"}


def crosscheck_page(result: Result) -> str:
    """Return the page of a cross-check; it needs no network."""
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in rows_of(result)
    )
    style = (
        "body{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:1280px;margin:2em auto;color:#262626}"
        "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right}"
        "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}tr:nth-child(even){background:#f5f5f5}"
    )
    body = (
        "<h1>Predicted and measured on one machine</h1>\n"
        f"<p>{escape(title(result)).replace(chr(10), '<br>')}</p>\n<p><b>{escape(verdict(result))}</b></p>\n"
        f"{figure_html(error_figure(result))}\n<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>\n"
        f"<p>{escape(fitted_to(result))}</p>"
    )
    return page("Cross-check", body, style)


def error_figure(result: Result) -> "go.Figure":
    """Draw predicted over measured latency on the left; on the right speedups, measured bars, predicted markers."""
    import plotly.graph_objects as go

    rows = result["rows"]
    latencies = [row for row in rows if row["quantity"] in _SYMBOLS]
    values_ms = [1e3 * row[key] for row in latencies for key in ("predicted", "measured")]
    drawn = figure(
        "Predicted and measured on one machine",
        "circles: prefill, diamonds: decode; whiskers: 95 % intervals of measured medians",
    )
    drawn.update_layout(
        width=1240,
        height=620,
        barmode="group",
        xaxis={**log_axis("measured latency, ms", values_ms), "domain": [0.0, 0.42]},
        yaxis=log_axis("predicted latency, ms", values_ms),
        xaxis2={
            "domain": [0.5, 1.0],
            "anchor": "y2",
            "title": {"text": "link, by the part of standard's time that messages take"},
            "type": "category",
        },
        yaxis2={"anchor": "x2", "title": {"text": "speedup over standard: bars measured, dashes predicted"}},
    )
    span = [min(values_ms), max(values_ms)]
    line = {"color": TEXT_COLOUR, "width": 1}
    drawn.add_trace(go.Scatter(x=span, y=span, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in latencies if row["variant"] == variant]
        drawn.add_trace(
            go.Scatter(
                x=[1e3 * row["measured"] for row in own],
                y=[1e3 * row["predicted"] for row in own],
                error_x=_whiskers(own, 1e3),
                mode="markers",
                name=variant,
                legendgroup=variant,
                marker={
                    "color": variant_colour(variant),
                    "symbol": [_SYMBOLS[row["quantity"]] for row in own],
                    "size": 9,
                },
                text=[f"{row['quantity']}, {row['link']}: {row['error']:+.1%}" for row in own],
                hovertemplate="%{text}<extra>" + variant + "</extra>",
            )
        )
        speedups = [row for row in rows if row["variant"] == variant and row["quantity"] == "speedup"]
        if speedups:
            _add_speedups(drawn, variant, speedups)
    return drawn


def _add_speedups(drawn: "go.Figure", variant: str, rows: list[Mapping[str, Any]]) -> None:
    import plotly.graph_objects as go

    shared = {
        "x": [row["link"] for row in rows],
        "xaxis": "x2",
        "yaxis": "y2",
        "offsetgroup": variant,
        "legendgroup": variant,
        "showlegend": False,
    }
    marker = {"color": variant_colour(variant)}
    drawn.add_trace(
        go.Bar(**shared, y=[row["measured"] for row in rows], error_y=_whiskers(rows, 1.0), marker=marker, name=variant)
    )
    drawn.update_layout(scattermode="group")
    drawn.add_trace(
        go.Scatter(
            **shared,
            y=[row["predicted"] for row in rows],
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 16, "color": TEXT_COLOUR, "line": {"width": 2}},
            text=[f"{row['error']:+.1%}" for row in rows],
            hovertemplate="%{y:.3f}, %{text}<extra>" + variant + " predicted</extra>",
        )
    )


def _whiskers(rows: list[Mapping[str, Any]], scale: float) -> dict[str, Any]:
    return {
        "array": [scale * (row["high"] - row["measured"]) for row in rows],
        "arrayminus": [scale * (row["measured"] - row["low"]) for row in rows],
        "thickness": 1,
        "width": 3,
        "color": TEXT_COLOUR,
    }
