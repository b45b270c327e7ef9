"""The figures of an answer's rows: each has one name in JSON and CSV, and one heading and unit in tables."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ladder_sim.confidence.interval import Interval
from ladder_sim.display.labels import interval_text
from ladder_sim.report.console import GAP, WholeTable, table
from ladder_sim.units import decimals_of, step_for, unit_of

Row = TypeVar("Row")

# a figure whose interval is wider than this either way is said with two digits and no more
ROUGH = math.log(1.25)


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One figure of every row."""

    name: str
    """In JSON and CSV, the SI unit as its suffix: "tpot_s"; empty: it is in tables only."""
    get: Callable[[Row], Any]
    """Function that returns a row's value; an `Interval` takes three entries: the value, ``_low`` and ``_high``."""
    kind: Any = field(default=None, kw_only=True)
    """Type of its values in JSON, e.g. `int`, `str`, a Literal or `Interval`; None: what its name says: an argument of
    `Scenario` as there, else a number that is not negative."""
    null: bool = field(default=False, kw_only=True)
    """Whether a row may have no value."""
    heading: str = ""
    """In tables, without its unit; empty: it is in none."""
    shown: Callable[[Row], Any] | None = None
    """What tables show, if it is not the value."""
    ends: bool = True
    """Whether tables show the ends of an interval, or write "~" where it is wide."""
    share: bool = False
    """Whether tables show it in percent."""
    decimals: int | None = None
    """In tables; None: three digits."""

    def cells(self, rows: Sequence[Row]) -> tuple[str, list[str]]:
        """Return the heading with the unit, and the text of each row: numbers in the unit of the largest."""
        values = [(self.shown or self.get)(row) for row in rows]
        numbers = [each.value if isinstance(each, Interval) else float(each) for each in values if not _is_text(each)]
        scale, unit = (1.0, "")
        if numbers and not self.name.endswith("_per_s") and (kind := unit_of(self.name)) != "count":
            scale, unit = step_for(max(map(abs, numbers)), kind)
        interval = " (90 %)" if self.ends and any(isinstance(each, Interval) for each in values) else ""
        heading = f"{self.heading} [{unit}]" if unit else self.heading
        return heading + interval, [self._text(each, scale) for each in values]

    def _text(self, value: Any, scale: float) -> str:
        if _is_text(value):
            return "-" if value is None else str(value)
        if self.share:
            return percent(value, 0)
        if not isinstance(value, Interval):
            return number_text(value / scale) if isinstance(value, float) else str(value)
        if self.ends:
            return interval_text(value, scale=scale, decimals=self.decimals)
        rough = value.log_width > ROUGH
        return f"~{_rounded(value.value / scale, 2)}" if rough else number_text(value.value / scale)


def fields_of(columns: Iterable[Column[Row]], row: Row) -> dict[str, Any]:
    """Return the fields of a row in JSON and CSV; an end that is infinite or unknown is no number."""
    fields: dict[str, Any] = {}
    for column in columns:
        if not column.name:
            continue
        value = column.get(row)
        if isinstance(value, Interval):
            ends = ("", value.value), ("_low", value.low), ("_high", value.high)
            fields |= {f"{column.name}{end}": each if math.isfinite(each) else None for end, each in ends}
        else:
            fields[column.name] = value
    return fields


def table_of(
    columns: Iterable[Column[Row]],
    rows: Sequence[Row],
    *,
    left: int = 1,
    wrapped: Collection[str] | None = None,
    title: str = "",
    width: int = 0,
    spare: Sequence[str] = (),
) -> WholeTable:
    """Return the rows as a table, by the columns with a heading; the first `left` columns are text.

    Those with headings in `wrapped` take several lines where there is no room, as in `console.table`. With a width,
    columns that have no room are left out: those with headings in `spare`, the first of them first, then the last ones.
    """
    parts = {column.heading: column.cells(rows) for column in columns if column.heading}
    while width and sum(max(map(len, [heading, *cells])) + GAP for heading, cells in parts.values()) - GAP > width:
        parts.pop(next((each for each in spare if each in parts), list(parts)[-1]))
    headings = [heading for heading, _ in parts.values()]
    cells = list(zip(*(each for _, each in parts.values()), strict=True))
    return table(headings, cells, left=left, wrapped=wrapped, title=title)


def number_text(value: float) -> str:
    """Return a number as text, with three digits or with all of its whole part.

    Examples
    --------
    >>> number_text(19.268), number_text(3214.2), number_text(0.01234)
    ('19.3', '3214', '0.0123')
    """
    return f"{value:.{decimals_of(value)}f}"


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """Return a fraction as text in percent, with `digits` decimals below 100 %.

    Examples
    --------
    >>> percent(0.0171), percent(0.21, 0), percent(0.031, sign="+"), percent(9.825)
    ('1.7 %', '21 %', '+3.1 %', '982 %')
    """
    digits = digits if abs(share) < 1.0 else 0
    return f"{100.0 * share:{sign}.{digits}f} %"


def times_text(gain: Interval) -> str:
    """Return a ratio as it stands in a sentence: "1.26x (1.08-1.46)"."""
    value, _, ends = gain.text.partition(" ")
    return f"{value}x {ends}"


def cut(text: str, width: int) -> str:
    """Return a name that fits a column: C++ templates and paths run to hundreds of characters.

    Examples
    --------
    >>> cut("void gemm<float>", 9)
    'void g...'
    """
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _rounded(value: float, digits: int) -> str:
    """Return a number with this many significant digits."""
    if not value:
        return "0"
    places = digits - 1 - math.floor(math.log10(float(f"{abs(value):.{digits - 1}e}")))
    return f"{round(value, places):.{max(0, places)}f}"


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)
