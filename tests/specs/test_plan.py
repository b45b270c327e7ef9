"""Plans: what each degree means, and combinations that are refused with value, rule and way out."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.errors import LadderSimError, PartitionError, UsageError
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import scenario_warnings

DEGREES = st.sampled_from((1, 2, 3, 4, 6, 8, 16))


def test_by_default_tensor_parallelism_takes_every_gpu() -> None:
    assert Scenario(model="8b").plan == Plan(tp=8)
    assert Scenario(model="8b", nodes=2, pp=2).plan == Plan(tp=8, pp=2)
    assert Scenario(model="8b", dp=4, batch=4).plan == Plan(tp=2, dp=4)
    assert Scenario(model="qwen3-30b-a3b", attention_dp=8, ep=8, batch=8).plan == Plan(attention_dp=8, ep=8)


def test_by_default_eight_gpus_of_a_larger_node_share_a_model() -> None:
    """Regression: no model could be asked on `gb200-nvl72` without --tp, because none divides by 72."""
    assert Scenario(model="70b", cluster="gb200-nvl72").plan.gpus == 8
    assert Scenario(model="70b", cluster="gb200-nvl72", pp=2).plan == Plan(tp=4, pp=2)
    assert Scenario(model="70b", cluster="gb200-nvl72", gpus_per_node=16).plan.tp == 16


def test_ranks_of_a_stage_share_attention_and_experts() -> None:
    plan = Plan(tp=2, attention_dp=4, ep=4, pp=2, dp=3)
    assert (plan.ranks, plan.expert_tp, plan.replica_gpus, plan.gpus) == (8, 2, 16, 48)
    assert str(Plan(tp=8)) == "TP 8"
    assert str(Plan(tp=2, sp=True, dp=2)) == "TP 2, DP 2, SP"


@given(st.integers(1, 40), st.integers(1, 200))
def test_stages_hold_every_layer_as_evenly_as_they_can(pp: int, layers: int) -> None:
    stages = Plan(pp=pp).stages(layers)
    assert len(stages) == pp
    assert sum(stages) == layers
    assert max(stages) - min(stages) <= 1
    # the last has the LM head as well
    assert stages[-1] == min(stages)


@given(DEGREES, DEGREES, DEGREES, DEGREES, st.sampled_from((4, 8, 72)))
def test_nodes_hold_whole_stages(tp: int, attention_dp: int, pp: int, dp: int, per_node: int) -> None:
    plan = Plan(tp=tp, attention_dp=attention_dp, pp=pp, dp=dp)
    nodes = plan.nodes(per_node)
    assert nodes * per_node >= plan.gpus
    assert plan.nodes(per_node, replicas=1) <= nodes <= dp * plan.nodes(per_node, replicas=1)
    if per_node % plan.ranks == 0:
        assert nodes == math.ceil(plan.gpus / per_node)


@pytest.mark.parametrize(
    ("arguments", "error", "message", "hint"),
    [
        ({"model": "deepseek-v3", "ep": 3, "tp": 8}, UsageError, "ep 3: must divide the 8 ranks of a stage", "--tp"),
        (
            {"model": "qwen3-30b-a3b", "overrides": {"model.experts": "12"}, "ep": 8},
            PartitionError,
            "experts is 12: not divisible by ep 8",
            "that divide them and 8 ranks: 1, 2, 4",
        ),
        ({"model": "8b", "ep": 8}, UsageError, "ep 8: model 'llama-3.1-8b' has no experts to share", "leave out --ep"),
        ({"model": "8b", "attention_dp": 2, "batch": 2}, UsageError, "attention_dp 2: model", "--dp runs replicas"),
        ({"model": "8b", "pp": 40, "nodes": 5}, PartitionError, "pp 40: model 'llama-3.1-8b' has 32 layers", "--pp 32"),
        ({"model": "8b", "tp": 8, "pp": 2}, UsageError, "tp 8 x pp 2 needs 16 GPUs: there are 1 x 8", "--nodes 2"),
        (
            {"model": "8b", "tp": 4, "dp": 3, "batch": 3, "gpus_per_node": 6, "nodes": 2},
            UsageError,
            "tp 4 x dp 3 needs 3 nodes of 6 GPUs, because a stage of 4 ranks is not split",
            "--nodes 3",
        ),
        (
            {"model": "deepseek-v3", "attention_dp": 8, "ep": 8, "batch": 4},
            UsageError,
            "batch 4 on attention_dp 8: each of 8 groups needs a request",
            "--batch 8 or more",
        ),
        (
            {"model": "8b", "dp": 2, "concurrency": 1, "stack": "vllm"},
            UsageError,
            "concurrency 1 on dp 2: each of 2 groups needs a request",
            "--concurrency 2 or more",
        ),
        ({"model": "8b", "tp": 1, "sp": True}, UsageError, "sp with tp 1", "--tp 2 or more"),
        (
            {"model": "minimax-m2.5", "overrides": {"model.expert_intermediate": "1540"}},
            PartitionError,
            "expert_intermediate is 1540: not divisible by 8 ranks",
            "tensor-parallel degrees that divide it on 8 GPUs: 1, 2, 4",
        ),
        ({"model": "8b", "pp": 0}, LadderSimError, "pp is 0: must be a whole number from 1", ""),
    ],
)
def test_illegal_plans(arguments: dict[str, Any], error: type[LadderSimError], message: str, hint: str) -> None:
    with pytest.raises(error) as caught:
        Scenario(**arguments)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == (3 if error is PartitionError else 2)


def test_what_a_plan_leaves_idle_is_said() -> None:
    three = Scenario(model="8b", pp=3, batch=8)
    assert three.plan.gpus == 6
    assert "tp 2 x pp 3 uses 6 of 8 GPUs" in scenario_warnings(three)
    assert not any("GPUs" in line for line in scenario_warnings(Scenario(model="8b", tp=4)))
    assert not any("GPUs" in line for line in scenario_warnings(Scenario(model="8b", tp=4, dp=2, batch=2)))
    one = "1 request on 4 stages: no more stages work at a time"
    assert one in scenario_warnings(Scenario(model="8b", tp=2, pp=4))
    assert one in scenario_warnings(Scenario(model="8b", pp=4, dp=2, concurrency=2, stack="vllm"))
    assert not any("stages" in line for line in scenario_warnings(Scenario(model="8b", tp=2, pp=4, batch=4)))


def test_uneven_stages_are_shown() -> None:
    warnings = scenario_warnings(Scenario(model="deepseek-v3", nodes=4, pp=4))
    assert "61 layers on 4 stages: 15, 15, 16, 15" in warnings
    assert not any("layers on" in line for line in scenario_warnings(Scenario(model="70b", nodes=2, pp=2)))
