"""`ladder_sim.serve` and `ladder_sim.capacity` as a user calls them: the answers of the commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import Scenario, capacity, serve
from ladder_sim.errors import UsageError
from ladder_sim.serving import SLO, Lengths, Request, Trace
from ladder_sim.specs.settings import Overrides
from tests.support.commands import run

EIGHT = Scenario(model="8b", tp=2, stack="vllm")
FLAGS = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--json")
LOAD: dict[str, Any] = {"prompt": 400, "gen": "uniform:10:60", "requests": 40}
LOAD_FLAGS = ("--prompt", "400", "--gen", "uniform:10:60", "--requests", "40")


def printed(*command: str) -> Any:
    return json.loads(run(*command, *FLAGS, *LOAD_FLAGS).out)


def test_serve_gives_what_the_command_gives() -> None:
    served = serve(EIGHT, rate=20.0, slo={"ttft_p95_s": 0.5}, usd_per_gpu_hour=2.0, seeds=2, **LOAD)
    flags = ("--rate", "20", "--slo", "ttft_p95=500ms", "--price", "2", "--seeds", "2")
    assert served.to_dict() == printed("serve", *flags)
    ladder = served["ladder"]
    assert ladder.usd_per_Mtoken.low < ladder.usd_per_Mtoken.value < ladder.usd_per_Mtoken.high
    assert ladder.tpot_p95_s is ladder.figures["tpot_p95_s"]
    with pytest.raises(AttributeError, match="no attribute 'tpot_p96_s'"):
        _ = ladder.tpot_p96_s


def test_rare_options_are_the_command_s() -> None:
    """Those that have no flag, and settings."""
    slow: Overrides = {"intra.bandwidth": "100GB/s"}
    served = serve(
        EIGHT.replace(overrides=slow, dp=2, concurrency=2),
        "standard",
        rate=20.0,
        burstiness=0.5,
        prefix=64,
        seed=3,
        router="least-loaded",
        speculate="2:0.7",
        prefill_replicas=1,
        prefill_tp=1,
        seeds=1,
        **LOAD,
    )
    rare = (
        "burstiness=0.5",
        "prefix=64",
        "seed=3",
        "router=least-loaded",
        "speculate=2:0.7",
        "intra.bandwidth=100GB/s",
    )
    rare = (*rare, "prefill_replicas=1", "prefill_tp=1")
    words = ("serve", "--dp", "2", "--rate", "20", "--variant", "standard", "--seeds", "1")
    assert served.to_dict() == printed(*words, *(word for each in rare for word in ("--set", each)))


def test_capacity_gives_what_the_command_gives() -> None:
    need = capacity(EIGHT, rate=200.0, slo="tpot_p95=8ms", pp=1, seeds=1, usd_per_gpu_hour=2.0, **LOAD)
    flags = ("--rate", "200", "--slo", "tpot_p95=8ms", "--pp", "1", "--seeds", "1", "--price", "2")
    assert need.to_dict() == printed("capacity", *flags)


@pytest.mark.parametrize("tp", [2, [2], "2"], ids=str)
def test_degrees_replace_those_of_the_scenario(tp: Any) -> None:
    load = {"rate": 4.0, "slo": "ttft_p95=9s", "prompt": 64, "gen": 8, "requests": 5, "seeds": 1}
    need = capacity(EIGHT.replace(tp=1), "standard", tp=tp, pp=1, **load)["standard"]
    assert (need.plans, need.gpus.value) == ("TP 2", 2.0)


def test_what_the_keywords_do_not_say_is_as_in_the_scenario() -> None:
    given = EIGHT.replace(prompt=400, gen=30, concurrency=4)
    served = serve(given, "standard", requests=10, seeds=1)
    load = served.load
    assert not isinstance(load, Trace)
    assert (load.prompt, load.gen, load.concurrency) == (Lengths.parse("400"), Lengths.parse("30"), 4)  # type: ignore[union-attr]
    # a rate takes the place of requests in flight
    assert serve(given, "standard", rate=9.0, requests=10, seeds=1).load.concurrency == 0  # type: ignore[union-attr]
    assert serve(EIGHT, "standard", rate=9.0, requests=10, seeds=1).load.gen == Lengths.parse("256")  # type: ignore[union-attr]


def test_recorded_requests_are_a_file_or_a_list(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,374,44\n")
    requests = [Request(arrival_s=0.0, prompt=374, gen=44)]
    file, listed = (serve(EIGHT, "standard", trace=each) for each in (trace, requests))
    assert file["standard"].e2e_p50_s == listed["standard"].e2e_p50_s
    assert listed.to_dict()["load"] == {"requests": 1}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: serve(EIGHT, rate=4.0, promt=3), r"serve\(\) has no argument 'promt'; did you mean 'prompt'\?"),  # type: ignore[call-arg]
        (lambda: serve(rate=4.0, modle="8b"), r"serve\(\) has no argument 'modle'; did you mean 'model'\?"),  # type: ignore[call-arg]
        (lambda: capacity(EIGHT, rte=4.0, slo=""), r"capacity\(\) has no argument 'rte'; did you mean 'rate'\?"),  # type: ignore[call-arg]
    ],
)
def test_a_typo_names_the_nearest_keyword(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: serve(EIGHT, tp=4, rate=4.0), "a scenario and tp: must be one of them"),
        (lambda: serve(EIGHT.replace(batch=4), rate=4.0), "batch 4 changes nothing here"),
        (lambda: serve(EIGHT.replace(overrides={"workload.gen": 9.0}), rate=4.0), "workload.gen changes nothing here"),
        (lambda: serve(EIGHT, trace=[], speed=2.0), "speed 2 with requests of your own"),
        (lambda: serve(EIGHT, rate=4.0, slo={"ttft_p95": 1.0}), "must be text with a unit, or seconds by a name"),
        (lambda: capacity(EIGHT.replace(dp=2, concurrency=2), rate=4.0, slo="ttft_p95=1s"), "dp 2 changes nothing"),
    ],
)
def test_what_would_change_nothing_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_bounds_are_text_or_seconds_by_name() -> None:
    typed = SLO.parse("ttft_p95=500ms,tpot_mean=30ms")
    for given in ({"ttft_p95_s": 0.5, "tpot_mean_s": 0.03}, {"ttft_p95": "500ms", "tpot_mean_s": "30ms"}, typed):
        assert SLO.read(given) == typed


@pytest.mark.parametrize(("requests", "few"), [(40, True), (319, True), (320, False)])
def test_fewer_requests_than_a_steady_load_needs_are_said(requests: int, few: bool) -> None:
    """Regression: of 400 requests a million were "in flight"."""
    served = serve(Scenario(model="8b", tp=1, stack="vllm"), concurrency=64, requests=requests, seeds=1)
    text = f"{requests} requests are few for 64 in flight: most meet a server that fills or empties; raise --requests"
    assert any(each.startswith(text) for each in served.cautions) == few
    assert bool(served.too_few) == few
