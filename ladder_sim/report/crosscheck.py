"""A cross-check: what ran, a row per quantity and the verdict as text, and a page with figures."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.report.console import table, to_html
from ladder_sim.report.errors import Group as Points
from ladder_sim.report.errors import parity_figure
from ladder_sim.report.figures.style import Figure, figure_html, page, variant_colour
from ladder_sim.units import counted_text, format_bytes, format_seconds
from ladder_sim.validation.compare import Quantity

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
        f"fp32 on {machine['cpu']}, {counted_text(cores, 'core')}, torch {machine['torch']}, "
        f"{counted_text(threads, 'thread')} per rank; "
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
    fitted = result["fitted"]
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


_LATENCIES = ("prefill", "decode")


def crosscheck_page(result: Result) -> str:
    """Return the page of a cross-check; it needs no network."""
    style = "body{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:1280px;margin:2em auto;color:#262626}"
    body = (
        "<h1>Predicted and measured on one machine</h1>\n"
        f"{figure_html(error_figure(result))}\n{to_html(crosscheck_report(result))}\n<p>{escape(fitted_to(result))}</p>"
    )
    return page("Cross-check", body, style)


def error_figure(result: Result) -> Figure:
    """Draw predicted over measured latencies of every wiring, in ms."""
    points: dict[str, list[tuple[str, Quantity]]] = {}
    for row in result["rows"]:
        if row["quantity"] in _LATENCIES:
            predicted = Interval.around(row["predicted"], 0.0)
            quantity = Quantity(measured=row["measured"], predicted=predicted)
            points.setdefault(row["variant"], []).append((f"{row['quantity']}, {row['link']}", quantity))
    groups = (Points(name, members, {"color": variant_colour(name)}) for name, members in points.items())
    return parity_figure("Predicted and measured on one machine", title(result), "latency (ms)", groups, 1e-3)
