"""How an answer looks: the lines of a terminal, a page, plain values and figures. Each kind of answer has its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import validated_lines
from ladder_sim.display.notes import Notes
from ladder_sim.errors import UnknownNameError
from ladder_sim.report.brief import Brief, Rest
from ladder_sim.report.console import to_html, to_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

A = TypeVar("A")


class Report(ABC, Generic[A]):
    """How one answer looks."""

    def __init__(self, answer: A) -> None:
        self.answer = answer

    @property
    def notes(self) -> Notes:
        """What the reader should know: the runs behind it, and warnings; by default nothing."""
        return Notes(confidences={})

    @cached_property
    def brief(self) -> Brief:
        """What is printed by default."""
        return self._brief()

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
        return replace(values, content={**values.content, **self.notes.fields()})

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
        notes = self.notes
        end = [Text(), paragraphs(notes)] if notes.confidences or notes.about else []
        return Group(self.brief, Text(), Rest(self.brief), self.details(), *end)

    def text(self, *, explain: bool = False) -> str:
        """Return the answer as text without colour, with its explanation if `explain`."""
        return to_text(self.renderable(explain=explain)).rstrip("\n")

    def html(self) -> str:
        """Return the answer's lines as HTML, and folded what is behind them."""
        more = to_html(self.renderable(explain=True))
        return f"{to_html(self.brief)}<details><summary>Explain</summary>{more}</details>"


def paragraphs(notes: Notes) -> RenderableType:
    """Return the runs behind an answer, and its warnings, a paragraph each."""
    checked = validated_lines(*notes.confidences.values()) if notes.confidences else []
    return Group(*map(Text, [*checked, *(f"warning: {text}" for text in notes.warnings)]))
