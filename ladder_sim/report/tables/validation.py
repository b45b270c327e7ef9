"""Measured runs and their predictions, as tables."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.labels import hardware_label, interval_text, stack_label
from ladder_sim.report.console import table
from ladder_sim.serving import Traffic
from ladder_sim.serving.requests.result import Result
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_rate, format_seconds
from ladder_sim.validation.compare import (
    Comparison,
    ComparisonsByLevel,
    ErrorStats,
    GroupSummary,
    Quantity,
    error_stats,
    evidence,
    summarize,
    unseen,
)
from ladder_sim.validation.dataset import Configuration, Dataset
from ladder_sim.validation.load import LoadComparison, summarize_loads
from ladder_sim.validation.serving import REPEATS, ServingComparison, summarize_servings, summary

ROW_COLUMNS = ("variant", "TP", "P2P", "batch", "use", "tok/s", "predicted", "error", "in")
SPEEDUP_COLUMNS = ("speedup", "predicted (90%)", "error", "in")
SUMMARY_COLUMNS = (
    *("variant", "P2P", "TP", "rows", "unseen"),
    *("speedup: mean", "max", "inside", "half-width"),
    *("tok/s: mean", "max", "inside", "half-width"),
)
LEVEL_COLUMNS = (
    *("level", "rows", "ladder speedup, P2P on", "ladder speedup, P2P off", "parallel, upper bound"),
    *("tok/s", "inside", "half-width"),
)

SERVING_COLUMNS = (
    *("", "rows", "TPOT: mean", "median", "bias", "inside", "half-width"),
    *("TTFT: mean", "median", "bias", "inside", "half-width"),
)
# headings of the groups that errors are shown by
GROUPS = {
    "engine": "engine",
    "stack": "version",
    "setup": "version, GPU, model, plan",
    "plan": "plan",
    "tp": "TP",
    "concurrency": "requests in flight",
}
FAR_COLUMNS = ("line", "serving", "TPOT", "predicted (90%)", "error", "note")
# errors from which a row of servings is named
FAR_OFF = 0.2
FIGURE_COLUMNS = ("figure", "measured", "predicted (90%)", "error", "in")
# loads of which each figure is shown
_SHOWN_LOADS = 4


def validation_report(data: Dataset, comparisons: ComparisonsByLevel) -> RenderableType:
    """Every row at the strongest level, then the summaries of each level."""
    level, rows = list(comparisons.items())[-1]
    head = f"{data.name}: {len(data.measurements)} measured configurations, static batches"
    parts: list[RenderableType] = [Text(head, "bold")]
    for title, members in by_setup(rows).items():
        noted = any(member.note for member in members)
        columns = (*ROW_COLUMNS, *SPEEDUP_COLUMNS, *(["note"] if noted else []))
        body = [row_cells(member)[: len(columns)] for member in members]
        parts += [Text(), Text(f"{level} ({evidence(level)}): {title}")]
        parts.append(table(columns, body, keys=4, wrapped=("predicted (90%)", "note")))
    for level, rows in comparisons.items():
        title = f"{level}: absolute errors, share of rows inside the 90 % interval, and its mean half-width"
        body = list(map(summary_cells, summarize(rows)))
        parts += [Text(), Text(title), table(SUMMARY_COLUMNS, body, keys=3, wrapped=SUMMARY_COLUMNS[5:])]
    title = "rows that the fit has not seen: mean and largest absolute error, 90 % intervals"
    parts += [Text(), Text(title), table(LEVEL_COLUMNS, level_cells(comparisons), wrapped=LEVEL_COLUMNS[2:])]
    return Group(*parts)


def servings_report(name: str, comparisons: Sequence[ServingComparison]) -> RenderableType:
    """Errors of all and by group, the rows that are far off, and those that are not predicted, with the reason."""
    parts: list[RenderableType] = [Text(f"{name}: {len(comparisons)} measured servings, continuous batching", "bold")]
    title = "absolute errors, mean signed error, share of rows inside the 90 % interval, and its mean half-width"
    parts += [Text(title), Text()]
    everything = ("all", *_serving_cells(summary(comparisons)))
    for by, values in summarize_servings(comparisons).items():
        if by in GROUPS:
            rows = [(value, *_serving_cells(pair)) for value, pair in values.items()]
            columns = (GROUPS[by], *SERVING_COLUMNS[1:])
            parts += [table(columns, [*rows, *([everything] if by == "engine" else [])]), Text()]
    timed = [each for each in comparisons if each.tpot]
    far = [each for each in timed if each.tpot and abs(each.tpot.error) > FAR_OFF]
    parts.append(Text(f"rows whose TPOT is off by more than {FAR_OFF:.0%}: {len(far)} of {len(timed)}"))
    if far:
        parts.append(table(FAR_COLUMNS, list(map(_far_cells, far)), left=2, wrapped=("serving", "note")))
    repeats = sum(each.note.startswith(REPEATS) for each in comparisons)
    if repeats:
        parts.append(Text(f"rows that repeat an earlier one exactly, and count again: {repeats} (--json says which)"))
    missing: dict[str, list[int]] = {}
    for each in comparisons:
        if each.ttft is None:
            missing.setdefault(each.note, []).append(each.serving.line)
    for note, lines in missing.items():
        rows_lines = f"{len(lines)} rows, lines" if len(lines) > 1 else "line"
        parts.append(Text(f"{rows_lines} {', '.join(map(str, lines))}: {note}"))
    return Group(*parts)


def loads_report(name: str, comparisons: Sequence[LoadComparison]) -> RenderableType:
    """Every figure of few loads, errors by figure of many, and what is not predicted, with the reason."""
    timed = [each for each in comparisons if each.scenario and each.figures]
    parts: list[RenderableType] = [Text(f"{name}: measured loads, simulated request by request", "bold")]
    for each in timed[:_SHOWN_LOADS]:
        assert each.scenario is not None
        rows = [_figure_cells(figure, quantity) for figure, quantity in each.figures.items()]
        parts += [Text(), Text(load_title(each.result, each.scenario)), table(FIGURE_COLUMNS, rows)]
    if len(timed) > 1:
        if len(timed) > _SHOWN_LOADS:
            parts += [Text(), Text(f"{len(timed) - _SHOWN_LOADS} further loads: --json and --csv have them")]
        errors = summarize_loads(timed).items()
        rows = [(_title(figure), str(each.rows), *_error_cells(each)) for figure, each in errors]
        columns = ("figure", "loads", "mean", "median", "bias", "inside", "half-width")
        parts += [Text(), Text("errors of all loads"), table(columns, rows)]
    notes = Counter(each.note for each in comparisons if each.note)
    parts += [Text(f"{count} load{'s' if count > 1 else ''}: {note}") for note, count in notes.items()]
    return Group(*parts)


def load_title(result: Result, scenario: Scenario) -> str:
    """What was measured, where and by what."""
    requests = result.requests
    count = requests.requests if isinstance(requests, Traffic) else len(requests)
    come = "as they were recorded"
    if isinstance(requests, Traffic):
        come = requests.arrivals
    elif result.concurrency:
        come = f"{result.concurrency} in flight"
    where = f"{scenario.model.name}, {hardware_label(scenario)}, {stack_label(scenario)}"
    return f"{where}; {result.tool}, {count} requests, {come}"


def _figure_cells(name: str, quantity: Quantity) -> tuple[str, ...]:
    show = format_seconds if name.endswith("_s") and not name.endswith("per_s") else format_rate
    return _title(name), show(quantity.measured), interval_text(quantity.predicted, show), *_verdict(quantity)


def _title(name: str) -> str:
    """A figure as a heading: "TTFT p99", "tok/s"."""
    rates = {"requests_per_s": "requests/s", "tokens_per_s": "tok/s", "tokens_per_s_per_gpu": "tok/s per GPU"}
    metric, _, statistic = name.removesuffix("_s").partition("_")
    return rates.get(name, f"{metric.upper()} {statistic}")


def _serving_cells(pair: tuple[ErrorStats | None, ErrorStats | None]) -> tuple[str, ...]:
    rows = str(max(each.rows if each else 0 for each in pair))
    return rows, *(cell for each in pair for cell in _error_cells(each))


def _error_cells(errors: ErrorStats | None) -> tuple[str, ...]:
    if errors is None:
        return ("-",) * 5
    return (
        f"{errors.mean_error:.1%}",
        f"{errors.median_error:.1%}",
        f"{errors.bias:+.1%}",
        f"{errors.inside:.0%}",
        f"{errors.half_width:.1%}",
    )


def _far_cells(comparison: ServingComparison) -> tuple[str, ...]:
    row, tpot = comparison.serving, comparison.tpot
    measured = str(row.line), str(row), format_seconds(row.tpot_s)
    if tpot is None:
        return *measured, "-", "-", comparison.note
    return *measured, interval_text(tpot.predicted, format_seconds), f"{tpot.error:+.1%}", comparison.note


def level_cells(comparisons: ComparisonsByLevel) -> list[tuple[str, ...]]:
    """One row per level over what no fit has seen, by `LEVEL_COLUMNS`."""
    cells = []
    for level, rows in comparisons.items():
        unseen_rows = unseen(rows)
        ladder = [row for row in unseen_rows if row.measurement.variant == "ladder"]
        direct = [row.speedup for row in ladder if row.measurement.configuration.p2p]
        through_host = [row.speedup for row in ladder if not row.measurement.configuration.p2p]
        others = [row.speedup for row in unseen_rows if row.measurement.variant in ("parallel", "upper-bound")]
        rates = [row.tokens_per_s for row in unseen_rows]
        coverage = _coverage([*(row.speedup for row in unseen_rows), *rates])
        cells.append((level, str(len(unseen_rows)), *map(_errors, (direct, through_host, others, rates)), *coverage))
    return cells


def _errors(quantities: Iterable[Quantity | None]) -> str:
    errors = error_stats(quantities)
    return f"{errors.mean_error:.1%}, {errors.max_error:.1%}" if errors else "-"


def _coverage(quantities: Iterable[Quantity | None]) -> tuple[str, str]:
    errors = error_stats(quantities)
    return (f"{errors.inside:.0%}", f"{errors.half_width:.1%}") if errors else ("-", "-")


def by_setup(rows: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Rows under a title that says what they share."""
    parts: dict[str, list[Comparison]] = {}
    for row in rows:
        parts.setdefault(_setup(row.measurement.configuration), []).append(row)
    return parts


def _setup(configuration: Configuration) -> str:
    nodes = f" x {configuration.nodes}" if configuration.nodes > 1 else ""
    source = f" ({configuration.source})" if configuration.source else ""
    return (
        f"{configuration.model} on {configuration.cluster}{nodes}, stack {configuration.stack}, {configuration.dtype}, "
        f"prompt {configuration.prompt}, {configuration.gen} new tokens{source}"
    )


def row_cells(comparison: Comparison) -> tuple[str, ...]:
    """One comparison as text: `ROW_COLUMNS`, `SPEEDUP_COLUMNS` and the note."""
    row, rate, speedup = comparison.measurement, comparison.tokens_per_s, comparison.speedup
    return (
        row.variant,
        str(row.configuration.tp),
        _on(row.configuration.p2p),
        str(row.configuration.batch),
        "fit" if comparison.seen else "test",
        f"{row.tokens_per_s:.1f}",
        f"{rate.predicted.value:.1f}" if rate else "-",
        *_verdict(rate),
        f"{speedup.measured:.3f}" if speedup else "-",
        interval_text(speedup.predicted, "{:.3f}".format) if speedup else "-",
        *_verdict(speedup),
        comparison.note,
    )


def _verdict(quantity: Quantity | None) -> tuple[str, str]:
    return (f"{quantity.error:+.1%}", "in" if quantity.inside else "out") if quantity else ("-", "-")


def summary_cells(summary: GroupSummary) -> tuple[str, ...]:
    """One summary as text, by `SUMMARY_COLUMNS`."""
    counts = str(summary.rows), str(summary.unseen)
    spreads = *_spread(summary.speedup), *_spread(summary.tokens_per_s)
    return summary.variant, _on(summary.p2p), summary.tps, *counts, *spreads


def _on(p2p: bool) -> str:
    return "on" if p2p else "off"


def _spread(spread: ErrorStats | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 4
    return f"{spread.mean_error:.1%}", f"{spread.max_error:.1%}", f"{spread.inside:.0%}", f"{spread.half_width:.1%}"
