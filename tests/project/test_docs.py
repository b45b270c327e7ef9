"""The README and the pages about sweeps, analysis and Python show what their commands print."""

import pytest

from tests.conftest import REPO
from tests.support.shown import PAGES, PYTHON_PAGES, blocks, output, with_outputs

SHOWN = [(page, *block) for page in PAGES for block in blocks(page)]


def test_the_pages_show_every_command() -> None:
    assert {command.split()[1] for _, command, _ in SHOWN} == {
        "predict",
        "sweep",
        "breakeven",
        "sensitivity",
        "advise",
        "compare",
        "serve",
        "capacity",
        "validate",
        "quality",
        "versus",
    }


@pytest.mark.parametrize(("page", "command", "shown"), SHOWN, ids=[command for _, command, _ in SHOWN])
def test_the_output_is_what_the_command_prints(page: str, command: str, shown: str) -> None:
    """`python -m tests.support.shown` refreshes the pages."""
    assert shown == output(command, shown)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_prints_what_is_shown(page: str) -> None:
    text = (REPO / page).read_text("utf-8")
    assert with_outputs(text) == text
    assert text.count("```python") == text.count("```text") >= 5
