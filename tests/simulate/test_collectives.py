"""Which collectives a wiring can hide, and behind what: as the graph says, and as simulated."""

import itertools
from collections import Counter
from typing import Any

import networkx as nx
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.simulate.breakdown import Collective
from tests.support.graphs import build

VARIANTS = ["standard", "parallel", "ladder", "hybrid-ladder:4", "desync:3", "upper-bound"]
PLANS: dict[str, dict[str, Any]] = {
    "dense": {"model": "8b", "tp": 4},
    "a parallel model": {"model": "8b", "tp": 8, "nodes": 2, "pp": 2, "batch": 4},
    "expert parallel": {"model": "qwen3-30b-a3b", "tp": 8, "ep": 8},
    "data-parallel attention": {"model": "deepseek-v2-lite", "attention_dp": 8, "ep": 8, "batch": 16},
    "both": {"model": "minimax-m2.5", "cluster": "h200-sxm", "tp": 4, "attention_dp": 2, "ep": 4, "batch": 16},
    "sequence parallel": {"model": "8b", "tp": 8, "sp": True},
}


def named(variant: str, **arguments: Any) -> dict[str, Collective]:
    """Of a decode step, by name; the first of those that differ."""
    each = predict(Scenario(**{"stack": "vllm", **arguments}), [variant])[variant].collectives
    return {collective.name: collective for collective in reversed(each)}


def test_ladder_hides_all_reduces_behind_the_next_block() -> None:
    ladder = named("ladder", model="70b", tp=8)
    assert ladder["attn.all_reduce"].next_to == ("mlp.norm", "mlp.up", "mlp.activation", "mlp.down")
    assert ladder["mlp.all_reduce"].next_to[0] == "attn.norm"
    assert ladder["mlp.all_reduce"].needed_by == "mlp.norm"
    assert ladder["lm_head.all_gather"].next_to == ()
    # one that is part of the norm behind it is needed at once
    standard = named("standard", model="70b", tp=8)
    assert (standard["mlp.all_reduce_norm"].next_to, standard["mlp.all_reduce_norm"].needed_by) == ((), "mlp.up")


def test_the_dispatch_waits_for_the_router_in_every_wiring() -> None:
    for variant in ("standard", "ladder", "hybrid-ladder:4"):
        dispatch = named(variant, model="qwen3-30b-a3b", attention_dp=8, ep=8, batch=16)["mlp.dispatch"]
        assert (dispatch.after, dispatch.next_to, dispatch.needed_by) == ("mlp.top_k", (), "mlp.experts")
    combine = named("ladder", model="qwen3-30b-a3b", attention_dp=8, ep=8, batch=16)["mlp.combine"]
    assert (combine.next_to[0], combine.next_to[-1], combine.needed_by) == ("attn.norm", "attn.o", "mlp.norm")
    assert named("standard", model="qwen3-30b-a3b", attention_dp=8, ep=8, batch=16)["mlp.combine"].next_to == ()


def test_shared_experts_hide_the_combine_unless_they_run_next_to_routed_ones() -> None:
    """They read the tokens of their own rank."""
    for stream, kernels in (("false", ("mlp.shared.up", "mlp.shared.activation", "mlp.shared.down")), ("true", ())):
        overrides = {"stack.shared_expert_stream": stream}
        shared = named("standard", model="deepseek-v2-lite", attention_dp=8, ep=8, batch=16, overrides=overrides)
        assert shared["mlp.combine"].next_to == kernels
        assert (shared["mlp.combine"].hidden_s > 0) == bool(kernels)


def test_a_collective_behind_another_one_holds_its_kernels() -> None:
    """Norms over all heads add up squares, on the stream on which ladder's all-reduce is still running."""
    arguments: dict[str, Any] = {"model": "minimax-m2.5", "cluster": "h200-sxm", "tp": 4, "ep": 4}
    reduced = named("ladder", **arguments)["mlp.all_reduce"]
    assert (reduced.next_to, reduced.needed_by) == (("attn.norm", "attn.qkv"), "attn.q_norm")


@pytest.mark.parametrize("name", PLANS)
def test_what_is_said_is_what_is_simulated(name: str) -> None:
    for stack in ("vllm", "gpt-fast"):
        scenario = Scenario(**{"gen": 2, "prompt": 100, "stack": stack, **PLANS[name]})
        variants = [variant for variant in VARIANTS if not (scenario.plan.sp and variant.startswith("desync"))]
        for variant, prediction in predict(scenario, variants).items():
            step = prediction.request.decode
            assert step is not None
            parts = step.breakdown
            assert sum(each.seconds for each in prediction.collectives) == pytest.approx(parts.comm_s)
            hidden = sum(each.hidden_s for each in prediction.collectives)
            assert hidden == pytest.approx(parts.comm_s - parts.exposed_comm_s, abs=1e-12)
            assert all(each.next_to for each in prediction.collectives if each.hidden_s > 1e-12), variant


@pytest.mark.parametrize("name", PLANS)
def test_kernels_next_to_a_collective_do_not_depend_on_it(name: str) -> None:
    """In the graph of all layers, with collectives in order."""
    for variant in ("standard", "parallel", "ladder"):
        scenario = Scenario(**{"stack": "gpt-fast", "prompt": 100, **PLANS[name]}, variant=variant)
        graph = build(scenario, "decode", 101)
        ops = list(graph.ops())
        in_order = nx.DiGraph(graph.edges)
        in_order.add_edges_from(itertools.pairwise(op.name for op in ops if op.stream == "comm"))
        expected: Counter[tuple[str, int, str]] = Counter()
        for place, op in enumerate(ops):
            if op.stream == "comm":
                waiting = nx.descendants(in_order, op.name)
                later = [each for each in ops[place + 1 :] if each.stream == "compute"]
                first = next((number for number, each in enumerate(later) if each.name in waiting), len(later))
                needed_by = later[first].name.removeprefix(f"layer{later[first].layer}.") if later[first:] else ""
                expected[op.name.removeprefix(f"layer{op.layer}."), first, needed_by] += 1
        said: Counter[tuple[str, int, str]] = Counter()
        for each in predict(scenario, [variant])[variant].collectives:
            said[each.name, len(each.next_to), each.needed_by] += each.count
        assert said == expected, variant
