"""The answer of `validate` for runs of one's own machine: what each wiring was predicted to take, and took."""

from dataclasses import asdict

from rich.console import Group, RenderableType

from ladder_sim.display.document import Document
from ladder_sim.display.notes import Notes
from ladder_sim.report.brief import Brief, Remark
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.report import Report
from ladder_sim.validation.runs import QUANTITIES, Compared, RunCheck

# quantities of the table
_SHOWN = ("tpot_s", "speedup")


class RunReport(Report[RunCheck]):
    """How a comparison with one's own runs looks."""

    @property
    def notes(self) -> Notes:
        """None: the runs are the answer."""
        return Notes(confidences={})

    def _brief(self) -> Brief:
        check = self.answer
        errors = {name: error for name in _SHOWN if (error := check.mean_error(name)) is not None}
        said = " and ".join(f"{QUANTITIES[name]} is off by {error:.1%}" for name, error in errors.items())
        sentence = "No wiring was held back: these errors are of what was calibrated."
        if said:
            sentence = f"Of wirings that were never timed for the profile, {said} on average."
        timed = (
            [Remark("seen", f"Timed for the profile: {', '.join(check.timed)}; * held back.")] if check.timed else []
        )
        return Brief(sentence=sentence, asked=check.title, table=self._table(), remarks=timed)

    def _table(self) -> WholeTable:
        check = self.answer
        names = ("variant", *(f"{name} [ms]" for name in ("TPOT", "measured (95 %)")), "error")
        columns = (*names, "speedup", "measured (95 %)", "error")
        rows = []
        for variant in dict.fromkeys(row.variant for row in check.rows):
            name = f"{variant} *" if variant in check.held_back else variant
            rows.append((name, *(cell for each in _SHOWN for cell in _cells(check.row(variant, each)))))
        return table(columns, rows)

    def details(self) -> RenderableType:
        return Group()

    def values(self) -> Document:
        check = self.answer
        head = {"title": check.title, "timed": list(check.timed), "missing": list(check.missing)}
        return Document.of_rows(head, [asdict(row) | {"error": row.error} for row in check.rows])


def _cells(row: Compared | None) -> tuple[str, str, str]:
    if row is None:
        return "-", "-", ""
    scale, digits = (1.0, 2) if row.quantity == "speedup" else (1e3, 1)
    values = [f"{scale * value:.{digits}f}" for value in (row.predicted, row.measured, row.low, row.high)]
    return values[0], f"{values[1]} ({values[2]}-{values[3]})", f"{row.error:+.1%}"
