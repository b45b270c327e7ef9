"""Wirings and techniques side by side on the page: what `ladder-sim versus` says."""

import json
import shlex

import pytest

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.markup import markup
from ladder_sim.explorer.server import make_app
from ladder_sim.explorer.snippets import versus_command
from ladder_sim.explorer.state import State
from ladder_sim.explorer.versus import VersusReport, VersusView
from ladder_sim.explorer.versus_tables import gains, needs
from tests.support.commands import run
from tests.support.explorer_client import Page, texts

pytestmark = pytest.mark.slow

ALLOWLIST = Allowlist.of()
QUERY = "model=8b&tp=2&stack=vllm&batch=8&technique=fused-norm&variants=ladder&phase=prefill"


@pytest.fixture(scope="module")
def report() -> VersusReport:
    told: list[VersusReport] = []
    VersusView(allowlist=ALLOWLIST)(State.parse(QUERY, ALLOWLIST).side_by_side().query(), told.append)
    (only,) = told
    return only


def test_it_is_the_answer_of_the_command_on_the_page(report: VersusReport) -> None:
    command = versus_command(State.parse(QUERY, ALLOWLIST), ALLOWLIST)
    printed = json.loads(run(*shlex.split(command)[1:], "--json").out)
    assert [printed.pop(name) is not None for name in ("validated", "warnings")] == [True, True]
    assert report.document.to_dict() == printed


def test_tables_show_every_option_with_its_interval_and_what_it_needs(report: VersusReport) -> None:
    shown, needed = texts(markup(gains(report))), texts(markup(needs(report)))
    for row in report.document.rows:
        assert row["option"] in shown
        if row["option"] != "standard":
            assert f"{row['gain']:.2f} ({row['gain_low']:.2f}-{row['gain_high']:.2f})" in shown
    for content in ("techniques", "wirings"):
        for name, each in report.document.content[content].items():
            assert name in needed
            assert each["engines"] in needed
    assert "62.91 (standard 64.11)" in needed
    assert "left out: farskip: " in needed


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(make_app(ALLOWLIST).server.test_client())


def test_the_page_shows_it_and_offers_it_as_files(page: Page) -> None:
    answer = page.ask("versus.figure", QUERY)
    verdict = answer["versus-verdict"]["children"]
    assert verdict.startswith("TP 2 on 1 x 8 H100")
    assert len(answer["versus"]["figure"]["data"]) == 3
    assert answer["versus-cli"]["children"] == "ladder-sim versus --model 8b --tp 2 --batch 8 --stack vllm"
    assert json.loads(page.client.get(f"/download/versus.json?{QUERY}").text)["verdict"] == verdict
    assert page.client.get(f"/download/versus.csv?{QUERY}").text.startswith("option,")
    kept = page.client.get(f"/download/page.html?{QUERY}").text
    assert verdict in kept
    assert "<!-- VERSUS" not in kept
    alone = page.ask("versus.figure", "model=8b&tp=1")
    assert "no communication to hide" in texts(alone["versus"]["figure"]["layout"]["annotations"][0]["text"])
    assert alone["versus-verdict"]["children"] is None
    assert "'versus-view'" not in page.client.get("/download/page.html?model=8b&tp=1").text


def test_wirings_that_must_be_trained_have_a_line_of_their_quality(page: Page) -> None:
    shown = texts(page.views("model=8b&tp=2&variants=ladder,track:4,upper-bound")["quality"])
    assert "Published quality of ladder: Transformer 3.5B" in shown
    assert "No published quality of track:4 is known here." in shown
    assert "upper-bound" not in shown
