"""The answer of `validate` for runs of static batches: how far off predictions are where no fit had seen the run."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import wiring_label
from ladder_sim.report.columns import Column, fields_of, percent, table_of
from ladder_sim.report.errors import error_columns, error_figure, quantity_columns
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.specs.workload import STATIC
from ladder_sim.units import counted_text
from ladder_sim.validation.compare import (
    FITTED_PROFILES,
    Comparison,
    ErrorStats,
    GroupSummary,
    Level,
    Unseen,
    Validation,
    error_stats,
    evidence,
    summarize,
    unseen,
)
from ladder_sim.validation.dataset import PROTOCOLS, Configuration
from ladder_sim.wirings.names import NO_COMMUNICATION

# rows of the table, by figure and links
_SHOWN = 6
# share of rows inside their 90 % interval below which a figure is warned of
_INSIDE = 0.9
_QUANTITIES = {"speedup": "speedup", "tokens_per_s": "tok/s", "tpot_s": "TPOT", "ttft_s": "TTFT"}
_LINKS = {True: "P2P", False: "no P2P"}
# figures of the table in their order; speedups of other wirings come last
_HEADLINES = ("ladder.speedup", "standard.tpot_s", "standard.ttft_s", "standard.tokens_per_s", "others")

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
    *quantity_columns("tpot_s", lambda each: each.tpot_s),
    *quantity_columns("ttft_s", lambda each: each.ttft_s),
    Column("note", lambda each: each.note, kind=str),
)
_SPREAD = ("mean_error", "max_error", "inside", "half_width")
_Figure = tuple[str, bool, ErrorStats]
_RUN = "measurement.configuration"

# every run, in a table
ROWS: Sequence[Column[Comparison]] = (
    Column("", attrgetter("measurement.variant"), "variant"),
    Column("", attrgetter(f"{_RUN}.tp"), "TP"),
    Column("", lambda each: _LINKS[each.measurement.configuration.p2p], "links"),
    Column("", attrgetter(f"{_RUN}.batch"), "batch"),
    Column("", lambda each: "fit" if each.seen else "test", "use"),
    Column("", attrgetter("measurement.tokens_per_s"), "tok/s"),
    Column("", lambda each: each.tokens_per_s and each.tokens_per_s.predicted.value, "predicted"),
    Column("", lambda each: each.tokens_per_s and percent(each.tokens_per_s.error, sign="+"), "error"),
    Column("", lambda each: each.speedup and f"{each.speedup.measured:.3f}", "speedup"),
    Column("", lambda each: each.speedup and each.speedup.predicted, "its prediction", decimals=3),
    Column("", lambda each: each.speedup and percent(each.speedup.error, sign="+"), "its error"),
    Column("", lambda each: each.tpot_s and percent(each.tpot_s.error, sign="+"), "TPOT error"),
    Column("", lambda each: each.ttft_s and percent(each.ttft_s.error, sign="+"), "TTFT error"),
    Column("", lambda each: each.note or None, "note"),
)

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
        compared, errors = self.answer, self._errors(self.answer.level)
        shown = sorted((each for each in errors if _rank(each[0]) < len(_HEADLINES)), key=lambda each: _rank(each[0]))
        missing = [row.note for row in compared.rows if row.tokens_per_s is None]
        remarks = [Remark("seen", _evidence(compared))]
        if missing:
            remarks.insert(0, Remark("left out", f"{counted_text(len(missing), 'row')}; the first: {missing[0]}."))
        others = f", {compared.level} beside {len(compared) - 1} other levels" if len(compared) > 1 else ""
        remarks += [Remark("caution", text) for text in _misses(errors)]
        return Brief(
            sentence=_sentence(errors, compared.rows),
            asked=_asked(compared),
            table=table_of(SHOWN, shown[:_SHOWN], left=2) if shown else None,
            remarks=remarks,
            more=f"all {len(compared.rows)} rows{others}",
        )

    def _errors(self, level: Level) -> list[_Figure]:
        rows = Unseen(rows=unseen(self.answer[level]))
        return [
            (name, p2p, errors)
            for name in rows.figures
            for p2p in _LINKS
            if (errors := error_stats(rows.quantities(name, p2p=p2p)))
        ]

    def details(self) -> RenderableType:
        """Return every row at the strongest level, then the errors on unseen rows of each level."""
        compared = self.answer
        setups: dict[str, list[Comparison]] = {}
        for row in compared.rows:
            setups.setdefault(_setup(row.measurement.configuration), []).append(row)
        tables = [
            *(table_of(ROWS, rows, wrapped=("note",), title=title) for title, rows in setups.items()),
            *(
                table_of(SHOWN, errors, left=2, title=f"{level}: {evidence(level)}")
                for level in compared
                if (errors := self._errors(level))
            ),
        ]
        return Group(*(part for each in tables for part in (each, Text())))

    def values(self) -> Document:
        """Return every run and the summaries by level; errors, shares and half-widths are fractions."""
        rows = {level: [fields_of(VALUES, row) for row in members] for level, members in self.answer.items()}
        content = {
            "batching": STATIC,
            "dataset": self.answer.data.name,
            "protocols": {
                name: {"fit_models": protocol.models, "fit_variants": protocol.variants, "fit_tp": protocol.tps}
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


def _rank(figure: str) -> int:
    """Return the place of a figure among those that the table shows; after them for others."""
    variant, _, quantity = figure.rpartition(".")
    if quantity == "speedup" and variant not in ("ladder", NO_COMMUNICATION):
        return len(_HEADLINES) - 1
    return _HEADLINES.index(figure) if figure in _HEADLINES else len(_HEADLINES)


def _figure_label(figure: str, *, sentence: bool = False) -> str:
    variant, _, quantity = figure.rpartition(".")
    return f"{wiring_label(variant, sentence=sentence)}'s {_QUANTITIES[quantity]}"


def _misses(errors: Sequence[_Figure]) -> list[str]:
    """Return a sentence on the figure whose intervals hold the fewest rows, if fewer than they say; then the worst."""
    least = min(errors, key=lambda each: (each[2].inside, -each[2].mean_error), default=None)
    if least is None or least[2].inside >= _INSIDE:
        return []
    name, p2p, stats = least
    outside = stats.rows - round(stats.inside * stats.rows)
    return [
        f"{_figure_label(name, sentence=True)} with{'' if p2p else 'out'} P2P is off by {percent(stats.mean_error)} on "
        f"average; {outside} of {counted_text(stats.rows, 'row')} lie outside the 90 % interval."
    ]


def _evidence(compared: Validation) -> str:
    """Return what the predictions are based on, and which of the rows that has seen."""
    level = compared.level
    if level not in FITTED_PROFILES:
        seen = sum(row.seen for row in compared.rows)
        return f"Predicted at level {level}: {evidence(level)}" + (
            f"; it has seen {counted_text(seen, 'row')}." if seen else "."
        )
    protocol = PROTOCOLS[level[-1].upper()]
    fitted = f"{_listed(protocol.variants)} of {_listed(protocol.models)} at TP {_listed(map(str, protocol.tps))}"
    return f"Fitted to {fitted}: those rows are left out."


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _asked(compared: Validation) -> str:
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


def _setup(configuration: Configuration) -> str:
    nodes = f" x {configuration.nodes}" if configuration.nodes > 1 else ""
    source = f" ({configuration.source})" if configuration.source else ""
    return (
        f"{configuration.model} on {configuration.cluster}{nodes}, stack {configuration.stack}, {configuration.dtype}, "
        f"prompt {configuration.prompt}, {configuration.gen} new tokens{source}"
    )


def _summary_fields(summary: GroupSummary) -> dict[str, Any]:
    head = {name: getattr(summary, name) for name in ("variant", "p2p")}
    counts = {"tp": summary.tps, "rows": summary.rows, "unseen": summary.unseen}
    spreads: dict[str, Any] = {}
    for quantity in _QUANTITIES:
        errors: ErrorStats | None = getattr(summary, quantity)
        spreads[f"{quantity}_rows"] = errors.rows if errors else 0
        spreads |= {f"{quantity}_{part}": getattr(errors, part, None) for part in _SPREAD}
    return {**head, **counts, **spreads}
