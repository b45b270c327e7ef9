"""The explorer in a real browser, used as a reader would."""

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Route

from ladder_sim import Scenario, predict
from ladder_sim.explorer.state import TABS
from tests.support.configs import LLAMA_8B
from tests.support.explorer_browser import Watched, artefacts, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    # one cache for all tests
    opened = browser.new_context(color_scheme="light", permissions=["clipboard-read", "clipboard-write"])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artefacts(tmp_path_factory.mktemp("explorer"))


@pytest.fixture
def seen(context: BrowserContext, address: str, pictures: Path) -> Iterator[Watched]:
    """A fresh page; whatever it does, it stays on this machine and complains of nothing."""
    watched = Watched(context.new_page(), address, pictures)
    yield watched
    watched.page.close()
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith((address, "data:", "blob:", "file:"))] == []


def ladder(**scenario: object) -> str:
    """What the page says of ladder."""
    gain = predict(Scenario(**scenario))["ladder"].speedup  # type: ignore[arg-type]
    return f"{gain.value:.2f} {gain.low:.2f}\N{EN DASH}{gain.high:.2f}"


def test_a_laptop_sees_the_numbers_of_the_command_line(seen: Watched) -> None:
    page = seen.open("?model=405b&nodes=2")
    assert seen.gain() == ladder(model="405b", nodes=2)
    seen.until_text("#command", "ladder-sim predict --model 405b --nodes 2")
    # question, answer and views stand on the first screen
    assert page.locator(".tabs").evaluate("(tabs) => tabs.getBoundingClientRect().bottom < innerHeight")
    seen.screenshot("laptop")


def test_a_phone_shows_everything_in_its_width(seen: Watched) -> None:
    page = seen.open("?model=70b&stack=vllm&concurrency=64", width=390, height=844)
    for number, name in enumerate(TABS):
        page.click(f"#tab-{name}")
        seen.until(
            f"document.querySelector('#view').dataset.shows === '{name}' && !document.querySelector('#view .busy')"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == 390, (number, name)
    assert page.locator("#answer h1").evaluate("(said) => parseFloat(getComputedStyle(said).fontSize)") <= 22


def test_a_list_changes_link_numbers_and_view(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2&stack=vllm&concurrency=64")
    page.select_option("#ask-load", label="8 requests in flight")
    seen.until(f"{json.dumps(ladder(model='8b', tp=2, stack='vllm', concurrency=8))} === ({GAIN})")
    assert "concurrency=8" in page.url
    page.select_option("#ask-model", label="qwen3-32b")
    seen.until_text("#command", "--model qwen3-32b")
    # another model begins with its own plan
    assert "tp=" not in page.url
    # Back undoes one change at a time
    page.go_back()
    seen.until_text("#fine", "TP 2")
    assert page.locator("#ask-model").evaluate("(list) => list.selectedOptions[0].textContent") == "llama-3.1-8b"
    page.go_back()
    seen.until("document.querySelector('#ask-load').selectedOptions[0].textContent === '64 requests in flight'")
    page.go_forward()
    seen.until("document.querySelector('#ask-load').selectedOptions[0].textContent === '8 requests in flight'")


GAIN = "document.querySelector('[data-option=ladder] .v').textContent.trim()"


def test_views_open_one_at_a_time_by_key_and_stay_in_the_link(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2")
    for number, name in enumerate(TABS, 1):
        page.keyboard.press(str(number))
        seen.until(f"document.querySelector('#view').dataset.shows === '{name}'")
        assert page.locator("[role=tab][aria-selected=true]").inner_text().startswith(page.inner_text(f"#tab-{name}"))
    assert page.url.endswith("view=evidence")
    seen.until("!!document.querySelector('#fig-nearest .scatterlayer')")
    page.reload()
    seen.until("document.querySelector('#view')?.dataset.shows === 'evidence'")
    # arrows move between tabs
    page.focus("#tab-evidence")
    page.keyboard.press("ArrowLeft")
    seen.until("document.querySelector('#view').dataset.shows === 'load'")


def test_bars_of_a_lane_are_read_by_the_arrow_keys(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2")
    seen.until("!!document.querySelector('.lane')")
    page.focus(".lane [tabindex='0']")
    seen.until_text("#op", "attn.norm")
    page.keyboard.press("ArrowRight")
    seen.until_text("#op", "attn.qkv")
    assert page.locator(".lane >> nth=0").locator("[tabindex='0']").count() == 1


def test_every_setting_is_found_and_moves_the_answer(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2")
    page.click("text=All settings")
    page.fill("#find", "floor in")
    assert page.locator("#settings .set:visible").count() == 1
    field = "#set-intra-allreduce_floor"
    assert page.get_attribute(field, "placeholder")
    page.fill(field, "40us")
    page.press(field, "Enter")
    seen.until("location.search.includes('intra.allreduce_floor=40us')")
    page.fill("#find", "")
    page.fill("#set-settings", "stack.stream_wait=9us")
    page.press("#set-settings", "Enter")
    seen.until("location.search.includes('stack.stream_wait=9us')")
    # figures that were taken out of the field leave the link
    page.fill("#set-settings", "stack.eager_launch=9us")
    page.press("#set-settings", "Enter")
    seen.until("!location.search.includes('stream_wait') && location.search.includes('eager_launch')")
    page.check("#set-no_p2p")
    seen.until("location.search.includes('no_p2p=1')")
    page.click("#settings >> text=Done")
    seen.until_text("#command", "--no-p2p")
    assert "host memory" in page.locator("#ask-links").evaluate("(list) => list.selectedOptions[0].textContent")


def test_a_copied_link_is_confirmed_and_holds_the_scenario_of_the_start(browser: Browser, tmp_path: Path) -> None:
    with served("model=8b&tp=4") as url, browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as own:
        seen = Watched(own.new_page(), url, tmp_path)
        page = seen.open()
        page.click("text=Copy link")
        seen.until_text("#said[role=status]", "Link copied")
        assert page.evaluate("navigator.clipboard.readText()") == f"{url}/?model=8b&tp=4"
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden')) }")
        page.keyboard.press("s")
        seen.until_text("#said", "does not let")


def test_a_model_of_ones_own_and_a_refused_one(seen: Watched) -> None:
    page = seen.open("?model=70b&tp=4")
    own = {"name": "mine.json", "mimeType": "application/json", "buffer": json.dumps(LLAMA_8B).encode()}
    page.set_input_files("#upload", own)
    seen.until("document.querySelector('#ask-model').selectedOptions[0].textContent === 'mine'")
    link, gain = page.url, seen.gain()
    assert "shape=" in link
    page.set_input_files("#upload", {**own, "buffer": b"{"})
    seen.until_text("#error", "not valid JSON")
    page.goto("about:blank")
    seen.open(link.removeprefix(seen.address + "/"))
    assert seen.gain() == gain
    page.select_option("#ask-model", label="llama-3.1-70b")
    seen.until("!location.search.includes('shape=')")


def test_a_question_without_an_answer_greys_the_last_one_and_names_a_way_out(seen: Watched) -> None:
    page = seen.open("?model=70b")
    page.select_option("#ask-model", label="llama-3.1-405b")
    seen.until_text("#error", "llama-3.1-405b needs")
    assert "grayscale" in page.evaluate("getComputedStyle(document.querySelector('#answer')).filter")
    assert "Outdated" in page.evaluate("getComputedStyle(document.querySelector('#answer'), '::before').content")
    page.click("#error >> text=Nodes 2")
    seen.until(f"({GAIN}) === {json.dumps(ladder(model='405b', nodes=2))}")
    assert page.inner_text("#error") == ""
    assert page.evaluate("getComputedStyle(document.querySelector('#answer')).filter") == "none"
    # and a link that cannot even be read
    page.goto(f"{seen.address}/?batch=nonsense")
    seen.until_text("#error", "Batch is 'nonsense'")
    assert not page.locator("#answer").is_visible()


@pytest.mark.parametrize("lost", ["answer", "view/whatif"])
def test_a_lost_request_is_made_again(seen: Watched, lost: str) -> None:
    """Regression: the page kept its old numbers, or its old views, until a control moved again."""
    page = seen.open("?model=8b&view=whatif")
    seen.until("!!document.querySelector('#fig-curve0 .scatterlayer')")
    asked: list[str] = []

    def lose_first(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(re.compile(f"/{lost}"), lose_first)
    page.select_option("#ask-load", label="a static batch of 16")
    seen.until_text("#command", "--batch 16")
    assert asked[0] == asked[1]
    # the browser's own word about it
    seen.complaints[:] = [each for each in seen.complaints if "ERR_CONNECTION_RESET" not in each]


def test_requests_under_load_are_simulated_when_they_are_asked_for(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2&stack=vllm&prompt=64&gen=4&view=load")
    page.click("[data-serve]")
    seen.until_text("#view", "10 requests/s within the SLO need")
    assert "rate=10" in page.url
    seen.until("!!document.querySelector('#fig-bound1 .scatterlayer .trace')")
    # regression: it was 1,511 pixels high
    assert page.evaluate("document.documentElement.scrollHeight") < 1400
    page.fill("#load-rate", "2000")
    page.press("#load-rate", "Enter")
    seen.until_text("#view", "2000 requests/s within the SLO need")
    assert "--rate 2000" in page.inner_text("#command")


def test_a_pinned_question_stays_in_the_picture(seen: Watched) -> None:
    page = seen.open("?model=70b")
    page.keyboard.press("p")
    seen.until_text("#answer", "A llama-3.1-70b")
    page.select_option("#ask-load", label="a static batch of 16")
    seen.until("document.querySelectorAll('.pin').length > 1")
    assert page.url.count("pin=") == 1
    page.click("text=Unpin")
    seen.until("!document.querySelector('.pin')")


def test_files_to_keep_and_texts_to_copy(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2")
    page.keyboard.press("e")
    with page.expect_download() as table:
        page.click("[data-file='prediction.csv']")
    assert table.value.path().read_text().count("\n") == 5
    page.click("#export >> text=Command line")
    seen.until_text("#said", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "ladder-sim predict --model 8b --tp 2"


def test_dark_figures_are_drawn_anew(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2&view=whatif")
    seen.until("!!document.querySelector('#fig-curve0 .scatterlayer')")
    colour = "document.querySelector('#fig-curve0').layout.template.layout.font.color"
    page.click("#theme")
    seen.until(f"{colour} === '#E4E7EB'")
    seen.screenshot("dark")
    page.click("#theme")
    seen.until(f"{colour} !== '#E4E7EB'")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.slow
def test_the_exported_folder_needs_no_server_of_its_own(seen: Watched, exported: Path) -> None:
    host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(exported)))
    threading.Thread(target=host.serve_forever, daemon=True).start()
    page = seen.page
    try:
        for base in (f"http://127.0.0.1:{host.server_address[1]}/index.html", (exported / "index.html").as_uri()):
            page.goto(base)
            seen.until(f"({GAIN}) === {json.dumps(ladder(model='8b', tp=2, stack='vllm', concurrency=64))}")
            page.select_option("#ask-load", label="8 requests in flight")
            seen.until(f"({GAIN}) === {json.dumps(ladder(model='8b', tp=2, stack='vllm', concurrency=8))}")
            page.select_option("#ask-engine", label="SGLang")
            seen.until(f"({GAIN}) === {json.dumps(ladder(model='8b', tp=2, stack='sglang', concurrency=8))}")
            page.select_option("#ask-engine", label="vLLM")
            page.select_option("#ask-load", label="64 requests in flight")
            page.keyboard.press("2")
            seen.until("!!document.querySelector('#fig-curve0 .scatterlayer')")
            page.keyboard.press("5")
            seen.until("!!document.querySelector('#fig-nearest .scatterlayer')")
            assert page.locator("[data-file]:visible").count() == 0
    finally:
        host.shutdown()
        host.server_close()
    seen.requests[:] = [
        url for url in seen.requests if not url.startswith(f"http://127.0.0.1:{host.server_address[1]}/")
    ]
