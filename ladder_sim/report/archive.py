"""The answer of `validate` for an archive of measured runs: predictions made before them, and those of today."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.report.columns import Column, cut, fields_of, percent, table_of
from ladder_sim.report.console import table
from ladder_sim.report.errors import grouped, parity_figure
from ladder_sim.report.figures.style import Figure
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.units import format_seconds
from ladder_sim.validation.archive import FIGURES, Archive, Row
from ladder_sim.validation.compare import Quantity

COLUMNS = (
    "run",
    "variant",
    *(f"{label}{what}" for label in FIGURES.values() for what in (" (95 %)", ", predicted", ", error")),
)
NOT_MEASURED = "-"
# rows of the table, and characters of a run's name
_SHOWN, _NAME = 6, 30


def _figure_of(what: str, name: str) -> Callable[[Row], float | None]:
    return lambda row: getattr(row, what).get(name)


# in JSON and CSV
VALUES: Sequence[Column[Row]] = (
    Column("run", lambda each: each.run, kind=str),
    Column("variant", lambda each: each.variant),
    *(
        Column(f"{name}.{what}", _figure_of(what, name), null=True)
        for name in FIGURES
        for what in ("measured", "predicted", "now")
    ),
)


def _columns(name: str) -> list[Column[Row]]:
    return [
        Column(name, _figure_of("predicted", name), FIGURES[name]),
        Column(name, _figure_of("measured", name), "measured"),
        Column("", lambda each: None if (error := each.error(name)) is None else percent(error, sign="+"), "error"),
    ]


# in a table
SHOWN: Sequence[Column[Row]] = (
    Column("", lambda each: cut(f"{each.run}, {each.variant}", _NAME), "run"),
    *(column for name in ("tpot_s", "speedup") for column in _columns(name)),
)


class ArchiveReport(Report[Archive]):
    """How an archive looks."""

    figures: ClassVar = {"figures": lambda self: archive_figure(self.answer)}

    def _brief(self) -> Brief:
        archive, measured = self.answer, self.answer.measured
        left_out = [*missing(archive), *(f"{text[0].upper()}{text[1:]}." for text in archive.failures)]
        if len(measured) > _SHOWN:
            left_out.insert(0, f"{len(measured) - _SHOWN} of {len(measured)} measured rows: --explain has all.")
        today = _errors(archive, now=True)
        return Brief(
            sentence=_sentence(archive),
            asked=_asked(archive),
            table=table_of(SHOWN, measured[:_SHOWN]) if measured else None,
            remarks=[
                *([Remark("today", f"Predictions of this version are off by {today} (mean).")] if today else []),
                *(Remark("left out", text) for text in left_out),
            ],
        )

    def details(self) -> RenderableType:
        archive = self.answer
        rows = [tuple(_cells(row)) for row in archive.measured]
        lines = [archive.sentence, *missing(archive), *archive.failures]
        return Group(*([table(COLUMNS, rows)] if rows else []), *map(Text, lines))

    def values(self) -> Document:
        archive = self.answer
        head = {name: getattr(archive, name) for name in ("name", "version", "commit", "cluster", "gpu", "rehearsal")}
        more = {"sentence": archive.sentence, "failures": list(archive.failures)}
        return Document.of_rows({**head, **more}, [fields_of(VALUES, row) for row in archive.rows])


def _sentence(archive: Archive) -> str:
    errors = _errors(archive)
    if not errors:
        return "Nothing was measured, so that no prediction can be compared."
    return f"Predictions from before the runs are off by {errors} (mean)."


def _asked(archive: Archive) -> str:
    kind = f"rehearsal, no evidence ({archive.rehearsal})" if archive.rehearsal else f"evidence of {archive.gpu}"
    rows = f"{len(archive.measured)} of {len(archive.rows)} rows measured"
    return f"{archive.name}: {kind}, {rows}; predicted by ladder-sim {archive.version}"


def _errors(archive: Archive, *, now: bool = False) -> str:
    errors = {name: archive.errors(name, now=now) for name in ("tpot_s", "ttft_s", "speedup")}
    return ", ".join(f"{percent(fmean(each))} in {FIGURES[name]}" for name, each in errors.items() if each)


def markdown(archive: Archive) -> str:
    """Return the table as Markdown under the sentence, to be quoted."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(_cells(row)) for row in archive.measured)]
    made = f"Predicted by ladder-sim {archive.version}, commit {archive.commit or 'unknown'}, before the runs."
    return "\n".join([archive.sentence, "", *lines, "", made, *missing(archive), *archive.failures, ""])


def missing(archive: Archive) -> list[str]:
    """Return a line of the runs that were not measured; none if all were."""
    runs = dict.fromkeys(row.run for row in archive.rows if not row.measured)
    done = {row.run for row in archive.measured}
    left = [name for name in runs if name not in done]
    return [f"Not measured: {', '.join(left)}."] if left else []


def archive_figure(archive: Archive) -> Figure:
    """Draw times predicted before the runs over measured ones, in ms, those of decode and prefill apart."""
    points = [
        (f"{row.variant}, {label}", row.run, Quantity(measured=row.measured[name], predicted=predicted))
        for name, label in FIGURES.items()
        for row in archive.measured
        if name.endswith("_s") and name in row.measured and name in row.predicted
        for predicted in [Interval.around(row.predicted[name], 0.0)]
    ]
    title = f"Predicted before, and measured: {archive.name}"
    return parity_figure(title, archive.sentence, "time (ms)", grouped(points), 1e-3)


def figure_text(name: str, value: float) -> str:
    """Return a value of the figure of a name in `FIGURES` as text."""
    return f"{value:.2f}" if name == "speedup" else format_seconds(value)


def _cells(row: Row) -> Iterator[str]:
    yield from (row.run, row.variant)
    for name in FIGURES:
        measured, predicted, error = row.measured.get(name), row.predicted.get(name), row.error(name)
        ends = "-".join(figure_text(name, end) for end in row.interval.get(name, ()))
        yield NOT_MEASURED if measured is None else figure_text(name, measured) + (f" ({ends})" if ends else "")
        yield NOT_MEASURED if predicted is None else figure_text(name, predicted)
        yield NOT_MEASURED if error is None else f"{error:+.1%}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
