"""Commands that the documentation shows with their output: after a line ``$ ladder-sim ...`` of an indented block.

``python -m tests.support.shown`` writes the current outputs into the pages.
"""

import re
import shlex
import sys
from pathlib import Path

from tests.conftest import REPO
from tests.support.commands import run

PAGES = ("docs/sweeps.md", "docs/analysis.md")
# the output goes on to the next text or command; blank lines inside it are its own
_BLOCK = re.compile(r"^    \$ (ladder-sim .*)\n((?:    (?!\$).*\n|\n(?=    (?!\$)))*)", re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """Commands and the outputs that a page shows for them."""
    return [(command, output) for command, output in _BLOCK.findall((REPO / page).read_text("utf-8"))]


def output(command: str) -> str:
    """Current output of a command, indented as a page shows it."""
    ran = run(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err
    lines = [*ran.out.splitlines(), *ran.err.splitlines()]
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


def refresh(page: Path) -> None:
    """Write the current outputs into a page."""
    text = page.read_text("utf-8")
    page.write_text(_BLOCK.sub(lambda block: f"    $ {block[1]}\n{output(block[1])}", text), "utf-8")


if __name__ == "__main__":
    sys.exit(any(refresh(REPO / page) for page in PAGES))
