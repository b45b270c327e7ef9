"""Markdown of the pages in docs: tables read and written, paragraphs, figures in both schemes."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
SCHEMES = ("light", "dark")

Row = Mapping[str, str]


def table_of(page: str, heading: str, number: int = 0) -> list[Row]:
    """One of the tables below a heading of a page, by its columns: "error", and the next one of that name "error 2"."""
    text = (DOCS / page).read_text("utf-8")
    section = text[text.index(f" {heading}\n") :].partition("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[number].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines)
    columns = [f"{name} {seen + 1}" if (seen := head[:at].count(name)) else name for at, name in enumerate(head)]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def number_in(cell: str) -> float:
    """The first number of a cell."""
    (value,) = re.findall(r"[-+]?\d+(?:\.\d+)?", cell)[:1]
    return float(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in lines of a page."""
    lines = [columns, ["---"] * len(columns), *rows]
    # names of files may hold a bar
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def paragraph(text: str, *, bullet: bool = False) -> str:
    """A paragraph, or an entry of a list, in lines of a page."""
    fill = textwrap.TextWrapper(
        120, break_long_words=False, break_on_hyphens=False, subsequent_indent="  " if bullet else ""
    )
    return f"{fill.fill(f'- {text}' if bullet else text)}\n"


def pictures(name: str, says: str) -> str:
    """A figure in both schemes, with what it shows in words."""
    return "".join(f"![{says}]({name}-{scheme}.svg#gh-{scheme}-mode-only)\n" for scheme in SCHEMES) + "\n"


def percent(share: float | str, digits: int = 1) -> str:
    """A fraction in percent."""
    return f"{100 * float(share):.{digits}f} %"
