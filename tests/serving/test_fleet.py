"""The fewest GPUs over plans, their intervals, and searches that go on after they were killed."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ladder_sim import Scenario, serve
from ladder_sim import capacity as search_plans
from ladder_sim.errors import UsageError
from ladder_sim.report.figures.serve import capacity_figure
from ladder_sim.serving import SLO, Capacity, Lengths, Service, Traffic
from ladder_sim.serving.replicas.simulation import Sizes
from ladder_sim.serving.sizing.best_plan import AS_MANY, TIED, _reason_against
from ladder_sim.serving.sizing.estimates import PlanEstimate, estimates_of, simulated_together, steps_of
from ladder_sim.serving.sizing.search import Case, Need, Search, Simulated
from tests.support.commands import run
from tests.support.replicas import SERVER, capacity, keywords

LOAD = {"prompt": Lengths.parse("uniform:100:900"), "gen": Lengths.parse("uniform:10:90"), "requests": 150}
SCENARIO = Scenario(model="8b", tp=2, stack="vllm", concurrency=8)
TRAFFIC = Traffic(rate=300.0, **LOAD)
SLO_BOUNDS = SLO.parse("ttft_p95=300ms,tpot_p95=8ms")
FLAGS = ("--model", "8b", "--stack", "vllm", "--requests", "40", "--prompt", "400", "--gen", "40")


def fleets(slo: SLO = SLO_BOUNDS, **given: Any) -> Capacity:
    load = keywords(given.pop("traffic", TRAFFIC))
    return search_plans(SCENARIO, slo=slo, **load, **{"seeds": 2, "pp": 1, **given})


def few_requests(**given: Any) -> Capacity:
    """Of one variant: for what does not depend on the answer."""
    return fleets(traffic=Traffic(rate=300.0, **{**LOAD, "requests": 30}), variants=["ladder"], **given)


@pytest.fixture(scope="module")
def searched() -> Capacity:
    return fleets(tp=[1, 2, 4], usd_per_gpu_hour=2.0, curves=True, seeds=1)


@pytest.mark.slow
def test_no_plan_needs_fewer_gpus_than_the_best(searched: Capacity) -> None:
    """Guards the pruning: each plan on its own, with its own search."""
    for tp in (1, 2, 4):
        alone = capacity(Scenario(model="8b", tp=tp, stack="vllm"), TRAFFIC, SLO_BOUNDS)
        for name, each in searched.items():
            assert each.gpus.value <= alone[name].gpus
            if each.plans == f"TP {tp}":
                assert each.gpus.value == alone[name].gpus


def test_ends_of_intervals_hold_the_answer(searched: Capacity) -> None:
    for each in searched.values():
        for interval in (each.gpus, each.rate_limit, each.saved, each.gain):
            assert interval.low <= interval.value <= interval.high
        assert each.rate_limit.low < each.rate_limit.value < each.rate_limit.high
    standard, ladder = searched.values()
    assert (standard.saved.value, standard.gain.value) == (0.0, 1.0)
    assert ladder.saved.value == standard.gpus.value - ladder.gpus.value
    # the same requests, and most of the error shared
    assert ladder.gain.log_width < ladder.rate_limit.log_width + standard.rate_limit.log_width


def test_every_plan_is_accounted_for(searched: Capacity) -> None:
    plans = {"TP 1", "TP 2", "TP 4"}
    text = searched.explain()
    for each in searched.values():
        assert {tried.plans for tried in each.tried} == plans
        assert all(bool(tried.gpus) != bool(tried.reason) for tried in each.tried)
    assert text.count("needs") >= 1


def test_a_price_is_that_of_the_gpus_for_the_rate(searched: Capacity) -> None:
    for name, each in searched.items():
        price = searched.usd_per_Mtoken(name)
        assert price is not None
        tokens_per_hour = 300.0 * 50.0 * 3600.0
        assert price.value == pytest.approx(2.0 * each.gpus.value / tokens_per_hour * 1e6)
        assert price.low <= price.value <= price.high


def test_the_figure_has_gpus_and_every_bound_against_the_rate(searched: Capacity) -> None:
    drawn = capacity_figure(searched)
    bars = [each for each in drawn.data if each.type == "bar"]
    assert [bar.y for bar in bars] == [("standard",), ("ladder",)]
    assert [bar.x[0] for bar in bars] == [each.gpus.value for each in searched.values()]
    curves = [each for each in drawn.data if each.type == "scatter"]
    assert len(curves) == 2 * len(SLO_BOUNDS.bounds)
    limits_ms = [1e3 * bound.seconds for bound in SLO_BOUNDS.bounds]
    assert [shape.y0 for shape in drawn.layout.shapes] == limits_ms
    for each in searched.values():
        rates, values = list(each.curve), list(each.curve.values())
        assert rates[0] < each.rate_limit.value < rates[-1]
        assert all(value <= bound.seconds for value, bound in zip(values[0], SLO_BOUNDS.bounds, strict=True))
        assert any(value > bound.seconds for value, bound in zip(values[-1], SLO_BOUNDS.bounds, strict=True))


def test_one_of_the_replicas_that_take_turns_stands_for_all() -> None:
    """Percentiles of one that gets every fourth request are those of four that get all of them."""
    # nearer to the most that four can serve, queues grow and shrink so slowly that any draw has percentiles of its own
    rate, long = 300.0, {**LOAD, "requests": 6000}
    service = Service.for_requests(SCENARIO, Traffic(rate=1.0, **long))
    all_four = service.run("ladder", Traffic(rate=rate, **{**long, "requests": 24_000}), replicas=4)
    one = Search(service, "ladder", Traffic(rate=rate, **long), SLO_BOUNDS)._run(rate, Sizes(4, 0))
    for metric in ("ttft", "tpot", "e2e"):
        for percentile in (50, 95):
            assert one.seconds(metric, percentile) == pytest.approx(all_four.seconds(metric, percentile), rel=0.03)


def law(service: Service, traffic: Traffic, slo: SLO) -> dict[str, PlanEstimate]:
    (steps,) = simulated_together([steps_of(service, ["standard"], traffic)])
    return estimates_of(service, ["standard"], traffic, slo, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "stack", "bound"),
    [
        ({"tp": 2}, "vllm", "tpot_p95=30ms"),
        ({"tp": 2}, "vllm", "tpot_p50=30ms"),
        ({"tp": 4, "pp": 2}, "vllm", "tpot_p95=30ms"),
        ({"tp": 4}, "sglang", "tpot_p95=30ms"),
        ({"tp": 8}, "vllm", "tpot_p99=20ms"),
    ],
)
def test_the_law_says_what_a_replica_carries(plan: dict[str, int], stack: str, bound: str) -> None:
    """Regression: the closed loop's mean stood for percentiles, and said up to six times as much."""
    scenario = Scenario(model="70b", stack=stack, concurrency=16, **plan)
    traffic = Traffic(rate=500.0, prompt=Lengths.parse("1024"), gen=Lengths.parse("128"), requests=600)
    service = Service.for_requests(scenario, traffic)
    (estimate,) = law(service, traffic, SLO.parse(bound)).values()
    limit, _ = Search(service, "standard", traffic, SLO.parse(bound), near=estimate.rate).limit()
    assert estimate.rate == pytest.approx(limit, rel=0.15)
    assert estimate.gpus <= traffic.rate / limit * service.gpus(service.alike(1))


def test_a_median_is_met_by_more_than_the_mean_says() -> None:
    """Most requests meet no prompt where few others decode: nothing that carries the load is left out."""
    scenario = Scenario(model="70b", tp=2, pp=4, stack="trtllm", concurrency=8)
    traffic, slo = Traffic(rate=20.0, prompt=Lengths.parse("4000"), gen=Lengths.parse("30")), SLO.parse("tpot_p50=30ms")
    service = Service.for_requests(scenario, traffic)
    (estimate,) = law(service, traffic, slo).values()
    assert estimate.rate is not None
    # simulations say 2.82 requests per second
    assert estimate.gpus < traffic.rate / 2.82 * 8 < 0.5 * traffic.rate / estimate.rate * 8


def test_plans_that_break_a_promise_idle_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each plan was, for a minute; and JSON said that 0 GPUs were saved of a number that there is not."""
    simulated: list[str] = []
    search = Search.need

    def spied(self: Search) -> Need:
        simulated.append(f"{self.variant}, {self.service.plans}")
        return search(self)

    monkeypatch.setattr(Search, "need", spied)
    result = run("capacity", *FLAGS, "--rate", "4", "--slo", "ttft_p95=1us", "--seeds", "1", "--json")
    assert simulated == ["standard, TP 8", "ladder, TP 8"]
    document = json.loads(result.out)
    assert {row["reason"] for row in document["plans"]} == {
        "ttft_p95 on an idle replica",
        "breaks the SLO on an idle replica",
    }
    for row in document["rows"]:
        assert [row[name] for name in ("gpus", "gpus_saved", "rate_gain", "rate_gain_low")] == [None] * 4


def test_a_promise_that_no_rate_keeps_is_named_with_what_an_idle_replica_takes() -> None:
    answer = fleets(SLO.parse("ttft_p50=1us,tpot_p95=1s"), traffic=Traffic(rate=1.0, **LOAD))
    for name, each in answer.items():
        assert (each.need.replicas, each.gpus.value, each.confidence) == (0, math.inf, None)
        (reason,) = each.reasons
        assert "no rate keeps ttft_p50=0.001ms: it is " in reason
        assert "ms on an idle replica of TP 2" in reason
        assert f"{name}: {reason}" in answer.cautions
    assert capacity_figure(answer).data[0].text == "no number keeps it"


def test_fewer_replicas_of_either_kind_break_the_promise() -> None:
    """Where some run prompts only; one of equal groups stands for all."""
    one, two = (Scenario(model="8b", tp=tp, stack="vllm") for tp in (1, 2))
    load = {"prompt": Lengths.parse("uniform:100:300"), "gen": Lengths.parse("uniform:8:24"), "requests": 100}
    traffic, slo = Traffic(rate=30.0, **load), SLO.parse("ttft_p95=300ms,tpot_p95=16ms")
    service = Service.for_requests(one, traffic, prefill=two, steps=SERVER)
    search = Search(service, "standard", traffic, slo)
    need = search.need()
    serving, prefill = need.sizes
    assert (need.gpus, need.outcome.gpus) == (serving + 2 * prefill, need.gpus // need.sizes.groups)
    assert not search.breaks(30.0, need.sizes)
    for fewer in (Sizes(serving - 1, prefill), Sizes(serving, prefill - 1)):
        assert not min(fewer) or search.breaks(30.0, fewer)
    # what prompts and what decoding take differ, and so do their numbers
    assert serving != prefill
    assert not search.of_group(need.group).breaks(need.rate_limit, need.group)
    # of fewer GPUs no fleet has more of either kind
    assert search.most(need.gpus) == Sizes(need.gpus - 2, (need.gpus - 1) // 2)
    assert search.most(2) is None


class Known(dict[str, Any]):
    """Simulations of a search: the time to first token that its bound bounds, by rate of each replica and seed."""

    def __init__(self, seconds: Callable[[float, int], float]) -> None:
        self.seconds, self.asked = seconds, list[str]()

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> tuple[list[float], list[float], bool]:
        self.asked.append(key)
        *_, seed, rate, sizes = json.loads(key)
        seconds = [self.seconds(rate / sizes[0], seed)]
        return seconds, seconds, True


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [
        # no request is fast enough but the few of an idle replica
        (lambda rate, seed: 0.5 if rate <= 1e-3 else 2.0, False),
        # with the second seed none is
        (lambda rate, seed: 0.9 if rate < 20.0 and not seed else 1.2, True),
    ],
    ids=["at no rate", "with one seed"],
)
def test_replicas_that_mend_nothing_are_not_added_for_ever(seconds: Callable[[float, int], float], limit: bool) -> None:
    points = Known(seconds)
    traffic, slo = Traffic(rate=300.0, **{**LOAD, "requests": 10}), SLO.parse("ttft_p95=1s")
    service = Service.for_requests(SCENARIO, traffic, steps=SERVER)
    search = Search(service, "standard", traffic, slo, seeds=2, simulated=points)
    need = search.need()
    assert (need.replicas, need.breaks, need.rate_limit) == (0, ("ttft_p95",), 0.0)
    assert need.idle_s[0] > 1.0
    assert len(points.asked) < 80
    assert bool(search.limit()[0]) is limit


def test_slower_steps_may_keep_it_with_no_number_of_replicas() -> None:
    load = Traffic(rate=0.01, **LOAD)
    idle = capacity(SCENARIO, load, SLO.parse("tpot_p95=1s"), ["ladder"])["ladder"].outcome
    slo = SLO.parse(f"tpot_p95={1.08 * idle.seconds('tpot', 95)}s")
    each = fleets(slo, traffic=Traffic(rate=2.0, **LOAD), variants=["ladder"], seeds=1)["ladder"]
    assert math.isfinite(each.gpus.value)
    assert each.gpus.high == math.inf
    assert each.rate_limit.low == 0.0


@pytest.mark.slow
def test_a_limit_of_too_few_requests_is_said() -> None:
    """Regression: a single request gave a replica 73,133 requests/s, without a word."""
    load = {"rate": 4.0, "tp": 8, "seeds": 1, "variants": "standard"}
    many, one = (search_plans(slo="ttft_p95=500ms", requests=requests, **load).cautions for requests in (500, 1))
    assert not many
    assert "raise --requests" in one[0]


def test_overload_ends() -> None:
    """A million requests a second: replicas are counted, not simulated."""
    each = fleets(traffic=Traffic(rate=1e6, **LOAD), variants=["ladder"], seeds=1)["ladder"]
    assert each.need.replicas > 1000
    crowded = Service.for_requests(SCENARIO, TRAFFIC, router="least-loaded")
    with pytest.raises(UsageError, match="at most 5000000 requests"):
        Search(crowded, "ladder", Traffic(rate=1e6, **LOAD), SLO_BOUNDS)._run(1e6, Sizes(100_000, 0))


def test_slower_steps_break_at_lower_rates() -> None:
    search = Search(Service.for_requests(SCENARIO, TRAFFIC), "ladder", TRAFFIC, SLO_BOUNDS)
    limits = [search.limit(Case(slower=slower))[0] for slower in (0.8, 1.0, 1.25)]
    assert limits[0] > 1.05 * limits[1] > 1.1 * limits[2]


def test_a_simulation_answers_for_slower_steps_too() -> None:
    """Guards the law: slower steps do to requests what steps as predicted do to requests that come as much faster."""
    points: dict[str, Simulated] = {}
    traffic = replace(TRAFFIC, requests=3000)
    service = Service.for_requests(SCENARIO, traffic)
    slo = SLO.parse("ttft_p95=300ms,tpot_p95=8ms,e2e_p95=1s,itl_p95=20ms")
    search = Search(service, "ladder", traffic, slo, simulated=points)
    search.seconds(100.0)
    simulated = len(points)
    for slower in (0.8, 1.25):
        seconds = search.seconds(100.0 / slower, case=Case(slower=slower))
        whole = service.run("ladder", replace(traffic, rate=100.0 / slower), slo=slo, slower=slower, replicas=1)
        # percentiles of one draw, up to 11 % apart with 1,000 requests; and the power limit follows the seconds before
        assert seconds == pytest.approx(whole.bounded_s, rel=0.05)
    assert len(points) == simulated


def test_plans_predicted_to_carry_no_more_than_those_ruled_out_are_tied() -> None:
    """Regression: each of 30 plans of DeepSeek-V3 took a table of step times and a simulation."""
    points = Known(lambda rate, seed: 2.0)
    service = Service.for_requests(SCENARIO, TRAFFIC, steps=SERVER)
    search = Search(service, "standard", TRAFFIC, SLO.parse("ttft_p95=1s"), simulated=points)
    failed: list[PlanEstimate] = []
    for number in range(5):
        carried = PlanEstimate(2.0, 0.0, 2.0, 10.0 - number, 5.0 - number / 2.0)
        reason = _reason_against(search, carried, 8, failed)
        assert reason == (TIED if number >= 3 else AS_MANY)
    assert len(points.asked) == 3
    # one that is predicted to carry more is simulated
    assert _reason_against(search, PlanEstimate(2.0, 0.0, 2.0, 20.0, 10.0), 8, failed) == AS_MANY


def test_gains_of_too_few_requests_are_not_said() -> None:
    """Regression: 100 requests gave ladder 0.45 times the rate per GPU, as if that were of a steady load."""
    answer = fleets(traffic=Traffic(rate=300.0, **{**LOAD, "requests": 60}), seeds=1)
    assert answer.enough_requests > 60
    text = str(answer)
    assert "the rate per GPU" not in text
    assert f"raise --requests to {answer.enough_requests}" in " ".join(text.split())


def test_progress_goes_up_and_ends() -> None:
    calls: list[tuple[int, int]] = []
    few_requests(watch=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert all(done <= total for done, total in calls)


def test_the_command_gives_every_figure() -> None:
    flags = ("capacity", *FLAGS, "--tp", "2", "--pp", "1", "--rate", "200", "--slo", "tpot_p95=8ms", "--price", "2")
    result = run(*flags, "--set", "prefill_tp=1", "--seeds", "1", "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert (answer["promise"], answer["seeds"], answer["load"]["rate"]) == ("tpot_p95=8ms", 1, 200.0)
    for row in answer["rows"]:
        for name in ("gpus", "rate_limit", "gpus_saved", "rate_gain", "usd_per_Mtoken"):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        assert row["gpus"] == 2 * row["replicas"] + row["prefill_replicas"]
        assert (row["plan"] == "TP 2") == (not row["prefill_replicas"])
    assert {plan["plan"] for plan in answer["plans"]} == {"TP 2", "TP 2, prompts on TP 1"}
    assert [*answer["validated"]] == ["standard", "ladder"]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--rate", "0", "--slo", "tpot_p95=8ms"), "rate 0 and concurrency 0"),
        (("--concurrency", "4", "--slo", "tpot_p95=8ms"), "capacity without a rate"),
        (("--rate", "1", "--concurrency", "4", "--slo", "tpot_p95=8ms"), "capacity with concurrency 4"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--set", "prefill_tp=x"), "tp"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--set", "prefill_tp=2", "--steps", "x"), "prefill_tp with steps"),
        (("--rate", "1"), "missing option"),
        (("--rate", "1", "--slo", ""), "must be METRIC_PERCENTILE=TIME"),
        (("--rate", "1", "--slo", "tpot_p95=nan"), "tpot_p95"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--resume"), "a search is made again"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--seeds", "0"), "seeds is 0"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--price", "0"), "price 0: must be above 0"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--tp", "3"), "tp"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--prompt", "5000000"), "the KV cache has room for"),
        (("--rate", "1", "--slo", "tpot_p95=8ms", "--save", "x.json"), "redirect the output"),
    ],
)
def test_bad_flags_are_named(flags: tuple[str, ...], shown: str) -> None:
    given = FLAGS if "--prompt" not in flags else (*FLAGS[:6],)
    result = run("capacity", *given, *flags)
    assert result.code == (3 if "KV cache" in shown else 2)
    assert shown in result.err
    assert "hint:" in result.err or "Missing" in result.err


def test_what_is_served_and_a_capacity_agree() -> None:
    """At the limit of a replica, its percentiles are at the bound."""
    need = capacity(SCENARIO, TRAFFIC, SLO_BOUNDS, ["ladder"])["ladder"]
    at = serve(SCENARIO, "ladder", rate=need.rate_limit, seeds=1, slo=SLO_BOUNDS, **LOAD)["ladder"]
    assert at.kept
    assert at.unsure


def test_a_technique_that_needs_two_ranks_is_sized() -> None:
    """Regression: "technique 'sequence-parallel' with tp 1", whatever --tp said."""
    load: dict[str, Any] = {"rate": 2.0, "prompt": 128, "gen": 16, "requests": 60, "seeds": 1}
    need = search_plans(
        Scenario(model="8b", stack="vllm", technique="sequence-parallel"), tp=2, pp=1, slo={"ttft_p95_s": 1.0}, **load
    )
    assert need["standard"].plans == "TP 2"
