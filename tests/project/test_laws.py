"""The page for developers lists every law."""

from tests.support.laws import HEAD, PAGE, laws, written


def test_the_page_lists_the_laws() -> None:
    """`python -m tests.support.laws` writes the table."""
    page = PAGE.read_text("utf-8")
    assert HEAD in page
    assert written(page) == page
    assert all(law.text.endswith(".") for law in laws())
