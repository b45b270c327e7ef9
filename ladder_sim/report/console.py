"""Tables in the project's style, and how they are printed."""

import io
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table

from ladder_sim.errors import printable

# columns of a file or a pipe: enough that no line is broken
PLAIN_WIDTH = 240
# columns between two of a table
GAP = 2
# least width of a column of text that takes several lines
_TEXT_WIDTH = 20
# text in the page's own colour; a line is scrolled to, not broken
_HTML = '<pre style="white-space: pre; overflow-x: auto">{code}</pre>'


def to_text(renderable: RenderableType) -> str:
    """Return the plain text without colour, for files."""
    return _render(renderable, PLAIN_WIDTH, color=False)


def to_html(renderable: RenderableType) -> str:
    """Return a block of text as HTML, for a page of any colours."""
    console = _console(PLAIN_WIDTH, record=True, file=io.StringIO())
    console.print(_Printable(renderable), crop=False)
    return console.export_html(inline_styles=True, code_format=_HTML)


def show(renderable: RenderableType, file: TextIO | None = None) -> None:
    """Print to stdout or another file: as wide as the terminal, or `PLAIN_WIDTH` off one."""
    file = file or sys.stdout
    width = None if file.isatty() else PLAIN_WIDTH
    # written by us: rich ends the process with an error when the reader of a pipe has enough
    file.write(_render(renderable, width, color=not os.environ.get("NO_COLOR")))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    keys: int = 1,
    wrapped: Collection[str] | None = None,
    title: str = "",
) -> "WholeTable":
    """Return a plain table: the first `left` columns of text, the rest of numbers.

    Where there is no room, the columns `wrapped` take several lines; by default those of text but for the first. Where
    there is still none, columns follow in tables below; the first `keys` columns are in each.
    """
    breakable = columns[1:left] if wrapped is None else wrapped
    return WholeTable(columns, list(rows), left, keys, frozenset(breakable), title)


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table that shows all its columns on a screen of any width; `table` makes it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int
    keys: int
    wrapped: Collection[str]
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [self._widths(index) for index in range(len(self.columns))]
        keys = list(range(self.keys))
        parts: list[list[int]] = []
        for index in range(self.keys, len(self.columns)):
            longer = [*parts[-1], index] if parts else []
            if longer and _total(widths[each][0] for each in longer) <= options.max_width:
                parts[-1] = longer
            else:
                parts.append([*keys, index])
        for number, part in enumerate(parts or [keys]):
            if number:
                yield ""
            yield self._grid(part, _shared(options.max_width, [widths[each] for each in part]), not number)

    def _widths(self, index: int) -> tuple[int, int]:
        """Return the fewest characters with which a column can be read, and those with every cell on one line."""
        column = self.columns[index]
        cells = [column, *(row[index] for row in self.rows)]
        widest = max(map(cell_len, cells))
        if column not in self.wrapped:
            return widest, widest
        words = max(cell_len(word) for cell in cells for word in cell.split() or [""])
        return min(widest, max(words, _TEXT_WIDTH)) if index < self.left else words, widest

    def _grid(self, part: Sequence[int], widths: Sequence[int], titled: bool) -> Table:
        title = self.title if titled and self.title else None
        grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for index, width in zip(part, widths, strict=True):
            # fold: on the narrowest terminal a number is broken rather than cut
            justify: Any = "left" if index < self.left else "right"
            grid.add_column(self.columns[index], justify=justify, width=width, overflow="fold")
        for row in self.rows:
            grid.add_row(*(row[index] for index in part))
        return grid


def _total(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + GAP * (len(widths) - 1)


def _shared(room: int, widths: Sequence[tuple[int, int]]) -> list[int]:
    """Return the width of each column between its least and its most; columns share the room that is left."""
    shared = [least for least, _ in widths]
    spare = room - _total(shared)
    if spare < 0:
        # not even one column has room next to the first ones
        widest = shared.index(max(shared))
        shared[widest] = max(1, shared[widest] + spare)
        return shared
    lacking = sum(most - least for least, most in widths)
    return [least + min(most - least, spare * (most - least) // max(1, lacking)) for least, most in widths]


@dataclass(frozen=True, slots=True)
class _Printable:
    """A renderable whose text a terminal prints and never obeys."""

    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.renderable, options):
            yield Segment(printable(text), style, control)


def _render(renderable: RenderableType, width: int | None, *, color: bool) -> str:
    console = _console(width, color_system="auto" if color else None)
    with console.capture() as written:
        console.print(_Printable(renderable), crop=False)
    return "".join(f"{line.rstrip()}\n" for line in written.get().splitlines())


def _console(width: int | None, **how: Any) -> Console:
    # names and paths of the user are no markup; in a notebook rich would display the lines once more
    return Console(width=width, markup=False, emoji=False, highlight=False, force_jupyter=False, **how)
