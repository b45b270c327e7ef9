"""The answer of `validate` for servings: how far off times of requests in flight are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.report.columns import Column, cut, fields_of, percent, table_of
from ladder_sim.report.errors import error_columns, error_fields, left_out, quantity_columns, servings_figure
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.units import counted_text
from ladder_sim.validation.compare import ErrorStats
from ladder_sim.validation.serving import REPEATS, ServingComparison, ServingValidation, summarize_servings, summary

# headings of the groups that errors are shown by
GROUPS = {
    "engine": "engine",
    "stack": "version",
    "setup": "version, GPU, model, plan",
    "plan": "plan",
    "tp": "TP",
    "concurrency": "requests in flight",
}
# errors from which a row of servings is named
FAR_OFF = 0.2
# groups of the table next to all servings
_SHOWN = 4
# characters of a group in the table
_NAME = 34

# in JSON and CSV, after the setup
VALUES: Sequence[Column[ServingComparison]] = (
    Column("concurrency", lambda each: each.serving.concurrency),
    Column("prompt", lambda each: each.serving.prompt),
    Column("gen", lambda each: each.serving.gen),
    *quantity_columns("tpot_s", lambda each: each.tpot),
    *quantity_columns("ttft_s", lambda each: each.ttft),
    # measured, whether or not they can be predicted
    Column("tpot_s_measured", lambda each: each.serving.tpot_s),
    Column("ttft_s_measured", lambda each: each.serving.ttft_s),
    Column("note", lambda each: each.note, kind=str),
)
_Errors = tuple[ErrorStats | None, ErrorStats | None]
# in a table: a row that is far off
FAR: Sequence[Column[ServingComparison]] = (
    Column("", lambda each: str(each.serving.line), "line"),
    Column("", lambda each: str(each.serving), "serving"),
    Column("tpot_s", lambda each: each.serving.tpot_s, "TPOT"),
    Column("tpot_s", lambda each: each.tpot and each.tpot.predicted, "predicted"),
    Column("", lambda each: percent(_error(each), sign="+"), "error"),
    Column("", lambda each: each.note, "note"),
)


def _errors_by(heading: str) -> list[Column[tuple[str, _Errors]]]:
    return [
        Column("", lambda each: each[0], heading),
        Column("", lambda each: _count(each[1]), "rows"),
        *error_columns(lambda each: each[1][0], "TPOT error"),
        *error_columns(lambda each: each[1][1], "TTFT error")[:1],
    ]


class ServingsReport(Report[ServingValidation]):
    """How a comparison with a table of servings looks."""

    figures: ClassVar = {"times": lambda self: servings_figure(self.answer)}

    def _brief(self) -> Brief:
        servings, everything = self.answer, summary(self.answer)
        groups = sorted(summarize_servings(servings).get("engine", {}).items(), key=lambda each: -int(_count(each[1])))
        far, timed = self._far()
        remarks = [
            Remark("seen", "Engine figures were fitted to such servings; `predict` says the error of models left out.")
        ]
        if far:
            worst = max(far, key=lambda each: abs(_error(each)))
            text = f"{len(far)} of {len(timed)} rows are off by more than {percent(FAR_OFF, 0)}; most of all"
            remarks.append(Remark("caution", f"{text} {worst.serving}: {percent(_error(worst), sign='+')}."))
        remarks += left_out((each.note for each in servings if each.ttft is None), len(servings), "rows")
        fewer = f"{counted_text(len(groups) - _SHOWN, 'more group')}, and " if len(groups) > _SHOWN else ""
        shown = [*((cut(name, _NAME), errors) for name, errors in groups[:_SHOWN]), ("all", everything)]
        return Brief(
            sentence=_sentence(everything, len(servings)),
            asked=f"{servings.name}: {len(servings)} measured servings, requests in flight, standard wiring",
            table=table_of(_errors_by("servings"), shown) if timed else None,
            remarks=remarks,
            more=f"{fewer}errors by version, plan, degree and load",
        )

    def _far(self) -> tuple[list[ServingComparison], list[ServingComparison]]:
        """Return the servings whose TPOT is far off, and all servings that have one."""
        timed = [each for each in self.answer if each.tpot]
        return [each for each in timed if each.tpot and abs(each.tpot.error) > FAR_OFF], timed

    def details(self) -> RenderableType:
        """Return the errors by group, the rows that are far off, and those that are not predicted, with the reason."""
        servings = self.answer
        parts: list[RenderableType] = []
        for by, values in summarize_servings(servings).items():
            if by in GROUPS:
                parts += [table_of(_errors_by(GROUPS[by]), list(values.items())), Text()]
        far, timed = self._far()
        parts.append(Text(f"rows whose TPOT is off by more than {FAR_OFF:.0%}: {len(far)} of {len(timed)}"))
        if far:
            parts.append(table_of(FAR, far, left=2, wrapped=("serving", "note")))
        repeats = sum(each.note.startswith(REPEATS) for each in servings)
        if repeats:
            parts.append(
                Text(f"rows that repeat an earlier one exactly, and count again: {repeats} (--json says which)")
            )
        missing: dict[str, list[int]] = {}
        for each in servings:
            if each.ttft is None:
                missing.setdefault(each.note, []).append(each.serving.line)
        for note, lines in missing.items():
            rows_lines = f"{len(lines)} rows, lines" if len(lines) > 1 else "line"
            parts.append(Text(f"{rows_lines} {', '.join(map(str, lines))}: {note}"))
        return Group(*parts)

    def values(self) -> Document:
        """Return every serving, and errors of all and by group; seconds, errors and shares as fractions."""
        servings = self.answer
        head = {
            "batching": "continuous",
            "dataset": servings.name,
            "summary": _error_fields(summary(servings)),
            "by": {
                by: {value: _error_fields(pair) for value, pair in values.items()}
                for by, values in summarize_servings(servings).items()
            },
            "not_predicted": dict(Counter(each.note for each in servings if each.ttft is None)),
        }
        return Document.of_rows(head, list(map(_serving_fields, servings)))


def _sentence(errors: _Errors, count: int) -> str:
    tpot, ttft = errors
    if tpot is None and ttft is None:
        return f"None of the {count} servings could be predicted."
    said = [
        f"{name} is off by {percent(each.mean_error)} on average ({percent(each.median_error)} in the median)"
        for name, each in (("TPOT", tpot), ("TTFT", ttft))
        if each
    ]
    besides = f", TTFT by {percent(ttft.mean_error)}" if tpot and ttft else ""
    return f"{said[0]} over {_count(errors)} servings{besides}."


def _error(comparison: ServingComparison) -> float:
    return comparison.tpot.error if comparison.tpot else 0.0


def _count(errors: _Errors) -> str:
    return str(max(each.rows if each else 0 for each in errors))


def _error_fields(errors: _Errors) -> dict[str, Any]:
    return dict(zip(("tpot", "ttft"), map(error_fields, errors), strict=True))


def _serving_fields(comparison: ServingComparison) -> dict[str, Any]:
    row = comparison.serving
    fields = asdict(row.setup)
    plan = fields.pop("plan")
    return {"line": row.line, "source": row.source, **fields, **plan, **fields_of(VALUES, comparison)}
