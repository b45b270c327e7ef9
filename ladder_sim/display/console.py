"""Tables in the project's style, and how they are printed."""

import io
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

# columns of a file or a pipe: enough that no line is broken
PLAIN_WIDTH = 240
# text in the page's own colour; a line is scrolled to, not broken
_HTML = '<pre style="white-space: pre; overflow-x: auto">{code}</pre>'


def to_text(renderable: RenderableType) -> str:
    """Plain text without colour, for files."""
    return _render(renderable, PLAIN_WIDTH, color=False)


def to_html(renderable: RenderableType) -> str:
    """A block of text for a page of any colours."""
    console = _console(PLAIN_WIDTH, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=_HTML)


def show(renderable: RenderableType) -> None:
    """Print to stdout: as wide as the terminal, or `PLAIN_WIDTH` off one."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    # written by us: rich ends the process with an error when the reader of a pipe has enough
    sys.stdout.write(_render(renderable, width, color=not os.environ.get("NO_COLOR")))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    wrapped: Collection[str] | None = None,
    title: str = "",
) -> Table:
    """A plain table: the first `left` columns of text, the rest of numbers.

    Where there is no room, the columns `wrapped` take several lines; by default those of text but for the first.
    """
    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    breakable = columns[1:left] if wrapped is None else wrapped
    for index, column in enumerate(columns):
        # fold: on the narrowest terminal a number is broken rather than cut
        grid.add_column(
            column, justify="left" if index < left else "right", no_wrap=column not in breakable, overflow="fold"
        )
    for row in rows:
        grid.add_row(*row)
    return grid


class FirstThatFits:
    """The first of several tables that is no wider than the screen, else the last."""

    def __init__(self, *tables: Table) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        roomy = options.update(width=PLAIN_WIDTH)
        widths = [console.measure(candidate, options=roomy).maximum for candidate in self.tables]
        fitting = [grid for grid, width in zip(self.tables, widths, strict=True) if width <= options.max_width]
        yield (fitting or self.tables[-1:])[0]


def _render(renderable: RenderableType, width: int | None, *, color: bool) -> str:
    console = _console(width, color_system="auto" if color else None)
    with console.capture() as written:
        console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in written.get().splitlines())


def _console(width: int | None, **how: Any) -> Console:
    # names and paths of the user are no markup
    return Console(width=width, markup=False, emoji=False, highlight=False, **how)
