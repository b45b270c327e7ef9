"""Intervals of figures under load: over seeds, and over the error of times of steps."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_sim import Scenario, predict, serve
from ladder_sim.confidence import Interval
from ladder_sim.serving import SLO, Lengths, Served, Service, Traffic
from ladder_sim.serving.intervals import further_seed
from ladder_sim.serving.steps.mix import Mix
from ladder_sim.units import format_seconds
from tests.support.commands import run
from tests.support.replicas import keywords

FLAGS = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--requests", "150")
LOAD = {"prompt": Lengths.parse("uniform:100:900"), "gen": Lengths.parse("uniform:10:90"), "requests": 150}
TRAFFIC = Traffic(rate=60.0, **LOAD)
SCENARIO = Scenario(model="8b", tp=2, stack="vllm")


def served(**given: Any) -> Served:
    return serve(SCENARIO, **keywords(given.pop("traffic", TRAFFIC)), **given)


def test_an_interval_is_what_seeds_and_slower_steps_do() -> None:
    """Made here from single simulations."""
    answer = served(seeds=3)
    service = Service.for_requests(SCENARIO, TRAFFIC)
    seeds = [Traffic(rate=60.0, seed=seed, **LOAD) for seed in range(3)]
    for name, each in answer.items():
        values = [service.run(name, load, steady=True).seconds("tpot", 95) for load in seeds]
        ends = [
            service.run(name, TRAFFIC, slower=math.exp(sign * each.widths.rate), steady=True).seconds("tpot", 95)
            for sign in (1, -1)
        ]
        spread = further_seed(3) * float(np.std(np.log(values), ddof=1))
        high, low = (math.hypot(spread, math.log(end / values[0])) for end in ends)
        interval = each.figures["tpot_p95_s"]
        assert interval.value == pytest.approx(np.mean(values))
        assert (interval.low, interval.high) == pytest.approx(
            (interval.value / math.exp(low), interval.value * math.exp(high))
        )
        # first tokens were missed by more than steps
        ttft = each.figures["ttft_p50_s"]
        assert ttft.high / ttft.value > math.exp(each.widths.ttft_later) > math.exp(each.widths.rate)


def test_another_seed_may_draw_longer_requests() -> None:
    """Regression: times of steps were made for those of the first seed, which here are below a power of two."""
    lengths = {"prompt": Lengths.parse("uniform:3500:4200"), "gen": Lengths.parse("4")}
    loads = [Traffic(rate=1.0, requests=2, seed=seed, **lengths) for seed in range(2)]
    first, second = (max(each.prompt + each.gen for each in load) for load in loads)
    assert first <= 4096 < second
    assert served(traffic=loads[0], variants="standard", seeds=2)["standard"].ttft_mean_s.value > 0.0


def test_gains_are_surer_than_the_figures_they_compare() -> None:
    """All variants answer the same requests, and share most of the error of their steps."""
    ladder = served(seeds=4)["ladder"]
    for name in ("tpot_p50_s", "tpot_p95_s", "e2e_p95_s", "ttft_p50_s"):
        assert 0.0 < ladder.gains[name].log_width < ladder.figures[name].log_width
        assert ladder.gains[name].low < ladder.gains[name].value < ladder.gains[name].high


def test_one_further_seed_lies_inside() -> None:
    """By chance alone: nine of ten of many others do, within what their number allows."""
    service = Service.for_requests(SCENARIO, TRAFFIC)
    values = [service.run("ladder", Traffic(rate=60.0, seed=seed, **LOAD)).seconds("tpot", 90) for seed in range(60)]
    inside = []
    for begin in range(0, 60, 6):
        logs = np.log(values[begin : begin + 5])
        inside.append(abs(math.log(values[begin + 5]) - logs.mean()) <= further_seed(5) * logs.std(ddof=1))
    assert sum(inside) >= 7


def test_one_seed_has_the_steps_error_only() -> None:
    # at a load so small that slower steps let hardly any more requests run at a time
    answer = served(seeds=1, traffic=Traffic(rate=20.0, **LOAD))
    each = answer.variants["ladder"]
    assert answer.seeds == 1
    assert each.figures["tpot_p50_s"].log_width == pytest.approx(each.widths.rate, rel=0.6)
    assert "seeds" not in answer.interval_note


def test_requests_of_one_length_in_flight_are_said_to_stay_in_step() -> None:
    """`serve` said 536 ms to first tokens where `predict --concurrency` said 185, and neither why."""
    alike = {"prompt": Lengths.parse("1024"), "gen": Lengths.parse("64"), "requests": 130}
    (said,) = in_step(Traffic(concurrency=16, **alike))
    predicted = predict(Scenario(model="8b", tp=2, stack="vllm", concurrency=16, prompt=1024, gen=64), ["standard"])[
        "standard"
    ]
    assert f"mean TTFT of {format_seconds(predicted.ttft_s)}, TPOT of {format_seconds(predicted.tpot_s or 0.0)}" in said
    assert not in_step(Traffic(concurrency=16, **LOAD))
    assert not in_step(Traffic(rate=20.0, **alike))


def in_step(traffic: Traffic) -> list[str]:
    answer = served(traffic=traffic, variants=["standard"], seeds=1)
    return [text for text in answer.cautions if "in step" in text]


def test_a_promise_inside_an_interval_is_unsure() -> None:
    each = served(seeds=2)["standard"]
    value = each.figures["tpot_p95_s"]
    for limit_s, kept, unsure in (
        (2.0 * value.high, True, ()),
        (0.5 * (value.value + value.high), True, ("tpot_p95",)),
        (0.5 * (value.value + value.low), False, ("tpot_p95",)),
        (0.5 * value.low, False, ()),
    ):
        slo = SLO.parse(f"tpot_p95={limit_s}s")
        answer = served(seeds=2, slo=slo)["standard"]
        assert (answer.kept, answer.unsure) == (kept, unsure)
        assert answer.broken == (() if kept else ("tpot_p95",))


def test_overload_with_slower_steps_is_said() -> None:
    """At a load that is just carried, steps as slow as the interval allows do not carry it."""
    tight = Scenario(model="8b", tp=2, stack="vllm", overrides={"stack.serving_reserve_bytes": "50GB"})
    load = {"prompt": Lengths.parse("900"), "gen": Lengths.parse("20"), "requests": 1500}
    answers = {}
    for rate in (5.0, 64.0, 3000.0):
        (each,) = serve(tight, "standard", rate=rate, seeds=1, **load).values()
        answers[rate] = each.overload
    assert answers[5.0] == ""
    assert "the queue grows without end at this load; its times" in answers[3000.0]
    assert any("as slow as the interval allows" in text for text in answers.values())


def test_figures_without_a_logarithm_span_what_was_simulated() -> None:
    each = served(seeds=3)["ladder"]
    assert each.figures["preemptions"] == Interval(value=0.0, low=0.0, high=0.0)
    assert each.figures["utilisation"].high <= 1.0


def test_progress_counts_all_simulations() -> None:
    calls: list[tuple[int, int]] = []
    served(seeds=2, watch=lambda answered, total: calls.append((answered, total)))
    assert calls[-1][0] == calls[-1][1] == 150 * (2 * (2 + 2) + 2)
    assert {total for _, total in calls} == {calls[-1][1]}


def test_a_minute_of_a_replica_is_written_for_perfetto(tmp_path: Path) -> None:
    path = tmp_path / "minute.json"
    result = run("serve", *FLAGS, "--rate", "1.5", "--seeds", "1", "--set", f"perfetto={path}")
    assert result.code == 0, result.err
    events = json.loads(path.read_text())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(processes.values()) == ["standard: one replica", "ladder: one replica"]
    for process in processes:
        steps = [event for event in events if event["pid"] == process and event["ph"] == "X"]
        assert 50e6 < steps[-1]["ts"] - steps[0]["ts"] <= 60e6
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in itertools.pairwise(steps))
        assert set(Mix._fields) == set(steps[0]["args"])
        counters = {event["name"] for event in events if event["pid"] == process and event["ph"] == "C"}
        assert counters == {"requests", "KV cache (%)"}
        spans = [event for event in events if event["pid"] == process and event.get("cat") == "request"]
        assert sum(event["ph"] == "b" for event in spans) == sum(event["ph"] == "e" for event in spans) > 0
    missing = run("serve", *FLAGS, "--rate", "2", "--set", f"perfetto={tmp_path / 'no' / 'x.json'}")
    assert (missing.code, "there is no such folder" in missing.err) == (2, True)
