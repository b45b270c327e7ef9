"""The answer of `sensitivity`: what a little more of each figure changes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.sensitivity import MIN_CHANGE, Sensitivities, Sensitivity
from ladder_sim.display.document import Document
from ladder_sim.display.labels import (
    asked_text,
    evidence_text,
    field_label,
    field_text,
    field_title,
    scenario_label,
    wiring_label,
)
from ladder_sim.report.columns import Column, table_of
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.figures.style import TEXT_COLOUR, Figure, figure
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.specs.settings import find_setting
from ladder_sim.units import counted_text
from ladder_sim.wirings.names import NO_COMMUNICATION

# rows of the default answer
_SHOWN = 5
# of an engine and of its fit: no figures of what can be bought
_OWN = ("stack.", "overlap.")
# bars of a tornado
MAX_BARS = 12
_LOWER_COLOUR, _HIGHER_COLOUR = "#E69F00", "#0072B2"


class SensitivityReport(Report[Sensitivities]):
    """How the slopes of a scenario's times look."""

    figures: ClassVar = {
        "tornado": lambda self: tornado_figure(
            self.answer, self.answer.variants[-1], scenario_label(self.answer.confidence.scenario)
        )
    }

    @property
    def shown(self) -> list[str]:
        """The first variant, and the last that can be run."""
        variants = self.answer.variants
        able = [name for name in variants if name != NO_COMMUNICATION]
        return list(dict.fromkeys((variants[0], (able or variants)[-1])))

    @property
    def visible(self) -> list[Sensitivity]:
        """Figures that change a time by more than nothing."""
        return [each for each in self.answer if max(map(each.widest, self.answer.variants)) >= MIN_CHANGE]

    @property
    def bought(self) -> list[Sensitivity]:
        """Of these, figures of the hardware."""
        return [each for each in self.visible if not each.figure.startswith(_OWN)]

    def table(self, figures: Sequence[Sensitivity]) -> WholeTable:
        """Return a table of what a little more of each figure changes."""

        def change(variant: str, figure: str) -> Column[Sensitivity]:
            """Return the column of a change of a variant's "request" or "speedup"."""
            title = {"request": "time"}.get(figure, figure)

            def read(each: Sensitivity) -> str:
                return _change(getattr(each.responses[variant], f"{figure}_higher"))

            return Column("", read, f"{variant}'s {title}")

        columns: list[Column[Sensitivity]] = [
            Column("", lambda each: _settable_label(each.figure), f"{self._percent} more of"),
            Column("", lambda each: field_text(each.figure, each.value, each.unit), "today"),
            *(change(name, "request") for name in self.shown),
            *(change(name, "speedup") for name in self.shown if name != "standard"),
        ]
        return table_of(columns, figures, width=WIDTH)

    @property
    def _percent(self) -> str:
        return f"{100.0 * self.answer.step:.3g} %"

    def _brief(self) -> Brief:
        bought, visible, confidence = self.bought, self.visible, self.answer.confidence
        shown = bought[:_SHOWN]
        hidden = len(visible) - len(shown)
        more = f"{counted_text(hidden, 'more figure')}, "
        evidence = evidence_text(confidence, wirings=self.shown)
        return Brief(
            sentence=self._verdict(),
            asked=asked_text(confidence.scenario),
            table=self.table(shown) if shown else None,
            remarks=[*self._why(), Remark("evidence", f"Slopes of the model, without intervals. {evidence}")],
            more=f"{more if hidden else ''}elasticities",
        )

    def _verdict(self) -> str:
        if not self.bought:
            return f"{self._percent} more of any figure of the hardware changes nothing by {100.0 * MIN_CHANGE:.2f} %."
        top = self.bought[0]
        first, *others = self.shown
        said = _longer(top.responses[first].request_higher, f"{first}'s time")
        verb, _, _ = said.partition(" ")
        for name in others:
            also = _longer(top.responses[name].request_higher, f"{name}'s")
            said += f", {also.removeprefix(f'{verb} ')}"
        return f"{field_title(top.figure)} matters most: {self._percent} more {said}."

    def _why(self) -> Iterator[Remark]:
        """Yield remarks on which figure of the hardware changes the gain most."""
        name = self.shown[-1]
        if name == "standard" or not self.bought:
            return
        most = max(self.bought, key=lambda each: abs(each.responses[name].speedup_higher))
        change = most.responses[name].speedup_higher
        if abs(change) < MIN_CHANGE:
            yield Remark("why", f"No figure of the hardware changes {name}'s speedup by {100.0 * MIN_CHANGE:.2f} %.")
            return
        does = "grows" if change > 0.0 else "shrinks"
        said = f"{wiring_label(name, sentence=True)}'s speedup {does} most with more {_settable_label(most.figure)}"
        yield Remark("why", f"{said}: {_change(change)} for {self._percent} more.")

    def details(self) -> RenderableType:
        """Return the elasticities of every variant's time and speedup, heaviest first."""
        variants = self.answer.variants
        gains = [name for name in variants if name != "standard"]
        columns = ("figure", "value", *(f"{name} time" for name in variants), *(f"{name} speedup" for name in gains))
        rows = [
            (
                _settable_label(each.figure),
                field_text(each.figure, each.value, each.unit),
                *(f"{each.responses[name].request_elasticity:+.3f}" for name in variants),
                *(f"{each.responses[name].speedup_elasticity:+.3f}" for name in gains),
            )
            for each in self.visible
        ]
        title = f"elasticity: relative change per relative change of the figure, each by {self._percent}"
        small = len(self.answer) - len(rows)
        less = f"{small} more change{'s' if small == 1 else ''} no time by {100.0 * MIN_CHANGE:.2f} %"
        return Group(table(columns, rows, wrapped=columns[2:], title=title), Text(less))

    def values(self) -> Document:
        """Return one row per figure and variant."""
        rows = [
            {"figure": each.figure, "value": each.value, "variant": variant, **asdict(response)}
            for each in self.answer
            for variant, response in each.responses.items()
        ]
        return Document.of_rows({"step": self.answer.step}, rows)


def _settable_label(figure: str) -> str:
    """Return a figure's name as ``--set`` takes it, where it does."""
    name = next((name for name in (figure, f"cluster.{figure}") if find_setting(name)), "")
    return field_label(name) if name else f"{field_label(figure)} (not settable)"


def _change(share: float) -> str:
    """Return a relative change in percent as text; a change that rounds to 0 has no sign.

    Examples
    --------
    >>> _change(-0.0412), _change(0.0001)
    ('-4.1 %', '0.0 %')
    """
    text = f"{100.0 * share:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def _longer(share: float, time: str) -> str:
    """Return what changes a time, as the end of a sentence."""
    size = _change(share).lstrip("+-")
    if size == "0.0 %":
        return f"leaves {time} as it is"
    return f"adds {size} to {time}" if share > 0.0 else f"takes {size} off {time}"


def tornado_figure(sensitivities: Sensitivities, variant: str, subtitle: str, *, compact: bool = False) -> Figure:
    """Change of one variant's request time as each figure falls and rises; `compact` for a part of a page."""
    step = sensitivities.step
    visible = [item for item in sensitivities if item.widest(variant) >= MIN_CHANGE]
    visible = sorted(visible, key=lambda item: -item.widest(variant))[:MAX_BARS]
    if compact:
        # a name above its value leaves room for the bars on a phone
        values = [float(f"{item.value:.3g}") for item in visible]
        names = [
            f"{field_title(item.figure)}<br>{field_text(item.figure, value, item.unit)}"
            for item, value in zip(visible, values, strict=True)
        ]
    else:
        names = [f"{field_label(item.figure)} ({field_text(item.figure, item.value, item.unit)})" for item in visible]
    sides = {
        f"figure divided by {1 + step:g}": (_LOWER_COLOUR, [item.responses[variant].request_lower for item in visible]),
        f"figure times {1 + step:g}": (_HIGHER_COLOUR, [item.responses[variant].request_higher for item in visible]),
    }
    # room for the numbers at the bars
    most = max((abs(100.0 * change) for _, changes in sides.values() for change in changes), default=1.0)
    reach = (1.75 if compact else 1.25) * most
    title = "request time (%)" if compact else "change of the request time (%)"
    xaxis = {"title": {"text": title}, "zeroline": True, "zerolinecolor": TEXT_COLOUR, "range": [-reach, reach]}
    return figure(
        f"Sensitivity of {variant}'s request time",
        subtitle,
        data=[
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": names,
                "x": [100.0 * change for change in changes],
                "marker": {"color": colour},
                "text": [f"{change:+.1%}" for change in changes],
                "textposition": "outside",
                "textfont": {"size": 11} if compact else {},
                "cliponaxis": False,
                "hovertemplate": "%{y}<br>request time %{x:+.2f} %<extra>%{fullData.name}</extra>",
            }
            for name, (colour, changes) in sides.items()
        ],
        layout={
            "barmode": "overlay",
            "bargap": 0.3,
            "height": 190 + 34 * len(names),
            "xaxis": {**xaxis, **({"nticks": 6} if compact else {})},
            "yaxis": {"autorange": "reversed", "showgrid": False, **({"tickfont": {"size": 11}} if compact else {})},
        },
    )
