"""Laws: what every answer keeps, as properties over random inputs, in tests/laws.

``python -m tests.support.laws`` names them on docs/development.md, each with the number of its examples.
"""

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from ladder_sim.costs.estimate import Estimate
from ladder_sim.graph.ops import Op
from ladder_sim.simulate.passes import ForwardPass
from tests.conftest import REPO

PAGE = REPO / "docs" / "development.md"
# of the profile `thorough`
THOROUGH = 1000


def law(*, examples: int) -> Callable[[Callable[..., Any]], Any]:
    """Run a property over so many examples, the same in every run; its docstring's first line states the law."""

    def with_examples(test: Callable[..., Any]) -> Any:
        thorough = settings.get_current_profile_name() == "thorough"
        return pytest.mark.slow(settings(max_examples=max(examples, THOROUGH) if thorough else examples)(test))

    return with_examples


def ops(step: ForwardPass) -> Iterator[tuple[Op, Estimate, int]]:
    """Ops of a pass that differ, with what each costs and how often it runs."""
    for number, count in zip(step.schedule.numbers, step.schedule.order.counts, strict=True):
        yield *step.prices[number], count


def algorithms(step: ForwardPass) -> set[str]:
    """Algorithms of a pass's collectives."""
    return {estimate.algorithm for _, estimate, _ in ops(step) if estimate.algorithm}


class Law(NamedTuple):
    """One law as its file states it."""

    file: str
    name: str
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
                    text = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
                    examples = ast.literal_eval(call.keywords[0].value)
                    yield Law(path.stem, node.name.removeprefix("test_"), text, examples)


def with_laws(page: str) -> str:
    """Return a page with the current laws in its table of them."""
    rows = "".join(
        f"| `{file}` | {', '.join(f'`{each.name}` {each.examples:,}' for each in members)} |\n"
        for file, members in itertools.groupby(laws(), lambda each: each.file)
    )
    return re.sub(r"(?m)(^\| file \| laws .*\|\n.*\n)(?:\|.*\n)*", lambda head: head[1] + rows, page)


if __name__ == "__main__":
    PAGE.write_text(with_laws(PAGE.read_text("utf-8")), "utf-8")
