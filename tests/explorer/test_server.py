"""The explorer's server: numbers of the command line, errors in the page, and nothing for strangers."""

import base64
import csv
import json
import re
import socket
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.cli.main import main
from ladder_sim.display.labels import field_label, field_title
from ladder_sim.explorer import server as server_module
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.callbacks import CONTROLS
from ladder_sim.explorer.controls import AXIS_FIELDS, SLIDERS, models
from ladder_sim.explorer.server import MAX_REQUEST_BYTES, make_app
from ladder_sim.explorer.state import State
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from tests.support.configs import LLAMA_8B
from tests.support.explorer_client import Page, texts
from tests.support.predict_one import predict_one
from tests.support.strategies import JSON
from tests.support.waiting import HANG_S

QUERY = "model=405b&nodes=2&inter.bandwidth=100Gb/s&variants=standard,ladder,hybrid-ladder:40"
FLAGS = ["--model", "405b", "--nodes", "2", "--set", "inter.bandwidth=100Gb/s"]
VARIANTS = ["--variant", "standard,ladder,hybrid-ladder:40"]
FILES = (
    *("prediction.csv", "prediction.json", "curve.csv", "map.csv", "pareto.csv", "sensitivity.csv"),
    *("decode.perfetto.json", "page.html", "curve.html", "timeline.html"),
)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(make_app(Allowlist.of()).server.test_client())


def test_numbers_are_those_of_the_command_line(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *FLAGS, *VARIANTS, "--json"]) == 0
    printed = capsys.readouterr().out
    assert page.client.get(f"/download/prediction.json?{QUERY}").text == printed
    ladder = json.loads(printed)["variants"]["ladder"]
    shown = texts(page.views(QUERY)["cards"])
    assert f"{ladder['speedup']:.2f}x" in shown
    assert f"90 %: {ladder['speedup_low']:.2f}-{ladder['speedup_high']:.2f}" in shown
    assert f"{ladder['tokens_per_s']:.4g} (" in shown
    evidence = texts(page.views(QUERY)["evidence"])
    assert "were compared with runs of gpt-fast on H100 SXM5 80GB: llama-3.1-405b-kv16, llama-3.1-70b," in evidence
    assert "Not in these runs, so intervals are wider: wiring (" in evidence


def test_the_sweep_of_the_curve_is_the_command_lines(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    query = "model=8b&tp=4&along=batch"
    downloaded = page.client.get(f"/download/curve.csv?{query}").text
    assert main(["sweep", "--model", "8b", "--tp", "4", "--nodes", "1", "--batch", "1:256", "--csv"]) == 0
    ours, theirs = ([line.split(",") for line in text.splitlines()] for text in (downloaded, capsys.readouterr().out))
    column = "ladder.speedup"
    assert [row[ours[0].index(column)] for row in ours[1:]] == [row[theirs[0].index(column)] for row in theirs[1:]]


@pytest.mark.parametrize("name", FILES)
def test_every_file_downloads(page: Page, name: str) -> None:
    response = page.client.get(f"/download/{name}?{QUERY}")
    assert response.status_code == 200
    assert response.headers["Content-Disposition"].startswith("attachment")
    if name.endswith(".json"):
        assert json.loads(response.text)


@pytest.mark.parametrize("figure", ["curve", "timeline", "map", "pareto", "tornado"])
@pytest.mark.parametrize(
    "query",
    [
        "",
        "model=8b&along=tp&across=batch&up=intra.allreduce_floor",
        "model=8b&gen=1&along=gen&across=inter.bandwidth&up=tp&phase=prefill&over=parallel",
        "model=8b&tp=1&variants=standard",
        "model=8b&stack=vllm&concurrency=32&along=concurrency&phase=prefill",
    ],
)
def test_every_view_draws(page: Page, figure: str, query: str) -> None:
    drawn = page.ask(f"{figure}.figure", query)[figure]["figure"]
    assert drawn["data"], drawn["layout"]["annotations"]


def test_the_current_point_lies_on_the_curve(page: Page) -> None:
    """Guards the marker against another unit or another profile than the line's."""
    drawn = page.ask("curve.figure", "model=405b&nodes=2&along=inter.allreduce_floor")["curve"]["figure"]
    marker = drawn["data"][-1]
    lines = {trace["name"]: trace for trace in drawn["data"][:-1]}
    for (name, line), x, y in zip(lines.items(), marker["x"], marker["y"], strict=True):
        xs, ys = (_numbers(line[axis]) for axis in "xy")
        nearest = min(range(len(xs)), key=lambda at: abs(xs[at] - x))
        assert xs[nearest] == pytest.approx(x, rel=1e-6), name
        assert ys[nearest] == pytest.approx(y, rel=1e-6), name


def test_a_bad_link_shows_its_error_and_the_next_one_works(page: Page) -> None:
    views = page.views("model=nonsense")
    assert "unknown model 'nonsense'" in texts(views["error"])
    assert "cards" not in views
    assert "405b needs" in texts(page.views("model=405b")["error"])
    assert page.views("model=8b")["error"] == ""


PLAN = "model=qwen3-30b-a3b&stack=vllm&attention_dp=8&ep=8&batch=64"


def test_a_plan_is_predicted_as_by_the_command_line(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("--model", "qwen3-30b-a3b", "--stack", "vllm", "--attention-dp", "8", "--ep", "8", "--batch", "64")
    assert main(["predict", *command, "--json"]) == 0
    assert page.client.get(f"/download/prediction.json?{PLAN}").text == capsys.readouterr().out
    views = page.views(PLAN)
    assert "TP 1 x attention DP 8, EP 8" in texts(views["summary"])
    assert "mlp.dispatch0%nothingmlp.expertsmlp.top_k" in texts(views["messages"]).replace("\n", "").replace(" ", "")
    assert "attn.norm to attn.o" in texts(views["messages"])


@pytest.mark.parametrize(
    ("change", "rule", "way_out"),
    [
        ("&ep=3", "ep 3: must divide the 8 ranks of a stage (tp 1 x attention_dp 8)", "'Tensor-parallel degree'"),
        ("&batch=4", "each of 8 groups needs a request", "use 'Batch' 8 or more"),
        ("&pp=2", "attention_dp 8 x pp 2 needs 16 GPUs: there are 1 x 8", "add nodes ('Nodes' 2)"),
        ("&model=8b", "model 'llama-3.1-8b' has no experts", "leave out 'Expert-parallel degree'; 'Replicas' runs"),
        ("&sp=1", "sp with tp 1: there is no all-reduce to split", "'Tensor-parallel degree' 2 or more"),
        ("&sp=yes", "sp is 'yes': must be 1", "leave it out"),
    ],
)
def test_an_illegal_plan_shows_its_rule(page: Page, change: str, rule: str, way_out: str) -> None:
    key = change[1:].partition("=")[0]
    kept = "&".join(part for part in PLAN.split("&") if not part.startswith(f"{key}="))
    error = texts(page.views(kept + change)["error"])
    assert rule in error
    assert way_out in error


def test_every_argument_has_a_control() -> None:
    """Guards against links whose fields are lost when a control moves."""
    assert {argument.key for argument in ARGUMENTS.values()} - set(CONTROLS) == set()


def test_models_are_listed_by_kind() -> None:
    allowlist = Allowlist.of()
    kinds = {group["label"]: group["options"] for group in models(allowlist)}
    assert sorted(name for names in kinds.values() for name in names) == sorted(allowlist.models)
    places = {name: kind for kind, names in kinds.items() for name in names}
    assert places["70b"] == "Dense"
    assert places["mixtral-8x7b"] == "Experts"
    assert places["deepseek-v3"] == "Experts and latent attention"


def test_text_of_a_link_stays_text(page: Page) -> None:
    """Guards against scripts in a link: the page takes its views in as HTML."""
    error = page.views("model=<img src=x onerror=alert(1)>")["error"]
    assert "<img" not in error
    assert "&lt;img src=x" in error


@pytest.mark.parametrize("query", ["model=405b", "model=nonsense"])
def test_views_of_a_question_without_an_answer_stay_as_they_are(page: Page, query: str) -> None:
    assert page.send(page.payload("map.figure", {"settled": query})).status_code == 204


def test_requests_in_flight_are_predicted_as_by_the_command_line(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "model=8b&stack=vllm&concurrency=32"
    views = page.views(query)
    assert main(["predict", "--model", "8b", "--stack", "vllm", "--concurrency", "32", "--csv"]) == 0
    (ladder,) = (row for row in csv.DictReader(capsys.readouterr().out.splitlines()) if row["variant"] == "ladder")
    assert f"{float(ladder['speedup']):.2f}x" in texts(views["cards"])
    assert "servings of standard, vllm" in texts(views["evidence"])
    # the map is drawn over them, the Pareto front over static batches
    rows = csv.DictReader(page.client.get(f"/download/map.csv?{query}").text.splitlines())
    assert len({row["concurrency"] for row in rows}) > 5
    says = page.ask("curve.figure", "model=8b&along=concurrency")["curve"]["figure"]
    assert "Requests in flight is empty here" in str(says["layout"]["annotations"])


def test_a_view_says_what_is_wrong_with_itself(page: Page) -> None:
    drawn = page.ask("map.figure", "model=8b&across=batch&up=batch")["map"]["figure"]
    assert "both axes of the map are the same" in drawn["layout"]["annotations"][0]["text"]


def test_controls_stand_where_a_scenario_is_that_does_not_fit(page: Page) -> None:
    facts = page.ask("answer.data", "model=405b&batch=4")["answer"]["data"]["facts"]
    assert facts["batch"] == {"value": 4.0, "text": "4"}


def test_a_view_that_the_page_no_longer_waits_for_is_not_drawn(page: Page) -> None:
    load = {"page-load": "one"}
    page.send(page.payload("answer.data", {"query": "model=8b&batch=2"}, load))
    assert page.send(page.payload("tornado.figure", {"settled": "model=8b"}, load)).status_code == 204
    assert page.send(page.payload("tornado.figure", {"settled": "model=8b&batch=2"}, load)).status_code == 200


def test_pinned_scenarios_stand_side_by_side(page: Page) -> None:
    answer = page.ask("compared.children", "model=70b&pin=model%3D8b&pin=model%3D405b%26nodes%3D2")
    assert answer["comparing"]["hidden"] is False
    shown = texts(answer["compared"]["children"])
    assert all(name in shown for name in ("A", "B", "now", "llama-3.1-8b", "llama-3.1-405b", "ladder: speedup"))
    # a warning of one of them names it
    assert "B: 8 KV heads on 16 ranks" in shown
    # the runs behind all of them
    assert "were compared with runs of gpt-fast on H100 SXM5 80GB" in shown
    assert "Not in these runs, so intervals are wider: wiring (" in shown


def test_the_page_names_its_controls_and_no_flags(page: Page) -> None:
    """In errors, warnings and notes."""
    error = texts(page.views("model=405b&gpus_per_node=8")["error"])
    assert "on these GPUs 'Precision' fp8 fits; on more GPUs 'Nodes' 2 'Tensor-parallel degree' 16 fits" in error
    assert "'Predict even if it does not fit' predicts all the same" in error
    assert "add nodes ('Nodes' 2)" in texts(page.views("model=8b&tp=16")["error"])
    evidence = texts(page.views("model=8b&inter.bandwidth=100Gb/s")["evidence"])
    assert "inter.bandwidth changes nothing: the group is within one node; 'Nodes' 2 uses it" in evidence
    assert "engines with an all-reduce of their own, such as vllm, gain less." in evidence
    compared = page.ask("compared.children", "model=8b&pin=model%3D70b")["compared"]["children"]
    summary = texts(page.views("model=8b")["summary"])
    assert "gpt-fast ('Engine')" in summary
    assert not any("--" in shown for shown in (error, evidence, summary, texts(compared)))


def test_parts_of_the_memory_have_the_names_of_the_command_line(page: Page) -> None:
    bar = texts(page.views("model=405b&nodes=2")["memory"])
    held = predict(Scenario(model="405b", nodes=2))["standard"].memory.parts
    assert "stack 1.50 GB" in held
    assert [part for part in held.split(", ") if part not in re.sub(r"\s+", " ", bar)] == []


def test_no_warning_denies_what_requests_under_load_use(page: Page) -> None:
    """Regression: a page with a rate said that the memory of its own replicas changes nothing."""
    static = "model=8b&tp=2&stack.memory_fraction=0.3&stack.frontend=20ms&inter.allreduce_floor=9us"
    both = ["stack.memory_fraction", "stack.frontend", "inter.allreduce_floor"]
    # gpt-fast has NCCL and no requests in flight; what takes requests under load is vLLM
    assert unused(page.views(static)["evidence"]) == both
    assert unused(page.views(f"{static}&rate=4")["evidence"]) == ["inter.allreduce_floor"]
    # an engine that takes none has no view of them that could use a setting
    assert unused(page.views(f"{static}&rate=4&stack=gpt-fast")["evidence"]) == both


def test_that_a_setting_changes_nothing_is_said_once(page: Page) -> None:
    query = "model=8b&tp=2&stack.memory_fraction=0.3"
    pinned = page.ask("compared.children", f"{query}&rate=4&pin={quote(query)}")["compared"]["children"]
    assert unused(pinned) == []
    assert "gpt-fast" in texts(pinned)
    state, allowlist = State.parse(query, Allowlist.of()), Allowlist.of()
    for name in ("versus", "plans"):
        panel = VIEWS[name].panel(VIEWS[name].question(state), allowlist)
        assert unused(" ".join(panel.cautions)) == []


def unused(shown: Any) -> list[str]:
    """Settings of which a part of the page says that they change nothing."""
    return re.findall(r"(\S+) changes nothing", texts(shown))


def test_pinned_scenarios_have_the_warnings_of_compare(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    answer = page.ask("compared.children", "model=8b&stack=trtllm&price=2.5&pin=model%3D8b%26stack%3Dvllm")
    shown = texts(answer["compared"]["children"])
    assert main(["compare", "vllm", "trtllm", "--model", "8b", "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "vllm and trtllm share GEMMs" in printed
    assert f"A and now {printed.partition('warning: vllm and trtllm ')[2].splitlines()[0]}" in shown
    assert shown.count("$/Mtok") == 4


def test_prices_and_bounds_reach_the_files(page: Page) -> None:
    query = "model=8b&price=2.5&max_tpot=10ms&max_ttft=50ms"
    rows = list(csv.DictReader(page.client.get(f"/download/pareto.csv?{query}").text.splitlines()))
    kept = [row for row in rows if row["outcome"] in ("front", "dominated")]
    assert kept
    for row in kept:
        assert float(row["tpot_s"]) <= 0.010
        assert float(row["ttft_s"]) <= 0.050
        assert float(row["usd_per_Mtoken"]) > 0.0
    assert "$/Mtok" in texts(page.views(query)["cards"])
    notes, plain = (texts(page.views(each)["serving"]) for each in (query, "model=8b"))
    assert "bounds the prefill of a whole batch" in notes
    assert "GPUs that are never idle" in notes
    assert "bounds the prefill" not in plain
    assert "never idle" not in plain


def test_the_front_is_of_requests_in_flight_where_the_scenario_is(page: Page) -> None:
    """Regression: it was of static batches, next to a mark of what an engine serves."""
    query = "model=8b&tp=2&concurrency=16&max_ttft=9s"
    rows = list(csv.DictReader(page.client.get(f"/download/pareto.csv?{query}").text.splitlines()))
    assert {row["concurrency"] for row in rows} == {str(2**power) for power in range(9)}
    alone = predict_one(Scenario(model="8b", tp=2, concurrency=16), "ladder")
    same = [row for row in rows if (row["variant"], row["tp"], row["concurrency"]) == ("ladder", "2", "16")]
    assert [float(row["tokens_per_s"]) for row in same] == pytest.approx([alone.rate])
    notes = texts(page.views(query)["serving"])
    assert "serving" not in notes
    assert "prefill of a whole batch" not in notes


def test_every_figure_that_a_page_can_show_has_a_name_in_words() -> None:
    """Guards against keys like ``overlap.block`` on the page."""
    figures = {
        item.figure
        for scenario in (Scenario(model="405b", nodes=2), Scenario(model="8b", stack="vllm"))
        for item in sensitivity(scenario, ["ladder"])
    }
    names = figures | set(AXIS_FIELDS) | set(ARGUMENTS) | {slider.field for slider in SLIDERS}
    assert [name for name in names if field_title(name) == field_label(name) and not name.isalpha()] == []


def _read(page: Page, contents: str | None = None, pasted: str | None = None, name: str = "mine.json") -> Any:
    """What comes of a file, or of text."""
    file = {"name": name, "contents": contents, "number": 1}
    trigger: dict[str, Any] = {"read": 1} if contents is None else {"upload": file}
    return page.send(page.payload("shape.data", trigger, {"pasted": pasted})).get_json()["response"]


def _data_url(config: dict[str, object]) -> str:
    return f"data:application/json;base64,{base64.b64encode(json.dumps(config).encode()).decode()}"


@pytest.mark.parametrize(
    ("file", "config", "name"),
    [
        ("mine.json", LLAMA_8B | {"_name_or_path": "meta-llama/Llama-3.1-8B"}, "mine"),
        ("config.json", LLAMA_8B | {"_name_or_path": "meta-llama/Llama-3.1-8B"}, "Llama-3.1-8B"),
        ("config.json", LLAMA_8B, "config"),
        ("<b>.json", LLAMA_8B, "-b-"),
    ],
)
def test_an_uploaded_config_is_read(page: Page, file: str, config: dict[str, object], name: str) -> None:
    answer = _read(page, _data_url(config), name=file)
    shape = json.loads(answer["shape"]["data"])
    assert shape["name"] == name
    assert shape["layers"] == catalog.model("8b").layers
    assert name in answer["upload-status"]["children"]
    assert page.views(f"model={name}&shape={json.dumps(shape)}")["error"] == ""


@pytest.mark.parametrize(
    ("contents", "pasted", "message"),
    [
        ("data:;base64,!!!", None, "not text"),
        ("data:;base64," + base64.b64encode(bytes(range(256))).decode(), None, "not text"),
        ("data:;base64," + "A" * 3_000_000, None, "larger"),
        (None, "{", "not valid JSON"),
        (None, "[" * 100_000, "nested too deeply"),
        (None, "[1]", "must be a JSON object"),
        (None, json.dumps({**LLAMA_8B, "num_experts": 8}), "mixture-of-experts"),
        (None, "", "the text is empty"),
    ],
)
def test_a_bad_config_shows_its_error(page: Page, contents: str | None, pasted: str | None, message: str) -> None:
    answer = _read(page, contents, pasted)
    assert message in texts(answer["answer"]["data"]["views"]["error"])
    assert answer["upload-status"]["children"] == "refused"
    assert "shape" not in answer


def test_a_huge_request_is_refused(page: Page) -> None:
    assert page.send("x" * MAX_REQUEST_BYTES).status_code == 413


def test_headers_forbid_what_a_page_of_this_machine_needs_not(page: Page) -> None:
    for path in ("/", "/_dash-layout", "/download/nothing", "/assets/explorer.js"):
        with page.client.get(path) as response:
            headers = response.headers
        policy = headers["Content-Security-Policy"]
        assert "connect-src 'self'" in policy
        assert "'unsafe-eval'" not in policy
        assert "'unsafe-inline'" not in policy.partition("style-src")[0]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"


def test_another_sites_name_for_this_machine_gets_nothing(page: Page) -> None:
    """Guards against DNS rebinding: a page elsewhere must not read answers through the reader's browser."""
    assert page.client.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert page.client.get("/", headers={"Host": "localhost:8050"}).status_code == 200


@examples(max_examples=120)
@given(data=st.data())
def test_malformed_payloads_never_break_the_server(page: Page, data: st.DataObject) -> None:
    about = data.draw(st.sampled_from(["answer.data", "map.figure", "compared.children", "shape.data"]))
    payload: Any = page.payload(about, {"query": "model=8b"})
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(payload)))
        if data.draw(st.booleans()):
            payload[key] = data.draw(JSON)
        elif isinstance(payload[key], list) and payload[key] and isinstance(payload[key][0], dict):
            payload[key][0]["value"] = data.draw(JSON)
    assert page.send(payload).status_code < 500
    assert page.send(data.draw(JSON)).status_code < 500


@pytest.mark.parametrize("junk", [[None], [1], ["shape.data", None]])
def test_a_request_of_no_page_is_refused_quietly(page: Page, junk: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a traceback on the terminal, and an answer that called it a bug."""
    answer = page.send({**page.payload("shape.data", {}), "changedPropIds": junk})
    assert (answer.status_code, answer.text) == (400, "malformed request\n")
    assert capsys.readouterr() == ("", "")


def test_a_silent_connection_is_closed_and_the_server_is_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: idle connections stayed for ever, until the process had no more of them."""
    # imported here: it needs a browser's package
    from tests.support.explorer_browser import served

    monkeypatch.setattr(server_module._RequestHandler, "timeout", 0.2)
    with served() as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), HANG_S) as silent:
        with urlopen(url) as answer:
            assert answer.headers["Server"] == "ladder-sim"
        # the end of it
        assert silent.recv(1) == b""
    assert capsys.readouterr() == ("", "")


def test_the_server_answers_after_all_of_that(page: Page) -> None:
    assert page.views("model=8b")["error"] == ""


def _numbers(values: Any) -> list[float]:
    """A list, or an array as plotly sends it."""
    if isinstance(values, list):
        return values
    import numpy as np

    return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).tolist()
