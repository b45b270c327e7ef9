"""The explorer's server: numbers of the command line, errors in the page, and nothing for strangers."""

import http.client
import json
import re
import socket
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.cli.main import main
from ladder_sim.display.labels import field_label, field_title
from ladder_sim.errors import LadderSimError
from ladder_sim.explorer import server as server_module
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.controls import AXIS_FIELDS, fields_of, question, settings, ways_out
from ladder_sim.explorer.server import Site
from ladder_sim.explorer.state import MAX_BYTES, State
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from tests.support.configs import LLAMA_8B
from tests.support.html_text import texts
from tests.support.waiting import HANG_S

Ask = Callable[[str, str], Any]
QUERY = "model=405b&nodes=2&inter.bandwidth=100Gb/s&variants=standard,ladder,hybrid-ladder:40"
FLAGS = ["--model", "405b", "--nodes", "2", "--set", "inter.bandwidth=100Gb/s"]
VARIANTS = ["--variant", "standard,ladder,hybrid-ladder:40"]


def parts(ask: Ask, query: str) -> dict[str, str]:
    """Text of an answer by its place."""
    return {name: texts(html) for name, html in ask("/answer", query)["parts"].items()}


def option(ask: Ask, query: str, name: str) -> str:
    """Text of an option's row in the picture."""
    (row,) = re.findall(
        rf'data-option="{re.escape(name)}".*?</div></div>', _rows(ask("/answer", query)["parts"]["answer"])
    )
    return texts(row.partition(">")[2])


def _rows(html: str) -> str:
    """The picture, an option a line, its name first."""
    found = re.findall(r'<div class="fr" data-option="([^"]+)">(.*?)(?=<div class="(?:fr|grp|fa)")', html)
    return "\n".join(f'data-option="{name}">{row}</div></div>' for name, row in found)


def test_numbers_are_those_of_predict(ask: Ask, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *FLAGS, *VARIANTS, "--json"]) == 0
    printed = capsys.readouterr().out
    assert site.get("/download/prediction.json", QUERY).content.decode() == printed
    for name, each in json.loads(printed)["variants"].items():
        if name != "standard":
            shown = option(ask, QUERY, name)
            assert f"{each['speedup']:.2f} {each['speedup_low']:.2f}\N{EN DASH}{each['speedup_high']:.2f}" in shown
    assert ask("/answer", QUERY)["copies"]["cli"].split()[2:] == [*FLAGS, *VARIANTS]


def test_options_with_a_technique_are_those_of_versus(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    query = "model=70b&stack=vllm&concurrency=64"
    assert main(["versus", "--model", "70b", "--stack", "vllm", "--concurrency", "64", "--json"]) == 0
    rows = {row["option"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for name in ("fused-norm", "ladder + fused-norm", "ladder", "parallel"):
        row = rows[name]
        assert f"{row['gain']:.2f} {row['gain_low']:.2f}\N{EN DASH}{row['gain_high']:.2f}" in option(ask, query, name)
    said = parts(ask, query)["answer"]
    ladder, fused = rows["ladder"], rows["fused-norm"]
    assert f"Ladder Residual would make each request {ladder['gain_low']:.2f} to {ladder['gain_high']:.2f}" in said
    assert f"most likely {ladder['gain']:.2f}. It needs retraining" in said
    assert f"fused-norm gives {fused['gain_low']:.2f} to {fused['gain_high']:.2f}." in said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("model=405b&nodes=2", "fused-norm, which keeps your weights, does not apply here"),
        ("model=8b&tp=2&variants=standard", "Standard makes"),
        ("model=8b&tp=1", "Parallel would (perhaps )?make|is not clearly faster|slower"),
        ("model=8b&tp=4&technique=fused-norm", "every option here runs with fused-norm"),
        ("model=ladder-3b&tp=2&variants=standard,ladder", "The model is trained so|It needs retraining"),
        ("model=8b&tp=2&gen=1", "TTFT, ms"),
        ("model=8b&tp=2&stack=vllm&concurrency=8&measured=tpot=9ms", "measured"),
    ],
)
def test_every_question_has_its_sentence(ask: Ask, query: str, said: str) -> None:
    shown = parts(ask, query)
    assert re.search(said, shown["answer"] + shown["fine"]), shown
    assert shown["error"] == ""


def test_what_a_server_measured_moves_the_answer_as_on_the_command_line(
    ask: Ask, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "model=8b&tp=2&stack=vllm&concurrency=8&measured=tpot=9ms"
    flags = ["--model", "8b", "--tp", "2", "--stack", "vllm", "--concurrency", "8", "--measured", "tpot=9ms"]
    assert main(["predict", *flags, "--json"]) == 0
    assert site.get("/download/prediction.json", query).content.decode() == capsys.readouterr().out
    assert "--measured tpot=9ms" in ask("/answer", query)["copies"]["cli"]


PLAN = "model=qwen3-30b-a3b&stack=vllm&attention_dp=8&ep=8&batch=64"


def test_a_plan_is_predicted_as_by_the_command_line(ask: Ask, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("--model", "qwen3-30b-a3b", "--stack", "vllm", "--attention-dp", "8", "--ep", "8", "--batch", "64")
    assert main(["predict", *command, "--json"]) == 0
    assert site.get("/download/prediction.json", PLAN).content.decode() == capsys.readouterr().out
    assert "TP 1 x attention DP 8, EP 8" in parts(ask, PLAN)["fine"]


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
def test_an_illegal_plan_shows_its_rule(ask: Ask, change: str, rule: str, way_out: str) -> None:
    key = change[1:].partition("=")[0]
    kept = "&".join(part for part in PLAN.split("&") if not part.startswith(f"{key}="))
    error = parts(ask, kept + change)["error"]
    assert rule in error
    assert way_out.lower() in error.lower()


def test_a_way_out_is_a_button_that_leads_to_an_answer(ask: Ask) -> None:
    error = ask("/answer", "model=405b")["parts"]["error"]
    changes = [unescape(change) for change in re.findall(r'data-change="([^"]*)"', error)]
    assert changes == ["dtype=fp8", "nodes=2&tp=16", "ignore_memory=1"]
    for change in changes:
        assert parts(ask, f"model=405b&{change}")["error"] == ""
    assert ways_out("use a name from the list, --tp of 4, or leave out --stack") == []


def test_a_bad_link_shows_its_error_and_the_next_one_works(ask: Ask) -> None:
    shown = parts(ask, "model=nonsense")
    assert "unknown model 'nonsense'" in shown["error"]
    assert "answer" not in shown
    refused = ask("/answer", "model=405b")
    assert "405b needs" in texts(refused["parts"]["error"])
    # the question stays, and so do the fields
    assert "llama-3.1-405b" in refused["parts"]["question"]
    assert refused["fields"]["tp"][1] == "8"
    assert parts(ask, "model=8b")["error"] == ""


def test_text_of_a_link_stays_text(ask: Ask, site: Site) -> None:
    """Guards against scripts in a link: the page takes its parts in as HTML."""
    error = ask("/answer", "model=<img src=x onerror=alert(1)>")["parts"]["error"]
    assert "<img" not in error
    assert "&lt;img src=x" in error
    page = site.get("/", urlencode({"model": "</script><script>alert(1)</script>"})).content.decode()
    assert "<script>alert" not in page


def test_every_argument_has_a_field() -> None:
    """Guards against arguments that only a link can change."""
    keys = {each.key for group in settings(Allowlist.of()).values() for each in group}
    assert {argument.key for argument in ARGUMENTS.values()} <= keys
    assert len(keys) == sum(map(len, settings(Allowlist.of()).values()))


def test_every_line_of_a_list_says_what_it_sets() -> None:
    """Each is a question, and the list of that question says so first."""
    queries = Queries(Allowlist.of())
    setup = queries.setup(queries.question("model=8b&stack=vllm&concurrency=64"))
    right = dict.fromkeys(question(setup, queries.allowlist), 0)
    for name, choices in question(setup, queries.allowlist).items():
        for each in choices:
            there = {**fields_of(setup.state), **each.clears, **each.sets}
            try:
                setup_there = queries.setup(queries.question(urlencode(there)))
            except LadderSimError:
                # heads that eight GPUs do not divide, an engine without requests in flight
                continue
            first = question(setup_there, queries.allowlist)[name][0]
            assert each.opens or first.text == each.text
            right[name] += 1
    assert right["Model"] > 20
    assert right["GPUs"] > 16
    assert right["Links"] > 4
    assert right["Engine"] > 2
    assert right["Load"] > 8


def test_models_are_listed_once_by_kind() -> None:
    queries = Queries(Allowlist.of())
    choices = question(queries.setup(queries.question("")), queries.allowlist)["Model"]
    kinds = {each.text: each.group for each in choices if not each.opens}
    assert sorted(kinds) == sorted(catalog.model_names())
    assert kinds["llama-3.1-70b"] == "Dense"
    assert kinds["mixtral-8x7b"] == "Experts"
    assert kinds["deepseek-v3"] == "Experts and latent attention"


def test_the_page_names_its_controls_and_no_flags(ask: Ask) -> None:
    """In errors, warnings and notes."""
    error = parts(ask, "model=405b&gpus_per_node=8")["error"]
    assert "On these GPUs 'Precision' fp8 fits; on more GPUs 'Nodes' 2 'Tensor-parallel degree' 16 fits" in error
    assert "'Predict even if it does not fit' predicts all the same" in error
    assert "Add nodes ('Nodes' 2)" in parts(ask, "model=8b&tp=16")["error"]
    answer = parts(ask, "model=8b&inter.bandwidth=100Gb/s")["answer"]
    assert "inter.bandwidth changes nothing: the group is within one node; 'Nodes' 2 uses it" in answer
    assert not any("--" in shown for shown in (error, answer))


def test_no_warning_denies_what_requests_under_load_use(ask: Ask) -> None:
    """Regression: a page with a rate said that the memory of its own replicas changes nothing."""
    static = "model=8b&tp=2&stack.memory_fraction=0.3&stack.frontend=20ms&inter.allreduce_floor=9us"
    both = ["stack.memory_fraction", "stack.frontend", "inter.allreduce_floor"]
    assert unused(parts(ask, static)["answer"]) == both
    assert unused(parts(ask, f"{static}&rate=4")["answer"]) == ["inter.allreduce_floor"]
    # an engine that takes none has no view of them that could use a setting
    assert unused(parts(ask, f"{static}&rate=4&stack=gpt-fast")["answer"]) == both


def unused(shown: str) -> list[str]:
    """Settings of which a part of the page says that they change nothing."""
    return re.findall(r"(\S+) changes nothing", shown)


def test_pinned_scenarios_are_marked_in_every_row(ask: Ask) -> None:
    answer = ask("/answer", f"model=70b&pin=model%3D8b&pin={quote('model=405b&nodes=2')}")["parts"]["answer"]
    assert "A llama-3.1-8b" in texts(answer)
    assert "B llama-3.1-405b" in texts(answer)
    gain = predict(Scenario(model="405b", nodes=2))["ladder"].speedup.text
    assert f'title="B: {gain}"' in answer


def test_every_figure_that_a_page_can_show_has_a_name_in_words() -> None:
    """Guards against keys like ``overlap.block`` on the page."""
    figures = {
        item.figure
        for scenario in (Scenario(model="405b", nodes=2), Scenario(model="8b", stack="vllm"))
        for item in sensitivity(scenario, ["ladder"])
    }
    names = figures | set(AXIS_FIELDS) | set(ARGUMENTS)
    assert [name for name in names if field_title(name) == field_label(name) and not name.isalpha()] == []


def _read(site: Site, name: str, content: bytes) -> Any:
    return json.loads(site.post("/model", name, content).content)


@pytest.mark.parametrize(
    ("file", "config", "name"),
    [
        ("mine.json", LLAMA_8B | {"_name_or_path": "meta-llama/Llama-3.1-8B"}, "mine"),
        ("config.json", LLAMA_8B | {"_name_or_path": "meta-llama/Llama-3.1-8B"}, "Llama-3.1-8B"),
        ("config.json", LLAMA_8B, "config"),
        ("<b>.json", LLAMA_8B, "-b-"),
    ],
)
def test_an_uploaded_config_is_read(ask: Ask, site: Site, file: str, config: dict[str, object], name: str) -> None:
    answer = _read(site, file, json.dumps(config).encode())
    assert answer["model"] == name
    assert json.loads(answer["shape"])["layers"] == catalog.model("8b").layers
    told = ask("/answer", urlencode(answer))
    assert told["parts"]["error"] == ""
    assert f">{name.replace('<', '&lt;')}</option>" in told["parts"]["question"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(range(256)), "not text"),
        (b"A" * (MAX_BYTES + 1), "larger"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "must be a JSON object"),
        (json.dumps({**LLAMA_8B, "num_experts": 8}).encode(), "mixture-of-experts"),
        (b"", "the file is empty"),
    ],
)
def test_a_bad_config_shows_its_error(site: Site, content: bytes, message: str) -> None:
    assert message in texts(_read(site, "config.json", content)["error"])


@given(st.sampled_from(["/", "/answer", "/view/whatif", "/view/load", "/download/x", "/nothing"]), st.text(max_size=80))
def test_any_request_gets_an_answer(path: str, query: str) -> None:
    site = Site(Allowlist.of())
    try:
        assert site.get(path, quote(query)).status in (200, 400, 404)
    finally:
        site.close()


def test_a_failure_is_said_on_the_page_and_the_terminal(
    monkeypatch: pytest.MonkeyPatch, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "reply", lambda *_: 1 / 0)
    answer = json.loads(site.get("/answer", "model=8b").content)
    assert "the simulator failed" in texts(answer["parts"]["error"])
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_process_that_was_ended_is_said_and_started_again(ask: Ask, site: Site) -> None:
    query = "model=8b&tp=2"
    assert ask("/view/evidence", query)["figures"]
    (process,) = site._pools["views"]._processes.values()
    process.kill()
    process.join()
    assert "was ended" in ask("/view/evidence", "model=8b&tp=4")["html"]
    assert ask("/view/evidence", "model=8b&tp=4")["figures"]


def test_headers_forbid_what_a_page_of_this_machine_needs_not() -> None:
    # imported here: it needs a browser's package
    from tests.support.explorer_browser import served

    with served() as url:
        for path in ("/", "/answer?model=8b", "/download/nothing", "/page.js", "/plotly.min.js"):
            link = http.client.HTTPConnection(url.removeprefix("http://"), timeout=HANG_S)
            link.request("GET", path)
            response = link.getresponse()
            response.read()
            policy = response.headers["Content-Security-Policy"]
            assert "connect-src 'self'" in policy
            assert "'unsafe-eval'" not in policy
            assert "'unsafe-inline'" not in policy.partition("style-src")[0]
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["X-Frame-Options"] == "DENY"
            link.close()


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        # DNS rebinding: a page elsewhere must not read answers through the reader's browser
        ("GET", {"Host": "evil.example"}, 421),
        ("GET", {"Host": "localhost:8050"}, 200),
        ("POST", {"Content-Length": str(2 * MAX_BYTES + 1)}, 413),
        ("POST", {"Content-Length": "many"}, 413),
        ("POST", {"Host": "evil.example", "Content-Length": "0"}, 421),
        ("DELETE", {}, 501),
    ],
)
def test_strangers_get_nothing(method: str, headers: dict[str, str], status: int) -> None:
    from tests.support.explorer_browser import served

    with served() as url:
        link = http.client.HTTPConnection(url.removeprefix("http://"), timeout=HANG_S)
        link.putrequest(method, "/model" if method == "POST" else "/", skip_host="Host" in headers)
        for name, value in headers.items():
            link.putheader(name, value)
        link.endheaders()
        assert link.getresponse().status == status
        link.close()


def test_a_silent_connection_is_closed_and_the_server_is_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: idle connections stayed for ever, until the process had no more of them."""
    from tests.support.explorer_browser import served

    assert 0.0 < server_module.Handler.timeout <= 120.0
    monkeypatch.setattr(server_module.Handler, "timeout", 0.2)
    with served() as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), HANG_S) as silent:
        with urlopen(url) as answer:
            assert answer.headers["Server"] == "ladder-sim"
        # the end of it
        assert silent.recv(1) == b""
    assert capsys.readouterr() == ("", "")


def test_links_of_the_page_before_this_one_open(ask: Ask) -> None:
    """Every field that it wrote is still read."""
    old = (
        "model=405b&nodes=2&tp=16&batch=8&no_p2p=1&along=batch&across=prompt&up=intra.allreduce_floor&variant=parallel"
        "&over=standard&phase=prefill&price=2.5&max_ttft=9s&max_tpot=1s&rate=10&ttft_p95=2s&tpot_p95=60ms"
        "&variants=standard,parallel,ladder,hybrid-ladder:16,upper-bound&stack.stream_wait=2us&pin=model%3D8b"
    )
    told = ask("/answer", old)
    assert told["parts"]["error"] == ""
    assert State.parse(told["query"], Allowlist.of()) == State.parse(old, Allowlist.of())
