"""Measured figures next to predicted ones, and errors over many of them: what all comparisons show in the same way."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.display.labels import scenario_label
from ladder_sim.report.columns import Column, fields_of, percent
from ladder_sim.report.figures.style import (
    NOW_MARKER,
    TEXT_COLOUR,
    Figure,
    error_bars,
    figure,
    log_axis,
    variant_colour,
)
from ladder_sim.report.report import Remark
from ladder_sim.validation.compare import ErrorStats, Quantity, Validation, error_stats, unseen
from ladder_sim.validation.load import LoadValidation
from ladder_sim.validation.nearest import Likeness
from ladder_sim.validation.serving import ServingValidation, summary

Row = TypeVar("Row")

# of one quantity, in JSON and CSV
QUANTITY: Sequence[Column[Quantity]] = (
    Column("measured", lambda each: each.measured),
    Column("predicted", lambda each: each.predicted.value),
    Column("low", lambda each: each.predicted.low),
    Column("high", lambda each: each.predicted.high),
    Column("error", lambda each: each.error),
    Column("inside", lambda each: each.inside, kind=bool),
)

# of errors, in JSON
ERRORS: Sequence[Column[ErrorStats]] = (
    Column("n", lambda each: each.rows, kind=int),
    Column("mean_abs_error", lambda each: each.mean_error),
    Column("median_abs_error", lambda each: each.median_error),
    Column("bias", lambda each: each.bias),
    Column("inside_90", lambda each: each.inside),
    Column("half_width", lambda each: each.half_width),
)


def quantity_columns(name: str, get: Callable[[Row], Quantity | None]) -> list[Column[Row]]:
    """Return the columns of a quantity that a row may lack, each name after a prefix."""

    def part_of(part: Column[Quantity]) -> Callable[[Row], Any]:
        return lambda row: None if (quantity := get(row)) is None else part.get(quantity)

    return [
        Column(f"{name}_{part.name}" if name else part.name, part_of(part), kind=part.kind, null=True)
        for part in QUANTITY
    ]


def error_columns(get: Callable[[Row], ErrorStats | None], mean: str = "mean error") -> list[Column[Row]]:
    """Return the columns of a table of errors that a row may lack; `mean` is the heading of the mean error."""

    def text(show: Callable[[ErrorStats], str]) -> Callable[[Row], str]:
        return lambda row: "-" if (errors := get(row)) is None else show(errors)

    return [
        Column("", text(lambda each: percent(each.mean_error)), mean),
        Column("", text(lambda each: percent(each.max_error)), "largest"),
        Column("", text(lambda each: percent(each.inside, 0)), "inside 90 %"),
        Column("", text(lambda each: percent(each.half_width)), "half-width"),
    ]


def left_out(notes: Iterable[str], whole: int, rows: str) -> Iterator[Remark]:
    """Yield a remark on the rows of a comparison that were not predicted, with the reason of most; none without any."""
    counts = Counter(notes)
    for note, count in counts.most_common(1):
        because = note.removeprefix("not predicted: ")
        yield Remark("left out", f"{counts.total()} of {whole} {rows}, {count} because: {because}.")


def error_fields(errors: ErrorStats | None) -> dict[str, Any] | None:
    """Return the errors as in JSON, fractions; None without any."""
    return fields_of(ERRORS, errors) if errors else None


def nearest_document(runs: Sequence[Likeness]) -> Document:
    """Return one row per measured run, in this order: what it was, where it differs from a scenario, its error."""
    rows = [
        {
            **scenario_fields(each.run.scenario),
            "apart": ", ".join(each.apart),
            "figure": each.run.figure,
            **fields_of(QUANTITY, each.run.quantity),
            "seen": each.run.seen,
        }
        for each in runs
    ]
    return Document.of_rows({}, rows)


# of intervals
_PALE_COLOUR = "#BFBFBF"


class Group(NamedTuple):
    """Points of a figure that look alike."""

    name: str
    points: Sequence[tuple[str, Quantity]]
    """Each with what it is of, as text."""
    look: Mapping[str, Any] = {}
    """Fields of the marker."""
    bars: bool = False
    """Whether the intervals of the predictions are drawn."""


def parity_figure(title: str, subtitle: str, what: str, groups: Iterable[Group], unit: float = 1.0) -> Figure:
    """Draw predicted over measured figures, each divided by a unit, and a line where they are equal."""
    shown = [each for each in groups if each.points]
    if not shown:
        titles = {"xaxis": f"measured {what}", "yaxis": f"predicted {what}"}
        return figure(title, subtitle, layout={axis: {"title": {"text": text}} for axis, text in titles.items()})
    every = [(quantity, each.bars) for each in shown for _, quantity in each.points]
    values = [value / unit for quantity, _ in every for value in (quantity.measured, quantity.predicted.value)]
    ends, line = [min(values), max(values)], {"color": TEXT_COLOUR, "width": 1}
    equal = {"type": "scatter", "x": ends, "y": ends, "mode": "lines", "line": line}
    data: list[dict[str, Any]] = [{**equal, "showlegend": False, "hoverinfo": "skip"}]
    for each in shown:
        predicted = [quantity.predicted for _, quantity in each.points]
        bars = {**error_bars(predicted, [unit] * len(predicted)), "color": _PALE_COLOUR, "width": 0}
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": each.name,
                "x": [quantity.measured / unit for _, quantity in each.points],
                "y": [value.value / unit for value in predicted],
                "marker": {"size": 9, **each.look},
                "text": [f"{text}: {quantity.error:+.1%}" for text, quantity in each.points],
                "hovertemplate": "%{text}<br>measured %{x:.4g}, predicted %{y:.4g}<extra>%{fullData.name}</extra>",
                **({"error_y": bars} if each.bars else {}),
            }
        )
    bounds = [end / unit for each, bars in every if bars for end in (each.predicted.low, each.predicted.high)]
    axes = {
        "xaxis": log_axis(f"measured {what}", values),
        "yaxis": log_axis(f"predicted {what}", [each for each in (*values, *bounds) if 0.0 < each < math.inf]),
    }
    return figure(title, subtitle, data=data, layout=axes)


def error_figure(compared: Validation) -> Figure:
    """Draw speedups of the strongest level, predicted over measured; hollow: seen by the fit."""
    groups: dict[tuple[str, bool], list[tuple[str, Quantity]]] = {}
    for row in compared.rows:
        if row.speedup:
            run = row.measurement.configuration
            place = f"TP {run.tp}, P2P {'on' if run.p2p else 'off'}, batch {run.batch}"
            groups.setdefault((row.measurement.variant, row.seen), []).append((place, row.speedup))
    errors = error_stats([row.speedup for row in unseen(compared.rows)])
    subtitle = f"{compared.level}: " + (
        f"{errors.rows} speedups of static batches that no fit has seen: error {errors.mean_error:.1%} on average, "
        f"{errors.max_error:.1%} at most; {errors.inside:.0%} lie inside their interval"
        if errors
        else "nothing to compare"
    )
    shown = (
        Group(
            f"{variant}, seen by the fit" if seen else variant,
            points,
            {"color": variant_colour(variant), "symbol": "circle-open" if seen else "circle", "line": {"width": 1.5}},
            bars=True,
        )
        for (variant, seen), points in groups.items()
    )
    title = f"Speedup over standard, predicted and measured: {compared.data.name}"
    return parity_figure(title, subtitle, "speedup", shown)


def servings_figure(comparisons: ServingValidation) -> Figure:
    """Draw the time per token of servings, predicted over measured."""
    errors, _ = summary(comparisons)
    subtitle = f"{errors.rows} servings: error {errors.mean_error:.1%} on average" if errors else "nothing to compare"
    points = [(each.serving.setup.stack, str(each.serving), each.tpot) for each in comparisons if each.tpot]
    title = f"Time per token with requests in flight, predicted and measured: {comparisons.name}"
    return parity_figure(title, subtitle, "TPOT (ms)", grouped(points), 1e-3)


def loads_figure(comparisons: LoadValidation) -> Figure:
    """Draw times of requests under load, predicted over measured."""
    points = [
        (figure.partition("_")[0].upper(), f"load {number}, {figure.removesuffix('_s')}", quantity)
        for number, each in enumerate(comparisons, 1)
        for figure, quantity in each.figures.items()
        if "per_s" not in figure
    ]
    title = f"Times of requests under load, predicted and measured: {comparisons.name}"
    return parity_figure(title, f"{len(comparisons)} loads", "time (ms)", grouped(points), 1e-3)


def nearest_figure(runs: Sequence[Likeness], shown: int) -> Figure:
    """Draw measured runs, predicted over measured: the first `shown` with 90 % intervals, hollow if a fit saw them."""
    timed = runs[0].run.figure == "tpot"
    unit, what = (1e-3, "TPOT (ms)") if timed else (1.0, "speedup of ladder")
    points = [(scenario_label(each.run.scenario), each.run.quantity) for each in runs]
    nearest = {
        seen: [point for point, each in zip(points[:shown], runs, strict=False) if each.run.seen == seen]
        for seen in (False, True)
    }
    colour = NOW_MARKER["color"]
    look = {"color": colour, "line": {"color": colour, "width": 1.5}}
    groups = (
        Group("other runs", points[shown:], {"color": _PALE_COLOUR, "size": 6}),
        Group("the nearest", nearest[False], look, bars=True),
        Group("the nearest, seen by a fit", nearest[True], {**look, "symbol": "circle-open"}, bars=True),
    )
    return parity_figure(f"{what.partition(' (')[0]}, predicted and measured", "", what, groups, unit)


def grouped(points: Iterable[tuple[str, str, Quantity]]) -> list[Group]:
    """Return points as groups, by the first word of each."""
    groups: dict[str, list[tuple[str, Quantity]]] = {}
    for name, text, quantity in points:
        groups.setdefault(name, []).append((text, quantity))
    return [Group(name, members) for name, members in groups.items()]
