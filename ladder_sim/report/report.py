"""How an answer looks: the lines of a terminal, a page, plain values and figures. Each kind of answer has its own."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.text import Text

from ladder_sim.display.document import Document, Notes
from ladder_sim.display.labels import validated_lines
from ladder_sim.errors import UnknownNameError
from ladder_sim.report.console import WholeTable, to_html, to_text
from ladder_sim.specs.scenario_warnings import gravity
from ladder_sim.units import counted_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

# lines of an answer, and columns of a line
LINES, WIDTH = 14, 100
# columns of the word before a remark
_MARGIN = 10
_STYLES = {"caution": "yellow"}
# words of remarks that every answer has room for, what gets it first ahead
_REASONS = ("evidence", "why", "cost")
_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Remark:
    """What a reader should know besides the figures, in a sentence or two after a word."""

    word: str
    """ "why", "evidence", "instead", "caution", "cost", "load", "left out", "more"."""
    text: str

    @property
    def first(self) -> "Remark":
        """Remark of which only the first sentence is left."""
        return Remark(self.word, _SENTENCES.split(self.text, maxsplit=1)[0])

    @property
    def clause(self) -> "Remark":
        """Remark of which only the first clause is left."""
        return Remark(self.word, f"{self.first.text.partition('; ')[0].removesuffix('.')}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """An answer in at most 14 lines of 100 columns."""

    sentence: str
    """The answer, as a person would say it: one figure, its interval, the condition."""
    asked: str
    """Model, plan, GPUs, engine and load."""
    table: WholeTable | None
    """A row a variant, plan or cluster."""
    remarks: Sequence[Remark] = ()
    """The most important first: those without room are left out."""
    offers: Sequence[Remark] = ()
    """What else the reader could do, and what it costs."""
    cautions: Sequence[str] | None = None
    """Warnings, by default those of the answer's notes: those that change a decision stand before the offers, the
    others at the end. Those that put the figures in doubt have room first."""
    more: str = ""
    """What --explain has besides them, e.g. "12 more plans"."""

    def shown(self, console: Console) -> list[Remark]:
        """Return the remarks that have room on `LINES`; the last says what has none, and how many cautions."""
        room = LINES - self._head_height(console)
        doubt, decisive, others = (
            [_caution(text) for text in self.cautions or () if gravity(text) == grade] for grade in (2, 1, 0)
        )
        wanted = [*self.remarks, *doubt, *decisive, *self.offers, *others]
        own = [self._rest(0)] if self.more else []
        # a line stays empty above the table, unless that takes the room of a reason
        if sum(_remark_height(console, each) for each in (*wanted, *own)) < room:
            return [*wanted, *own]
        room -= _remark_height(console, self._rest(len(wanted)))
        for spare in (room - 1, room):
            kept: dict[int, Remark] = {}
            for number, part in _by_need(wanted, doubt):
                longer = _remark_height(console, part)
                longer -= _remark_height(console, kept[number]) if number in kept else 0
                if longer <= spare:
                    kept[number] = part
                    spare -= longer
            if all(kept.get(at) in (each.first, each) for at, each in enumerate(wanted) if each.word in _REASONS):
                break
        hidden = sum(each.word == "caution" for number, each in enumerate(wanted) if number not in kept)
        return [*(kept[number] for number in sorted(kept)), self._rest(hidden)]

    def _head_height(self, console: Console) -> int:
        """Return the lines of the answer and its table."""
        options = console.options.update_width(WIDTH)
        table = len(console.render_lines(self.table, options)) if self.table else 0
        return table + sum(_height(console, text, WIDTH) for text in (self.sentence, self.asked))

    def _rest(self, cautions: int) -> Remark:
        besides = f" and {counted_text(cautions, 'caution')}" if cautions else ""
        return Remark("more", f"--explain has {self.more or 'the rest'}{besides}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.shown(console)
        parts: list[RenderableType] = [Text(self.sentence, "bold"), Text(self.asked)]
        if self._head_height(console) + sum(_remark_height(console, remark) for remark in shown) < LINES:
            parts.append(Text())
        if self.table:
            parts.append(self.table)
        for part in parts:
            yield Constrain(part, WIDTH)
        for remark in shown:
            yield from _lines(console, options, remark)


@dataclass(frozen=True, slots=True)
class Rest:
    """The remarks of an answer that had no room, or not for all of their sentences."""

    brief: Brief

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.brief.shown(console)
        rest = [remark for remark in (*self.brief.remarks, *self.brief.offers) if remark not in shown]
        for remark in rest:
            yield from _lines(console, options, remark)
        if rest:
            yield Text()


def _lines(console: Console, options: ConsoleOptions, remark: Remark) -> Iterator[Text]:
    word, width = remark.word, min(options.max_width, WIDTH) - _MARGIN
    # a page has colours of its own
    style = "bold" if console.record else _STYLES.get(word, "dim")
    for line in Text(remark.text).wrap(console, max(width, 20)):
        yield Text.assemble((f"{word:<{_MARGIN}}", style), line.plain.rstrip())
        word = ""


def _by_need(remarks: Sequence[Remark], doubts: Sequence[Remark]) -> Iterator[tuple[int, Remark]]:
    """Yield remarks by number in the order in which they get room, longer parts of reasons after their first ones."""
    numbered = list(enumerate(remarks))
    first = [(number, each) for number, each in numbered if each in doubts]
    reasons = [(number, each) for number, each in numbered if each.word in _REASONS]
    reasons.sort(key=lambda entry: _REASONS.index(entry[1].word))
    others = [entry for entry in numbered if entry not in (*first, *reasons)]
    yield from ((number, each.first) for number, each in first)
    yield from ((number, each.clause) for number, each in reasons)
    yield from ((number, each.first) for number, each in reasons)
    yield from reasons
    yield from ((number, each.first) for number, each in others)
    yield from (*first, *others)


def _height(console: Console, text: str, width: int) -> int:
    return len(Text(text).wrap(console, width))


def _remark_height(console: Console, remark: Remark) -> int:
    return _height(console, remark.text, WIDTH - _MARGIN)


def _caution(text: str) -> Remark:
    return Remark("caution", text + ("" if text.endswith(".") else "."))


A = TypeVar("A")


class Report(ABC, Generic[A]):
    """How one answer looks."""

    def __init__(self, answer: A) -> None:
        self.answer = answer

    @cached_property
    def notes(self) -> Notes:
        """What the reader should know: the runs behind it, and warnings; by default what the answer has of these."""
        confidence = getattr(self.answer, "confidence", None)
        notes: Notes = getattr(self.answer, "notes", Notes(confidences={"": confidence} if confidence else {}))
        return notes

    cautions: Sequence[str] = ()
    """What the answer leaves out of what was asked, as its command line says."""

    @property
    def all_notes(self) -> Notes:
        """The notes, with what the answer leaves out."""
        notes = self.notes
        return replace(notes, about=(*self.cautions, *notes.about))

    @cached_property
    def brief(self) -> Brief:
        """What is printed by default."""
        brief = self._brief()
        own = self.notes.warnings if brief.cautions is None else brief.cautions
        return replace(brief, cautions=[*self.cautions, *own])

    @abstractmethod
    def _brief(self) -> Brief: ...

    @abstractmethod
    def details(self) -> RenderableType:
        """Return what ``--explain`` adds."""

    @abstractmethod
    def values(self) -> Document:
        """Return the answer's JSON and CSV, without the notes."""

    figures: ClassVar[Mapping[str, Callable[[Any], "go.Figure"]]] = {}
    """Functions that draw the answer, by kind, the default first."""

    def document(self) -> Document:
        """Return the answer's JSON and CSV, notes included."""
        values = self.values()
        return replace(values, content={**values.content, **self.all_notes.fields()})

    def figure(self, kind: str | None = None) -> "go.Figure":
        """Draw one of its figures; by default the first."""
        chosen = next(iter(self.figures)) if kind is None else kind
        if chosen not in self.figures:
            raise UnknownNameError("kind of plot", chosen, tuple(self.figures))
        return self.figures[chosen](self)

    def renderable(self, *, explain: bool = False) -> RenderableType:
        """Return the answer's lines, and with `explain` all that is behind them."""
        if not explain:
            return self.brief
        notes = self.all_notes
        runs = validated_lines(*notes.confidences.values()) if notes.confidences else []
        end = [*runs, *(f"warning: {text}" for text in notes.warnings)]
        return Group(self.brief, Text(), Rest(self.brief), self.details(), *map(Text, ["", *end] if end else []))

    def text(self, *, explain: bool = False) -> str:
        """Return the answer as text without colour, with its explanation if `explain`."""
        return to_text(self.renderable(explain=explain)).rstrip("\n")

    def html(self) -> str:
        """Return the answer's lines as HTML, and folded what is behind them."""
        more = to_html(self.renderable(explain=True))
        return f"{to_html(self.brief)}<details><summary>Explain</summary>{more}</details>"
