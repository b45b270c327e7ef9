"""The README and the pages of the documentation show what their commands print."""

import re

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
        "trace",
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


def test_each_study_is_listed_and_says_its_question_and_its_limits() -> None:
    """`make docs` runs them; prose with numbers is printed by their cells."""
    gallery = REPO / "docs" / "gallery"
    studies = sorted(gallery.glob("*.py"))
    assert len(studies) >= 8
    for study in studies:
        text = study.read_text("utf-8")
        assert f"]({study.name})" in (gallery / "index.md").read_text("utf-8")
        for part in ("Question", "What was done", "What one sees", "What it does not show"):
            assert text.count(f"**{part}.**") == 1, f"{study.name}: {part}"


def test_prose_calls_a_model_by_one_name() -> None:
    """Llama 3.1 70B; with dashes it is an id of the Hugging Face Hub, or of one of its checkpoints."""
    pages = [REPO / "README.md", *(REPO / "docs").rglob("*.md"), *(REPO / "docs" / "gallery").glob("*.py")]
    assert len(pages) > 40
    for page in pages:
        assert not re.search(r"(?<!/)Llama-[0-9.]+-[0-9]+B(?!-)", page.read_text("utf-8")), page.name
