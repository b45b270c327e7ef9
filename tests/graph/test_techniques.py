"""Techniques as rewrites of a pass: what they replace, and that short cuts and engines still agree."""

from typing import Any

import pytest

from ladder_sim import Scenario, predict, sweep
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.graph.build import StepGraph, build
from ladder_sim.graph.ops import Phase
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import simulate
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim.specs.techniques import TECHNIQUES, Techniques
from tests.support.scenarios import VARIANTS

TECHNIQUE_SETS = ("fused-norm",)
PHASES: tuple[Phase, ...] = ("prefill", "decode")


def graph_of(variant: str, technique: str, *, phase: Phase = "decode", **fields: Any) -> StepGraph:
    scenario = Scenario.of(**{"model": "8b", "stack": "vllm", **fields}, variant=variant, technique=technique)
    return build(scenario, phase, 64)


@pytest.mark.parametrize("technique", TECHNIQUE_SETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_short_cuts_and_engines_agree(variant: str, technique: str) -> None:
    """Layers left out are equal to those kept, and event by event on simpy a pass takes as long."""
    for stack in ("vllm", "gpt-fast"):
        scenario = Scenario.of(model="8b", stack=stack, tp=8, prompt=4096, variant=variant, technique=technique)
        costs = KernelCosts(scenario, resolve_profile(scenario, None))
        for phase in PHASES:
            few, every = (simulate(scenario, phase, 4096, costs, keep=keep) for keep in (3, 1000))
            assert few.seconds == pytest.approx(every.seconds, rel=1e-9)
            events = simulate(scenario, phase, 4096, costs, engine="des")
            assert few.seconds == pytest.approx(events.seconds, rel=1e-9)
            # what the layers kept are made of adds up to the whole
            assert sum(few.breakdown.limits_s.values()) == pytest.approx(few.seconds, rel=1e-9)
            assert few.breakdown.comm_s == pytest.approx(every.breakdown.comm_s, rel=1e-9)


@pytest.mark.parametrize(
    ("variant", "stack", "fused", "reduces", "adds"),
    [
        # 32 layers of two blocks; an embedding is reduced without a norm, and parallel adds its two blocks first
        ("standard", "vllm", 64, 1, 0),
        ("standard", "gpt-fast", 64, 0, 0),
        ("parallel", "vllm", 32, 1, 32),
        # the head adds the last two sums, of which one is normalised
        ("ladder", "vllm", 63, 2, 1),
        ("ladder", "gpt-fast", 63, 1, 1),
        ("hybrid-ladder:8", "vllm", 63, 2, 1),
        ("upper-bound", "vllm", 0, 0, 0),
    ],
)
def test_fused_norms(variant: str, stack: str, fused: int, reduces: int, adds: int) -> None:
    kinds = [op.kind for op in graph_of(variant, "fused-norm", stack=stack, prompt=4096, phase="prefill").ops()]
    assert (kinds.count("all_reduce_norm"), kinds.count("all_reduce"), kinds.count("add")) == (fused, reduces, adds)


def test_in_ladder_add_and_norm_of_the_older_block_run_with_its_all_reduce() -> None:
    for stack in ("vllm", "gpt-fast"):
        graph = graph_of("ladder", "fused-norm", stack=stack)
        names = list(graph.nodes)
        fused = "layer3.mlp.all_reduce_norm"
        # it starts where the sum of the block before the last is there, and the last one's kernels run meanwhile
        assert set(graph.predecessors(fused)) == {"layer2.mlp.down", "layer3.attn.all_reduce_norm"}
        assert names.index("layer2.mlp.down") < names.index(fused) < names.index("layer3.attn.qkv")
        assert "layer3.mlp.up" in graph.successors(fused)


def test_a_stack_that_fuses_already_is_not_fused_twice() -> None:
    for stack in ("vllm", "trtllm"):
        fields = {"model": "8b", "stack": stack, "tp": 8, "gen": 4, "batch": 4}
        own, asked = predict(Scenario.of(**fields)), predict(Scenario.of(**fields, technique="fused-norm"))
        assert asked["standard"].tpot_s == pytest.approx(own["standard"].tpot_s, rel=1e-12)


def test_names() -> None:
    assert Techniques.of(["Fused-Norm"]).name == "fused-norm"
    assert Techniques.of("none").chosen == Techniques.of([]).chosen == ()
    with pytest.raises(UnknownNameError, match="technique 'fused'"):
        Techniques.of("fused")
    with pytest.raises(UsageError, match="given twice"):
        Techniques.of("fused-norm+fused-norm")
    for technique in TECHNIQUES.values():
        assert technique.summary
        assert technique.support


def test_one_gpu_has_nothing_to_fuse() -> None:
    scenario = Scenario.of(model="8b", tp=1, technique="fused-norm")
    assert any("changes nothing: one GPU" in line for line in scenario_warnings(scenario))
    assert predict(scenario, "standard").request_s == predict(Scenario.of(model="8b", tp=1), "standard").request_s


def test_sweeps_and_searches_take_them() -> None:
    points = sweep({"model": "8b", "stack": "vllm", "tp": "1,2", "batch": "1,16", "technique": "none,fused-norm"})
    assert points.feasible.all()
    for tp, technique, batch, ttft_s in zip(
        points["tp"], points["technique"], points["batch"], points["standard.ttft_s"], strict=True
    ):
        scenario = Scenario.of(model="8b", stack="vllm", tp=int(tp), batch=int(batch), technique=str(technique))
        assert ttft_s == pytest.approx(predict(scenario, "standard").ttft_s, rel=1e-8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": 2}, "NCCL's"),
        ({"cluster": "l40s-pcie"}, "needs an NVLink switch"),
    ],
)
def test_where_there_is_nothing_to_fuse(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predict(Scenario.of(**{"model": "8b", "stack": "vllm", **fields}, technique="fused-norm"))
