"""The pages for those who use a keyboard or a screen reader, at WCAG 2.1 AA."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser

from ladder_sim.cli.main import main
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.callbacks import CONTROLS
from ladder_sim.explorer.controls import SLIDER_KEYS, SWITCHES, control_id
from tests.support.accessibility import violations
from tests.support.explorer_browser import Watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCHEMES = ("light", "dark")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
QUERY = "?model=405b&nodes=2&pin=model%3D405b%26nodes%3D2%26batch%3D8"
# requests under load, short ones
LOAD = "&prompt=64&gen=4&rate=50&variants=standard,ladder"
# boxes and buttons in a group, which have no ids of their own
GROUPS = (*SWITCHES, "variants", "phase")
# what has the focus, and its name for people: no element has it twice unless it is a trap
FOCUS = """() => {
  const at = document.activeElement;
  window.visited = window.visited || new Set();
  const again = window.visited.has(at);
  window.visited.add(at);
  const name = at.ariaLabel || (at.labels && at.labels.length ? at.labels[0].textContent : at.textContent);
  return { id: at.id, tag: at.tagName, name: name.trim(), again };
}"""


def pages(browser: Browser, address: str, folder: Path) -> Iterator[tuple[str, Watched]]:
    """A fresh page in each colour scheme."""
    for scheme in SCHEMES:
        with browser.new_context(color_scheme=scheme) as context:
            yield scheme, Watched(context.new_page(), address, folder)


def broken_rules(seen: Watched, name: str) -> dict[str, list[str]]:
    """The rules that a page breaks in each size, as far as it breaks any."""
    broken = {}
    for size, (width, height) in SIZES.items():
        seen.page.set_viewport_size({"width": width, "height": height})
        broken[f"{name}, {size}"] = violations(seen.page)
    return {look: rules for look, rules in broken.items() if rules}


def test_the_explorer_breaks_no_rule(browser: Browser, address: str, tmp_path: Path) -> None:
    for scheme, seen in pages(browser, address, tmp_path):
        page = seen.page
        page.goto(f"{address}/{QUERY}{LOAD}")
        seen.drawn()
        page.wait_for_selector("#comparing:not([hidden]) table")
        seen.until("!!document.querySelector('#load-progress progress, #load-result:not(:empty)')")
        assert broken_rules(seen, f"{scheme}, simulating") == {}
        seen.until_text("#load-result", "GPU")
        page.click("text=Command line and Python")
        page.click("text=Where to start: three questions")
        for name, view in VIEWS.items():
            seen.until(f"!!document.querySelector('#{name}-tables table')")
            if view.details:
                page.click(f"text={view.details}")
        assert broken_rules(seen, scheme) == {}
        page.fill("#c-batch", "none")
        page.press("#c-batch", "Enter")
        seen.until_text("#error", "must be a whole number")
        assert broken_rules(seen, f"{scheme}, refused") == {}


def test_pages_in_files_break_no_rule(browser: Browser, address: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("page.html", "plot.html", "kept.html")]
    assert main(["explore", "--model", "405b", "--nodes", "2", "--export", str(files[0])]) == 0
    assert main(["predict", "--set", f"plot={files[1]}"]) == 0
    # with the views in the background
    with urlopen(f"{address}/download/page.html?model=8b&tp=2&stack=vllm&concurrency=8") as kept:
        files[2].write_bytes(kept.read())
    for scheme, seen in pages(browser, address, tmp_path):
        for file in files:
            seen.page.goto(file.as_uri())
            seen.page.wait_for_selector(".js-plotly-plot .barlayer .point")
            assert broken_rules(seen, f"{scheme}, {file.name}") == {}


def test_tab_reaches_every_control_once_and_leaves(browser: Browser, address: str, tmp_path: Path) -> None:
    """Guards against fields that catch the keyboard: Tab circled inside a group of them."""
    with browser.new_context() as context:
        seen = Watched(context.new_page(), address, tmp_path)
        page = seen.open("?model=405b&nodes=2")
        seen.drawn()
        visited = []
        while True:
            page.keyboard.press("Tab")
            focus = page.evaluate(FOCUS)
            if focus["again"] or focus["tag"] == "BODY":
                break
            visited.append(focus)
        # after the last one the browser begins again
        assert focus["tag"] == "BODY" or focus["id"] == visited[0]["id"], focus
        assert [stop for stop in visited if not stop["name"]] == []
        ids = {stop["id"] for stop in visited}
        fields = {control_id(key) for key in CONTROLS if key not in GROUPS}
        expected = fields | {f"{control_id(key)}-slider" for key in SLIDER_KEYS}
        assert expected - ids == set()
        assert {"upload", "copy-link", "pin", "theme-switch", "cli", "copy-cli"} <= ids
        assert {"No peer-to-peer (host memory)", "hybrid-ladder", "one decode step"} <= {
            stop["name"] for stop in visited
        }
        names = [stop["name"] for stop in visited if stop["tag"] in ("A", "BUTTON")]
        assert sorted(names) == sorted(set(names)), "two links with one name"


def test_a_slider_says_its_value_with_its_unit(browser: Browser, address: str, tmp_path: Path) -> None:
    with browser.new_context() as context:
        seen = Watched(context.new_page(), address, tmp_path)
        page = seen.open("?model=405b&nodes=2&inter.bandwidth=400Gb/s")
        slider = page.locator("#c-inter-bandwidth-slider")
        seen.until("document.querySelector('#c-inter-bandwidth-slider').ariaValueText === '50.0 GB/s'")
        slider.focus()
        page.keyboard.press("ArrowRight")
        seen.until("document.querySelector('#c-inter-bandwidth-slider').ariaValueText !== '50.0 GB/s'")
        assert (slider.get_attribute("aria-valuetext") or "").endswith("B/s")
