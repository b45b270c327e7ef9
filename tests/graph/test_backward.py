"""The graph of a training step: a forward pass, and the same graph backward."""

import networkx as nx

from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.layout import Layout
from ladder_sim.graph.pass_kernels import PassKernels
from ladder_sim.graph.roles import Gradient
from ladder_sim.graph.shapes import AttentionShape, GemmShape
from ladder_sim.specs.scenario import Scenario
from tests.support.scenarios import shallow

SCENARIO = Scenario.of(model="8b", tp=8, stack="vllm", prompt=512, gen=1)
KERNELS = PassKernels(PassInputs.of(SCENARIO), "prefill", 512)


def step(variant: str, rewrite: str = "backward") -> Layout:
    return KERNELS.layout(variant, (rewrite,))


def needed(layout: Layout, name: str) -> set[str]:
    graph = nx.DiGraph()
    for op, after in zip(layout.names, layout.after, strict=True):
        graph.add_edges_from((layout.names[before], op) for before in after)
    return set(nx.ancestors(graph, name))


def test_the_gradient_of_a_late_sum_is_as_late() -> None:
    # the all-reduce before a block's backward pass, and the GEMM that the pass before it ends with
    reduced, gemm = "layer9.attn.all_reduce.backward", "layer9.mlp.up.backward"
    assert gemm in needed(step("standard"), reduced)
    assert gemm not in needed(step("ladder"), reduced)
    assert "layer10.attn.qkv.backward" in needed(step("ladder"), reduced)
    assert "layer10.attn.qkv.backward" not in needed(step("ladder:2"), reduced)


def test_every_gemm_has_two_gradients_and_every_all_reduce_has_one() -> None:
    layout = step("standard")
    ops = list(zip(KERNELS.ops(layout), (layout.roles[like] for like in layout.same_as), strict=True))
    forward = [op for op, role in ops if not isinstance(role, Gradient)]
    backward = [op for op, role in ops if isinstance(role, Gradient)]

    def flops(kind: type) -> list[float]:
        return [sum(op.shape.flops for op in half if isinstance(op.shape, kind)) for half in (forward, backward)]

    assert flops(GemmShape)[1] == 2 * flops(GemmShape)[0] > 0
    assert flops(AttentionShape)[1] == 2.5 * flops(AttentionShape)[0] > 0
    reduces = [sum(op.kind == "all_reduce" for op in half) for half in (forward, backward)]
    # and the embedding's
    assert reduces == [2 * SCENARIO.model.layers + 1] * 2
    assert all(op.weight_bytes == 0 for op in backward)


def test_sequence_parallel_collectives_change_places() -> None:
    kernels = PassKernels(PassInputs.of(Scenario.of(model="8b", tp=8, sp=True, stack="vllm")), "prefill", 512)
    layout = kernels.layout("standard", ("backward",))
    kinds = dict(zip(layout.names, layout.kinds, strict=True))
    assert kinds["layer3.mlp.all_gather.backward"] == "reduce_scatter"
    assert kinds["layer3.mlp.reduce_scatter.backward"] == "all_gather"


def test_the_first_gradient_of_weights_runs_next_to_the_all_reduce() -> None:
    names = step("standard").names
    at = {name: number for number, name in enumerate(names)}
    order = ["layer3.mlp.up.backward", "layer3.attn.all_reduce.backward", "layer3.mlp.up.weights"]
    assert order == sorted(order, key=at.__getitem__)
    assert at["layer3.mlp.down.weights"] < at["layer3.mlp.up.backward"]


def test_so_it_does_where_a_block_reads_the_residual_as_it_is() -> None:
    model = shallow(5, block_norms="behind")
    kernels = PassKernels(PassInputs.of(Scenario.of(model=model, tp=8, stack="vllm")), "prefill", 512)
    names = kernels.layout("standard", ("backward",)).names
    at = {name: number for number, name in enumerate(names)}
    order = ["layer3.mlp.up.backward", "layer3.attn.all_reduce.backward", "layer3.mlp.up.weights"]
    assert order == sorted(order, key=at.__getitem__)


def test_recomputed_layers_run_twice_without_what_only_others_need() -> None:
    again = [name for name in step("standard", "backward:recompute").names if name.endswith(".again")]
    assert "layer3.mlp.up.again" in again
    assert "layer3.attn.all_reduce.again" in again
    assert "layer3.mlp.all_reduce.again" not in again
