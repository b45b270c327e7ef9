"""Markdown of the pages in docs: tables read and written, lists, figures in both schemes.

A page is written by hand, but for its tables and lists of measured things: code makes those, and puts them in their
places.
"""

import csv
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
SCHEMES = ("light", "dark")

Row = Mapping[str, str]
# by the first letter of a table or of a list
_BLOCKS = {
    "|": re.compile(r"(?:^\|.*\n)+", re.MULTILINE),
    "-": re.compile(r"(?:^(?:- |  ).*\n)+", re.MULTILINE),
}


def rows_of(file: Path) -> list[Row]:
    """Of a CSV file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def table_of(page: str, heading: str) -> list[Row]:
    """Return the first table below a heading of a page."""
    text = (DOCS / page).read_text("utf-8")
    lines = _BLOCKS["|"].findall(text[text.index(f" {heading}\n") :])[0].splitlines()
    columns, _, *rows = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def remade(page: str, blocks: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a page, with `blocks` in place of the first tables and lists below each heading."""
    text = (DOCS / page).read_text("utf-8")
    for heading, parts in blocks.items():
        begin = text.index(f" {heading}\n")
        for part in parts:
            old = _BLOCKS[part[0]].search(text, begin)
            if old is None:
                raise ValueError(f"{page}: too few tables or lists below '{heading}'")
            text = text[: old.start()] + part + text[old.end() :]
            begin = old.start() + len(part)
    return text


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in lines of a page."""
    # names of files may hold a bar
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in (columns, *rows))
    return "".join((head, "|" + "---|" * len(columns) + "\n", *body))


def bullets(texts: Iterable[str]) -> str:
    """Return a list in lines of a page."""
    fill = textwrap.TextWrapper(
        120, break_long_words=False, break_on_hyphens=False, initial_indent="- ", subsequent_indent="  "
    )
    return "".join(f"{fill.fill(text)}\n" for text in texts)


def percent(share: float | str, digits: int = 1) -> str:
    """Return a fraction in percent."""
    return f"{100 * float(share):.{digits}f} %"
