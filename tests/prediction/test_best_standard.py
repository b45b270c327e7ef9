"""The best standard plan: known answers, how well ratios of plans are known, and where answers show it."""

import csv
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from ladder_sim import Scenario, predict, versus
from ladder_sim.analysis.winners import winners
from ladder_sim.best_standard import BestStandard, best_standard, candidates, in_fp8
from ladder_sim.confidence import Confidence
from ladder_sim.validation.dataset import read_dataset
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.predict_one import predict_one
from tests.support.schemas import check

# standard is faster there on two groups of eight GPUs than on all sixteen
TWO_NODES = {"model": "405b", "nodes": 2, "stack": "vllm", "concurrency": 32}


def found(**fields: Any) -> BestStandard | None:
    return best_standard(predict(Scenario(**fields)).confidence)


@pytest.mark.parametrize(
    ("fields", "plan"),
    [
        (TWO_NODES, "TP 8, PP 2"),
        # groups across nodes wait for each other
        ({"model": "70b", "nodes": 4, "stack": "vllm", "concurrency": 64}, "TP 8, DP 4"),
        # requests too few for replicas leave GPUs idle
        ({"model": "70b", "nodes": 4, "stack": "vllm"}, "TP 8"),
        ({"model": "405b", "nodes": 2}, ""),
        ({"model": "70b", "stack": "vllm", "concurrency": 64}, ""),
    ],
)
def test_known_answers(fields: Mapping[str, Any], plan: str) -> None:
    best = found(**fields)
    assert (str(best.scenario.plan) if best else "") == plan


def test_one_gpu_and_a_single_plan_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = predict(Scenario(model="8b", tp=1))
    # of 16 heads and layers only one of these plans fits, and it is asked for
    monkeypatch.setattr("ladder_sim.best_standard.simulate_request", lambda *_: pytest.fail("simulated"))
    assert best_standard(one.confidence) is None
    assert candidates(Scenario(model="8b", tp=1)) == []


def test_plans_without_the_all_reduce_asked_for_are_left_out() -> None:
    """Regression: the answer was the refusal of a plan that nobody had asked about."""
    assert found(model="8b", tp=1, dp=2, batch=2, p2p=False, allreduce="two-shot") is None


def test_experts_are_spread_as_every_engine_can() -> None:
    plans = candidates(Scenario(model="qwen3-30b-a3b", stack="vllm", concurrency=64))
    assert {plan.ep == 1 or plan.ep == plan.ranks for plan in plans} == {True}
    assert {str(plan) for plan in plans} >= {"TP 8, EP 8", "TP 1 x attention DP 8, EP 8", "TP 4, DP 2"}


def test_a_gain_over_the_best_plan_is_less_than_over_the_plan_asked() -> None:
    predictions = predict(Scenario(**TWO_NODES))
    best, speedup = predictions.best_standard, predictions["ladder"].speedup
    assert best is not None
    gain = best.gain(speedup)
    assert (round(speedup.value, 2), round(gain.value, 2)) == (1.48, 1.38)
    # nothing like it was measured
    assert not best.surely_faster


def test_jitter_finds_no_plan() -> None:
    """Means over replicates of uneven ranks are not compared with even ones."""
    predictions = predict(Scenario(model="8b", nodes=2, gen=2), ["standard"], jitter=0.05)
    assert predictions.best_standard is None
    assert found(model="8b", nodes=2, gen=2) is not None


def test_ratios_of_measured_plans_lie_in_their_intervals() -> None:
    """Nine tenths do: servings of two tensor-parallel degrees, with requests in flight in proportion to their GPUs."""
    setups = defaultdict(list)
    for row in csv.DictReader((DATA / "serving_h100.csv").read_text("utf-8").splitlines()):
        load = int(row["concurrency"]) / int(row["tp"])
        setups[row["model"], row["stack"], row["version"], row["dtype"], row["prompt"], row["gen"], load].append(row)
    inside = []
    for rows in setups.values():
        for one, other in itertools.combinations(rows, 2):
            first, second = map(_served, (one, other))
            ratio = first.over_plan(second)
            error = math.log(ratio.value / (float(other["tpot_ms"]) / float(one["tpot_ms"])))
            inside.append(abs(error) <= ratio.log_width)
    assert len(inside) == 43
    assert sum(inside) >= 0.9 * len(inside)


def _served(row: Mapping[str, str]) -> Confidence:
    counts = {name: int(row[name]) for name in ("tp", "concurrency", "prompt", "gen")}
    stack = {"model": row["model"], "stack": row["stack"], "dtype": row["dtype"]}
    return predict_one(Scenario(**stack, **counts), ignore_memory=True).confidence


def test_ratios_of_published_plans_lie_in_their_intervals() -> None:
    """Of static batches of gpt-fast: throughputs of standard at TP 2, 4 and 8."""
    batches = defaultdict(list)
    for each in read_dataset().measurements:
        if each.variant == "standard":
            scenario = each.configuration.scenario()
            batches[scenario.workload.batch, scenario.p2p].append((scenario, each.tokens_per_s))
    inside = []
    for rows in batches.values():
        for (one, one_rate), (other, other_rate) in itertools.combinations(rows, 2):
            first, second = (predict_one(each, ignore_memory=True).confidence for each in (one, other))
            ratio = first.over_plan(second)
            inside.append(abs(math.log(ratio.value / (one_rate / other_rate))) <= ratio.log_width)
    assert len(inside) == 16
    assert sum(inside) >= 0.9 * len(inside)


def test_json_of_predict_and_versus_hold_it() -> None:
    command = ("--model", "405b", "--nodes", "2", "--stack", "vllm", "--concurrency", "32", "--json")
    predicted = json.loads(run("predict", *command).out)
    check("prediction", predicted)
    entry = predicted["best_standard"]
    assert (entry["plan"], entry["tp"], entry["pp"], entry["surely_faster"]) == ("TP 8, PP 2", 8, 2, False)
    assert list(entry["gains"]) == list(predicted["variants"])
    compared = json.loads(run("versus", *command, "--variant", "ladder", "--technique", "token-split").out)
    assert compared["best_standard"].items() >= {key: entry[key] for key in entry if key != "gains"}.items()
    assert compared["best_standard"]["gains"]["ladder"] == pytest.approx(entry["gains"]["ladder"], rel=1e-9)
    assert set(compared["best_standard"]["gains"]) == {row["option"] for row in compared["rows"]}
    alone = json.loads(run("predict", "--model", "8b", "--tp", "1", "--json").out)
    assert alone["best_standard"] is None


def test_the_map_has_the_best_plan_of_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladder_sim.analysis.winners._LATENCIES", (1.0, 8.0))
    monkeypatch.setattr("ladder_sim.analysis.winners._REQUESTS", (4, 32))
    result = versus(Scenario(**TWO_NODES), "ladder", "token-split")
    drawn = winners(result)
    assert result.best_standard is not None
    assert drawn.plans.tolist() == [["", "TP 8, PP 2"], ["TP 8, PP 2", "TP 8, PP 2"]]
    assert drawn.behind[1, 0] == pytest.approx(result.best_standard.faster.value)
    assert drawn.behind[0, 0] == 1.0


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        # one node holds it, and is faster than two
        ({"model": "405b", "nodes": 2}, 1),
        ({"model": "405b", "nodes": 2, "tp": 16, "stack": "vllm", "concurrency": 32}, 1),
        ({"model": "70b"}, 1),
        # the plan stays: what of it fewer nodes hold is not known
        ({"model": "405b", "nodes": 2, "tp": 8, "pp": 2}, 2),
        ({"model": "70b", "dtype": "fp8"}, 0),
        ({"model": "gpt-oss-120b"}, 0),
        ({"model": "8b", "cluster": "a100-sxm-hdr"}, 0),
    ],
)
def test_weights_in_fp8_are_named_where_they_are_faster(fields: Mapping[str, Any], nodes: int) -> None:
    asked = predict(Scenario(**fields), ignore_memory=True)
    instead = in_fp8(asked.confidence)
    assert (instead.scenario.nodes if instead else 0) == nodes
    if instead:
        there = predict_one(instead.scenario)
        assert (instead.request_s, instead.tokens_per_s) == (there.request_s, there.tokens_per_s)
        assert there.request_s < asked["standard"].request_s
        assert instead.scenario == Scenario(**fields).replace(dtype="fp8", nodes=nodes, tp=instead.scenario.plan.tp)


def test_messages_beyond_a_measured_curve_have_one_error() -> None:
    """Regression: the error of a message of 4 GB across nodes was an array of one, and the speedup a TypeError."""
    scenario = Scenario(model="8b", cluster="a100-sxm-hdr", nodes=2, tp=16, batch=32, prompt=16384, gen=2)
    assert predict(scenario, ["ladder"], ignore_memory=True)["ladder"].speedup.known
