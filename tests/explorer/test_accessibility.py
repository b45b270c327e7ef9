"""The pages for those who use a keyboard or a screen reader, at WCAG 2.1 AA."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from ladder_sim.cli.main import main
from ladder_sim.explorer.state import TABS
from tests.support.accessibility import violations
from tests.support.explorer_browser import Watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCHEMES = ("light", "dark")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
QUERY = "?model=8b&tp=2&stack=vllm&concurrency=8&prompt=64&gen=4&rate=50&pin=model%3D8b"
# what is inside folded parts of the open view
FOLDS = "[...document.querySelectorAll('#view details.fold > [data-view]')]"
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
        with browser.new_context(color_scheme=scheme, reduced_motion="reduce") as context:
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
        page = seen.open(QUERY)
        page.click("text=All options")
        for name in TABS:
            page.click(f"#tab-{name}")
            seen.until(f"document.querySelector('#view').dataset.shows === '{name}'")
            page.evaluate("() => document.querySelectorAll('#view details').forEach((fold) => { fold.open = true })")
            seen.until(f"{FOLDS}.every((box) => box.dataset.shows) && !document.querySelector('.busy')")
            assert broken_rules(seen, f"{scheme}, {name}") == {}
        for opened in ("settings", "help"):
            page.keyboard.press("?") if opened == "help" else page.click("[data-open=settings]")
            assert broken_rules(seen, f"{scheme}, {opened}") == {}
            page.keyboard.press("Escape")
        page.goto(f"{address}/?model=405b")
        seen.until_text("#error", "needs")
        assert broken_rules(seen, f"{scheme}, refused") == {}


def test_plots_in_files_break_no_rule(browser: Browser, address: str, tmp_path: Path) -> None:
    file = tmp_path / "plot.html"
    assert main(["predict", "--set", f"plot={file}"]) == 0
    for scheme, seen in pages(browser, address, tmp_path):
        seen.page.goto(file.as_uri())
        seen.page.wait_for_selector(".js-plotly-plot .barlayer .point")
        assert broken_rules(seen, scheme) == {}


def test_tab_reaches_every_control_once_and_leaves(browser: Browser, address: str, tmp_path: Path) -> None:
    """Guards against fields that catch the keyboard, and against a long way to the answer."""
    with browser.new_context() as context:
        seen = Watched(context.new_page(), address, tmp_path)
        page = seen.open("?model=405b&nodes=2")
        seen.until("!!document.querySelector('.lane') && !document.querySelector('.busy')")
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
        names = [stop["name"] for stop in visited]
        lists = ["Model", "GPUs", "Links", "Engine", "Load"]
        assert [name for name in names if name in lists] == lists
        # skip link, four buttons, five lists, all settings
        assert names.index("All settings") <= 12
        # one stop for the tabs, one for each lane
        assert sum(name.startswith(("Timeline", "What if")) for name in names) == 1
        assert sum(stop["tag"] == "SPAN" for stop in visited) == 4
        buttons = [stop["name"] for stop in visited if stop["tag"] in ("A", "BUTTON")]
        assert sorted(buttons) == sorted(set(buttons)), "two links with one name"
