"""A cross-check: what ran, a row per quantity and the verdict as text, and a page with figures."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.report.console import table, to_html
from ladder_sim.report.figures.style import TEXT_COLOUR, figure, figure_html, log_axis, page, variant_colour
from ladder_sim.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = ("link", "variant", "", "predicted", "measured", "95 % interval", "error", "bound")
# as `ladder_sim_calibration.crosscheck.run` makes it
Result = Mapping[str, Any]


def crosscheck_report(result: Result) -> RenderableType:
    """Return what ran, every row, and the verdict."""
    return Group(
        Text(title(result)), Text(), table(COLUMNS, rows_of(result), left=3, keys=3), Text(), Text(verdict(result))
    )


def title(result: Result) -> str:
    """Return what ran where."""
    run, machine = result["run"], result["environment"]
    load, cores, threads = machine["load"], machine["cpu_cores"], run["threads"]
    return (
        f"{run['model']}: {run['layers']} layers, hidden {run['hidden']}, TP {run['tp']}, backend {run['backend']}, "
        f"batch {run['batch']}, prompt {run['prompt']}, {run['gen']} new tokens, stack {run['stack']}\n"
        f"fp32 on {machine['cpu']}, {cores} core{'s' * (cores > 1)}, torch {machine['torch']}, "
        f"{threads} thread{'s' * (threads > 1)} per rank; "
        f"{run['rounds']} rounds, load average {min(load):.1f} to {max(load):.1f}"
    )


def verdict(result: Result) -> str:
    """Return the errors of the predictions, and which of them exceed their bounds."""
    judged = [row for row in result["rows"] if row["bound"] is not None]
    exceeding = [f"{row['variant']} {row['quantity']} on {row['link']}" for row in judged if row["beyond"]]
    parts = []
    for name, quantities in (("latency", ("prefill", "decode")), ("speedup", ("speedup",))):
        errors = [abs(row["error"]) for row in judged if row["quantity"] in quantities]
        if errors:
            parts.append(f"Error of {name}: {sum(errors) / len(errors):.1%} on average, {max(errors):.1%} at most.")
    return " ".join(
        [*parts, f"Errors above their bound: {', '.join(exceeding)}." if exceeding else "No error exceeds its bound."]
    )


def fitted_to(result: Result) -> str:
    """Return what the profile behind the predictions was fitted to."""
    fitted = result.get("fitted")
    if fitted is None:
        return "Rows without a bound are not judged."
    waits = "".join(
        f" A computation that waited for a message of {format_bytes(wait['bytes'])} resumes "
        f"{format_seconds(wait['wake_s'])} after its end; during a computation the message takes {wait['slowed']:.0%} "
        f"longer, and {wait['core_share']:.0%} of the computation's core."
        for wait in fitted["waits"]
    )
    return (
        f"Fitted to {fitted['kernels']} kernels of passes without communication, timed in place, and to standard on "
        f"one link.{waits} Rows without a bound are not judged."
    )


def rows_of(result: Result) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the table, row by row."""
    for row in result["rows"]:
        if row["quantity"] == "request":
            continue
        write = "{:.3f}".format if row["quantity"] == "speedup" else format_seconds
        yield (
            row["link"],
            row["variant"],
            row["quantity"],
            write(row["predicted"]),
            write(row["measured"]),
            f"{write(row['low'])} to {write(row['high'])}",
            f"{row['error']:+.1%}" + (" !" if row["beyond"] else ""),
            "-" if row["bound"] is None else f"{row['bound']:.0%}",
        )


_SYMBOLS = {"prefill": "circle", "decode": "diamond"}


def crosscheck_page(result: Result) -> str:
    """Return the page of a cross-check; it needs no network."""
    style = "body{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:1280px;margin:2em auto;color:#262626}"
    body = (
        "<h1>Predicted and measured on one machine</h1>\n"
        f"{figure_html(error_figure(result))}\n{to_html(crosscheck_report(result))}\n<p>{escape(fitted_to(result))}</p>"
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
