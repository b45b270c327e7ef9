"""The answer of `validate` for runs of static batches: how far off predictions are where no fit had seen the run."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import interval_text, wiring_label
from ladder_sim.report.brief import Brief, Remark
from ladder_sim.report.columns import Column, fields_of, table_of
from ladder_sim.report.console import table
from ladder_sim.report.errors import error_columns, percent, quantity_columns
from ladder_sim.report.figures.validation import error_figure
from ladder_sim.report.report import Report
from ladder_sim.specs.workload import STATIC
from ladder_sim.validation.compare import (
    FITTED_PROFILES,
    Comparison,
    ErrorStats,
    GroupSummary,
    Quantity,
    Validation,
    error_stats,
    evidence,
    summarize,
    unseen,
)
from ladder_sim.validation.dataset import PROTOCOLS, Configuration

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
# rows of the table, by figure and links
_SHOWN = 6
# share of rows inside their 90 % interval below which a figure is warned of
_INSIDE = 0.9
_QUANTITIES = {"speedup": "speedup", "tokens_per_s": "tok/s"}
_LINKS = {True: "P2P", False: "no P2P"}

# in JSON and CSV
VALUES: Sequence[Column[Comparison]] = (
    Column("line", lambda each: each.measurement.line, kind=int),
    Column("source", lambda each: each.measurement.configuration.source, kind=str),
    *(
        Column(name, attrgetter(f"measurement.configuration.{name}"))
        for name in ("model", "cluster", "nodes", "tp", "p2p", "stack", "dtype")
    ),
    Column("variant", lambda each: each.measurement.variant),
    *(Column(name, attrgetter(f"measurement.configuration.{name}")) for name in ("batch", "prompt", "gen")),
    Column("use", lambda each: "fit" if each.seen else "test", kind=Literal["fit", "test"]),
    *quantity_columns("tokens_per_s", lambda each: each.tokens_per_s),
    # measured, whether or not it can be predicted
    Column("tokens_per_s_measured", lambda each: each.measurement.tokens_per_s),
    *quantity_columns("speedup", lambda each: each.speedup),
    Column("note", lambda each: each.note, kind=str),
)
_SPREAD = ("mean_error", "max_error", "inside", "half_width")
_Figure = tuple[str, bool, ErrorStats]
# in a table: a figure, whether the links have P2P, and the errors on unseen rows
SHOWN: Sequence[Column[_Figure]] = (
    Column("", lambda each: _figure_label(each[0]), "figure"),
    Column("", lambda each: _LINKS[each[1]], "links"),
    Column("", lambda each: str(each[2].rows), "unseen rows"),
    *error_columns(lambda each: each[2]),
)


class ValidationReport(Report[Validation]):
    """How a comparison with runs of static batches looks."""

    figures: ClassVar = {"errors": lambda self: error_figure(self.answer)}

    def _brief(self) -> Brief:
        compared, errors = self.answer, self._errors()
        shown = [each for each in errors if _is_headline(each[0])][:_SHOWN]
        missing = [row.note for row in compared.rows if row.tokens_per_s is None]
        remarks = [Remark("seen", _evidence(compared))]
        if missing:
            remarks.insert(0, Remark("left out", f"{_rows(len(missing))}; the first: {missing[0]}."))
        others = f", {compared.level} beside {len(compared) - 1} other levels" if len(compared) > 1 else ""
        remarks += [Remark("caution", text) for text in _misses(errors)]
        return Brief(
            sentence=_sentence(errors, compared.rows),
            asked=_asked(compared),
            table=table_of(SHOWN, shown, left=2) if shown else None,
            remarks=remarks,
            more=f"all {len(compared.rows)} rows{others}",
        )

    def _errors(self) -> list[_Figure]:
        """Return the errors on unseen rows by figure and links."""
        rows = self.answer.unseen
        return [
            (name, p2p, errors)
            for name in rows.figures
            for p2p in _LINKS
            if (errors := error_stats(rows.quantities(name, p2p=p2p)))
        ]

    def details(self) -> RenderableType:
        """Return every row at the strongest level, then the summaries of each level."""
        compared = self.answer
        parts: list[RenderableType] = []
        for title, members in _by_setup(compared.rows).items():
            noted = any(member.note for member in members)
            columns = (*ROW_COLUMNS, *SPEEDUP_COLUMNS, *(["note"] if noted else []))
            body = [row_cells(member)[: len(columns)] for member in members]
            parts.append(Text(f"{compared.level} ({evidence(compared.level)}): {title}"))
            parts += [table(columns, body, keys=4, wrapped=("predicted (90%)", "note")), Text()]
        for level, rows in compared.items():
            title = f"{level}: absolute errors, share of rows inside the 90 % interval, and its mean half-width"
            body = list(map(summary_cells, summarize(rows)))
            parts += [Text(title), table(SUMMARY_COLUMNS, body, keys=3, wrapped=SUMMARY_COLUMNS[5:]), Text()]
        title = "rows that the fit has not seen: mean and largest absolute error, 90 % intervals"
        return Group(*parts, Text(title), table(LEVEL_COLUMNS, level_cells(compared), wrapped=LEVEL_COLUMNS[2:]))

    def values(self) -> Document:
        """Return every run and the summaries by level; errors, shares and half-widths are fractions."""
        rows = {level: [fields_of(VALUES, row) for row in members] for level, members in self.answer.items()}
        content = {
            "batching": STATIC,
            "dataset": self.answer.data.name,
            "protocols": {
                name: {"fit_variants": protocol.variants, "fit_tp": protocol.tps}
                for name, protocol in PROTOCOLS.items()
            },
            "levels": {
                level: {
                    "evidence": evidence(level),
                    "rows": rows[level],
                    "summary": list(map(_summary_fields, summarize(members))),
                }
                for level, members in self.answer.items()
            },
        }
        return Document(
            content=content, rows=[{"level": level, **row} for level, members in rows.items() for row in members]
        )


def _sentence(errors: Sequence[_Figure], rows: Sequence[Comparison]) -> str:
    """Return how far off the first figure is, on links with P2P if there are any, as a sentence."""
    if not errors:
        predicted = any(row.tokens_per_s for row in rows)
        return (
            f"No error is of unseen rows: the fit behind the predictions has used all {len(rows)}."
            if predicted
            else f"None of the {len(rows)} rows could be predicted."
        )
    name, p2p, first = errors[0]
    other = next((stats for *figure, stats in errors if figure == [name, not p2p]), None)
    besides = f"{percent(other.mean_error)} without P2P" if other else f"{percent(first.max_error)} at most"
    figure = _figure_label(name, sentence=True)
    count = first.rows + (other.rows if other else 0)
    return (
        f"{figure} is off by {percent(first.mean_error)} on average ({besides}) on {count} rows that no fit has seen."
    )


def _is_headline(figure: str) -> bool:
    """Whether the table shows a figure: speedups of what can be run, and standard's throughput."""
    return figure == "standard.tokens_per_s" or (figure.endswith(".speedup") and not figure.startswith("upper-bound"))


def _figure_label(figure: str, *, sentence: bool = False) -> str:
    variant, _, quantity = figure.rpartition(".")
    return f"{wiring_label(variant, sentence=sentence)}'s {_QUANTITIES[quantity]}"


def _misses(errors: Sequence[_Figure]) -> list[str]:
    """Return a sentence on the figure whose intervals hold the fewest rows, if fewer than they say."""
    least = min(errors, key=lambda each: each[2].inside, default=None)
    if least is None or least[2].inside >= _INSIDE:
        return []
    name, p2p, stats = least
    outside = stats.rows - round(stats.inside * stats.rows)
    return [
        f"{_figure_label(name, sentence=True)} with{'' if p2p else 'out'} P2P is off by {percent(stats.mean_error)} on "
        f"average; {outside} of {_rows(stats.rows)} lie outside the 90 % interval."
    ]


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"


def _evidence(compared: Validation) -> str:
    """Return what the predictions are based on, and which of the rows that has seen."""
    level = compared.level
    if level not in FITTED_PROFILES:
        seen = sum(row.seen for row in compared.rows)
        return f"Predicted at level {level}: {evidence(level)}" + (f"; it has seen {_rows(seen)}." if seen else ".")
    protocol = PROTOCOLS[level[-1].upper()]
    fitted = f"{_listed(protocol.variants)} at TP {_listed(map(str, protocol.tps))}"
    return f"Fitted to {fitted}: those rows are left out."


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _asked(compared: Validation) -> str:
    """Return a line on what was run."""
    runs = [row.configuration for row in compared.data.measurements]
    names = [_few({getattr(run, name): None for run in runs}) for name in ("model", "stack", "cluster")]
    spans = [f"{label} {_span(getattr(run, label.lower()) for run in runs)}" for label in ("TP", "batch")]
    batches = f"{len(runs)} static batch{'es' if len(runs) > 1 else ''}"
    return f"{compared.data.name}: {batches} of {', '.join((*names, *spans))}; {len(compared.unseen.rows)} unseen"


def _few(names: Mapping[str, None]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def _span(values: Iterable[int]) -> str:
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    return f"{low}-{high}" if high > low else str(low)


def level_cells(compared: Validation) -> list[tuple[str, ...]]:
    """Return one row per level over what no fit has seen, by `LEVEL_COLUMNS`."""
    cells = []
    for level, rows in compared.items():
        unseen_rows = unseen(rows)
        ladder = [row for row in unseen_rows if row.measurement.variant == "ladder"]
        direct = [row.speedup for row in ladder if row.measurement.configuration.p2p]
        through_host = [row.speedup for row in ladder if not row.measurement.configuration.p2p]
        others = [row.speedup for row in unseen_rows if row.measurement.variant in ("parallel", "upper-bound")]
        rates = [row.tokens_per_s for row in unseen_rows]
        coverage = _coverage([*(row.speedup for row in unseen_rows), *rates])
        cells.append((level, str(len(unseen_rows)), *map(_largest, (direct, through_host, others, rates)), *coverage))
    return cells


def _largest(quantities: Iterable[Quantity | None]) -> str:
    errors = error_stats(quantities)
    return f"{errors.mean_error:.1%}, {errors.max_error:.1%}" if errors else "-"


def _coverage(quantities: Iterable[Quantity | None]) -> tuple[str, str]:
    errors = error_stats(quantities)
    return (f"{errors.inside:.0%}", f"{errors.half_width:.1%}") if errors else ("-", "-")


def _by_setup(rows: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Return the rows under a title that says what they share."""
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
    """Return one comparison as text: `ROW_COLUMNS`, `SPEEDUP_COLUMNS` and the note."""
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
    """Return one summary as text, by `SUMMARY_COLUMNS`."""
    counts = str(summary.rows), str(summary.unseen)
    spreads = *_spread(summary.speedup), *_spread(summary.tokens_per_s)
    return summary.variant, _on(summary.p2p), summary.tps, *counts, *spreads


def _on(p2p: bool) -> str:
    return "on" if p2p else "off"


def _spread(spread: ErrorStats | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 4
    return f"{spread.mean_error:.1%}", f"{spread.max_error:.1%}", f"{spread.inside:.0%}", f"{spread.half_width:.1%}"


def _summary_fields(summary: GroupSummary) -> dict[str, Any]:
    head = {name: getattr(summary, name) for name in ("variant", "p2p")}
    counts = {"tp": summary.tps, "rows": summary.rows, "unseen": summary.unseen}
    spreads: dict[str, Any] = {}
    for quantity in _QUANTITIES:
        errors: ErrorStats | None = getattr(summary, quantity)
        spreads[f"{quantity}_rows"] = errors.rows if errors else 0
        spreads |= {f"{quantity}_{part}": getattr(errors, part, None) for part in _SPREAD}
    return {**head, **counts, **spreads}
