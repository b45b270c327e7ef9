"""A panel that another process has computed: a sentence, a figure, tables and a document, in plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ladder_sim.display.document import Document
from ladder_sim.display.notes import Notes
from ladder_sim.report.console import WholeTable

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; the first cell of each names it."""

    title: str
    columns: tuple[str, ...]
    groups: Mapping[str, Rows]
    """Rows by the name of their group; one group may have none."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Arguments of each row that turn the page's scenario into the row's; empty if rows are no scenarios."""

    @classmethod
    def of(cls, shown: WholeTable, changes: Sequence[Mapping[str, Any]] = (), *, title: str = "") -> Self:
        """Return a report's table, without groups."""
        return cls(title=title or shown.title, columns=tuple(shown.columns), groups={"": shown.rows}, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What a view in the background shows."""

    verdict: str
    """In a few sentences."""
    figure: Mapping[str, Any]
    """As plotly writes it."""
    tables: tuple[Table, ...]
    """Next to the figure."""
    note: str
    """How to read them."""
    details: tuple[Table, ...]
    """Below them, folded."""
    document: Document
    """As of the command."""
    cautions: tuple[str, ...] = ()
    """What the reader should know."""


def page_notes(notes: Notes) -> Notes:
    """Return the notes of a view without settings that are not used: the page says those once."""
    settings = (name for confidence in notes.confidences.values() for name in confidence.scenario.settings)
    return replace(notes, used=frozenset(settings))
