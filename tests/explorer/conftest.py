"""A browser, and an explorer for it, once for each file of tests that ask for them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of an explorer's page."""
    # imported here: most tests of the folder need no browser
    from tests.support.explorer_browser import served

    with served() as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Headless."""
    from tests.support.browser import chromium

    with chromium() as started:
        yield started
