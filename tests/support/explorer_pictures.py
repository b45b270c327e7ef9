"""Pictures of the explorer's page for docs/explorer.md and start.md.

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
_SCENARIO = "?model=405b&nodes=2"
_PINS = "&pin=model%3D405b%26nodes%3D2%26batch%3D16&pin=model%3D405b%26dtype%3Dfp8"
# what the header at the top of a screen covers, and a little more, pixels
_HEADER = 66
# of the views that come last
_DRAWN = "['#tornado .bars', '#map .hm', '#versus .bars', '#plans .points'].every((it) => document.querySelector(it))"


class Picture(NamedTuple):
    """A part of a page."""

    width: int
    height: int
    top: str = ""
    """What it begins with, a selector; empty: the page."""
    query: str = _SCENARIO
    dark: bool = False
    scale: float = 1.0


PICTURES: Mapping[str, Picture] = {
    "laptop": Picture(1440, 900),
    "answers": Picture(1440, 1480, "#versus-view"),
    "views": Picture(1440, 1480, "section:has(#timeline)"),
    "dark": Picture(1440, 900, "#comparing", _SCENARIO + _PINS, dark=True),
    "phone": Picture(390, 1240, scale=1.5),
}


def take(name: str, browser: Browser, address: str) -> None:
    """Write docs/explorer-NAME.png."""
    picture = PICTURES[name]
    context = browser.new_context(
        device_scale_factor=picture.scale, color_scheme="dark" if picture.dark else "light", reduced_motion="reduce"
    )
    watched = Watched(context.new_page(), address, DOCS)
    page = watched.open(picture.query, picture.width, picture.height)
    watched.until(_DRAWN)
    if picture.top:
        place = page.locator(picture.top).bounding_box()
        assert place is not None
        page.mouse.wheel(0, place["y"] - _HEADER)
    # until the page has moved and what follows a size is drawn
    page.wait_for_timeout(1000)
    page.screenshot(path=DOCS / f"explorer-{name}.png")
    context.close()


def main(names: Sequence[str]) -> None:
    with served() as address, chromium() as browser:
        for name in names or PICTURES:
            take(name, browser, address)


if __name__ == "__main__":
    main(sys.argv[1:])
