"""Views that another process computes: what their commands say, on the page, in its files and in the exported page."""

import json
import shlex
from functools import cache

import pytest

from ladder_sim.display.labels import wiring_label
from ladder_sim.errors import UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.background import VIEWS, Panel, answer
from ladder_sim.explorer.panel_parts import details, markup, tables
from ladder_sim.explorer.server import make_app
from ladder_sim.explorer.state import State
from ladder_sim.specs.plan import Plan
from tests.support.commands import run
from tests.support.explorer_client import Page, texts

pytestmark = pytest.mark.slow

ALLOWLIST = Allowlist.of()
VERSUS = "model=8b&tp=2&stack=vllm&batch=8&technique=fused-norm&variants=ladder&phase=prefill"
PLANS = "model=8b&gpus_per_node=4&tp=1&stack=vllm&concurrency=16&variants=ladder,upper-bound&price=2&max_tpot=9ms"


@cache
def panel(name: str, query: str) -> Panel:
    """As the process tells it."""
    told: list[Panel] = []
    question = VIEWS[name].question(State.parse(query, ALLOWLIST)).query()
    answer(ALLOWLIST, (name, question), told.append)
    (only,) = told
    return only


def shown(part: object) -> str:
    return " ".join(texts(markup(part)).split())


@pytest.mark.parametrize(("name", "query"), [("versus", VERSUS), ("plans", PLANS)])
def test_a_view_is_the_answer_of_its_command(name: str, query: str) -> None:
    command = VIEWS[name].command(State.parse(query, ALLOWLIST), ALLOWLIST)
    printed = json.loads(run(*shlex.split(command)[1:], "--json").out)
    for notes in ("validated", "warnings"):
        printed.pop(notes)
    assert panel(name, query).document.to_dict() == printed


def test_options_are_shown_with_intervals_and_needs() -> None:
    versus = panel("versus", VERSUS)
    gains, needs = shown(tables(versus)), shown(details(versus))
    for row in versus.document.rows:
        assert wiring_label(row["option"]) in gains
        if row["option"] != "standard":
            assert f"{row['gain']:.2f} ({row['gain_low']:.2f}-{row['gain_high']:.2f})" in gains
    for content in ("techniques", "wirings"):
        for name, each in versus.document.content[content].items():
            assert name in needs
            assert each["engines"].partition(" (")[0] in needs
    assert "62.91 (standard 64.11)" in needs
    assert "left out: farskip: " in needs


def test_every_plan_is_a_link_to_the_page_with_it() -> None:
    plans = panel("plans", PLANS)
    assert plans.verdict.startswith("Serve with TP 4: ")
    assert " with your weights, " in plans.verdict
    assert plans.verdict.endswith(" if retrained as ladder.")
    assert "$/Mtoken" in shown(details(plans))
    assert "upper-bound" not in shown(tables(plans))
    (table,) = plans.tables
    (rows,) = table.groups.values()
    assert [row[0] for row in rows] == [str(Plan(**change)) for change in table.changes]
    linked = markup(tables(plans, lambda change: f"?tp={change['tp']}&dp={change['dp']}"))
    assert 'href="?tp=' in linked
    assert "<a" not in markup(tables(plans))


def test_more_gpus_than_a_page_searches_are_refused() -> None:
    with pytest.raises(UsageError, match="72 GPUs: the page searches plans on at most 64"):
        panel("plans", "model=8b&nodes=9&concurrency=16")


def test_measured_runs_of_the_scenario_itself_come_first() -> None:
    served = panel("validation", "model=qwen3-32b&stack=vllm&tp=4&concurrency=64")
    assert served.verdict.startswith("TPOT off by 5.2%, TTFT by 20% (model left out).")
    first = served.document.rows[0]
    assert (first["model"], first["stack"].partition("@")[0], first["apart"]) == ("qwen3-32b", "vllm", "")
    assert first["figure"] == "tpot"
    batches = panel("validation", "model=70b&tp=8&batch=4")
    assert batches.document.rows[0]["error"] == pytest.approx(0.0, abs=0.05)
    assert {row["figure"] for row in batches.document.rows} == {"speedup"}
    assert "the same but for sizes" in shown(tables(batches))
    other = panel("validation", "model=8b&tp=2&cluster=l40s-pcie&stack=vllm&concurrency=8")
    assert "No measured run has the same GPU" in other.verdict


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("model=gpt-oss-120b&tp=8&stack=vllm", "no static batch of models with experts under vllm"),
        ("model=70b&tp=8&stack=vllm", "no static batch of dense models under vllm"),
        ("model=qwen3-32b&tp=8&stack=vllm&concurrency=8", ""),
    ],
)
def test_runs_of_another_engine_or_kind_of_model_are_no_evidence(query: str, what: str) -> None:
    """Regression: a gpt-oss answer said "off by 0.9 %" from eight Llama rows under gpt-fast."""
    verdict = panel("validation", query).verdict
    assert ("Nothing like this was measured" in verdict) == bool(what)
    assert what in verdict
    assert ("off by" in verdict) != bool(what)


def test_errors_of_static_batches_are_of_runs_that_no_fit_had_seen() -> None:
    batches = panel("validation", "model=70b&tp=8&batch=4")
    unseen = [abs(row["error"]) for row in batches.document.rows if not row["seen"]]
    assert f"off by {sum(unseen) / len(unseen):.1%} on average" in batches.verdict
    assert f"in the {len(unseen)} runs under gpt-fast that no fit had seen" in batches.verdict


def test_the_nearest_runs_are_drawn_with_their_whole_intervals() -> None:
    figure = panel("validation", "model=405b&nodes=2").figure
    near = figure["data"][-1]
    low, high = (10**end for end in figure["layout"]["yaxis"]["range"])
    for value, above, below in zip(near["y"], near["error_y"]["array"], near["error_y"]["arrayminus"], strict=True):
        assert low < value - below
        assert value + above < high


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(make_app(ALLOWLIST).server.test_client())


def test_the_page_shows_them_and_offers_them_as_files(page: Page) -> None:
    kept = page.client.get(f"/download/page.html?{VERSUS}").text
    for name, view in VIEWS.items():
        answer = page.ask(f"{name}.figure", VERSUS)
        verdict = answer[f"{name}-verdict"]["children"]
        assert verdict
        assert answer[name]["figure"]["data"]
        assert answer[f"{name}-cli"]["children"] == view.command(State.parse(VERSUS, ALLOWLIST), ALLOWLIST)
        assert json.loads(page.client.get(f"/download/{name}.json?{VERSUS}").text)["rows"]
        assert page.client.get(f"/download/{name}.csv?{VERSUS}").text.count("\n") > 2
        assert page.client.get(f"/download/{name}.html?{VERSUS}").status_code == 200
        assert markup(verdict) in kept
        assert f'"{name}":{{"light":' in kept
    assert "<!-- PANELS" not in kept
    # a plan's link keeps what the page shows otherwise
    links = markup(page.ask("plans.figure", f"{VERSUS}&along=batch")["plans-tables"]["children"])
    assert "along=batch" in links


def test_a_view_without_an_answer_says_why_and_is_no_part_of_the_exported_page(page: Page) -> None:
    alone = page.ask("versus.figure", "model=8b&tp=1")
    assert "no communication to hide" in texts(alone["versus"]["figure"]["layout"]["annotations"][0]["text"])
    assert alone["versus-verdict"]["children"] is None
    kept = page.client.get("/download/page.html?model=8b&tp=1").text
    assert "'versus-view'" not in kept
    assert "'validation-view'" in kept


def test_wirings_that_must_be_trained_have_a_line_of_their_quality(page: Page) -> None:
    quality = texts(page.views("model=8b&tp=2&variants=ladder,track:4,upper-bound")["quality"])
    assert "Published quality of ladder: Transformer 3.5B" in quality
    assert "No published quality of track:4 is known here." in quality
    assert "upper-bound" not in quality


def test_a_process_that_does_not_start_is_said_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("no more processes")

    page = Page(make_app(ALLOWLIST).server.test_client())
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
        (note,) = page.ask("versus.figure", VERSUS)["versus"]["figure"]["layout"]["annotations"]
    said = " ".join(texts(note["text"]).split())
    assert "did not start" in said
    assert "no more processes" in said
    assert "change a control or reload the page to try again" in said
    assert page.ask("versus.figure", VERSUS)["versus"]["figure"]["data"]
