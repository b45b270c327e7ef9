"""An explorer without a port, and one in a browser, once for each file of tests that ask for them."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.server import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """With the catalog."""
    made = Site(Allowlist.of(), "model=8b&tp=2")
    yield made
    made.close()


@pytest.fixture(scope="module")
def ask(site: Site) -> Callable[..., Any]:
    """What the page's script gets from an address."""

    def asked(path: str, query: str) -> Any:
        response = site.get(path, query)
        assert response.status == 200
        return json.loads(response.content)

    return asked


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
