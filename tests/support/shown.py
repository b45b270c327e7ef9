"""Commands and Python that the documentation shows with their output.

A command is a line ``$ ladder-sim ...`` of an indented block, its output what follows. A line ``...`` leaves lines out:
those before it are the first of the output, those after it the last. A block of Python is followed by a block of text
that it prints; the blocks of a page share their names. ``python -m tests.support.shown [PAGE ...]`` writes the current
outputs into the pages.
"""

import contextlib
import io
import re
import shlex
import sys
from functools import cache
from pathlib import Path

from tests.conftest import REPO
from tests.support.commands import run

# what these show was measured once, on machines and with files that they name
MEASURED = ("docs/calibrate.md", "docs/runtime.md")
PAGES = tuple(
    page
    for page in ("README.md", *sorted(path.relative_to(REPO).as_posix() for path in (REPO / "docs").rglob("*.md")))
    if page not in MEASURED
)
PYTHON_PAGES = ("docs/python.md",)
# the output goes on to the next text or command; blank lines inside it are its own
_BLOCK = re.compile(r"^    \$ (ladder-sim .*)\n((?:    (?!\$).*\n|\n(?=    (?!\$)))*)", re.MULTILINE)
_MORE = "    ...\n"
_PYTHON = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Commands and the outputs that a page shows for them."""
    return [(command, output) for command, output in _BLOCK.findall((REPO / page).read_text("utf-8"))]


def output(command: str, shown: str) -> str:
    """Current output of a command, indented as a page shows it, and as much of it."""
    lines = _lines(command)
    first, more, last = shown.partition(_MORE)
    if more:
        lines = [*lines[: first.count("\n")], "...", *lines[len(lines) - last.count("\n") :]]
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


@cache
def _lines(command: str) -> list[str]:
    """What a command prints; several pages may show it."""
    ran = run(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err
    return [*ran.out.splitlines(), *ran.err.splitlines()]


def with_outputs(text: str) -> str:
    """A page with the current outputs of its commands and of its Python."""
    names: dict[str, object] = {}

    def printed(block: re.Match[str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(block[1], names)
        return f"```python\n{block[1]}```\n\n```text\n{stdout.getvalue()}```\n"

    return _PYTHON.sub(printed, _BLOCK.sub(lambda block: f"    $ {block[1]}\n{output(block[1], block[2])}", text))


def refresh(page: Path) -> None:
    """Write the current outputs into a page."""
    page.write_text(with_outputs(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        refresh(REPO / name)
