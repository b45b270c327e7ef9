"""The explorer in a real browser, turned as a reader would."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Route

from ladder_sim import Scenario, predict
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.offline import LATENCY_VALUES, standalone_page
from ladder_sim.explorer.queries import REACH, Queries
from ladder_sim.units import format_seconds
from tests.support.configs import LLAMA_8B
from tests.support.explorer_browser import Watched, artefacts, served

pytestmark = pytest.mark.browser

# the places of the names below the map
NAMES_BELOW_MAP = """
[...document.querySelectorAll("#map .xtick text")].map((name) => name.getBoundingClientRect())
  .map(({ left, right }) => ({ left, right }))
"""
GAIN = "document.querySelector('.card[data-variant=ladder] .gain').textContent"


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


def test_a_laptop_sees_the_numbers_of_the_command_line(seen: Watched) -> None:
    page = seen.open("?model=405b&nodes=2")
    for name, prediction in predict(Scenario(model="405b", nodes=2)).items():
        shown = page.inner_text(f".card[data-variant='{name}']")
        assert f"{prediction.tokens_per_s.value:.4g}" in shown
        assert name == "standard" or f"{prediction.speedup.value:.2f}x" in shown
    assert page.inner_text("#cli") == "ladder-sim predict --model 405b --nodes 2"
    seen.drawn()
    seen.screenshot("laptop")


def test_places_are_marked_until_the_first_answer(seen: Watched) -> None:
    # answers are held back
    seen.page.route(re.compile("_dash-update-component"), lambda route: None)
    seen.page.goto(f"{seen.address}/?model=405b&nodes=2")
    seen.until("!!document.querySelector('#cards') && !!document.querySelector('#map .bg')")
    for name in ("summary", "cards", "memory", "evidence", "cli"):
        height = f"document.querySelector('#{name}').getBoundingClientRect().height"
        place = f"getComputedStyle(document.querySelector('#{name}')).background"
        seen.until(f"{height} > 40 && {place}.includes('rgba(128, 136, 146')")
    seen.until("getComputedStyle(document.querySelector('#map .bg')).fill === 'rgb(128, 136, 146)'")
    seen.page.unroute_all()
    seen.drawn()
    assert "128" not in seen.page.evaluate("getComputedStyle(document.querySelector('#cards')).background")


def test_a_phone_shows_everything_in_its_width(seen: Watched) -> None:
    # prompts have the widest names below the map
    page = seen.open("?model=405b&nodes=2&across=prompt", width=390, height=844)
    seen.drawn()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    names = page.evaluate(NAMES_BELOW_MAP)
    assert len(names) > 3
    assert all(right["left"] - left["right"] > 5 for left, right in pairwise(names)), names
    page.click("#theme-switch")
    seen.until("document.querySelector('#curve .js-plotly-plot').layout.template.layout.font.color === '#E4E7EB'")
    seen.screenshot("phone-dark")
    page.click("#theme-switch")
    seen.until("document.documentElement.dataset.theme === 'light'")


def test_controls_on_a_phone_are_folded_and_open_in_full(seen: Watched) -> None:
    page = seen.open("?model=70b", width=390, height=844)
    assert page.locator(".controls .section[open]").count() == 0
    assert page.locator(".card >> nth=0").evaluate("(card) => card.getBoundingClientRect().bottom < innerHeight")
    page.click("summary >> text=Hardware")
    page.click("summary >> text=Plan")
    # nothing scrolls within
    assert page.locator("#controls").evaluate("(panel) => panel.scrollHeight === panel.clientHeight")
    page.fill("#c-tp", "4")
    page.press("#c-tp", "Enter")
    seen.until_text("#summary", "TP 4")
    # Back folds nothing
    page.go_back()
    seen.until_text("#summary", "TP 8")
    assert page.locator(".controls .section[open]").count() == 2


def test_controls_move_numbers_and_link_by_hand_and_by_key(seen: Watched) -> None:
    page = seen.open("?model=70b&stack=vllm")
    before = seen.gain()
    slider = page.locator("#c-intra-allreduce_floor-slider")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    for step in range(10):
        page.mouse.move(box["x"] + (0.3 + 0.05 * step) * box["width"], box["y"] + box["height"] / 2)
    page.mouse.up()
    seen.until(f"{GAIN} !== {json.dumps(before)}")
    assert re.search(r"intra\.allreduce_floor=\d", page.url)
    page.focus("#c-batch-slider")
    page.keyboard.press("ArrowRight")
    seen.until_text("#summary", "static batch 2,")
    assert "batch=2" in page.url
    page.click("#reset")
    seen.until("!location.search.includes('intra.allreduce_floor') && !location.search.includes('batch')")
    seen.until(f"{GAIN} === {json.dumps(before)}")
    page.select_option("#c-model", "qwen3-32b")
    seen.until_text("#summary", "qwen3-32b")
    assert "model=qwen3-32b" in page.url


def test_a_link_keeps_its_plan_when_a_control_moves(seen: Watched) -> None:
    plan = "model=qwen3-30b-a3b&nodes=2&tp=4&pp=2&ep=4&dp=2&batch=8&sp=1&kv_dtype=fp8"
    page = seen.open(f"?{plan}")
    seen.until_text("#summary", "TP 4, EP 4, PP 2, DP 2, SP")
    page.focus("#c-dp-slider")
    page.keyboard.press("ArrowLeft")
    seen.until_text("#summary", "TP 4, EP 4, PP 2, SP")
    kept = plan.replace("dp=2", "dp=1").split("&")
    assert set(kept) <= set(page.url.partition("?")[2].split("&"))
    page.fill("#c-ep", "3")
    page.press("#c-ep", "Enter")
    seen.until_text("#error", "ep 3: must divide the 4 ranks of a stage")


def test_back_undoes_one_change_at_a_time(seen: Watched) -> None:
    page = seen.open("?model=70b")
    page.select_option("#c-model", "8b")
    seen.until_text("#summary", "llama-3.1-8b")
    page.focus("#c-batch-slider")
    for batch in (2, 4, 8):
        page.keyboard.press("ArrowRight")
        seen.until_text("#summary", f"static batch {batch},")
    # all moves of a slider are one change
    page.go_back()
    seen.until_text("#summary", "static batch 1,")
    seen.until("document.querySelector('#c-batch-slider').value === '0'")
    assert "llama-3.1-8b" in page.inner_text("#summary")
    page.go_back()
    seen.until_text("#summary", "llama-3.1-70b")
    assert page.input_value("#c-model") == "70b"
    page.go_forward()
    seen.until_text("#summary", "llama-3.1-8b")
    page.go_forward()
    seen.until_text("#summary", "static batch 8,")
    assert page.input_value("#c-batch") == "8"


def test_three_questions_lead_to_the_view_that_answers_them(seen: Watched) -> None:
    page = seen.open()
    assert page.evaluate("document.getElementById('guide')?.open")
    page.select_option("#guide-model", "8b")
    page.click("text=Over how many GPUs, and how, should the model be spread?")
    page.click("#guide-show")
    seen.until_text("#summary", "llama-3.1-8b")
    assert page.url.endswith("?model=8b&concurrency=64")
    assert not page.evaluate("document.getElementById('guide')?.open")
    assert page.evaluate("document.activeElement.id") == "plans-view"
    # plans of the page as it opened may stand here first
    seen.until("document.querySelector('#plans-tables a')?.getAttribute('href').startsWith('?model=8b')")
    # a plan's link shows the page with it
    plan = page.inner_text("#plans-tables a >> nth=2")
    page.click("#plans-tables a >> nth=2")
    seen.until_text("#summary", f"llama-3.1-8b bf16, {plan} on")
    # Back leads to where the questions were asked
    page.go_back()
    page.go_back()
    seen.until("document.getElementById('guide')?.open")


def test_a_copied_link_is_confirmed_and_holds_the_scenario_of_the_start(browser: Browser, tmp_path: Path) -> None:
    with served("model=8b&tp=4") as url, browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as own:
        seen = Watched(own.new_page(), url, tmp_path)
        page = seen.open()
        page.click("#copy-link")
        seen.until_text("#said[role=status]", "Link copied")
        assert page.evaluate("navigator.clipboard.readText()") == f"{url}/?model=8b&tp=4"
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden')) }")
        page.click("#copy-link")
        seen.until_text("#said", "does not let")


def test_a_dropped_model_keeps_its_name_and_a_refused_one_greys_the_last_answer(seen: Watched) -> None:
    page = seen.open("?model=70b&tp=4")
    own = {"name": "mine.json", "mimeType": "application/json", "buffer": json.dumps(LLAMA_8B).encode()}
    page.set_input_files("#upload", own)
    seen.until_text("#summary", "mine bf16, TP 4")
    shown = "document.querySelector('#c-model').selectedOptions[0].textContent"
    assert page.evaluate(shown) == "mine"
    page.select_option("#c-model", "8b")
    seen.until_text("#summary", "llama-3.1-8b")
    # a link within the page changes nothing
    page.click("header >> text=Help")
    seen.until("location.hash === '#help'")
    page.select_option("#c-model", "mine")
    seen.until_text("#summary", "mine bf16, TP 4")
    page.set_input_files("#upload", {**own, "buffer": b"{"})
    seen.until_text("#error", "not valid JSON")
    assert "grayscale" in page.evaluate("getComputedStyle(document.querySelector('#cards')).filter")
    assert "Outdated" in page.evaluate("getComputedStyle(document.querySelector('#summary'), '::before').content")
    assert page.inner_text("#summary").startswith("mine")
    page.set_input_files("#upload", {**own, "name": "other.json"})
    seen.until_text("#summary", "other bf16, TP 4")
    assert page.inner_text("#error") == ""


def test_prices_and_bounds(seen: Watched) -> None:
    page = seen.open("?model=70b")
    page.fill("#c-price", "2.5")
    page.press("#c-price", "Enter")
    seen.until_text(".card[data-variant=ladder]", "$/Mtok")
    page.fill("#c-max_tpot", "1ns")
    page.press("#c-max_tpot", "Enter")
    seen.until_text(".card[data-variant=ladder] mark", "over 1.00 ns")
    seen.until_text("#pareto", "every option exceeds")
    page.fill("#c-max_tpot", "-5ms")
    page.press("#c-max_tpot", "Enter")
    seen.until_text("#error", "bound on TPOT")
    assert "price=2.5" in page.url
    # files are those of the answer that is still shown
    assert "max_tpot=1ns" in str(page.get_attribute("[data-file='pareto.csv']", "href"))


@pytest.mark.parametrize("lost", ["answer.data", "tornado.figure"])
def test_a_lost_request_is_made_again(seen: Watched, lost: str) -> None:
    """Regression: the page kept its old numbers, or its old views, until a control moved again."""
    page = seen.open("?model=8b")
    seen.drawn()
    asked: list[str] = []

    def lose_first(route: Route) -> None:
        if lost in (route.request.post_data or ""):
            asked.append(route.request.post_data or "")
        if len(asked) == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route("**/_dash-update-component*", lose_first)
    before = {name: page.text_content(f"#{name}") for name in ("cards", "tornado")}
    page.fill("#c-nodes", "2")
    page.press("#c-nodes", "Enter")
    for name, text in before.items():
        seen.until(f"document.getElementById('{name}').textContent !== {json.dumps(text)}")
    assert asked[0] == asked[1]
    # the browser's own word about it
    seen.complaints[:] = [each for each in seen.complaints if "ERR_CONNECTION_RESET" not in each]


def test_requests_under_load_are_simulated_when_they_are_asked_for(seen: Watched) -> None:
    page = seen.open("?model=8b&tp=2&prompt=64&gen=4&variants=standard,ladder")
    seen.drawn()
    assert page.locator("#load-views").is_hidden()
    assert page.inner_text("#load-result") == ""
    page.click("#serve")
    seen.until_text("#load-result", "10 requests/s within the SLO need")
    assert "rate=10" in page.url
    seen.until("!!document.querySelector('#latency .scatterlayer .trace')")
    gpus = page.locator("#load-needs tr", has_text="ladder").locator("td").nth(1)
    assert gpus.inner_text() == "2"
    page.fill("#c-rate", "2000")
    page.press("#c-rate", "Enter")
    seen.until_text("#load-notes", "2000 requests/s")
    seen.until_text("#load-result", "2000 requests/s within the SLO need")
    link, needs = page.url, page.inner_text("#load-result")
    assert gpus.inner_text() != "2"
    page.click("text=Command line and Python")
    assert "--rate 2000" in page.inner_text("#load-cli")
    with page.expect_download() as table:
        page.click("[data-file='serving.csv']")
    assert table.value.path().read_text().count("\n") == 3
    # a slider of the scenario asks anew
    page.focus("#c-prompt-slider")
    page.keyboard.press("ArrowRight")
    seen.until_text("#load-notes", "prompt 128 + 4")
    page.fill("#c-tpot_p95", "1us")
    page.press("#c-tpot_p95", "Enter")
    seen.until_text("#load-result", "No number of GPUs keeps the SLO")
    page.select_option("#c-stack", "gpt-fast")
    seen.until_text("#load-result", "gpt-fast")
    page.goto("about:blank")
    seen.open(link.removeprefix(seen.address + "/"))
    seen.until_text("#load-result", needs)


def test_a_pasted_config_is_read_and_bad_ones_show_their_error(seen: Watched) -> None:
    page = seen.open("?model=70b&tp=4")
    page.click("text=or paste it")
    for pasted, where, text in (
        ("{", "#error", "not valid JSON"),
        ("x" * 1_100_000, "#error", "larger"),
        (json.dumps(LLAMA_8B), "#upload-status", "read: pasted"),
    ):
        page.evaluate("() => document.getElementById('pasted').focus()")
        page.fill("#pasted", pasted)
        page.click("#read")
        seen.until_text(where, text)
    seen.until_text("#summary", "pasted bf16, TP 4")
    link = page.url
    gain = seen.gain()
    assert "shape=" in link
    page.goto("about:blank")
    seen.open(link.removeprefix(seen.address + "/"))
    assert seen.gain() == gain
    assert page.inner_text("#summary").startswith("pasted")
    page.select_option("#c-model", "70b")
    seen.until_text("#summary", "llama-3.1-70b")
    assert "shape=" not in page.url


def test_a_bad_link_shows_its_error_and_can_be_mended(seen: Watched) -> None:
    seen.page.goto(f"{seen.address}/?model=405b&batch=nonsense")
    seen.page.wait_for_selector("text=Batch is 'nonsense'")
    seen.page.fill("#c-batch", "4")
    seen.page.press("#c-batch", "Enter")
    seen.page.wait_for_selector("text=llama-3.1-405b needs")
    seen.page.fill("#c-nodes", "2")
    seen.page.press("#c-nodes", "Enter")
    seen.page.wait_for_selector(".card[data-variant='ladder']")
    assert seen.page.inner_text("#error") == ""


def test_two_pinned_scenarios_and_a_file_to_keep(seen: Watched) -> None:
    page = seen.open("?model=70b")
    page.click("#pin")
    page.wait_for_selector("#comparing:not([hidden]) table")
    page.fill("#c-tp", "4")
    page.press("#c-tp", "Enter")
    seen.until_text("#summary", "TP 4")
    page.click("#pin")
    seen.until("document.querySelectorAll('#compared thead th').length === 4")
    assert page.url.count("pin=") == 2
    seen.drawn()
    seen.screenshot("compared")
    with page.expect_download() as csv:
        page.click("[data-file='prediction.csv']:visible >> nth=0")
    assert csv.value.path().read_text().count("\n") == 5
    with page.expect_download() as png:
        page.click("#png-map")
    assert png.value.path().read_bytes().startswith(b"\x89PNG")
    page.click("#copy-cli")
    seen.until_text("#said", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#cli")


def test_the_exported_page_needs_no_server(seen: Watched, tmp_path: Path) -> None:
    allowlist = Allowlist.of()
    file = tmp_path / "page.html"
    answer = Queries(allowlist).answer("model=405b&nodes=2")
    file.write_text(standalone_page(answer, allowlist), encoding="utf-8")
    page = seen.page
    page.goto(file.as_uri())
    page.wait_for_selector("#map .js-plotly-plot .hm, #map .hm")
    assert seen.gain() == f"{answer.predictions['ladder'].speedup.value:.2f}x"
    # a value of the grid is exact: twice the batch is the next one
    page.focus("#batch")
    page.keyboard.press("ArrowRight")
    twice = predict(Scenario(model="405b", nodes=2, batch=2))["ladder"]
    seen.until(f"{GAIN} === '{twice.speedup.value:.2f}x'")
    # midway between two values of the grid an interpolated time errs the most
    page.focus("#axis-1")
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    latency_s = 40e-6 * (REACH * REACH) ** (25 * 0.02 / (LATENCY_VALUES - 1))
    seen.until_text("#sliders .slider:nth-child(3) output", format_seconds(latency_s).rstrip("us "))
    between = Scenario(model="405b", nodes=2, batch=2, overrides={"inter.allreduce_floor_s": latency_s})
    expected = predict(between, ["ladder"])["ladder"].speedup.value
    seen.until(f"Math.abs(parseFloat({GAIN}) / {expected} - 1) < 0.015")
    seen.screenshot("standalone")
