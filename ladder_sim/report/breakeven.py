"""The answer of `breakeven`: where a variant gains what was asked for, and how sure that is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.breakeven import BreakEven, Range
from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.display.labels import (
    asked_text,
    axis_values,
    evidence_text,
    field_label,
    field_text,
    scenario_label,
    wiring_label,
)
from ladder_sim.report.columns import Column, fields_of, table_of
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.style import TEXT_COLOUR, Figure, figure, value_axis, variant_colour
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.units import counted_text

# rows of the default answer
_SHOWN = 7
# ranges in a sentence
_NAMED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A value of the field."""

    value: float
    speedup: Interval
    happens: list[str] = field(default_factory=list)
    """What is there, the most important first."""


class BreakEvenReport(Report[BreakEven]):
    """How a speedup along a field looks."""

    figures: ClassVar = {"speedup": lambda self: breakeven_figure(self.answer, scenario_label(self.answer.scenario))}

    def places(self) -> list[Place]:
        """Return the values where something happens, the most important first."""
        result = self.answer
        (low, at_low), (high, at_high) = result.ends
        from_start, to_end = (not np.isnan(result.speedups[end]) for end in (0, -1))
        found: list[tuple[float, Interval, str]] = [
            (low, at_low, "start of the range searched" if from_start else "smallest value tried that can run"),
            (high, at_high, "end of the range searched" if to_end else "largest value tried that can run"),
        ]
        for crossing in result.crossings:
            direction = "rises above" if crossing.direction == "rising" else "falls below"
            found.append((crossing.value, crossing.speedup, f"{direction} the target, {result.target:.4g}"))
        if result.now is not None:
            found.append((result.now, result.beside[result.now], "this scenario"))
        for start, stop in result.sure:
            found += [(start, result.beside[start], "sure from here"), (stop, result.beside[stop], "sure up to here")]
        places: dict[float, Place] = {}
        for value, speedup, text in found:
            places.setdefault(value, Place(value=value, speedup=speedup)).happens.append(text)
        return list(places.values())

    def table(self, places: Sequence[Place]) -> WholeTable:
        """Return a table of the places, in their order."""
        ordered = sorted(places, key=lambda place: place.value)
        there: Column[Place] = Column("", lambda place: "; ".join(place.happens), "what is there")
        return table_of([*self._columns, there], ordered, wrapped=("what is there",))

    @property
    def _columns(self) -> list[Column[Place]]:
        return [
            Column("", lambda place: self._text(place.value), field_label(self.answer.field)),
            Column("", lambda place: place.speedup, "speedup", decimals=2),
        ]

    def _text(self, value: float) -> str:
        """Return a value of the field in the unit that was typed."""
        return field_text(self.answer.field, value, self.answer.unit)

    def _brief(self) -> Brief:
        result, places = self.answer, self.places()
        hidden = len(places) - _SHOWN
        return Brief(
            sentence=self._verdict(),
            asked=asked_text(result.scenario, varied=(result.field,)),
            table=self.table(places[:_SHOWN]),
            remarks=list(self._remarks()),
            more=counted_text(hidden, "more value") if hidden > 0 else "",
        )

    def _verdict(self) -> str:
        result = self.answer
        name, gain = field_label(result.field), 100.0 * (result.target - 1.0)
        does, no = (
            (f"gains {gain:.4g} %", f"gains less than {gain:.4g} %")
            if gain > 0.0
            else (f"loses at most {-gain:.4g} %", f"loses more than {-gain:.4g} %")
            if gain < 0.0
            else ("is faster", "is not faster")
        )
        over = "" if result.over == "standard" else f" than {result.over}" if not gain else f" over {result.over}"
        subject = wiring_label(result.variant, sentence=True)
        if not result.crossings:
            above = result.ends[0][1].value > result.target
            count = int(np.count_nonzero(~np.isnan(result.speedups)))
            every = f"all {count} values" if count > 1 else "the only value"
            tried = f"{every} of {name} tried{' that can run' if count < len(result.values) else ''}"
            return f"{subject} {does if above else no}{over} at {tried}{self._sure(above)}."
        return f"{subject} {does}{over} {self._where()}{self._sure(True)}."

    def _where(self) -> str:
        """Return where the speedup is above the target, given that it crosses it, in words."""
        result = self.answer
        name = f"{'an' if field_label(result.field)[0] in 'aeiou' else 'a'} {field_label(result.field)}"
        starts: list[float | None] = [None]
        parts = []
        for crossing in result.crossings:
            text = self._text(crossing.value)
            if crossing.direction == "rising":
                starts.append(crossing.value)
            else:
                start = starts.pop()
                begin = "below" if start is None else f"from {self._text(start)} to below"
                parts.append((begin, text))
        if result.crossings[-1].direction == "rising":
            start = starts.pop()
            assert start is not None
            parts.append(("from", f"{self._text(start)} on"))
        (begin, text), *others = parts
        more = "".join(f" and {' '.join(each)}" for each in others)
        return f"at {name} {begin} {text}{more}"

    def _sure(self, gains: bool) -> str:
        """Return where the whole interval is above the target, in words."""
        result = self.answer
        if not result.sure:
            return "; surely nowhere" if gains else ""
        if result.sure == (Range(result.ends[0][0], result.ends[1][0]),):
            return "; surely everywhere"
        # an interval of one value is that value
        ranges = (" to ".join(dict.fromkeys(map(self._text, ends))) for ends in result.sure[:_NAMED])
        named = " and ".join(f"from {each}" for each in ranges)
        return f"; surely {named}{' and elsewhere' if len(result.sure) > _NAMED else ''}"

    def _remarks(self) -> Iterator[Remark]:
        result = self.answer
        shares: dict[str, list[str]] = {}
        for name, confidence in result.confidences.items():
            for variant in dict.fromkeys((result.over, result.variant)):
                request = confidence.request(variant)
                share = request.breakdown.exposed_comm_s / float(request.request_s)
                shares.setdefault(name, []).append(f"{variant} {100.0 * share:.0f} %")
        if shares:
            at = {
                f"{field_label(result.field)} {field_text(result.field, value)}": self._text(value)
                for value in (result.values[0], result.values[-1])
            }
            texts = "; ".join(f"{', '.join(each)} at {at.get(name, name)}" for name, each in shares.items())
            yield Remark("why", f"Time that waits for communication: {texts}.")
            wirings = (result.over, result.variant)
            yield Remark("evidence", evidence_text(*result.confidences.values(), wirings=wirings))

    def details(self) -> RenderableType:
        result = self.answer
        figures = (result.values, result.speedups, result.lows, result.highs)
        found = zip(*(each.tolist() for each in figures), strict=True)
        scanned = [
            Place(value=value, speedup=Interval(value=speedup, low=low, high=high))
            for value, speedup, low, high in found
            if not np.isnan(speedup)
        ]
        places = self.places()
        whole: list[RenderableType] = [self.table(places), Text()] if len(places) > _SHOWN else []
        sure = Text(f"sure: the whole 90 % interval is at {result.target:.4g} or above")
        return Group(*whole, table_of(self._columns, scanned, title="values tried that can run"), sure)

    def values(self) -> Document:
        """Return the crossings, and the scanned speedups as rows."""
        result = self.answer
        speedup: Column[Any] = Column("speedup", lambda crossing: crossing.speedup)
        head = {
            "field": result.field,
            "variant": result.variant,
            "over": result.over,
            "target": result.target,
            "crossings": [
                {
                    "value": crossing.value,
                    "rising": crossing.direction == "rising",
                    "direction": crossing.direction,
                    **fields_of([speedup], crossing),
                }
                for crossing in result.crossings
            ],
            "sure": [each._asdict() for each in result.sure],
        }
        scan = {result.field: result.values, "speedup": result.speedups}
        scan |= {"speedup_low": result.lows, "speedup_high": result.highs}
        rows = zip(*(values.tolist() for values in scan.values()), strict=True)
        return Document.of_rows(head, [dict(zip(scan, row, strict=True)) for row in rows])


def breakeven_figure(result: BreakEven, subtitle: str = "") -> Figure:
    """Draw the speedup along the field, and where it passes the target."""
    values, axis = value_axis(result.field, result.values, typed=result.unit)
    line = {"color": variant_colour(result.variant), "width": 2.5}
    data = [
        {"type": "scatter", "mode": "lines", "x": values, "y": result.speedups, "line": line, "name": result.variant}
    ]
    # in the unit of the axis, which the largest value decides
    crossed = [*(crossing.value for crossing in result.crossings), result.values[-1]]
    _, places = axis_values(result.field, crossed, result.unit)
    for crossing, place in zip(result.crossings, places, strict=False):
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [place],
                "y": [result.target],
                "marker": {"color": TEXT_COLOUR, "size": 11},
                "text": [field_text(result.field, crossing.value, result.unit)],
                "textposition": "top center" if crossing.direction == "rising" else "bottom center",
            }
        )
    title = f"Speedup of {result.variant} over {result.over} by {field_label(result.field)}"
    layout = {"xaxis": axis, "yaxis": {"title": {"text": f"speedup over {result.over}"}}}
    drawn = figure(title, subtitle, data=[{**each, "showlegend": False} for each in data], layout=layout)
    return drawn.add_hline(y=result.target, line={"color": TEXT_COLOUR, "dash": "dot", "width": 1.5})
