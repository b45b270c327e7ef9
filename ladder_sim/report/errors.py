"""Measured figures next to predicted ones, and errors over many of them: what all comparisons show in the same way."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.report.columns import Column, fields_of, percent
from ladder_sim.report.report import Remark
from ladder_sim.validation.compare import ErrorStats, Quantity
from ladder_sim.validation.nearest import Likeness

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
