"""Laws: what every answer keeps, as properties over random inputs, in tests/laws.

Each is listed by name in docs/development.md with the number of its examples: ``python -m tests.support.laws`` writes
the table there.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from tests.conftest import REPO

PAGE = REPO / "docs" / "development.md"
# the table is what stands between this head and the next empty line
HEAD = "| law | examples |\n|---|---|\n"
# of the profile `thorough`
THOROUGH = 1000


def law(*, examples: int) -> Callable[[Callable[..., Any]], Any]:
    """Run a property over so many examples, the same in every run; its docstring's first line states the law."""

    def with_examples(test: Callable[..., Any]) -> Any:
        thorough = settings.get_current_profile_name() == "thorough"
        return pytest.mark.slow(settings(max_examples=max(examples, THOROUGH) if thorough else examples)(test))

    return with_examples


class Law(NamedTuple):
    """One law as its file states it."""

    text: str
    examples: int


def laws() -> Iterator[Law]:
    """Laws in the order of their files."""
    for path in sorted((REPO / "tests" / "laws").glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            calls = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            for call in calls:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "law":
                    assert isinstance(node, ast.FunctionDef)
                    text = (ast.get_docstring(node) or node.name).split("\n\n")[0].replace("\n", " ")
                    yield Law(text, ast.literal_eval(call.keywords[0].value))


def table() -> str:
    """Rows of the page's table."""
    return "".join(f"| {law.text} | {law.examples} |\n" for law in laws())


def written(page: str) -> str:
    """The page with the table as it should be."""
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: HEAD + table(), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
