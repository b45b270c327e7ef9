"""Loads and what they need: through the public functions and the commands."""

import csv
import io
import itertools
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import Scenario, serve
from ladder_sim import capacity as search_plans
from ladder_sim.errors import MemoryFitError, UsageError
from ladder_sim.report.figures.serve import load_figure
from ladder_sim.serving import (
    SLO,
    Lengths,
    Request,
    Service,
    StepTimes,
    Traffic,
)
from ladder_sim.serving.intervals import under_load
from ladder_sim.serving.replicas.simulation import _System
from ladder_sim.serving.sizing.search import Search
from tests.support.commands import run
from tests.support.predict_one import predict_one
from tests.support.replicas import capacity, keywords, outcomes

FLAGS = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--requests", "60")
LOAD = {"prompt": Lengths.parse("uniform:100:900"), "gen": Lengths.parse("uniform:10:90"), "requests": 150}


def scenario(**given: Any) -> Scenario:
    return Scenario(**{"model": "8b", "tp": 2, "stack": "vllm", **given})


def test_ladder_answers_the_same_requests_sooner() -> None:
    standard, ladder = outcomes(scenario(), Traffic(rate=20.0, **LOAD)).values()
    for metric in ("ttft", "tpot", "itl", "e2e"):
        assert ladder.seconds(metric, 95) < standard.seconds(metric, 95)
        assert standard.seconds(metric, 50) <= standard.seconds(metric, 90) <= standard.seconds(metric, 99)
    assert [each.request for each in standard.answers] == [each.request for each in ladder.answers]


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
def test_a_server_adds_to_first_tokens_and_to_nothing_else(stack: str) -> None:
    given, traffic = scenario(stack=stack), Traffic(rate=20.0, **{**LOAD, "requests": 60})
    none = {"frontend_s": 0.0, "frontend_steps": 0.0, "frontend_token_s": 0.0}
    engine, server = (
        outcomes(given, traffic, ["standard"], changed=changed)["standard"].answers for changed in (none, {})
    )
    figures = given.stack
    for alone, answer in zip(engine, server, strict=True):
        assert answer.tpot_s == pytest.approx(alone.tpot_s)
        added_s = figures.frontend_s + figures.frontend_steps * alone.tpot_s
        added_s += figures.frontend_token_s * answer.request.prompt
        assert added_s > 0.0
        assert answer.ttft_s == pytest.approx(alone.ttft_s + added_s)


def test_more_replicas_share_a_load() -> None:
    traffic = Traffic(rate=60.0, **LOAD)
    one, four = (outcomes(scenario(dp=dp, concurrency=dp), traffic, ["ladder"])["ladder"] for dp in (1, 4))
    assert (one.gpus, four.gpus) == (2, 8)
    assert four.seconds("tpot", 95) < one.seconds("tpot", 95)
    assert len(four.replicas) == 4
    assert all(replica.gaps_s for replica in four.replicas)


# the engine is done when the client has its answer
AT_ONCE = {"stack.frontend_steps": 0.0, "stack.frontend_token_s": 0.0}


def test_at_a_rate_the_client_holds_requests_back() -> None:
    """As `vllm bench serve --request-rate --max-concurrency` does: they arrive when one is answered, in their order."""
    given = scenario(overrides=AT_ONCE)
    traffic = Traffic(rate=20.0, concurrency=3, **{**LOAD, "requests": 60})
    free, held = (outcomes(given, traffic, ["ladder"], concurrency=most)["ladder"].answers for most in (0, 3))
    ends: list[float] = []
    for own, answer in zip(free, held, strict=True):
        # the third of those before it that is answered last
        place_s = sorted(ends)[-3] if len(ends) >= 3 else 0.0
        assert answer.request.arrival_s == pytest.approx(max(own.request.arrival_s, place_s))
        ends.append(answer.last_s)
    assert any(answer.request.arrival_s > own.request.arrival_s for own, answer in zip(free, held, strict=True))
    assert any(answer.request.arrival_s == own.request.arrival_s for own, answer in zip(free, held, strict=True))
    # one that never has so many in flight is as without
    wide = outcomes(given, traffic, ["ladder"], concurrency=60)["ladder"].answers
    assert [answer.last_s for answer in wide] == pytest.approx([answer.last_s for answer in free])


def test_the_client_waits_for_one_arrival_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the same one again with each answer: the simulation would take the square of the requests."""
    looked = 0
    send_due = _System._send_due

    def counted(system: _System) -> None:
        nonlocal looked
        looked += 1
        send_due(system)

    monkeypatch.setattr(_System, "_send_due", counted)
    outcomes(scenario(), Traffic(rate=20.0, **{**LOAD, "requests": 60}), ["ladder"], concurrency=60)
    # at the start, at each arrival and with each answer
    assert looked <= 1 + 2 * 60


def test_the_least_loaded_replica_answers_sooner_than_the_next_in_turn() -> None:
    traffic = Traffic(rate=80.0, burstiness=0.2, **LOAD)
    given = scenario(dp=4, concurrency=4)
    turns, least = (
        outcomes(given, traffic, ["ladder"], router=name)["ladder"] for name in ("round-robin", "least-loaded")
    )
    assert least.seconds("e2e") < turns.seconds("e2e")


def test_the_replica_that_has_a_prompt_s_beginning_computes_less_of_it() -> None:
    requests = [
        Request(arrival_s=0.1 * number, prompt=1200, gen=20, prefix=(number * 7 % 11,), prefix_tokens=1000)
        for number in range(120)
    ]
    given = scenario(dp=4, concurrency=4)
    turns, aware = (
        sum(answer.reused for answer in outcomes(given, requests, ["ladder"], router=name)["ladder"].answers)
        for name in ("round-robin", "prefix-aware")
    )
    # the first of each beginning computes it
    assert aware == (120 - 11) * 992 > turns > 0


@pytest.mark.parametrize(
    ("concurrency", "plan"),
    [
        (1, {}),
        (16, {}),
        (64, {}),
        (24, {"tp": 4, "pp": 2}),
        (64, {"model": "qwen3-30b-a3b", "tp": 1, "attention_dp": 8, "ep": 8}),
    ],
    ids=["1", "16", "64", "stages", "attention DP"],
)
def test_requests_in_flight_take_what_is_predicted(concurrency: int, plan: dict[str, Any]) -> None:
    """Of lengths that spread; those of one length that begin together would stay in lockstep."""
    given = scenario(concurrency=concurrency, prompt=1024, gen=256, **plan)
    expected = predict_one(given)
    lengths = {"prompt": Lengths.parse("uniform:615:1433"), "gen": Lengths.parse("uniform:154:358")}
    traffic = Traffic(concurrency=concurrency, requests=8 * concurrency + 50, **lengths)
    outcome = outcomes(given, traffic, ["standard"], concurrency=concurrency)["standard"]
    assert outcome.seconds("tpot") == pytest.approx(expected.tpot_s, rel=0.03)


def test_steps_are_kept_on_request() -> None:
    traffic = Traffic(rate=20.0, **LOAD)
    service = Service.for_requests(scenario(), traffic)
    assert not service.run("ladder", traffic).replicas[0].steps
    (replica,) = service.run("ladder", traffic, record=True).replicas
    steps = replica.steps
    assert sum(step.seconds for step in steps) == pytest.approx(replica.busy_s)
    assert all(step.start_s + step.seconds <= after.start_s + 1e-9 for step, after in itertools.pairwise(steps))
    assert sum(step.mix.decoding for step in steps) == sum(request.gen - 1 for request in traffic)
    assert max(step.kv_share for step in steps) > steps[-1].kv_share
    assert steps[-1].running == 0


def test_slower_steps_are_slower() -> None:
    times = StepTimes.of(scenario(), "ladder")
    step = {"decode": [900] * 8, "prefill": [(512, 0)]}
    assert times.slower(1.25).slower(2.0).seconds(**step) == pytest.approx(2.5 * times.seconds(**step))


def test_so_many_requests_are_in_flight() -> None:
    outcome = outcomes(scenario(overrides=AT_ONCE), Traffic(concurrency=8, **LOAD), ["ladder"], concurrency=8)["ladder"]
    events = sorted(
        event for answer in outcome.answers for event in ((answer.request.arrival_s, 1), (answer.last_s, -1))
    )
    flying = peak = 0
    for _, change in events:
        flying += change
        peak = max(peak, flying)
    assert peak == 8


@pytest.mark.parametrize(("model", "checked"), [("qwen3-32b", True), ("70b", False)])
def test_what_no_run_was_compared_with_is_said(model: str, checked: bool) -> None:
    flags = (
        "serve",
        "--model",
        model,
        "--stack",
        "vllm",
        "--tp",
        "8",
        "--rate",
        "8",
        "--requests",
        "30",
        "--seeds",
        "1",
        "--json",
    )
    answer = json.loads(run(*flags).out)
    assert answer["validated"]["model_family"] is checked
    assert any("the error of step times" in warning for warning in answer["warnings"])


def test_overload_is_said() -> None:
    load = {**LOAD, "requests": 3000}
    given = scenario(overrides={"stack.serving_reserve_bytes": "50GB"})
    assert outcomes(given, Traffic(rate=5.0, **{**load, "requests": 200}), ["standard"])["standard"].stable
    overloaded = outcomes(given, Traffic(rate=2000.0, **load), ["standard"])["standard"]
    assert not overloaded.stable
    # of a few requests two wait for the end of a step, not for room
    few = outcomes(given, Traffic(rate=20.0, **{**load, "requests": 60}), ["standard"])["standard"]
    assert [replace(few, queued=queued).stable for queued in ((0, 2), (0, 40))] == [True, False]


def test_capacity_is_where_the_promise_breaks() -> None:
    # of fewer, one request decides a percentile, which then goes up and down with the rate
    load = {**LOAD, "requests": 1000}
    traffic = Traffic(rate=150.0, **load)
    slo = SLO.parse("ttft_p95=300ms,tpot_p95=8ms")
    needs = capacity(scenario(), traffic, slo)
    for name, need in needs.items():
        assert need.replicas >= 2
        for rate, kept in ((need.rate_limit, True), (1.03 * need.rate_limit, False)):
            outcome = outcomes(scenario(), Traffic(rate=rate, **load), [name], slo=slo, steady=True)[name]
            assert (bool(outcome.kept) and outcome.stable) == kept
    assert needs["ladder"].rate_limit > needs["standard"].rate_limit
    assert needs["ladder"].gpus <= needs["standard"].gpus


def test_the_limit_of_a_replica_does_not_depend_on_the_rate_to_serve() -> None:
    """Guards its bisection: what was simulated for one rate serves another."""
    slo, service = SLO.parse("tpot_p95=8ms"), Service.for_requests(scenario(), Traffic(rate=1.0, **LOAD))
    simulated: list[str] = []
    limits = set()
    for rate in (4.0, 150.0, 900.0):
        search = Search(service, "ladder", Traffic(rate=rate, **LOAD), slo, watch=simulated.append)
        limits.add(search.need().rate_limit)
    assert len(limits) == 1
    # of the bisection, not of the way to it
    assert len({text for text in simulated if "1 replicas" in text}) < 0.6 * len(simulated)


def test_a_promise_that_nothing_keeps_is_named() -> None:
    need = capacity(scenario(), Traffic(rate=1.0, **LOAD), SLO.parse("ttft_p50=1us,tpot_p95=1s"))["ladder"]
    assert (need.rate_limit, need.replicas, need.breaks) == (0.0, 0, ("ttft_p50",))


ONE_TOKEN = Traffic(rate=4.0, requests=20, prompt=Lengths.parse("256"), gen=Lengths.parse("1"))


def test_a_promise_on_times_that_no_request_has_is_kept() -> None:
    """Answers of one token have no times between tokens."""
    slo = SLO.parse("tpot_p99=20ms,itl_p95=1us,ttft_p95=1s")
    served = serve(scenario(), ["standard"], seeds=1, slo=slo, **keywords(ONE_TOKEN))
    assert served["standard"].kept is True
    fleets = search_plans(scenario(), ["standard"], slo=slo, pp=1, seeds=2, **keywords(ONE_TOKEN))
    assert fleets["standard"].gpus.value == 2
    for answer in (served, fleets):
        assert "no request has a second token: tpot_p99, itl_p95 cannot be broken" in answer.cautions
    need = capacity(scenario(), ONE_TOKEN, SLO.parse("tpot_p95=1us,ttft_p95=1us"), ["standard"])["standard"]
    assert need.breaks == ("ttft_p95",)


def test_an_answer_of_one_token_ends_with_its_first_one() -> None:
    """Its end-to-end time is its time to first token, and as uncertain."""
    figures = serve(scenario(), "standard", seeds=2, **keywords(ONE_TOKEN))["standard"].figures
    for name in ("mean", "p50", "p99"):
        ttft, e2e = figures[f"ttft_{name}_s"], figures[f"e2e_{name}_s"]
        assert (e2e.low, e2e.value, e2e.high) == pytest.approx((ttft.low, ttft.value, ttft.high))
    rates = [
        search_plans(scenario(), "standard", slo={f"{name}_p95_s": 0.05}, pp=1, seeds=1, **keywords(ONE_TOKEN))[
            "standard"
        ].rate_limit
        for name in ("ttft", "e2e")
    ]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ({"gen": 0}, "a request's gen is 0: must be a whole number from 1"),
        ({"gen": 2.5}, "a request's gen is 2.5: must be"),
        ({"prompt": 0}, "a request's prompt is 0: must be"),
        ({"prompt": -16}, "a request's prompt is -16: must be"),
        ({"prompt": 16.5}, "a request's prompt is 16.5: must be"),
        ({"arrival_s": float("nan")}, "a request's arrival_s is nan: must be a number from 0"),
        ({"arrival_s": -5.0}, "a request's arrival_s is -5.0: must be"),
        ({"prefix_tokens": -1}, "a request's prefix_tokens is -1: must be"),
    ],
)
def test_impossible_requests_are_refused(wrong: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        Request(**{"arrival_s": 0.0, "prompt": 16, "gen": 4, **wrong})


@pytest.mark.parametrize("concurrency", [0, 4])
def test_requests_that_are_not_in_order_are_refused(concurrency: int) -> None:
    requests = [Request(arrival_s=at_s, prompt=16, gen=4) for at_s in (5.0, 1.0)]
    with pytest.raises(UsageError, match="request 2 comes 4 s before the one in front of it"):
        outcomes(scenario(), requests, ["standard"], concurrency=concurrency)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ({"rate": "4"}, "rate is '4': must be a number"),
        ({"rate": None}, "rate is None: must be a number"),
        ({"rate": Decimal(4)}, "must be a number"),
        ({"burstiness": "1"}, "burstiness is '1': must be a number"),
        ({"prompt": 1024}, "prompt is 1024: must be Lengths"),
    ],
)
def test_traffic_of_other_types_is_refused(wrong: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        Traffic(**{"rate": 1.0, **LOAD, **wrong})


def test_the_figure_shows_every_request_and_what_a_replica_does() -> None:
    slo = SLO.parse("ttft_p95=500ms,e2e_p50=9s")
    served = serve(scenario(), rate=20.0, seeds=1, slo=slo, record=True, **LOAD)
    drawn = load_figure(served)
    panels = {axis: [line for line in drawn.data if line.xaxis == axis] for axis in ("x", "x2", "x3", "x4", "x5")}
    assert [line.name for line in panels["x"]] == ["standard", "ladder"]
    for axis, metric in (("x", "ttft"), ("x2", "tpot")):
        for line in panels[axis]:
            slowest = 1e3 * served[line.name].outcome.seconds(metric, 99)  # type: ignore[arg-type]
            assert line.x[-1] >= slowest >= line.x[100]
            assert (line.y[0], line.y[-1]) == (0.0, 100.0)
    assert [line.name for line in panels["x3"]] == ["standard", "standard, waiting", "ladder", "ladder, waiting"]
    (arrivals,) = panels["x5"]
    assert sum(arrivals.y) * (arrivals.x[1] - arrivals.x[0]) == pytest.approx(LOAD["requests"])
    # a line at the bound on what is drawn, inside the panel
    assert [line.x0 for line in drawn.layout.shapes] == [500.0]
    assert drawn.layout.xaxis.range[1] > 500.0


def test_the_figure_has_the_tpot_of_requests_that_have_one() -> None:
    requests = [Request(arrival_s=0.1 * number, prompt=256, gen=1 + 15 * (number % 2)) for number in range(20)]
    slo = SLO.parse("tpot_p95=9s")
    times = {
        share: load_figure(serve(scenario(), "standard", slo=slo, record=True, trace=some)).data[1].x
        for share, some in (("half", requests), ("none", requests[::2]))
    }
    assert min(times["half"]) > 0.0
    assert not len(times["none"])


def test_requests_that_have_no_room_are_refused() -> None:
    lengths = {"prompt": Lengths.parse("100000"), "gen": Lengths.parse("10")}
    tight = scenario(overrides={"stack.serving_reserve_bytes": "70GB"})
    with pytest.raises(MemoryFitError, match="a request has 100010"):
        outcomes(tight, Traffic(rate=1.0, requests=3, **lengths))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ttft=5ms", "must be METRIC_PERCENTILE=TIME"),
        ("ttft_p95", "must be METRIC_PERCENTILE=TIME"),
        ("tttf_p95=5ms", "unknown metric 'tttf'"),
        ("ttft_p96=5ms", "unknown percentile 'p96'"),
        ("ttft_p95=5", "ttft_p95"),
        ("ttft_p95=0s", "must be above 0"),
    ],
)
def test_promises_that_are_none_are_refused(text: str, shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        SLO.parse(text)


def test_the_command_prints_tables_json_and_csv(tmp_path: Path) -> None:
    text = run("serve", *FLAGS, "--rate", "100", "--slo", "ttft_p95=500ms", "--price", "2").out
    assert text.startswith("At 100 requests/s neither standard nor ladder keeps up: their queues grow without end.")
    assert "1024 + 256 tokens; 60 requests x 5 seeds; SLO TTFT p95 500 ms" in " ".join(text.split())
    assert "A million new tokens cost $" in text
    answer = json.loads(run("serve", *FLAGS, "--rate", "20", "--json", "--gen", "uniform:1:99", "--seeds", "2").out)
    assert answer["load"]["gen"] == "uniform:1:99"
    assert [row["variant"] for row in answer["rows"]] == ["standard", "ladder"]
    assert answer["seeds"] == 2
    for row in answer["rows"]:
        assert row["tpot_p95_s_low"] < row["tpot_p95_s"] < row["tpot_p95_s_high"]
    assert [row["gain_tpot_p95_s"] > 1.0 for row in answer["rows"]] == [False, True]
    rows = list(csv.DictReader(io.StringIO(run("serve", *FLAGS, "--concurrency", "4", "--seeds", "1", "--csv").out)))
    assert float(rows[1]["tpot_p50_s"]) < float(rows[0]["tpot_p50_s"])
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,374,44\n")
    assert "trace trace.csv (times in dates); 1 request" in run("serve", *FLAGS, "--trace", str(trace)).out
    seeds = run("serve", *FLAGS, "--trace", str(trace), "--seeds", "3")
    assert (seeds.code, "these requests are not random" in seeds.err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ((), "rate 0 and concurrency 0: must be one of them"),
        (("--rate", "-1"), "rate -1: must be 1e-06 to 1e+06 requests/s"),
        (("--rate", "nan"), "rate nan: must be"),
        (("--rate", "1e9"), "rate 1e+09: must be"),
        (("--concurrency", "-4"), "concurrency is -4: must be a whole number from 0"),
        (("--rate", "1", "--set", "prefix=-1"), "prefix: '-1' must be finite and not negative"),
        (("--rate", "1", "--set", "seed=-1"), "seed: '-1' must be finite and not negative"),
        (("--rate", "1", "--seeds", "0"), "seeds is 0: must be a whole number from 1"),
        (("--rate", "1", "--seeds", "100000"), "seeds is 100000: must be"),
        (("--rate", "1", "--price", "-2"), "price -2: must be above 0"),
        (("--rate", "1", "--price", "nan"), "price nan: must be above 0"),
        (("--rate", "1", "--slo", "ttft_p95"), "must be METRIC_PERCENTILE=TIME"),
        (("--rate", "1", "--slo", "ttft_p42=1s"), "unknown percentile 'p42'"),
        (("--rate", "1", "--slo", "ttft_p95=1s,ttft_p95=2s"), "ttft_p95 is promised twice"),
        (("--rate", "1", "--slo", "ttft_p95=1s", "--slo", "ttft_p95=2s"), "ttft_p95 is promised twice"),
        (("--rate", "1", "--dp", "0"), "dp is 0: must be a whole number from 1"),
        (("--rate", "1", "--set", "router=best"), "unknown router 'best'"),
        (("--rate", "1", "--requests", "0"), "requests is 0: must be a whole number from 1"),
        (("--rate", "1", "--trace", "x"), "rate 1.0 with a trace: a trace has its own times"),
        (("--prompt", "512", "--trace", "x"), "prompt 512 with a trace: a trace has its own times and lengths"),
        (("--gen", "1", "--trace", "x"), "gen 1 with a trace"),
        (("--set", "burstiness=2", "--trace", "x"), "burstiness 2.0 with a trace"),
        (("--set", "prefix=2", "--trace", "x"), "prefix 2 with a trace"),
        (
            ("--set", "seed=2", "--trace", "x"),
            "seed 2 with a trace: a trace has its own times and lengths, and nothing is",
        ),
        (("--set", "speed=2", "--rate", "1"), "speed 2 without a trace: nothing is played"),
        (("--set", "speed=0", "--trace", "x"), "speed 0: must be"),
        (("--set", "burstiness=2", "--concurrency", "4"), "burstiness 2 without a rate"),
        (("--rate", "1", "--set", "burstiness=0"), "burstiness 0: must be"),
        (("--rate", "1", "--stack", "gpt-fast"), "runs static batches only"),
    ],
)
def test_bad_flags_are_named(flags: tuple[str, ...], shown: str) -> None:
    given = FLAGS if "--requests" not in flags else FLAGS[:-2]
    given = given if "--stack" not in flags else ("--model", "8b")
    result = run("serve", *given, *flags)
    assert result.code == 2
    assert shown in result.err


def test_every_slo_counts() -> None:
    """Regression: the last one alone was kept."""
    answer = run("serve", *FLAGS, "--rate", "1", "--slo", "ttft_p95=1us", "--slo", "tpot_p95=10s")
    assert "SLO TTFT p95 1 us, TPOT p95 10 s" in " ".join(answer.out.split())
    assert "TTFT p95 is" in answer.out.splitlines()[0]


def test_a_steady_load_leaves_out_requests_while_the_server_fills_or_empties() -> None:
    """Its rate is that at which requests come: with all of them the wait for the last answers lowers it."""
    load = Traffic(rate=20.0, **LOAD)
    every, steady = (
        under_load(Service.for_requests(scenario(), load), load, "standard", seeds=1, steady=each)
        for each in (False, True)
    )
    outcome = steady["standard"].outcome
    arrival_s, last_s = map(outcome.answers.column, ("arrival_s", "last_s"))
    mean_s, counted = (last_s - arrival_s).mean(), arrival_s[outcome.counted]
    assert arrival_s[0] + mean_s <= counted[0]
    assert counted[-1] < arrival_s[-1] - mean_s
    came = len(counted) / (arrival_s[outcome.counted.stop] - counted[0])
    assert outcome.fields()["requests_per_s"] == pytest.approx(came)
    assert every["standard"].outcome.fields()["requests_per_s"] < came
    assert f"without {len(arrival_s) - len(counted)} of {len(arrival_s)} requests" in steady.interval_note
    assert "without" not in every.interval_note


def test_a_server_whose_queue_grows_answers_no_faster_than_it_can() -> None:
    """Regression: its rate was that at which requests come, 58 a second of 45."""
    given = scenario(overrides={"stack.step_requests": 16})
    rates = []
    for rate in (60.0, 100.0):
        load = Traffic(rate=rate, prompt=Lengths.parse("256"), gen=Lengths.parse("64"), requests=800)
        outcome = under_load(Service.for_requests(given, load), load, "standard", seeds=1, steady=True)[
            "standard"
        ].outcome
        assert not outcome.stable
        rates.append(outcome.requests_per_s)
    assert rates[0] == pytest.approx(rates[1], rel=0.01)


def test_of_a_short_load_every_request_counts() -> None:
    load = Traffic(rate=20.0, **{**LOAD, "requests": 5})
    outcome = outcomes(scenario(), load, ["standard"], steady=True)["standard"]
    assert outcome.counted == slice(0, 5)
