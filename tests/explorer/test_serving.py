"""Requests under load on the page: what the commands say, piece by piece, and nothing simulated twice."""

import csv
import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from ladder_sim.errors import LadderSimError
from ladder_sim.explorer import panel_parts, serving
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.panel_parts import markup, needs, progress
from ladder_sim.explorer.server import make_app
from ladder_sim.explorer.serving import ServingResult, ServingView
from ladder_sim.explorer.snippets import capacity_code, capacity_command
from ladder_sim.explorer.state import State
from ladder_sim.explorer.worker import Job, Worker
from ladder_sim.serving import Service
from tests.support.commands import run
from tests.support.explorer_client import Page, texts
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ALLOWLIST = Allowlist.of()
QUERY = "model=8b&tp=2&gen=32&prompt=256&rate=150&tpot_p95=6ms&variants=standard,ladder"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests, in this process."""
    monkeypatch.setattr(serving, "REQUESTS", 60)


# of most tests: what one has simulated, others need not
VIEW = ServingView(ALLOWLIST)


def results(query: str, view: ServingView = VIEW) -> list[ServingResult]:
    """All that is told."""
    told: list[ServingResult] = []
    view(State.parse(query, ALLOWLIST).under_load().query(), told.append)
    return told


def rows(result: ServingResult) -> dict[str, Mapping[str, Any]]:
    return {row["variant"]: row for row in result.needs.rows}


def test_needs_are_those_of_the_python_code_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    state = State.parse(QUERY, ALLOWLIST)
    last = results(QUERY)[-1]
    exec(capacity_code(state, ALLOWLIST), {})
    gpus = {name: (row["gpus_low"], row["gpus"], row["gpus_high"]) for name, row in rows(last).items()}
    none = {"inf": None}
    assert eval(capsys.readouterr().out, none) == gpus
    assert gpus["ladder"][1] < gpus["standard"][1]
    # of all plans this one
    assert run(*shlex.split(capacity_command(state, ALLOWLIST))[1:], "--pp", "1", "--seeds", "1").code == 0


def test_pieces_come_as_they_are_computed() -> None:
    told = results(QUERY)
    assert [result.share for result in told] == sorted(result.share for result in told)
    assert [bool(result.doing) for result in told] == [True] * (len(told) - 1) + [False]
    seen = [len(result.needs.rows) for result in told]
    assert (seen[0], seen[-1], seen) == (0, 2, sorted(seen))
    assert all(result.figures for result in told[-3:])
    assert "intervals (90 %) are over 3 seeds and the error of step times" in told[-1].cautions[-1]
    assert "were compared with" in told[-1].compared[0]
    # first what is needed, then how sure that is
    assert ["gpus_low" in row for row in next(result for result in told if result.figures).needs.rows] == [False] * 2
    assert all(row["rate_limit_low"] < row["rate_limit"] < row["rate_limit_high"] for row in told[-1].needs.rows)
    for bound in ("ttft_p95_s", "tpot_p95_s"):
        assert all(row[f"{bound}_low"] < row[bound] < row[f"{bound}_high"] for row in told[-1].needs.rows)
    assert told[-1].label.endswith("150 requests/s, prompt 256 + 32; promised: ttft_p95=500ms,tpot_p95=6.00ms")


def test_curves_break_where_the_promise_does() -> None:
    last = results(QUERY)[-1]
    for name, need in rows(last).items():
        curve = [row for row in last.curves.rows if row["variant"] == name]
        assert all(row["goodput"] <= row["rate"] for row in curve)
        assert all(row["ttft_p50_s"] <= row["ttft_p95_s"] for row in curve)
        kept = [row["rate"] for row in curve if row["promise_kept"]]
        # of the first load, while the limit is the mean over several
        assert need["rate_limit_low"] < max(kept) < need["rate_limit_high"]
        assert curve[-1]["rate"] > max(kept)


def test_no_load_is_simulated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[object] = []
    simulate = Service.run

    def counted(self: Service, *given: Any, **how: Any) -> Any:
        simulated.append(given)
        return simulate(self, *given, **how)

    monkeypatch.setattr(Service, "run", counted)
    view = ServingView(ALLOWLIST)

    def counts(query: str) -> tuple[int, int]:
        """Of simulations, until what is needed is there without intervals and until the end."""
        before = len(simulated)
        answers = [0]

        def tell(result: ServingResult) -> None:
            if not any("gpus_low" in row for row in result.needs.rows):
                answers.append(len(simulated) - before)

        view(State.parse(query, ALLOWLIST).under_load().query(), tell)
        return answers[-1], len(simulated) - before

    first, every = counts(QUERY)
    assert first > 20
    assert [counts(QUERY + change) for change in ("&price=3", "&along=batch&phase=prefill&pin=model%3D8b")] == [
        (0, 0)
    ] * 2
    # of another rate the numbers of replicas near the answer, and near the ends of its interval
    other, every_other = counts(QUERY.replace("rate=150", "rate=300"))
    assert 0 < other < first / 2
    assert every_other < every


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", "150 requests/s within the SLO need"),
        ("&variants=standard", "with your weights."),
        ("&rate=0.5", "0.5 requests/s within the SLO need 2 GPUs (2 or more) with your weights"),
        ("&ttft_p95=1us", "No number of GPUs keeps the SLO at 150 requests/s, with your weights or ladder."),
        ("&price=2.5", "150 requests/s within the SLO need"),
    ],
)
def test_what_is_needed_is_said_as_the_command_says_it(change: str, says: str) -> None:
    key = change[1:].partition("=")[0]
    kept = "&".join(part for part in QUERY.split("&") if part.partition("=")[0] != key)
    last = results(kept + change)[-1]
    assert says in last.verdict
    assert last.table is not None
    place = last.table.columns.index("GPUs (90 %)")
    for (name, row), cells in zip(rows(last).items(), last.table.rows, strict=True):
        assert cells[0] == name
        assert cells[place].partition(" ")[0] == (f"{row['gpus']:.0f}" if row["gpus"] else "none")
    assert ("$/Mtoken" in last.table.columns) == ("price" in change)
    assert last.table.rows[0][place] in texts(markup(needs(last)))


def test_a_price_is_that_of_the_gpus_at_the_rate_that_is_served() -> None:
    row = rows(results(f"{QUERY}&price=3.6")[-1])["ladder"]
    # a GPU-second costs 0.1 cents
    assert row["usd_per_Mtoken"] == pytest.approx(1e-3 * row["gpus"] / (150 * 32) * 1e6)


def test_progress_names_questions_that_come_first() -> None:
    assert "waits for 2 other questions" in texts(markup(progress(None, 2)))
    assert 'aria-label="Simulation of requests"' in markup(progress(None, 0))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("model=8b&rate=4&stack=gpt-fast", "gpt-fast"),
        ("model=405b&rate=4", "KV cache has room for 0 tokens"),
    ],
)
def test_a_scenario_that_does_not_serve_is_refused(query: str, message: str) -> None:
    with pytest.raises(LadderSimError, match=message):
        results(query)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(make_app(ALLOWLIST).server.test_client())


# short requests, for the worker process simulates as many as it does for readers
SHORT = "model=8b&tp=2&gen=4&prompt=64&rate=50&variants=standard,ladder"


def answered(page: Page, query: str) -> dict[str, Any]:
    """What the page gets when all is there."""

    def last() -> dict[str, Any] | None:
        answer = page.ask("load-result.children", query)
        return answer if answer["load-clock"]["disabled"] else None

    return until(last)


def test_the_page_gets_pieces_until_all_is_there(page: Page) -> None:
    first = page.ask("load-result.children", SHORT)
    assert first["load-clock"]["disabled"] is False
    assert texts(first["load-progress"]["children"]) == "starting"
    last = answered(page, SHORT)
    assert "50 requests/s within the SLO need" in last["load-result"]["children"]
    assert last["load-views"]["hidden"] is False
    assert {trace["name"] for trace in last["goodput"]["figure"]["data"] if "name" in trace} == {"standard", "ladder"}
    assert texts(last["load-cli"]["children"]).startswith("ladder-sim capacity --model 8b --tp 2 --prompt 64 --gen 4")
    # nothing new: nothing is sent
    shown = {"load-shown": last["load-shown"]["data"]}
    again = page.payload("load-result.children", {"settled": SHORT, "theme": "light"}, shown)
    assert page.send(again).status_code == 204
    dark = page.payload("load-result.children", {"settled": SHORT, "theme": "dark"}, shown)
    assert page.send(dark).status_code == 200


def test_an_end_while_the_last_result_is_put_on_the_page_is_told_next_time(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a page that stops asking before it has the result."""
    job = Job(question=QUERY, updates=1, result=results(QUERY)[-1])
    show = panel_parts.needs

    def ended(result: ServingResult) -> Any:
        if not job.done:
            job.future.set_result(None)
        return show(result)

    monkeypatch.setattr(Worker, "ask", lambda self, page, question: job)
    monkeypatch.setattr(panel_parts, "needs", ended)
    first, last = (page.ask("load-result.children", QUERY) for _ in range(2))
    assert (first["load-clock"]["disabled"], first["load-result"]["children"]) == (False, None)
    assert last["load-clock"]["disabled"] is True
    assert "requests/s within the SLO need" in last["load-result"]["children"]


def test_files_hold_what_the_page_shows(page: Page) -> None:
    last = answered(page, SHORT)
    found = json.loads(page.client.get(f"/download/serving.json?{SHORT}").text)["rows"]
    shown = texts(last["load-needs"]["children"])
    for row, line in zip(
        found, csv.DictReader(page.client.get(f"/download/serving.csv?{SHORT}").text.splitlines()), strict=True
    ):
        assert f"{row['gpus']:.0f}" in shown
        assert str(row["rate_limit"]) == line["rate_limit"]
    curves = csv.DictReader(page.client.get(f"/download/rates.csv?{SHORT}").text.splitlines())
    assert {row["variant"] for row in curves} == {"standard", "ladder"}
    for name in ("goodput", "latency"):
        assert page.client.get(f"/download/{name}.html?{SHORT}").text.count("plotly") > 1
    kept = page.client.get(f"/download/page.html?{SHORT}&stack=vllm").text
    assert "Serving under load, as it was" in kept
    assert markup(last["load-result"]["children"]) in kept
    assert "<!-- SERVING" not in kept
    assert "Serving under load" not in page.client.get("/download/page.html?model=8b&tp=2").text
    assert page.client.get("/download/serving.csv?model=8b").status_code == 400


def test_without_a_rate_nothing_is_simulated(page: Page) -> None:
    answer = page.ask("load-result.children", "model=8b")
    assert answer["load-clock"]["disabled"] is True
    assert answer["load-views"]["hidden"] is True
    assert answer["serve"]["hidden"] is False


def test_errors_stand_in_the_view_in_the_words_of_the_page(page: Page) -> None:
    refused = answered(page, "model=8b&rate=4&stack=gpt-fast")
    assert "gpt-fast" in texts(refused["load-result"]["children"])
    assert "--" not in texts(refused["load-result"]["children"])
    # the headline says what is wrong with the rest
    stays = page.ask("load-result.children", "model=405b&rate=4")
    assert stays["load-clock"]["disabled"] is True
    assert "load-result" not in stays
