"""Measured figures next to predicted ones, and errors over many of them: what all comparisons show in the same way."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.display.labels import scenario_label
from ladder_sim.report.columns import Column, fields_of, percent
from ladder_sim.report.figures.style import NOW_MARKER, TEXT_COLOUR, error_bars, figure, log_axis, variant_colour
from ladder_sim.report.report import Remark
from ladder_sim.validation.compare import Comparison, ErrorStats, Quantity, Validation, error_stats, unseen
from ladder_sim.validation.load import LoadValidation
from ladder_sim.validation.nearest import Likeness
from ladder_sim.validation.serving import ServingValidation, summary

if TYPE_CHECKING:
    import plotly.graph_objects as go

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


# of the intervals
_PALE_COLOUR = "#BFBFBF"
_Row = tuple[Comparison, Quantity]


def error_figure(compared: Validation) -> "go.Figure":
    """Draw speedups at the strongest level, predicted over measured, and differences; hollow: seen by the fit."""
    import plotly.graph_objects as go

    rows = sorted(((row, row.speedup) for row in compared.rows if row.speedup), key=_order)
    title = f"Speedup over standard, predicted and measured: {compared.data.name}"
    drawn = figure(title, _summary(compared.level, compared.rows))
    drawn.update_layout(
        width=1240,
        height=640,
        xaxis={"domain": [0.0, 0.4], "title": {"text": "measured speedup"}},
        yaxis={"title": {"text": "predicted speedup, 90 % interval"}},
        xaxis2={"domain": [0.49, 1.0], "anchor": "y2", "type": "multicategory", "title": {"text": "batch"}},
        yaxis2={"anchor": "x2", "title": {"text": "error of the predicted speedup"}, "ticksuffix": " %"},
    )
    if not rows:
        return drawn
    low, high = _span(rows)
    line = {"color": TEXT_COLOUR, "width": 1}
    drawn.add_trace(
        go.Scatter(x=[low, high], y=[low, high], mode="lines", line=line, showlegend=False, hoverinfo="skip")
    )
    # drawn first, so that the axis is in this order whatever each variant lacks
    places = list(zip(*map(_place, rows), strict=True))
    drawn.add_trace(go.Scatter(x=places, y=[None] * len(rows), xaxis="x2", yaxis="y2", showlegend=False))
    for variant in dict.fromkeys(row.measurement.variant for row, _ in rows):
        own = [row for row in rows if row[0].measurement.variant == variant]
        for seen in (False, True):
            members = [row for row in own if row[0].seen == seen]
            if members:
                name = f"{variant}, seen by the fit" if seen else variant
                markers = _markers(name, variant, members)
                drawn.add_trace(go.Scatter(**markers, **_parity(members)))
                drawn.add_trace(go.Scatter(**markers, **_errors(members)))
    drawn.add_shape(type="line", x0=0.0, x1=1.0, y0=0.0, y1=0.0, line=line, xref="x2 domain", yref="y2")
    return drawn


def servings_figure(comparisons: ServingValidation) -> "go.Figure":
    """Time per token of servings, predicted over measured."""
    errors, _ = summary(comparisons)
    subtitle = f"{errors.rows} servings: error {errors.mean_error:.1%} on average" if errors else "nothing to compare"
    points = [(each.serving.setup.stack, str(each.serving), each.tpot) for each in comparisons if each.tpot]
    title = f"Time per token with requests in flight, predicted and measured: {comparisons.name}"
    return _parity_figure(title, subtitle, "TPOT", points)


def loads_figure(comparisons: LoadValidation) -> "go.Figure":
    """Draw times of requests under load, predicted over measured."""
    points = [
        (figure.partition("_")[0].upper(), f"load {number}, {figure.removesuffix('_s')}", quantity)
        for number, each in enumerate(comparisons, 1)
        for figure, quantity in each.figures.items()
        if "per_s" not in figure
    ]
    title = f"Times of requests under load, predicted and measured: {comparisons.name}"
    return _parity_figure(title, f"{len(comparisons)} loads", "time", points)


def nearest_figure(runs: Sequence[Likeness], shown: int, subtitle: str = "") -> "go.Figure":
    """Draw measured runs, predicted over measured: the first `shown` with 90 % intervals, the others pale."""
    import plotly.graph_objects as go

    timed = runs[0].run.figure == "tpot"
    unit, what = (1e-3, "TPOT (ms)") if timed else (1.0, "speedup of ladder")
    drawn = figure(f"{what.partition(' (')[0]}, predicted and measured", subtitle)
    ends = [limit(each.run.quantity.measured for each in runs) / unit for limit in (min, max)]
    line = {"color": TEXT_COLOUR, "width": 1}
    drawn.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    near = [each.run.quantity for each in runs[:shown]]
    bars = error_bars([quantity.predicted for quantity in near], [unit] * len(near))
    for name, members, look in (
        ("other runs", runs[shown:], {"marker": {"color": _PALE_COLOUR, "size": 6}}),
        ("the nearest", runs[:shown], {"marker": {**NOW_MARKER, "symbol": "circle", "size": 9}, "error_y": bars}),
    ):
        drawn.add_trace(
            go.Scatter(
                x=[each.run.quantity.measured / unit for each in members],
                y=[each.run.quantity.predicted.value / unit for each in members],
                mode="markers",
                name=name,
                text=[scenario_label(each.run.scenario) for each in members],
                hovertemplate="%{text}<br>measured %{x:.4g}, predicted %{y:.4g}<extra></extra>",
                **look,
            )
        )
    values = [value for each in runs for value in (each.run.quantity.measured, each.run.quantity.predicted.value)]
    bounds = [bound for quantity in near for bound in (quantity.predicted.low, quantity.predicted.high)]
    return drawn.update_layout(
        xaxis=log_axis(f"measured {what}", [value / unit for value in values]),
        yaxis=log_axis(f"predicted {what}", [value / unit for value in (*values, *bounds)]),
    )


def _parity_figure(title: str, subtitle: str, what: str, points: Sequence[tuple[str, str, Quantity]]) -> "go.Figure":
    """Draw times, predicted over measured: each with its group and its name."""
    import plotly.graph_objects as go

    drawn = figure(title, subtitle)
    drawn.update_layout(
        xaxis={"type": "log", "title": {"text": f"measured {what} (ms)"}},
        yaxis={"type": "log", "title": {"text": f"predicted {what} (ms)"}},
    )
    if not points:
        return drawn
    ends = [1e3 * limit(quantity.measured for *_, quantity in points) for limit in (min, max)]
    line = {"color": TEXT_COLOUR, "width": 1}
    drawn.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    for group in dict.fromkeys(group for group, *_ in points):
        members = [(text, quantity) for name, text, quantity in points if name == group]
        drawn.add_trace(
            go.Scatter(
                x=[1e3 * quantity.measured for _, quantity in members],
                y=[1e3 * quantity.predicted.value for _, quantity in members],
                mode="markers",
                name=group,
                text=[text for text, _ in members],
                hovertemplate="%{text}<br>%{x:.1f} ms measured, %{y:.1f} predicted<extra>%{fullData.name}</extra>",
            )
        )
    return drawn


def _summary(level: str, comparisons: Sequence[Comparison]) -> str:
    errors = error_stats([row.speedup for row in unseen(comparisons)])
    if errors is None:
        return f"{level}: nothing to compare"
    return (
        f"{level}: {errors.rows} speedups of static batches that no fit has seen: error "
        f"{errors.mean_error:.1%} on average, {errors.max_error:.1%} at most; "
        f"{errors.inside:.0%} lie inside their interval"
    )


def _markers(name: str, variant: str, rows: Sequence[_Row]) -> dict[str, Any]:
    """Return what both traces of some rows share."""
    symbol = "circle-open" if rows[0][0].seen else "circle"
    return {
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "marker": {"color": variant_colour(variant), "symbol": symbol, "size": 9, "line": {"width": 1.5}},
    }


def _parity(rows: Sequence[_Row]) -> dict[str, Any]:
    speedups = [speedup for _, speedup in rows]
    return {
        "x": [speedup.measured for speedup in speedups],
        "y": [speedup.predicted.value for speedup in speedups],
        "error_y": {
            "array": [speedup.predicted.high - speedup.predicted.value for speedup in speedups],
            "arrayminus": [speedup.predicted.value - speedup.predicted.low for speedup in speedups],
            "color": _PALE_COLOUR,
            "thickness": 1.5,
            "width": 0,
        },
        "text": [", batch ".join(_place(row)).replace("<br>", ", ") for row in rows],
        "hovertemplate": "%{text}<br>measured %{x:.3f}, predicted %{y:.3f}<extra>%{fullData.name}</extra>",
    }


def _errors(rows: Sequence[_Row]) -> dict[str, Any]:
    return {
        "x": list(zip(*map(_place, rows), strict=True)),
        "y": [100.0 * speedup.error for _, speedup in rows],
        "showlegend": False,
        "xaxis": "x2",
        "yaxis": "y2",
        "hovertemplate": "%{x}: %{y:+.1f} %<extra>%{fullData.name}</extra>",
    }


def _place(row: _Row) -> tuple[str, str]:
    """Return where a row stands on the axis of errors: links and degree, then batch."""
    configuration = row[0].measurement.configuration
    return f"TP {configuration.tp}<br>P2P {'on' if configuration.p2p else 'off'}", str(configuration.batch)


def _order(row: _Row) -> tuple[bool, int, int]:
    configuration = row[0].measurement.configuration
    return not configuration.p2p, configuration.tp, configuration.batch


def _span(rows: Sequence[_Row]) -> tuple[float, float]:
    values = [value for _, speedup in rows for value in (speedup.measured, speedup.predicted.value)]
    return min(values) - 0.02, max(values) + 0.02
