"""Advice over plans: which are legal, that options are predictions, the front, and why the others lost."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ladder_sim import Scenario, condition, predict
from ladder_sim.analysis.advice import Advice, Option
from ladder_sim.analysis.advise import CANDIDATES, advise
from ladder_sim.costs.memory import memory_use
from ladder_sim.errors import InfeasibleError, LadderSimError, MemoryFitError, UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs import legal_plans as plans
from ladder_sim.specs.legal_plans import legal_plans
from tests.support.predict_one import predict_one

SERVED = {"stack": "vllm", "concurrency": 16}
EXPERTS = {"model": "mixtral-8x7b", "stack": "vllm", "prompt": 256, "gen": 64}


def _figures(option: Option) -> Mapping[str, float]:
    return {
        "tpot": option.tpot_s,
        "ttft": option.ttft_s,
        "tokens_per_s": -option.tokens_per_s,
        "tokens_per_gpu": -option.tokens_per_gpu,
    }


def _names(point: Mapping[str, Any], gpus: int, **given: Any) -> set[str]:
    return {str(plan) for plan in legal_plans(Scenario(**point, tp=1, batch=64), gpus, given).legal}


def test_plans_are_those_that_one_lists_by_hand() -> None:
    assert _names({"model": "8b"}, 4) == {
        *("TP 1", "TP 1, DP 2", "TP 1, DP 4", "TP 1, PP 2", "TP 1, PP 2, DP 2", "TP 1, PP 4"),
        *("TP 2", "TP 2, DP 2", "TP 2, PP 2", "TP 4"),
    }
    assert _names({"model": "mixtral-8x7b"}, 2) == {
        *("TP 1", "TP 1, DP 2", "TP 1, PP 2", "TP 2", "TP 2, EP 2"),
        *("TP 1 x attention DP 2", "TP 1 x attention DP 2, EP 2"),
    }
    # replicas of every number that divides the GPUs, too
    assert _names({"model": "8b"}, 6, tp=[2]) == {"TP 2", "TP 2, DP 2", "TP 2, DP 3", "TP 2, PP 2", "TP 2, PP 3"}
    assert _names({"model": "8b"}, 2, tp=[2], sp=[True, False]) == {"TP 2", "TP 2, SP"}
    # a group across nodes fills them
    assert "TP 8 x attention DP 2, EP 16" in _names({"model": "deepseek-v3", "nodes": 2}, 16)
    split = {"TP 4 x attention DP 2", "TP 4 x attention DP 3"}
    assert split & _names({"model": "mixtral-8x7b", "nodes": 2}, 12) == {"TP 4 x attention DP 2"}


@pytest.mark.parametrize(
    ("point", "gpus"),
    [
        ({"model": "8b", "batch": "1,3,16"}, 4),
        ({"model": "8b", **SERVED, "concurrency": "4,33"}, 4),
        ({**EXPERTS, "concurrency": 12}, 4),
        ({**EXPERTS, "concurrency": 12, "tp": 2, "sp": [True]}, 4),
        ({"model": "8b", "batch": 4, "gen": 1}, 2),
        ({"model": "8b", "nodes": 2, "tp": 8, "intra.allreduce_floor": "9us"}, 16),
    ],
)
def test_every_option_is_a_prediction(point: dict[str, Any], gpus: int) -> None:
    """Replicas and loads are simulated together, and yet each is what `predict` says of it alone."""
    advice = advise(gpus=gpus, **point)
    assert {option.plan.gpus for option in advice.options} > {gpus} or "tp" in point
    for option in advice.options:
        alone = predict_one(option.scenario, option.variant)
        assert option.ttft_s == pytest.approx(alone.ttft_s, rel=1e-12)
        assert option.tpot_s == pytest.approx(alone.tpot_s or alone.ttft_s, rel=1e-12)
        assert option.tokens_per_s == pytest.approx(alone.rate, rel=1e-12)
        assert option.memory_bytes == pytest.approx(alone.memory.total_bytes, rel=1e-12)
    for option, prediction in advice.predictions.items():
        assert prediction.rate == pytest.approx(option.tokens_per_s, rel=1e-12)


def test_every_plan_and_load_has_an_outcome() -> None:
    """All that is legal fits and is an option, or cannot run."""
    advice = advise(gpus=8, **{"model": "70b", **SERVED, "concurrency": "2,8,64"})
    assert len(advice.options) == len(CANDIDATES) * len({option.scenario for option in advice.options})
    choices = list(dict.fromkeys((option.plan, option.requests) for option in advice.options))
    choices += [(each.scenario.plan, each.scenario.workload.in_flight) for each in advice.unfit]
    base = Scenario(model="70b", stack="vllm", concurrency=64, tp=1)
    legal = legal_plans(base, 8, {}).legal
    expected = [(plan, load) for plan in legal for load in (2, 8, 64) if load >= plan.groups]
    assert len(choices) == len(set(choices))
    assert set(choices) == set(expected)
    assert all(not memory_use(each.scenario).fits for each in advice.unfit)
    missing = [each.missing_bytes for each in advice.unfit]
    assert missing == sorted(missing)
    assert missing[0] > 0.0


@pytest.mark.parametrize("objective", ["tpot", "ttft", "tokens_per_s", "tokens_per_gpu"])
def test_advice_is_the_best_of_all_that_fit(objective: Any) -> None:
    """Checked against every degree, batch and variant, one by one."""
    advice = advise(None, objective, model="70b", batch="1,16", tp="2,4,8", pp=1, dp=1)
    better = {"tpot": min, "ttft": min, "tokens_per_s": max, "tokens_per_gpu": max}[objective]
    seen = {}
    for tp in (2, 4, 8):
        for batch in (1, 16):
            for variant, alone in predict(Scenario(model="70b", tp=tp, batch=batch), CANDIDATES).items():
                figures = {"tpot": alone.tpot_s, "ttft": alone.ttft_s, "tokens_per_s": alone.rate}
                seen[variant, tp, batch] = {**figures, "tokens_per_gpu": alone.rate / tp}[objective]
    best = advice.best
    assert (best.variant, best.plan.tp, best.requests) == better(seen, key=lambda key: seen[key])
    assert len(advice.options) == len(seen)
    assert [_figures(option)[objective] for option in advice.options] == sorted(
        _figures(option)[objective] for option in advice.options
    )


@pytest.mark.parametrize(
    "advice",
    [
        advise(None, "tpot", model="70b"),
        advise(gpus=4, **{**EXPERTS, "concurrency": "2:32"}),
    ],
    ids=["batches", "in flight"],
)
def test_the_front_holds_what_nothing_beats(advice: Advice) -> None:
    for option in advice.options:
        beaten = any(
            other.tpot_s <= option.tpot_s
            and other.tokens_per_gpu >= option.tokens_per_gpu
            and (other.tpot_s, other.tokens_per_gpu) != (option.tpot_s, option.tokens_per_gpu)
            for other in advice.options
        )
        better = advice.dominating(option)
        assert advice.outcome(option) == ("front" if option in advice.front else "dominated")
        if option in advice.front:
            assert not beaten
            assert better is None
        else:
            assert better in advice.front
            assert better.tpot_s <= option.tpot_s
            assert better.tokens_per_gpu >= option.tokens_per_gpu
    times = [option.tpot_s for option in advice.front]
    assert times == sorted(times)
    assert advice.unfit or advice.best.scenario.model.name != "llama-3.1-70b"


@pytest.mark.parametrize("restricted", [{"tp": 2}, {"pp": "1"}, {"ep": "2,4"}, {"attention_dp": 1}, {"dp": 1}])
def test_a_restriction_never_improves(restricted: dict[str, Any]) -> None:
    """And what is left has the same figures."""
    point = {**EXPERTS, "concurrency": "8,32"}
    free = advise(gpus=4, **point)
    bound = advise(gpus=4, **{**point, **restricted})
    every = {str(option): _figures(option) for option in free.options}
    for option in bound.options:
        assert _figures(option) == every[str(option)]
    assert 0 < len(bound.options) < len(free.options)
    for objective in ("tpot", "ttft", "tokens_per_s", "tokens_per_gpu"):
        best = min(_figures(option)[objective] for option in bound.options)
        assert best >= min(figures[objective] for figures in every.values())


@pytest.mark.slow
def test_processes_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladder_sim.analysis.advise.FEW_REPLICAS", 1)
    alone, shared = (advise(gpus=2, workers=workers, **{**EXPERTS, "concurrency": 8}) for workers in (1, 2))
    assert list(map(str, shared.options)) == list(map(str, alone.options))
    assert list(map(_figures, shared.options)) == list(map(_figures, alone.options))
    with pytest.raises(UsageError, match="workers is 0"):
        advise(gpus=1, workers=0, **{"model": "8b", **SERVED})


def test_gpus_are_the_most_that_are_used() -> None:
    for gpus, nodes in ((1, 1), (3, 1), (8, 1), (12, 2), (16, 2)):
        advice = advise(variants="standard", gpus=gpus, **{"model": "8b", **SERVED})
        used = {option.plan.gpus for option in advice.options}
        assert max(used) == gpus if gpus != 3 else used == {1, 2, 3}
        assert max(option.scenario.nodes for option in advice.options) == nodes
    by_nodes = advise(variants="standard", **{"model": "8b", "nodes": 2, **SERVED})
    assert (by_nodes.gpus, by_nodes.plans) == (advice.gpus, advice.plans)
    # replicas of whole nodes, and nothing between them
    apart = advise(variants="standard", gpus=16, **{"model": "8b", "tp": 8, **SERVED})
    assert {str(option.plan) for option in apart.options} == {"TP 8", "TP 8, DP 2", "TP 8, PP 2"}


def test_requests_in_flight_need_no_stack() -> None:
    served, static = (advise(gpus=1, model="8b", **{load: 4}) for load in ("concurrency", "batch"))
    assert [advice.best.scenario.stack.name for advice in (served, static)] == ["vllm", "gpt-fast"]
    assert served.best.ttft_s == advise(gpus=1, model="8b", concurrency=4, stack="vllm").best.ttft_s


def test_the_objective_depends_on_the_load() -> None:
    """GPUs that are there serve a load best together; a batch is best where each GPU does most."""
    assert advise(gpus=2, **{"model": "8b", **SERVED}).objective == "tokens_per_s"
    assert advise(gpus=2, model="8b", batch=4).objective == "tokens_per_gpu"


def test_bounds_are_kept() -> None:
    free = advise(model="70b")
    bound = advise(max_tpot_s=0.02, max_ttft_s=1.0, model="70b")
    assert free.best.tpot_s > 0.02 >= max(option.tpot_s for option in bound.options)
    assert max(option.ttft_s for option in bound.options) <= 1.0
    assert len(bound.options) + len(bound.beyond) == len(free.options)
    assert {bound.outcome(option) for option in bound.beyond} == {"max_tpot", "max_ttft"}
    with pytest.raises(InfeasibleError, match="every option exceeds") as caught:
        advise(max_tpot_s=1e-4, model="70b")
    assert "shortest TPOT" in caught.value.hint
    assert "(ladder, TP 8, batch 1)" in caught.value.hint


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(MemoryFitError, match=r"no plan on at most 8 GPUs can run: .* needs 105 GB per GPU") as caught:
        advise(model="405b")
    for way in ("--dtype fp8 fits", "--gpus 16 fits", "--cluster h200-sxm fits"):
        assert way in caught.value.hint
    for fitting in ({"dtype": "fp8"}, {"nodes": 2}, {"cluster": "h200-sxm"}):
        assert advise(variants="standard", **{"model": "405b", "batch": 1, **fitting}).options
    with pytest.raises(MemoryFitError, match="no plan on at most 1 GPU can run: with 4 in flight") as caught:
        advise(gpus=1, model="70b", stack="vllm", concurrency=4)
    assert caught.value.hint.startswith("on these GPUs --dtype fp8 fits; on more GPUs --gpus 2 fits; ")


@pytest.mark.parametrize(
    ("point", "how", "message", "hint"),
    [
        ({}, {"gpus": 0}, "gpus is 0: must be a whole number from 1", "--gpus 16"),
        ({"nodes": 2}, {"gpus": 20}, "gpus 20: there are 2 x 8", "--nodes 3"),
        ({"tp": 16}, {"gpus": 8}, "no plan of tp 16 has 8 GPUs or less", "--gpus 16"),
        ({"tp": 3}, {}, "no plan with tp 3 on at most 8 GPUs: .* not divisible by tp 3", "1, 2, 4, 8"),
        ({"ep": 2}, {}, "ep 2: model 'llama-3.1-8b' has no experts", "--dp runs replicas"),
        ({"model": "mixtral-8x7b", "ep": 3}, {}, "ep 3: must divide the . ranks", "divisor"),
        (
            {"model": "mixtral-8x7b", "attention_dp": 8, "concurrency": 4},
            {},
            "each of 8 groups needs",
            "--concurrency 8",
        ),
        ({"batch": 4, "concurrency": 4}, {}, "batches and requests in flight are both given", "one of them"),
        ({"stack": "gpt-fast", "concurrency": 4}, {}, "runs static batches only", "--stack vllm"),
        ({"workload.batch": 4}, {}, "workload.batch is searched", "--batches"),
        ({"tp": "x"}, {}, "tp: 'x' is not a number", ""),
        ({"tpp": 4}, {}, "unknown", ""),
    ],
)
def test_what_no_plan_can_do_is_refused(point: dict[str, Any], how: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(LadderSimError, match=message) as caught:
        advise(**how, **{"model": "8b", "stack": "vllm", **point})
    assert hint in caught.value.hint


def test_a_wiring_of_more_layers_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="200"):
        advise(variants="hybrid-ladder:200", gpus=1, **{"model": "8b", **SERVED})


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown objective 'tops'"):
        advise(None, "tops", model="8b")  # type: ignore[arg-type]


def test_too_many_plans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 9)
    with pytest.raises(UsageError, match="4 GPUs allow more than 9 plans"):
        advise(gpus=4, **{"model": "8b", **SERVED})
    assert advise(gpus=2, **{"model": "8b", **SERVED, "tp": "1,2"}).plans == 4


def test_a_degree_in_no_plan_is_named() -> None:
    warnings = advise(gpus=8, **{"model": "8b", "tp": "3,8,16", **SERVED}).notes.warnings
    assert "no plan has tp 16: needs more than 8 GPUs" in warnings
    assert any(text.startswith("no plan has tp 3: ") and "not divisible by tp 3" in text for text in warnings)
    assert not any("tp 8" in text for text in warnings)


def test_only_batches_are_no_recommendation_for_serving() -> None:
    free, bound = (advise(max_ttft_s=limit, model="8b", tp="1:2", batch="1:4") for limit in (np.inf, 60.0))
    assert any("not a recommendation for serving" in text for text in free.notes.warnings)
    assert not any("bound on TTFT" in text for text in free.notes.warnings)
    assert any("the bound on TTFT bounds the prefill of a whole batch" in text for text in bound.notes.warnings)
    served = advise(max_ttft_s=60.0, gpus=2, **{"model": "8b", **SERVED}).notes.warnings
    assert not any("serving" in text for text in served)


def test_advice_says_what_must_be_trained_and_what_was_not_tried() -> None:
    own, best, wider = (
        advise(None, objective, variants, model="8b", tp=8, batch=batch)
        for batch, objective, variants in (
            ("1:4", "tpot", ["standard"]),
            ("1:4", "tpot", ["standard", "ladder"]),
            ("1:4", "tokens_per_s", ["standard", "ladder"]),
        )
    )
    trained = "ladder must be trained: llama-3.1-8b has no such weights; best with its own: standard, TP 8, batch "
    largest = "batch 4 is the largest that was tried: a larger one may be better"
    assert own.best_own is own.best
    assert not any("trained" in text for text in own.notes.warnings)
    assert f"{trained}1" in best.notes.warnings
    assert f"{trained}4" in wider.notes.warnings
    assert best.best_own is not None
    assert (best.best_own.variant, best.best_own.requests) == ("standard", 1)
    assert (largest in best.notes.warnings, largest in wider.notes.warnings) == (False, True)
    rewired = dataclasses.replace(catalog.model("8b"), ladder_layers=tuple(range(32)))
    assert not any("trained" in text for text in advise(None, "tpot", model=rewired, tp=8).notes.warnings)


def test_a_document_has_every_plan_with_its_reason() -> None:
    advice = advise(max_tpot_s=0.03, gpus=8, **{"model": "70b", **SERVED})
    rows = advice.to_dict()["rows"]
    assert len(rows) == len(advice.options) + len(advice.beyond) + len(advice.unfit)
    for row in rows:
        plan = {name: row[name] for name in ("tp", "pp", "ep", "attention_dp", "dp", "sp")}
        scenario = Scenario(model="70b", **SERVED, nodes=row["nodes"], **plan)
        if row["outcome"] == "memory":
            assert row["reason"].startswith("needs ")
            assert (row["variant"], row["tpot_s"], memory_use(scenario).fits) == (None, None, False)
            continue
        assert predict_one(scenario, row["variant"]).rate == pytest.approx(row["tokens_per_s"])
        assert (row["outcome"] == "max_tpot") == (row["tpot_s"] > 0.03)
        assert row["reason"].startswith("no better than ") == (row["outcome"] == "dominated")
        if row["outcome"] == "front":
            assert row["tokens_per_s_low"] < row["tokens_per_s"] < row["tokens_per_s_high"]
    assert {row["outcome"] for row in rows} == {"front", "dominated", "max_tpot", "memory"}


@pytest.mark.parametrize("dp", [1, 2])
def test_the_plan_that_a_server_measured_is_advised_as_it_is_predicted(dp: int) -> None:
    """Regression: TPOT of one plan was 20.0 ms by advise and 21.9 by predict, of the 22 that were measured."""
    plan: dict[str, Any] = {"model": "8b", "tp": 4, "dp": dp, "stack": "vllm", "concurrency": 32 * dp}
    measured = Scenario(**plan)
    predicted = predict(measured, ["standard"], profile=condition(measured, tpot_s=0.009))["standard"]
    options = advise(
        model="8b",
        stack="vllm",
        tp=4,
        dp=[1, 2],
        concurrency=[16, 32, 64],
        variants=["standard"],
        gpus=8,
        profile=condition(measured, tpot_s=0.009, elsewhere=True),
    ).options
    tpots_s = {(each.plan.dp, each.requests): each.tpot_s for each in options}
    assert tpots_s[dp, 32 * dp] == predicted.tpot_s == pytest.approx(0.009, rel=0.02)
    # one load tells less of others, none of which is left out
    assert len(tpots_s) == 6


def test_plans_are_searched_with_a_technique_that_needs_two_ranks() -> None:
    """Regression: "technique 'sequence-parallel' with tp 1", whatever --tp said."""
    advice = advise(model="8b", **SERVED, technique="sequence-parallel", gpus=4, variants=["standard"])
    assert {option.plan.tp for option in advice.options} == {2, 4}
