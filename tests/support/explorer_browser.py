"""A headless Chromium that watches what a page asks for and complains of."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Page, Request

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.server import Site, bound
from tests.support.waiting import HANG_S


class Watched:
    """A page, what it asked for and what it complained of."""

    def __init__(self, page: Page, address: str, artefacts: Path) -> None:
        self.page, self.address, self._artefacts = page, address, artefacts
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(HANG_S * 1000)
        page.on("request", self._asked)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, query: str = "", width: int = 1440, height: int = 900) -> Page:
        """Show a link until its numbers are there."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.goto(f"{self.address}/{query}")
        self.until("!!document.querySelector('.fr') && !!document.querySelector('#view')?.dataset.shows")
        return self.page

    def until(self, condition: str) -> None:
        """Wait until an expression holds; Playwright's own way evaluates text in the page, which its headers forbid."""
        end_s = time.monotonic() + HANG_S
        while not self.page.evaluate(condition):
            assert time.monotonic() < end_s, f"never: {condition}"
            self.page.wait_for_timeout(30)

    def until_text(self, selector: str, text: str) -> None:
        """Wait until an element's text holds some words."""
        self.until(f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})")

    def gain(self, option: str = "ladder") -> str:
        """An option's speedup with its interval."""
        return self.page.inner_text(f"[data-option='{option}'] .v >> nth=0")

    def screenshot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        self.page.screenshot(path=self._artefacts / f"{name}.png", full_page=True)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@contextmanager
def served(start: str = "") -> Iterator[str]:
    """An explorer on a free port of this machine; `start` is the query of a page that is opened without one."""
    site = Site(Allowlist.of(), start)
    server = bound(site, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        site.close()


def artefacts(fallback: Path) -> Path:
    """Where pictures are kept: ``LADDER_TEST_ARTEFACTS``, or a folder of the test run."""
    folder = Path(os.environ.get("LADDER_TEST_ARTEFACTS") or fallback)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
