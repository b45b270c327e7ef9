"""What adapting a model costs: GPU-hours, and when that has paid."""

import math

import pytest

from ladder_sim.analysis.adaptation import UTILISATION, Adaptation, adaptation
from ladder_sim.analysis.versus import versus
from ladder_sim.errors import UsageError
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from tests.support.commands import run

SERVED = Scenario(model="8b", stack="vllm", concurrency=64)
# with the engine's own all-reduces in every wiring, hybrids gain as well
OWN = Scenario(model="8b", stack="vllm", concurrency=64, overrides={"stack.rewired_allreduce": "auto"})


def price(variant: str, tokens: float | None = None, scenario: Scenario = SERVED) -> Adaptation:
    return adaptation(predict(scenario, ["standard", variant]), variant, tokens)


def test_the_hours_of_a_published_run_lie_inside() -> None:
    """Llama 3.1 405B: 3.8e25 FLOPs (arXiv 2407.21783), 30.84 M hours of H100s (its model card); from memory."""
    scenario = Scenario(model="405b", nodes=2)
    hours = price("ladder", 15.6e12, scenario).gpu_hours
    assert 6 * scenario.model.parameters * 15.6e12 == pytest.approx(3.8e25, rel=0.01)
    assert hours.low < 30.84e6 < hours.high
    assert hours.high / hours.low == pytest.approx(UTILISATION.high / UTILISATION.low)


def test_has_paid_when_the_hours_saved_are_those_of_adapting() -> None:
    cost = price("hybrid-ladder:16", 1e9, OWN)
    tokens = cost.break_even_tokens.value
    hours = [tokens / each.rate * 8 / 3600 for each in (cost.standard, cost.serving)]
    assert hours[0] - hours[1] == pytest.approx(cost.gpu_hours.value, rel=1e-3)
    assert cost.break_even_tokens.low < tokens < cost.break_even_tokens.high
    assert price("hybrid-ladder:16", 2e9, OWN).gpu_hours.value == pytest.approx(2 * cost.gpu_hours.value)
    # it may save nothing
    assert math.isinf(price("partial:100", 1e9).break_even_tokens.high)


def test_tokens_are_those_of_the_published_adaptation() -> None:
    cost = price("ladder")
    assert (cost.tokens, cost.published_tokens) == (3e9, "hybrid-ladder:16 of Llama-3.1-8B-Instruct")


def test_refusals() -> None:
    with pytest.raises(UsageError, match="needs no training"):
        price("standard")
    with pytest.raises(UsageError, match="tokens 0"):
        price("ladder", 0.0)
    with pytest.raises(UsageError, match="no prediction of 'ladder'"):
        adaptation(predict(SERVED, ["standard"]), "ladder")
    with pytest.raises(UsageError, match="has experts: must be dense"):
        price("farskip", scenario=Scenario(model="qwen3-30b-a3b", tp=4, stack="vllm"))


def test_versus_says_it_of_the_best_wiring() -> None:
    best = versus(SERVED, ["ladder", "hybrid-ladder:16"], "fused-norm").cost
    assert best is not None
    alone = price("ladder")
    assert (best.gpu_hours, best.serving.variant) == (alone.gpu_hours, "ladder")
    assert best.break_even_tokens.value == pytest.approx(alone.break_even_tokens.value)
    experts = Scenario(model="qwen3-30b-a3b", tp=4, stack="vllm", concurrency=64)
    compared = versus(experts, "farskip", "fused-norm")
    assert compared.cost is None
    assert "has experts" in compared.no_cost


def test_versus_prints_it() -> None:
    flags = (
        "--model",
        "8b",
        "--stack",
        "vllm",
        "--concurrency",
        "64",
        "--variant",
        "ladder",
        "--technique",
        "fused-norm",
    )
    price = "101 (88-135) GPU-hours, paid back after 3.64 B (1.82 B-32.1 B) served tokens"
    assert price in " ".join(run("versus", *flags).out.split())
    explained = " ".join(run("versus", *flags, "--explain").out.split())
    assert "adapting the model to ladder, with 3.00 B tokens, as published of hybrid-ladder:16" in explained
