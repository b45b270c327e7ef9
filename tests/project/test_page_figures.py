"""The figures of the pages draw what the code gives today, and a page shows each of them."""

import pytest

from benchmarks import evidence
from benchmarks.page_figures import DOCS, FIGURES, SCHEMES, drawn_numbers, file_of, numbers

# pages that show figures of another folder
PAGES = {
    "how/model": "model.md",
    "how/serving": "serving.md",
    "evidence-runs": "evidence.md",
    "evidence-servings": "evidence.md",
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_what_the_code_gives(name: str) -> None:
    """`python -m benchmarks.page_figures` draws them again."""
    now = numbers(FIGURES[name]())
    for scheme in SCHEMES:
        shown = drawn_numbers(file_of(name, scheme))
        assert [len(trace) for trace in shown] == [len(trace) for trace in now]
        for trace, was in zip(now, shown, strict=True):
            assert trace == pytest.approx(was, rel=5e-3, abs=1e-3), scheme


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_shows_it_in_both_schemes(name: str) -> None:
    page = DOCS / PAGES.get(name, f"{name}.md")
    for scheme in SCHEMES:
        link = file_of(name, scheme).relative_to(page.parent)
        assert f"]({link}#gh-{scheme}-mode-only)" in page.read_text("utf-8")


def test_the_evidence_is_that_of_the_data() -> None:
    """`python -m benchmarks.evidence` writes the page."""
    assert evidence.to_page() == (DOCS / "evidence.md").read_text("utf-8")
