"""What engines do around routed experts: shared ones on a stream of their own, launches of steps with prompts."""

from typing import Any

import pytest

from ladder_sim import Scenario
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.kernels import Phase
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import ForwardPass, simulate
from tests.support.scenarios import SERVING


def step(phase: Phase = "decode", **given: Any) -> ForwardPass:
    scenario = Scenario(**{"model": "deepseek-v2-lite", "tp": 2, "batch": 4, **given})
    return simulate(scenario, phase, 1024, KernelCosts(scenario, resolve_profile(scenario, None)))


@pytest.mark.parametrize("stack", SERVING)
def test_shared_experts_of_decode_take_what_they_last_longer_than_routed_ones(stack: str) -> None:
    apart = {"stack.shared_expert_stream": "false"}
    for size in ({}, {"batch": 512}, {"overrides": {"model.shared_intermediate": "65536"}}):
        given: dict[str, Any] = {"stack": stack, **size}
        next_to = step(**given)
        one_by_one = step(**{**given, "overrides": {**given.get("overrides", {}), **apart}})
        last = {op.op.name.partition(".")[2]: op for op in one_by_one.ops if op.op.layer == 26}
        shared_s = sum(last[f"mlp.shared.{name}"].seconds for name in ("up", "activation", "down"))
        routed_s = last["mlp.experts"].seconds
        saved_s = one_by_one.seconds - next_to.seconds
        # the first layer has no experts
        assert saved_s == pytest.approx(26 * min(shared_s, routed_s), rel=1e-6), size
        assert (shared_s > routed_s) == ("overrides" in size), size


def test_shared_experts_of_prompts_take_their_time() -> None:
    apart = {"overrides": {"stack.shared_expert_stream": "false"}}
    assert step("prefill", stack="vllm").seconds == step("prefill", stack="vllm", **apart).seconds


def test_the_slowest_rank_has_the_busiest_experts() -> None:
    """Counts that are equal are balanced; with uneven ones all ranks wait for that which has most tokens."""

    def seconds(imbalance: Any, phase: Phase = "prefill", **plan: Any) -> float:
        given = {"model": "mixtral-8x7b", "batch": 8, "stack": "vllm", **plan}
        return float(step(phase, imbalance=imbalance, **given).seconds)

    spread, whole = {"tp": 1, "attention_dp": 8, "ep": 8}, {"tp": 8}
    assert seconds([5] * 8, **spread) == seconds("balanced", **spread)
    uneven = [9, 1, 1, 1, 1, 1, 1, 1]
    twice = seconds([3, 1, 1, 1, 3, 1, 1, 1], **spread)
    assert seconds("balanced", **spread) < twice < seconds(uneven, **spread)
    # 9 of 16 tokens on one of 8 ranks: its experts take as long as 4.5 times as many balanced tokens
    experts = {
        loads: next(op.seconds for op in step("prefill", imbalance=imbalance, **given).ops if op.op.kind == "experts")
        for loads, imbalance, given in (
            ("uneven", uneven, {"model": "mixtral-8x7b", "stack": "vllm", "batch": 16, **spread}),
            ("more", "balanced", {"model": "mixtral-8x7b", "stack": "vllm", "batch": 72, **spread}),
        )
    }
    assert experts["uneven"] == pytest.approx(experts["more"], rel=1e-9)
    # where every rank has a share of every expert, none waits
    assert seconds(uneven, **whole) == seconds("balanced", **whole)
    # tables of the power laws are the slowest rank's
    laws = [seconds(law, **spread) for law in ("balanced", "power-law-1.01", "power-law-1.2")]
    assert laws == sorted(laws)
