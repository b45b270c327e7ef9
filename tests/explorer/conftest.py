"""An explorer without a port, and one in a browser, once for each file of tests that ask for them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.server import Site
from tests.support.commands import run

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


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page as the command writes it into a folder."""
    target = tmp_path_factory.mktemp("export") / "page"
    flags = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--concurrency", "64")
    ran = run("explore", *flags, "--export", str(target))
    assert ran.code == 0, ran.err
    assert str(target) in ran.err
    return target
