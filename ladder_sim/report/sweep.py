"""The answer of `sweep`: what the variants gain at the points that differ most, and at all of them."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.display.labels import (
    asked_text,
    axis_values,
    evidence_text,
    field_label,
    field_text,
    interval_text,
    wiring_label,
)
from ladder_sim.display.notes import Notes
from ladder_sim.graph.variants import NO_COMMUNICATION
from ladder_sim.report.brief import WIDTH, Brief, Remark
from ladder_sim.report.columns import Column, number_text, table_of
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.sweep import sweep_figure
from ladder_sim.report.report import Report
from ladder_sim.sweeps.evaluate import PRICE, PROBLEM
from ladder_sim.sweeps.table import SweepTable

# points of the default answer, and rows that a person reads behind it; more are for a file
SHOWN, MAX_ROWS = 8, 100


class SweepReport(Report[SweepTable]):
    """How the points of a sweep look."""

    figures: ClassVar = {"speedup": lambda self: sweep_figure(self.answer)}

    @cached_property
    def notes(self) -> Notes:
        return self.answer.notes

    @property
    def base(self) -> str:
        """The variant whose times are shown."""
        return "standard" if "standard" in self.answer.variants else self.answer.variants[0]

    @property
    def compared(self) -> list[str]:
        """Variants that have a speedup; what nobody can run only where there is no other."""
        compared = [name for name in self.answer.variants if name != "standard"]
        return [name for name in compared if name != NO_COMMUNICATION] or compared

    @cached_property
    def able(self) -> NDArray[np.intp]:
        """Rows that have figures."""
        return np.flatnonzero(self.answer.feasible)

    @property
    def leading(self) -> str:
        """The variant that gains most at most of the points; empty: only standard was asked for."""
        gains = {name: float(np.median(self.answer[f"{name}.speedup"][self.able])) for name in self.compared}
        return max(gains, key=gains.__getitem__, default="")

    def figure_of(self, row: int, variant: str, metric: str) -> Any:
        """Return one figure of a point, with its interval where the sweep has one; None if the point has none."""
        sweep, name = self.answer, f"{variant}.{metric}"
        value = float(sweep[name][row])
        if np.isnan(value):
            return None
        # step times have one error, that of the rate
        bounded = f"{variant}.tokens_per_s" if metric == "tpot_s" else name
        if f"{bounded}_low" not in sweep.columns:
            return value
        low, high = (float(sweep[f"{bounded}_{end}"][row] / sweep[bounded][row]) for end in ("low", "high"))
        return Interval(value=value, low=value * low, high=value * high)

    def chosen(self) -> list[int]:
        """Return the points that differ most in what they gain and how fast they are, in the grid's order."""
        rows = self.able
        if len(rows) <= SHOWN:
            return list(map(int, rows))
        names = [f"{self.base}.tokens_per_s", *(f"{name}.speedup" for name in self.compared)]
        figures = np.log([self.answer[name][rows] for name in names])
        spread = np.ptp(figures, axis=1, keepdims=True)
        figures = figures / np.where(spread > 0.0, spread, 1.0)
        picked = list(dict.fromkeys(self.ends()))
        apart = np.full(len(rows), np.inf)
        for at in picked:
            apart = np.minimum(apart, _distance(figures, at))
        while len(picked) < SHOWN:
            picked.append(int(np.argmax(apart)))
            apart = np.minimum(apart, _distance(figures, picked[-1]))
        return [int(rows[at]) for at in sorted(set(picked))]

    def ends(self) -> tuple[int, int]:
        """Return the places among `able` of the least and the largest gain, or rate of standard."""
        name = f"{self.leading}.speedup" if self.leading else f"{self.base}.tokens_per_s"
        values = self.answer[name][self.able]
        return int(np.argmin(values)), int(np.argmax(values))

    def table(self, rows: Sequence[int], *, whole: bool = False) -> WholeTable:
        """Return a table of what varies and what was computed; if `whole`, with why points have no figures."""
        sweep, base = self.answer, self.base

        def figure(variant: str, metric: str, name: str, heading: str, decimals: int | None = None) -> Column[int]:
            def read(row: int) -> Any:
                return None if sweep[PROBLEM][row] else self.figure_of(row, variant, metric)

            return Column(name, read, heading, decimals=decimals)

        compared = [name for name in sweep.variants if name != "standard"] if whole else self.compared
        price = [figure(base, PRICE, "", "$/Mtoken")] if f"{base}.{PRICE}" in sweep.columns else []
        columns = [
            *(self._field(name) for name in sweep.varied),
            *(figure(name, "speedup", "", f"{wiring_label(name)}", 2) for name in compared),
            *price,
            figure(base, "tokens_per_s", "", f"{base} tok/s"),
            figure(base, "tpot_s", "tpot_s", "TPOT"),
            *([figure(base, "ttft_s", "ttft_s", "TTFT")] if whole else []),
        ]
        if whole and not sweep.feasible.all():
            columns.append(Column("", lambda row: str(sweep[PROBLEM][row]), PROBLEM))
        return table_of(columns, rows, left=len(sweep.varied), wrapped=(PROBLEM,), width=0 if whole else WIDTH)

    def _field(self, name: str) -> Column[int]:
        """Return the column of a field that varies, in one unit."""
        sweep = self.answer
        unit, values = axis_values(name, sweep[name], sweep.units[name])
        heading = f"{field_label(name)} [{unit}]" if unit else field_label(name)
        return Column("", lambda row: _plain_text(values[row]), heading)

    def place(self, row: int) -> str:
        """Return a point as text, by the fields that vary."""
        sweep = self.answer
        return ", ".join(
            f"{field_label(name)} {field_text(name, _plain(sweep[name][row]), sweep.units[name])}"
            for name in sweep.varied
        )

    def _brief(self) -> Brief:
        sweep, able = self.answer, len(self.able)
        rows = self.chosen()
        hidden = len(sweep) - len(rows)
        more = f"{hidden} more point{'s' if hidden != 1 else ''}"
        if len(sweep) > MAX_ROWS:
            more = f"the first {MAX_ROWS} points (--csv and --save: all)"
        confidence = next(iter(self.notes.confidences.values()), None)
        asked = [asked_text(confidence.scenario, varied=sweep.varied)] if confidence else []
        if len(sweep) > 1:
            asked.append(f"{len(sweep):,} points" + (f", {able:,} can run" if able < len(sweep) else ""))
        return Brief(
            sentence=self._verdict(),
            asked="; ".join(asked),
            table=self.table(rows) if rows else None,
            remarks=list(self._remarks()),
            cautions=self.notes.warnings,
            more=more if hidden else "",
        )

    def _verdict(self) -> str:
        if not len(self.able):
            return "This cannot run." if len(self.answer) == 1 else f"None of {len(self.answer):,} points can run."
        least, most = (int(self.able[at]) for at in self.ends())
        name, metric = (self.leading, "speedup") if self.leading else (self.base, "tokens_per_s")
        subject = f"{wiring_label(name, sentence=True)}'s {'speedup' if self.leading else 'tok/s'}"
        low, high = (self.figure_of(row, name, metric) for row in (least, most))
        if low == high:
            where = "at every point" if len(self.able) > 1 else "at the only point" if len(self.answer) > 1 else "here"
            return f"{subject}: {_text(low, metric)} {where}."
        tie = ", overlapping" if isinstance(low, Interval) and low.high >= high.low else ""
        return f"{subject}: {_text(low, metric)} to {_text(high, metric)}{tie}; most at {self.place(most)}."

    def _remarks(self) -> Iterator[Remark]:
        sweep = self.answer
        problems = np.flatnonzero(~sweep.feasible)
        if len(problems):
            first = int(problems[0])
            reasons = len(set(sweep[PROBLEM][problems].tolist()))
            others = f" ({reasons} different reasons)" if reasons > 1 else ""
            where = f" {self.place(first)}" if sweep.varied else ""
            count = f"{len(problems):,} point{'s' if len(problems) != 1 else ''}"
            said = f"{count}{others}:{where} {sweep[PROBLEM][first]}."
            yield Remark("left out", said)
        if confidences := self.notes.confidences:
            yield Remark("evidence", evidence_text(*confidences.values(), wirings=self.compared))
        if not sweep.how.intervals:
            yield Remark("left out", "Intervals: --set intervals=true adds them, and takes longer.")

    def details(self) -> RenderableType:
        rows = range(min(len(self.answer), MAX_ROWS))
        rest = len(self.answer) - len(rows)
        after = [Text(f"and {rest:,} more: --csv and --save write all")] if rest else []
        return Group(self.table(rows, whole=True), *after)

    def values(self) -> Document:
        sweep = self.answer
        columns = [values.tolist() for values in sweep.columns.values()]
        rows = [dict(zip(sweep.columns, row, strict=True)) for row in zip(*columns, strict=True)]
        return Document.of_rows({"varied": list(sweep.varied), "variants": list(sweep.variants)}, rows)


def _distance(figures: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    distance: NDArray[np.float64] = np.abs(figures - figures[:, at : at + 1]).sum(axis=0)
    return distance


def _text(figure: Any, metric: str) -> str:
    if not isinstance(figure, Interval):
        return f"{figure:.2f}x" if metric == "speedup" else number_text(figure)
    value, _, ends = interval_text(figure, decimals=2 if metric == "speedup" else None).partition(" ")
    return f"{value}{'x' if metric == 'speedup' else ''} {ends}".rstrip()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _plain_text(value: Any) -> str:
    value = _plain(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
