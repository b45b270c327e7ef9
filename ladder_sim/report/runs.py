"""The answer of `validate` for runs of one's own machine: what each wiring was predicted to take, and took."""

from collections.abc import Collection, Sequence
from dataclasses import asdict

from rich.console import RenderableType

from ladder_sim.display.document import Document
from ladder_sim.report.columns import percent
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.units import counted_text
from ladder_sim.validation.runs import QUANTITIES, Compared, RunCheck

# quantities of the table, and its rows at most
_SHOWN, _ROWS = ("tpot_s", "speedup"), 6


class RunReport(Report[RunCheck]):
    """How a comparison with one's own runs looks."""

    def _brief(self) -> Brief:
        check = self.answer
        remarks = []
        if check.held_back and check.timed:
            text = f"Timed for the profile: {', '.join(check.timed)}; * held back, never timed for the profile."
            remarks.append(Remark("seen", text))
        if check.pace is not None:
            text = f"Without communication it took {check.pace:.2f}x as long as for the profile; errors leave that out."
            remarks.append(Remark("pace", text))
        if check.missing:
            remarks.append(Remark("left out", f"No run: {', '.join(check.missing)}."))
        shown = [*check.held_back, *(row.variant for row in check.rows)]
        variants = list(dict.fromkeys(shown))
        if len(variants) > _ROWS:
            remarks.append(
                Remark("left out", f"{len(variants) - _ROWS} of {len(variants)} wirings: --explain has all.")
            )
        return Brief(
            sentence=_sentence(check),
            asked=check.title,
            table=self._table(variants[:_ROWS], _SHOWN),
            remarks=remarks,
            more="prefill and whole requests, too",
        )

    def _table(self, variants: Collection[str], quantities: Sequence[str]) -> WholeTable:
        """Return the predicted and measured quantities of wirings, in the order in which they ran."""
        check = self.answer
        columns = ["variant"]
        for name in quantities:
            unit = "" if name == "speedup" else " [ms]"
            columns += [f"{QUANTITIES[name]}{unit}", "measured (95 %)", "error"]
        rows = []
        for variant in dict.fromkeys(row.variant for row in check.rows if row.variant in variants):
            name = f"{variant} *" if variant in check.held_back else variant
            rows.append((name, *(cell for each in quantities for cell in _cells(check.row(variant, each)))))
        return table(columns, rows)

    def details(self) -> RenderableType:
        return self._table([row.variant for row in self.answer.rows], list(QUANTITIES))

    def values(self) -> Document:
        check = self.answer
        head = {"title": check.title, "timed": list(check.timed), "missing": list(check.missing), "pace": check.pace}
        return Document.of_rows(head, [asdict(row) | {"error": row.error} for row in check.rows])


def _sentence(check: RunCheck) -> str:
    """Return how far off the wirings are that the profile has not timed."""
    errors = {name: error for name in _SHOWN if (error := check.mean_error(name)) is not None}
    if not check.rows:
        return "No wiring ran, so that no prediction can be compared."
    if not errors:
        return "No wiring was held back: every error below is of a wiring that the profile was made from."
    said = ", ".join(f"{QUANTITIES[name]} by {percent(error)}" for name, error in errors.items())
    return f"Off on average over {counted_text(len(check.held_back), 'wiring')} held back from the profile: {said}."


def _cells(row: Compared | None) -> tuple[str, str, str]:
    if row is None:
        return "-", "-", "-"
    scale, digits = (1.0, 2) if row.quantity == "speedup" else (1e3, 1)
    values = [f"{scale * value:.{digits}f}" for value in (row.predicted, row.measured, row.low, row.high)]
    return values[0], f"{values[1]} ({values[2]}-{values[3]})", percent(row.error, sign="+")
