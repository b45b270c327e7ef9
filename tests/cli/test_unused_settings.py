"""Settings that change nothing are warned of or refused, with what would use them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.commands import run

GIVEN = {"--model": "8b", "--tp": "1", "--stack": "vllm", "--variant": "ladder"}
SERVE = ("serve", "--model", "8b", "--tp", "2", "--stack", "vllm", "--rate", "4", "--requests", "20", "--seeds", "1")


def answer(flags: Mapping[str, str]) -> dict[str, Any]:
    ran = run("predict", *(part for pair in flags.items() for part in pair), "--json")
    assert ran.code == 0, ran.err
    content: dict[str, Any] = json.loads(ran.out)
    return content


@pytest.mark.parametrize(
    ("setting", "without", "uses"),
    [
        ("stack.host_request=1ms", {}, {"--concurrency": "8"}),
        ("stack.step_tokens=256", {}, {"--concurrency": "64"}),
        ("stack.memory_fraction=0.5", {}, {"--concurrency": "512"}),
        ("stack.collective_launch=50us", {}, {"--tp": "2"}),
        ("stack.quantize=20us", {}, {"--dtype": "fp8-dynamic"}),
        ("stack.padded_share=0.1", {"--dtype": "fp8-block"}, {"--model": "qwen3-30b-a3b"}),
        ("stack.shared_expert_stream=false", {}, {"--model": "deepseek-v2-lite"}),
    ],
)
def test_a_setting_that_a_scenario_does_not_use_is_warned_of(
    setting: str, without: Mapping[str, str], uses: Mapping[str, str]
) -> None:
    """And what the message names does use it: then the answer differs."""
    rule = f"{setting.partition('=')[0]} changes nothing: "
    (warning,) = (text for text in answer({**GIVEN, **without, "--set": setting})["warnings"] if rule in text)
    assert next(iter(uses)) in warning
    used = {**GIVEN, **without, **uses}
    changed = answer({**used, "--set": setting})
    assert not any(rule in text for text in changed["warnings"])
    assert changed["variants"] != answer(used)["variants"]


def test_a_front_end_is_for_requests_in_flight() -> None:
    def warnings(*more: str) -> list[str]:
        server = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--set", "stack.frontend=20ms")
        ran = run("predict", *server, "--json", *more)
        assert ran.code == 0, ran.err
        return [text for text in json.loads(ran.out)["warnings"] if "stack.frontend" in text]

    (unread,) = warnings()
    assert "--concurrency uses it" in unread
    assert warnings("--concurrency", "8") == []


def test_no_search_runs_along_a_front_end_of_a_static_batch() -> None:
    ran = run("breakeven", "stack.frontend=1:9ms", "--model", "8b")
    assert (ran.code, "--concurrency uses it" in ran.err) == (2, True)


def test_a_range_that_nothing_uses_is_refused_whatever_it_is_of() -> None:
    ran = run("sweep", "--model", "8b", "--stack", "vllm", "--set", "stack.step_tokens=256,512")
    assert (ran.code, ran.out) == (2, "")
    assert "stack.step_tokens changes nothing: requests of a static batch start together; --concurrency" in ran.err
    ran = run(
        "sweep", "--model", "8b", "--stack", "vllm", "--set", "stack.step_tokens=256,512", "--concurrency", "8:32"
    )
    assert ran.code == 0, ran.err


def test_a_load_has_its_front_end_and_its_own_requests() -> None:
    def first_token_s(*more: str) -> float:
        ran = run(*SERVE, "--json", *more)
        assert ran.code == 0, ran.err
        seconds: float = json.loads(ran.out)["rows"][0]["ttft_p50_s"]
        return seconds

    assert first_token_s("--set", "stack.frontend=50ms") == pytest.approx(first_token_s() + 0.05)
    ran = run(*SERVE, "--set", "workload.prompt=4096")
    assert (ran.code, ran.out) == (2, "")
    assert "workload.prompt changes nothing here: requests arrive as --prompt" in ran.err


@pytest.mark.slow
def test_what_only_fleets_use_is_not_warned_of_where_they_are_sized() -> None:
    command = ("versus", "--model", "8b", "--tp", "2", "--gen", "16", "--stack", "vllm", "--variant", "standard")
    settings = ("--technique", "none", "--set", "stack.memory_fraction=0.3", "--set", "inter.allreduce_floor=9us")
    load = ("--slo", "tpot_p95=30ms", "--requests", "12", "--seeds", "1", "--rate", "4")

    def unread(*more: str) -> list[str]:
        ran = run(*command, *settings, *more, "--json")
        assert ran.code == 0, ran.err
        return [text.split()[0] for text in json.loads(ran.out)["warnings"] if "changes nothing" in text]

    assert unread() == ["stack.memory_fraction", "inter.allreduce_floor"]
    assert unread(*load) == ["inter.allreduce_floor"]


def test_a_page_that_also_simulates_a_load_takes_a_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    monkeypatch.setattr("ladder_sim.cli.explore._serve", lambda _, query, **__: queries.append(query))
    assert run("explore", "--model", "8b", "--set", "stack.frontend=20ms").code == 0
    assert queries == ["model=8b&stack.frontend=20ms"]


@pytest.mark.filterwarnings("default::FutureWarning")
@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--json", "--set", "intra.latency=20us"),
        ("breakeven", "intra.latency=20:40us"),
        ("sweep", "--set", "intra.latency=20,40us"),
    ],
)
def test_a_figure_by_its_former_name_is_said_once(command: tuple[str, ...]) -> None:
    ran = run(*command)
    assert ran.code == 0
    assert ran.err.count("warning: intra.latency is called allreduce_floor now: it is the time of a small all-red") == 1
