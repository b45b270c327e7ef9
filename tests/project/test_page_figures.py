"""The figures of the pages draw what the code gives today, and a page shows each of them."""

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import evidence
from benchmarks.page_figures import COMMANDS, FIGURES, drawn_by, drawn_numbers, file_of, numbers
from benchmarks.pages import DOCS, SCHEMES

if TYPE_CHECKING:
    import plotly.graph_objects as go

# pages that show figures of another name
PAGES = {
    "how/model": "index.md",
    "how/serving": "load.md",
    "evidence-runs": "evidence.md",
    "evidence-servings": "evidence.md",
    "recovery": "adopt.md",
    "versus-map": "questions/ladder-pays.md",
}


def about(drawn: "go.Figure") -> list[Any]:
    """What a file should hold of a figure; `python -m benchmarks.page_figures` draws it again."""
    now = numbers(drawn)
    assert any(now)
    return [pytest.approx(trace, rel=5e-3, abs=1e-3) for trace in now]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_what_the_code_gives(name: str) -> None:
    drawn = FIGURES[name]()
    for scheme in SCHEMES:
        assert drawn_numbers(file_of(name, scheme)) == about(drawn)


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_shows_it_in_both_schemes(name: str) -> None:
    page = DOCS / PAGES.get(name, f"{name}.md")
    for scheme in SCHEMES:
        link = file_of(name, scheme).relative_to(page.parent)
        assert f"]({link}#gh-{scheme}-mode-only)" in page.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_figure_draws_what_its_commands_give(name: str) -> None:
    assert drawn_numbers(file_of(name)) == about(drawn_by(COMMANDS[name]))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_shows_it_with_its_commands(name: str) -> None:
    page = (DOCS / PAGES.get(name, f"{name}.md")).read_text("utf-8")
    assert f"/{file_of(name).name})" in page
    for command in COMMANDS[name]:
        assert command in page


def test_the_evidence_is_that_of_the_data() -> None:
    """`python -m benchmarks.evidence` writes the page."""
    assert evidence.to_page() == (DOCS / "evidence.md").read_text("utf-8")
