"""Every law says in its first line what it keeps, and is named on the page of this project's developers."""

from tests.support.laws import PAGE, laws, with_laws


def test_each_law_is_a_sentence() -> None:
    assert all(law.text.endswith(".") for law in laws())


def test_the_page_lists_them() -> None:
    """`python -m tests.support.laws` refreshes it."""
    page = PAGE.read_text("utf-8")
    assert page == with_laws(page)
    assert all(f"`{law.name}`" in page for law in laws())
