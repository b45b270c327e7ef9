"""Pictures of the explorer's page for docs/explorer.md, start.md and README.

python -m tests.support.explorer_pictures                 all of them
python -m tests.support.explorer_pictures laptop phone    these
"""

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from playwright.sync_api import Browser

from tests.conftest import REPO
from tests.support.browser import chromium
from tests.support.explorer_browser import Watched, served

DOCS = REPO / "docs"
_QUESTION = "?stack=vllm&concurrency=64"


class Picture(NamedTuple):
    """A page, or a part of it."""

    width: int
    height: int
    query: str = _QUESTION
    part: str = ""
    """Selector of the part; empty: the first screen."""
    dark: bool = False
    scale: float = 1.0


PICTURES: Mapping[str, Picture] = {
    "laptop": Picture(1280, 900),
    "whatif": Picture(1280, 900, f"{_QUESTION}&view=whatif", "#view"),
    "plans": Picture(1280, 900, f"{_QUESTION}&view=plans", "#view"),
    "dark": Picture(1280, 900, "?model=405b&nodes=2", dark=True),
    "phone": Picture(390, 844, scale=1.5),
}


def take(name: str, browser: Browser, address: str) -> None:
    """Write docs/explorer-NAME.png."""
    picture = PICTURES[name]
    context = browser.new_context(
        device_scale_factor=picture.scale, color_scheme="dark" if picture.dark else "light", reduced_motion="reduce"
    )
    watched = Watched(context.new_page(), address, DOCS)
    page = watched.open(picture.query, picture.width, picture.height)
    # until the note that comes last is there, and what follows a size is drawn
    watched.until("!!document.querySelector('.notes [data-view] p') && !document.querySelector('.busy')")
    page.wait_for_timeout(1000)
    shown = page.locator(picture.part) if picture.part else page
    shown.screenshot(path=DOCS / f"explorer-{name}.png")
    context.close()


def main(names: Sequence[str]) -> None:
    with served() as address, chromium() as browser:
        for name in names or PICTURES:
            take(name, browser, address)


if __name__ == "__main__":
    main(sys.argv[1:])
