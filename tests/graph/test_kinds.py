"""Layers of every kind under every plan: weights, cache and messages are those of the model."""

import itertools
import math
from typing import Any, get_args

import networkx as nx
import pytest

from ladder_sim.costs.memory import memory_use, weight_bytes
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import COLLECTIVE_KINDS, Op
from ladder_sim.kernels import AttentionShape, CollectiveShape, MoeShape
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import Dispatch
from tests.support.graphs import StepGraph, build

GIB = 2**30
SPARSE = [name for name in catalog.model_names() if catalog.model(name).experts]


def graph_of(phase: str = "decode", **arguments: object) -> StepGraph:
    return build(Scenario(**{"stack": "vllm", "tp": 1, **arguments}), phase, 1025)  # type: ignore[arg-type]


def collectives(graph: StepGraph) -> list[Op]:
    return [op for op in graph.ops() if op.kind in COLLECTIVE_KINDS]


@pytest.mark.parametrize("name", SPARSE)
def test_weights_and_cache_of_every_phase_are_the_parameters(name: str) -> None:
    model = catalog.model(name)
    for phase in ("prefill", "decode", "mixed"):
        graph = graph_of(phase, model=name, dtype="bf16")
        assert sum(op.weight_bytes for op in graph.ops()) == 2 * model.parameters, phase


@pytest.mark.parametrize("name", catalog.model_names())
def test_a_step_reads_the_cache_that_is_held(name: str) -> None:
    """What a further token of context adds to both is that of the layers that attend to all of them."""
    model, length = catalog.model(name), 100_000
    blocks = [block for kind in model.kinds for block in kind.blocks]
    caches = [cache for block in blocks for cache in block.caches(1)]
    states = sum(block.state_bytes(1) for block in blocks)
    token = 2 * sum(elements for window, elements in caches if not window)
    assert all(0 <= window < length for window, _ in caches)
    one = {"model": model, "tp": 1, "dtype": "bf16", "kv_dtype": "bf16", "stack": "vllm", "batch": 3, "gen": 1}
    # within every window
    every = 2 * sum(elements for _, elements in caches)
    assert memory_use(Scenario(**one, prompt=99)).kv_cache_bytes == 3 * (100 * every + states)
    held = [memory_use(Scenario(**one, prompt=length + more)).kv_cache_bytes for more in (0, 1)]
    assert held[1] - held[0] == 3 * token
    # what an index chooses grows by its own keys alone
    cores = [core for block in blocks for core in getattr(block, "cores", (block,))]
    if any(getattr(core, "index", None) or getattr(core, "every", 1) > 1 for core in cores):
        return
    graphs = [build(Scenario(**one), "decode", length + more) for more in (0, 1)]
    read = [sum(op.shape.moved_bytes for op in graph.ops() if op.kind == "attention") for graph in graphs]
    assert read[1] - read[0] == 3 * token


def test_published_sizes_of_checkpoints() -> None:
    """Gpt-oss: table 1 of its model card (arXiv 2508.10925); DeepSeek-V3: 671 GB in fp8 without its further layer."""
    for name, gib in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        assert weight_bytes(Scenario(model=name, tp=1)) / GIB == pytest.approx(gib, rel=0.01)
    assert weight_bytes(Scenario(model="deepseek-v3", tp=1)) == pytest.approx(671e9, rel=0.01)


@pytest.mark.parametrize("name", SPARSE)
def test_ranks_hold_the_model_between_them(name: str) -> None:
    """Some of it several times: norms, the router, the latent projections, the embedding."""
    model = catalog.model(name)
    whole = weight_bytes(Scenario(model=name, tp=1, dtype="bf16", stack="gpt-fast"))
    for plan in ({"tp": 8}, {"tp": 8, "ep": 8}, {"tp": 2, "attention_dp": 4, "ep": 8, "batch": 4}, {"tp": 8, "ep": 2}):
        scenario = Scenario(model=name, dtype="bf16", stack="gpt-fast", **plan)  # type: ignore[arg-type]
        assert whole <= 8 * weight_bytes(scenario) < 1.35 * whole + 8 * 4 * model.vocab * model.hidden, plan
    # the same bytes, whole experts or a share of each
    by_width, by_expert = (Scenario(model=name, tp=8, ep=ep, dtype="bf16") for ep in (1, 8))
    biases = 7 / 8 * model.mlp_bias * 2 * model.hidden * model.experts * model.layers
    assert weight_bytes(by_width) == pytest.approx(weight_bytes(by_expert) + biases, rel=1e-12)


def test_the_latent_cache_is_on_every_rank() -> None:
    sizes = [memory_use(Scenario(model="deepseek-v3", tp=tp, kv_dtype="bf16")).kv_cache_bytes for tp in (1, 8)]
    assert sizes[0] == sizes[1] == 61 * 576 * 2 * 1536


def test_a_window_bounds_the_cache() -> None:
    """Half of gpt-oss' layers keep 128 tokens; a static cache keeps all."""
    arguments = {"model": "gpt-oss-20b", "tp": 1, "prompt": 1000, "gen": 24, "kv_dtype": "bf16"}
    token = 2 * 8 * 64 * 2
    assert memory_use(Scenario(**arguments, stack="vllm")).kv_cache_bytes == 12 * token * (1024 + 128)  # type: ignore[arg-type]
    assert memory_use(Scenario(**arguments, stack="gpt-fast")).kv_cache_bytes == 24 * token * 1024  # type: ignore[arg-type]


@pytest.mark.parametrize(("q_len", "kv_len", "window"), [(1, 500, 128), (1, 50, 128), (300, 300, 128), (40, 200, 128)])
def test_tokens_in_a_window(q_len: int, kv_len: int, window: int) -> None:
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 64}
    shape = AttentionShape(kernel="flash", q_len=q_len, kv_len=kv_len, window=window, **sizes)  # type: ignore[arg-type]
    seen = [min(position, window) for position in range(kv_len - q_len + 1, kv_len + 1)]
    assert shape.attended == pytest.approx(sum(seen) / q_len)
    unbounded = AttentionShape(kernel="flash", q_len=q_len, kv_len=kv_len, window=10**6, **sizes)  # type: ignore[arg-type]
    plain = AttentionShape(kernel="flash", q_len=q_len, kv_len=kv_len, **sizes)  # type: ignore[arg-type]
    assert unbounded.attended == pytest.approx(plain.attended)
    assert unbounded.moved_bytes == plain.moved_bytes


def test_experts_of_a_rank_under_each_plan() -> None:
    """Their tokens are those of all ranks that meet in them."""
    for plan, tokens, parts in (
        ({"tp": 8}, 16, (8, 1)),
        ({"tp": 8, "ep": 8}, 16, (1, 8)),
        ({"attention_dp": 8, "ep": 8}, 16, (1, 8)),
        ({"tp": 2, "attention_dp": 4, "ep": 4}, 16, (2, 4)),
        ({"tp": 4, "dp": 2}, 8, (4, 1)),
        ({"tp": 4, "pp": 2}, 8, (4, 1)),
    ):
        graph = graph_of(model="deepseek-v3", batch=16, **plan)  # type: ignore[arg-type]
        shapes = {op.shape for op in graph.ops() if isinstance(op.shape, MoeShape)}
        (shape,) = shapes
        assert (shape.tokens, shape.expert_tp, shape.ep) == (tokens, *parts), plan


def test_messages_of_each_plan() -> None:
    """TP and EP: an all-reduce a block; data-parallel attention: its experts' tokens are gathered and scattered."""
    model, hidden = "qwen3-30b-a3b", 2048
    plain = collectives(graph_of(model=model, tp=8, batch=16, stack="gpt-fast"))
    assert [op.kind for op in plain] == ["all_reduce"] * 96
    assert collectives(graph_of(model=model, tp=8, ep=8, batch=16, stack="gpt-fast")) == plain
    apart = collectives(graph_of(model=model, attention_dp=8, ep=8, batch=16, stack="gpt-fast"))
    assert [op.kind for op in apart] == ["all_gather", "reduce_scatter"] * 48
    assert {op.shape for op in apart} == {CollectiveShape(message_bytes=16 * hidden * 2, group="experts")}
    both = collectives(graph_of(model=model, tp=2, attention_dp=4, ep=8, batch=16, stack="gpt-fast"))
    assert [op.kind for op in both] == ["all_reduce", "all_gather", "reduce_scatter", "all_reduce"] * 48
    assert {op.shape.message_bytes for op in both if op.kind == "all_reduce"} == {4 * hidden * 2}


def test_tokens_go_to_their_experts_by_the_stacks_kernel() -> None:
    """A rank's own tokens, once for each of their eight experts; kernels are told 16 bits and send fewer."""
    model, hidden = "qwen3-30b-a3b", 2048
    for dispatch, kernels in (
        ("deepep-ll", ("deepep-ll", "deepep-ll")),
        ("deepep-ht", ("deepep-ht", "deepep-ht")),
        ("deepep-auto", ("deepep-ll", "deepep-ht")),
        ("nvlink-two-sided", ("nvlink-two-sided", "nvlink-two-sided")),
        ("all-to-all", ("", "")),
    ):
        for phase, kernel in zip(("decode", "mixed"), kernels, strict=True):
            for dtype, element_bytes in (("bf16", 2), ("nvfp4", 0.5625 if dispatch == "all-to-all" else 2)):
                plan = {"attention_dp": 8, "ep": 8, "batch": 16, "prompt": 98}
                chosen = {"overrides": {"stack.dispatch": dispatch}, "dtype": dtype}
                first, last = collectives(graph_of(phase, model=model, **plan, **chosen))[:2]
                kinds = ("all_to_all", "all_to_all") if dispatch == "all-to-all" else ("dispatch", "combine")
                assert (first.kind, last.kind) == kinds
                tokens = 2 if phase == "decode" else 100
                for op, size in ((first, element_bytes), (last, 2)):
                    message = CollectiveShape(message_bytes=tokens * 8 * hidden * size, group="experts", kernel=kernel)
                    assert op.shape == message, (dispatch, phase, dtype)


def test_quantised_tokens_are_gathered() -> None:
    sizes = {
        dtype: collectives(graph_of(model="qwen3-30b-a3b", attention_dp=8, ep=8, batch=8, dtype=dtype))[0].shape
        for dtype in ("bf16", "nvfp4")
    }
    assert sizes["nvfp4"].message_bytes == 0.5625 / 2 * sizes["bf16"].message_bytes


DISPATCHES = get_args(Dispatch)


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_a_ladder_hides_the_combine_not_the_dispatch(variant: str, dispatch: str) -> None:
    overrides = {"stack.dispatch": dispatch}
    graph = graph_of(model="qwen3-30b-a3b", attention_dp=8, ep=8, batch=8, variant=variant, overrides=overrides)
    combine = "layer4.mlp.combine"
    # the router comes first
    assert nx.has_path(graph, "layer4.mlp.router", "layer4.mlp.dispatch")
    assert nx.has_path(graph, "layer4.mlp.dispatch", "layer4.mlp.experts")
    assert nx.has_path(graph, combine, "layer5.attn.qkv") is (variant == "standard")
    assert nx.has_path(graph, combine, "layer5.mlp.experts")


def test_shared_experts_need_no_message() -> None:
    """With tokens of their own ranks need not wait for the others' sums to run them."""
    graph = graph_of(model="deepseek-v3", attention_dp=8, ep=8, batch=8, variant="ladder")
    assert not nx.has_path(graph, "layer5.mlp.combine", "layer5.mlp.shared.down")
    assert set(graph.predecessors("layer5.mlp.combine.shared_add")) == {"layer5.mlp.combine", "layer5.mlp.shared.down"}


@pytest.mark.parametrize("variant", ["standard", "ladder", "parallel", "desync:4"])
def test_stages_send_the_residual_and_what_is_not_joined(variant: str) -> None:
    graph = graph_of(model="8b", tp=2, pp=4, batch=4, variant=variant, stack="gpt-fast")
    sends = [op for op in graph.ops() if op.kind == "send"]
    assert [op.layer for op in sends] == [8, 16, 24]
    tensors = {"standard": 2, "parallel": 2, "ladder": 3}
    if variant in tensors:
        assert {op.shape.message_bytes for op in sends} == {tensors[variant] * 4096 * 2}
    for earlier, later in itertools.pairwise(("layer7", "layer8")):
        assert nx.has_path(graph, f"{earlier}.{'block' if variant == 'parallel' else 'mlp'}.norm", f"{later}.send")
    # nothing else leads from one stage to the next
    without = graph.copy()
    without.remove_nodes_from([op.name for op in sends])
    assert not nx.has_path(without, "embedding", "sample")


def test_a_stage_holds_its_layers() -> None:
    whole = weight_bytes(Scenario(model="70b", tp=8))
    stages = weight_bytes(Scenario(model="70b", nodes=2, tp=8, pp=2))
    ends = 2 * 128_256 * 8192
    # the embedding is in the first, the LM head in the last
    assert stages == pytest.approx((whole - 2 * ends) / 2 + ends, rel=1e-6)
    cache = [memory_use(Scenario(model="70b", nodes=2, tp=8, pp=pp)).kv_cache_bytes for pp in (1, 2)]
    assert cache[1] == cache[0] / 2


def test_sequence_parallelism_splits_all_reduces_and_norms() -> None:
    plain, split = (graph_of(model="8b", tp=8, batch=4, stack="gpt-fast", sp=sp) for sp in (False, True))
    message = 4 * 4096 * 2
    assert {op.shape for op in collectives(split)} == {CollectiveShape(message_bytes=message)}
    # one more gathers what the LM head reads
    assert [op.kind for op in collectives(split)] == ["all_gather", "reduce_scatter"] * 64 + ["all_gather"]
    assert split.op("layer3.mlp.norm").shape.moved_bytes == plain.op("layer3.mlp.norm").shape.moved_bytes / 8
    assert sum(op.weight_bytes for op in split.ops()) == sum(op.weight_bytes for op in plain.ops())
    with pytest.raises(UsageError, match="variant 'desync:4' in sequence parallel"):
        graph_of(model="8b", tp=8, sp=True, variant="desync:4")


def test_norms_over_all_heads_exchange_squares() -> None:
    graph = graph_of(model="minimax-m2.5", tp=8, batch=4, stack="gpt-fast")
    assert graph.op("layer0.attn.qk_all_reduce").shape == CollectiveShape(message_bytes=4 * 8, own_type=True)
    assert "layer0.attn.qk_all_reduce" not in graph_of(model="minimax-m2.5", tp=8, variant="upper-bound")


def test_every_fourth_layer_of_llama_4_is_not_rotated() -> None:
    """Its queries are scaled instead, neither they nor keys are normalised, and it attends to all tokens."""
    scout, maverick = (graph_of(model=f"llama-4-{name}", tp=8, nodes=2, dtype="fp8") for name in ("scout", "maverick"))
    for layer in range(48):
        own = {op.name.removeprefix(f"layer{layer}.attn.") for op in scout.ops() if op.layer == layer}
        nope = layer % 4 == 3
        assert {"q_scale", "cache_write"} <= own if nope else {"q_norm", "k_norm", "rope"} <= own
        assert not own & ({"q_norm", "k_norm", "rope"} if nope else {"q_scale", "cache_write"})
        window = scout.op(f"layer{layer}.attn.attention").shape.window
        assert window == (0 if nope else 8192)
    assert "layer3.attn.q_scale" in maverick
    assert not any(op.name.endswith("q_norm") for op in maverick.ops())
    # as much is moved
    moved = [
        maverick.op(f"layer{name}").shape.moved_bytes
        for name in ("2.attn.rope", "3.attn.q_scale", "3.attn.cache_write")
    ]
    assert moved[0] == moved[1] + moved[2]


def test_parts_in_16_bits() -> None:
    graph = graph_of(model="gpt-oss-20b")
    formats = {name: graph.op(f"layer0.{name}").shape.format for name in ("attn.qkv", "attn.o", "mlp.experts")}
    assert formats == {"attn.qkv": "bf16", "attn.o": "bf16", "mlp.experts": "mxfp4"}
    # another precision than the checkpoint's is that of all parts
    other = graph_of(model="gpt-oss-20b", dtype="fp8")
    assert other.op("layer0.attn.qkv").shape.format == "fp8"
    assert math.isclose(other.op("lm_head").weight_bytes, graph.op("lm_head").weight_bytes)


def test_farskip_reads_shared_experts_at_once_and_routed_ones_a_block_later() -> None:
    plan: dict[str, Any] = {"model": "deepseek-v3", "nodes": 8, "batch": 64, "attention_dp": 64, "ep": 64}
    graph = graph_of(**plan, variant="farskip")
    assert set(graph.predecessors("layer9.attn.norm")) == {"layer9.attn.add", "layer8.mlp.shared.down"}
    assert set(graph.predecessors("layer9.mlp.norm")) == {"layer9.attn.norm", "layer8.mlp.combine"}
    # its own experts' part too, and later what the combine has besides
    own = graph_of(**plan, variant="farskip:own")
    assert "layer8.mlp.experts" in own.predecessors("layer9.attn.add")
    needed = {"layer9.attn.norm", "layer8.mlp.combine", "layer8.mlp.experts"}
    assert set(own.predecessors("layer9.mlp.add_others")) == needed


@pytest.mark.parametrize(("variant", "tensors"), [("standard", 2), ("ladder", 3), ("delayed:2", 7), ("drop:80", 2)])
def test_a_stage_sends_sums_on_their_way_and_own_parts_read_ahead(variant: str, tensors: int) -> None:
    graph = graph_of(model="70b", tp=4, pp=2, variant=variant)
    assert graph.op("layer40.send").shape == CollectiveShape(message_bytes=tensors * 8192 * 2, group="stages")
