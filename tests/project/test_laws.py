"""Every law says in its first line what it keeps."""

from tests.support.laws import laws


def test_each_law_is_a_sentence() -> None:
    assert all(law.text.endswith(".") for law in laws())
