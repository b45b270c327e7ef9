"""The graph of a forward pass: what it computes, in which order, and how many bytes it holds and moves."""

import dataclasses
from collections import Counter
from itertools import product
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.graph.ops import COLLECTIVE_KINDS
from ladder_sim.kernels import AttentionShape, CollectiveShape, GemmShape, Phase
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import ResidualAdd
from ladder_sim.wirings.names import parse
from tests.support.graphs import StepGraph, build
from tests.support.scenarios import VARIANTS, shallow
from tests.support.strategies import EMBEDDING, equation

STACKS = catalog.stack_names()
PHASES: tuple[Phase, ...] = ("prefill", "decode")
BLOCK_OUTPUTS = (".attn.o", ".mlp.down", ".block.o", ".block.down")
NORMS = ("norm", "all_reduce_norm")
# an output, and "sum" or "own": that over all ranks, or the rank's part
Content = tuple[int, str]


def graph_of(variant: str, *, phase: Phase = "decode", kv_len: int = 1025, **scenario: object) -> StepGraph:
    return build(Scenario(**{"model": shallow(5), "tp": 4, "variant": variant, **scenario}), phase, kv_len)


def weight_bytes(graph: StepGraph) -> float:
    return sum(op.weight_bytes for op in graph.ops())


def block_of(name: str, graph: StepGraph) -> int:
    """Number of the block that an op belongs to."""
    prefixes = dict.fromkeys(".".join(each.split(".")[:2]) for each in graph if each.startswith("layer"))
    return list(prefixes).index(".".join(name.split(".")[:2]))


def final_norm(graph: StepGraph) -> str:
    """The op that normalises what the LM head reads."""
    (name,) = graph.predecessors("lm_head")
    return name


def residual_contents(graph: StepGraph) -> dict[str, Counter[Content]]:
    """Which block outputs each op's result holds, followed along the edges of the graph, and whether as sums.

    Adds sum what they are given, norms too (a fused add), a block's last GEMM makes its output, an all-reduce makes
    sums of the rank's own parts, all else passes on.
    """
    contents: dict[str, Counter[Content]] = {}
    for op in graph.ops():
        before = list(graph.predecessors(op.name))
        inputs = [contents[name] for name in before]
        if op.name.endswith(BLOCK_OUTPUTS):
            contents[op.name] = Counter({(block_of(op.name, graph), "own"): 1})
        elif op.kind == "embedding":
            contents[op.name] = Counter({(EMBEDDING, "sum"): 1})
        elif op.name.endswith(".sum"):
            # attention and MLP of one parallel block
            contents[op.name] = inputs[0]
        elif ".add_others" in op.name:
            residual, total, own = inputs
            assert set(own) <= set(residual), op.name
            contents[op.name] = residual + total - own
        elif op.kind == "all_reduce" or (op.kind == "all_reduce_norm" and graph.op(before[-1]).kind != "all_reduce"):
            contents[op.name] = Counter({(j, "sum"): count for (j, _), count in sum(inputs, Counter()).items()})
        else:
            contents[op.name] = sum(inputs, Counter())
    return contents


@pytest.mark.parametrize("variant", VARIANTS)
def test_issue_order_is_topological(variant: str) -> None:
    for stack, phase in product(STACKS, PHASES):
        graph = graph_of(variant, stack=stack, phase=phase)
        assert nx.is_directed_acyclic_graph(graph)
        position = {name: index for index, name in enumerate(graph)}
        assert all(position[before] < position[after] for before, after in graph.edges)
        # everything but the embedding waits for something, and everything but the token is waited for
        assert [name for name in graph if not graph.in_degree(name)] == ["embedding"]
        assert len([name for name in graph if not graph.out_degree(name)]) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_graph_carries_out_the_equations(variant: str) -> None:
    """Residual contents, followed through the built graph: no output lost, none added twice, fused or not."""
    expected = equation(variant, 5)
    for stack, tp in product(STACKS, (1, 4)):
        graph = graph_of(variant, stack=stack, tp=tp)
        contents = residual_contents(graph)
        norms = [op.name for op in graph.ops() if op.kind in NORMS and op.layer >= 0]
        for name, read in zip([*norms, final_norm(graph)], expected, strict=True):
            # one rank has everything; where channels differ, those that are summed are followed
            states = {(j, "own" if state == "own" or (tp == 1 and j >= 0) else "sum") for j, state in read.items()}
            assert contents[name] == Counter(dict.fromkeys(states, 1)), (stack, tp, name)


@given(st.sets(st.integers(0, 4), min_size=1), st.sampled_from(STACKS))
def test_the_graph_carries_out_a_configs_own_ladder_layers(listed: set[int], stack: str) -> None:
    variant = f"hybrid-ladder:{len(listed)}"
    graph = graph_of(variant, model=shallow(5, ladder_layers=tuple(sorted(listed))), stack=stack)
    contents = residual_contents(graph)
    norms = [op.name for op in graph.ops() if op.kind in NORMS and op.layer >= 0]
    for name, read in zip([*norms, final_norm(graph)], equation("ladder", 5, frozenset(listed)), strict=True):
        assert contents[name] == Counter(dict.fromkeys(((j, "sum") for j in read), 1))


def test_ladder_attention_does_not_wait_for_the_all_reduce_it_overlaps() -> None:
    graph = graph_of("ladder")
    before = nx.ancestors(graph, "layer2.mlp.down")
    assert "layer2.attn.all_reduce" not in before
    assert "layer1.mlp.all_reduce" in before
    # standard does wait
    assert "layer2.attn.all_reduce" in nx.ancestors(graph_of("standard"), "layer2.mlp.down")


# weights


@pytest.mark.parametrize("stack", STACKS)
def test_weights_are_the_parameters(stack: str) -> None:
    for name in catalog.model_names():
        spec = catalog.model(name)
        for variant in ("standard", "ladder", "hybrid-ladder:16", "desync:4", "upper-bound"):
            graph = graph_of(variant, model=spec, stack=stack, tp=1, dtype="bf16")
            assert weight_bytes(graph) == 2 * spec.parameters, (name, variant)
        # attention and MLP of a parallel block share one norm, and one behind them
        one_norm_fewer = 2 * (spec.parameters - (2 if spec.block_norms == "both" else 1) * spec.layers * spec.hidden)
        assert weight_bytes(graph_of("parallel", model=spec, stack=stack, tp=1, dtype="bf16")) == one_norm_fewer, name


def test_norms_behind_the_blocks_are_of_their_sums() -> None:
    """A block reads the residual stream as it is, and no norm can add a sum but the last one."""
    model = shallow(5, block_norms="behind")
    graph = graph_of("standard", model=model, tp=8)
    assert weight_bytes(graph_of("standard", model=model, tp=1)) == 2 * model.parameters
    names = [op.name for op in graph.ops()]
    at = names.index("layer1.attn.all_reduce")
    after = ["layer1.mlp.post_norm", "layer1.mlp.add", "layer1.mlp.up"]
    assert names[at + 1 : at + 4] == after
    assert list(graph.predecessors("layer1.mlp.up")) == ["layer1.mlp.add"]
    assert sum(op.kind == "norm" for op in graph.ops()) == 2 * model.layers + 1
    assert names[-4:-2] == ["final.post_norm", "final.norm"]


@given(
    st.sampled_from(["standard", "parallel"]),
    st.sampled_from(PHASES),
    st.fixed_dictionaries(
        dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "gated_mlp", "tied_embeddings"), st.booleans())
    ),
)
def test_weights_with_biases_and_ties(variant: str, phase: Phase, fields: dict[str, bool]) -> None:
    spec = shallow(5, **fields)
    missing_norms = 2 * spec.layers * spec.hidden if variant == "parallel" else 0
    graph = graph_of(variant, model=spec, tp=1, phase=phase)
    assert weight_bytes(graph) == 2 * spec.parameters - missing_norms


@given(st.sampled_from([2, 4, 8, 16, 32]), st.sampled_from(STACKS), st.sampled_from(VARIANTS))
def test_shards_add_up(tp: int, stack: str, variant: str) -> None:
    """All ranks' weights: the model, plus what every rank replicates, plus KV heads that several ranks hold."""
    spec = shallow(5)
    scenario = Scenario(model=spec, stack=stack, tp=tp, nodes=4, variant=variant)
    # attention and MLP of a parallel block share one
    missing = len(parse(variant).layers(spec.layers)) if "parallel" in variant else 0
    replicated = (2 * spec.layers - missing + 1) * spec.hidden
    replicated += 0 if scenario.stack.vocab_parallel else 2 * spec.vocab * spec.hidden
    kv_copies = max(1, tp // spec.kv_heads)
    keys_and_values = spec.layers * 2 * spec.hidden * spec.kv_heads * spec.head_dim
    parameters = spec.parameters - missing * spec.hidden
    expected = parameters + (tp - 1) * replicated + (kv_copies - 1) * keys_and_values
    assert tp * weight_bytes(build(scenario, "decode", 1025)) == 2 * expected


def test_fp8_halves_the_layers_weights_only() -> None:
    bf16, fp8 = graph_of("standard", tp=1), graph_of("standard", tp=1, dtype="fp8")
    for op in bf16.ops():
        assert fp8.op(op.name).weight_bytes == op.weight_bytes / (2 if op.kind == "gemm" else 1)


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    graph = graph_of("standard", model=shallow(5, vocab=1001), stack="vllm", tp=8)
    shape = graph.op("lm_head").shape
    assert isinstance(shape, GemmShape)
    assert shape.n == 126
    assert graph.op("embedding").weight_bytes == 126 * 4096 * 2


# shapes


def test_flops_shard_evenly() -> None:
    """Each rank computes its share of every block (KV heads divide here)."""
    for variant, phase in product(VARIANTS, PHASES):
        shard = graph_of(variant, tp=4, phase=phase)
        for op in graph_of(variant, tp=1, phase=phase).ops():
            if op.kind in ("gemm", "attention"):
                assert op.shape.flops == 4 * shard.op(op.name).shape.flops, (variant, phase, op.name)


def test_variants_compute_the_same() -> None:
    shapes = {
        variant: {op.name: op.shape for op in graph_of(variant).ops() if op.kind in ("gemm", "attention", "lm_head")}
        for variant in VARIANTS
        if "parallel" not in variant
    }
    assert all(of_variant == shapes["standard"] for of_variant in shapes.values())


def test_parallel_runs_wide_gemms() -> None:
    standard, parallel = graph_of("standard"), graph_of("parallel")
    wide = parallel.op("layer3.block.qkv_up").shape
    narrow = [standard.op(f"layer3.{name}").shape for name in ("attn.qkv", "mlp.up")]
    assert isinstance(wide, GemmShape)
    assert wide.n == sum(shape.n for shape in narrow if isinstance(shape, GemmShape))
    gemms = {
        name: sum(op.shape.flops for op in graph.ops() if op.kind == "gemm")
        for name, graph in (("s", standard), ("p", parallel))
    }
    assert gemms["s"] == gemms["p"]


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_split_or_replicated(tp: int, kv_heads: int) -> None:
    graph = graph_of("standard", tp=tp, nodes=4)
    shape = graph.op("layer0.attn.attention").shape
    assert isinstance(shape, AttentionShape)
    assert (shape.kv_heads, shape.heads) == (kv_heads, 32 // tp)
    qkv = graph.op("layer0.attn.qkv").shape
    assert isinstance(qkv, GemmShape)
    assert qkv.n == (32 // tp + 2 * kv_heads) * 128


def test_flash_reads_the_live_context_and_math_the_whole_cache() -> None:
    for stack, decode_kv, prefill_kv in (("vllm", 1030, 1024), ("gpt-fast", 1536, 1536)):
        decode = graph_of("standard", stack=stack, kv_len=1030).op("layer0.attn.attention").shape
        prefill = graph_of("standard", stack=stack, phase="prefill", kv_len=1024).op("layer0.attn.attention").shape
        assert isinstance(decode, AttentionShape)
        assert isinstance(prefill, AttentionShape)
        assert (decode.q_len, decode.kv_len) == (1, decode_kv)
        assert (prefill.q_len, prefill.kv_len) == (1024, prefill_kv)


def test_math_attention_moves_scores_and_reads_every_head() -> None:
    flash = AttentionShape(kernel="flash", batch=2, q_len=1, kv_len=1536, heads=8, kv_heads=1, head_dim=128)
    math = dataclasses.replace(flash, kernel="math")
    cache = 2 * 2 * 1536 * 128 * 2
    assert flash.moved_bytes == cache + 2 * 2 * 8 * 128 * 2
    # five passes over scores of 32 bits; keys and values of each of eight query heads, from the GPU's cache
    assert math.moved_bytes - flash.moved_bytes == 5 * 2 * 8 * 1536 * 4
    assert math.expanded_bytes == 8 * cache
    assert math.flops == flash.flops
    # a whole prompt: flash skips what the causal mask hides
    whole = dataclasses.replace(flash, q_len=1536)
    assert whole.flops == pytest.approx(dataclasses.replace(whole, kernel="math").flops * 1537 / 3072)


def test_prefill_logits_of_all_or_the_last_position() -> None:
    for stack, rows in (("gpt-fast", 4 * 1024), ("vllm", 4)):
        head = graph_of("standard", stack=stack, phase="prefill", kv_len=1024, batch=4).op("lm_head").shape
        assert isinstance(head, GemmShape)
        assert head.m == rows
        decode = graph_of("standard", stack=stack, batch=4).op("lm_head").shape
        assert isinstance(decode, GemmShape)
        assert decode.m == 4


# collectives


def test_one_rank_needs_no_collectives() -> None:
    for variant, stack, phase in product(VARIANTS, STACKS, PHASES):
        graph = graph_of(variant, stack=stack, tp=1, phase=phase)
        assert not [op.name for op in graph.ops() if op.kind in COLLECTIVE_KINDS]
        assert {op.stream for op in graph.ops()} == {"compute"}


@pytest.mark.parametrize(
    ("variant", "count"),
    [
        ("standard", 10),
        ("ladder", 10),
        ("hybrid-ladder:2", 10),
        ("parallel", 5),
        ("desync:1", 10),
        ("desync:2", 5),
        ("desync:3", 4),
        ("desync:10", 1),
        ("upper-bound", 0),
        ("delayed:3", 10),
        ("track:2", 3),
        ("drop:2", 8),
        ("hybrid-parallel:2", 8),
        ("hybrid-track:2:4", 4),
    ],
)
def test_block_all_reduces(variant: str, count: int) -> None:
    for phase, tokens in zip(PHASES, (4 * 1024, 4), strict=True):
        graph = graph_of(variant, phase=phase, batch=4)
        reduced = [op for op in graph.ops() if op.kind == "all_reduce"]
        assert len(reduced) == count
        for op in reduced:
            assert op.shape == CollectiveShape(message_bytes=tokens * 4096 * 2)
            assert op.stream == "comm"


def test_collectives_of_sharded_ends() -> None:
    """Embedding all-reduced, logits gathered; replicas need neither."""
    sharded, replicated = graph_of("standard", stack="vllm", batch=4), graph_of("standard", stack="gpt-fast", batch=4)
    assert sharded.op("embedding.all_reduce").shape == CollectiveShape(message_bytes=4 * 4096 * 2)
    assert sharded.op("lm_head.all_gather").shape == CollectiveShape(message_bytes=4 * 128256 * 2, per_sequence=True)
    assert list(sharded.successors("lm_head")) == ["lm_head.all_gather"]
    assert not {"embedding.all_reduce", "lm_head.all_gather"} & set(replicated)
    assert (sharded.op("lm_head").weight_bytes * 4) == replicated.op("lm_head").weight_bytes


def test_upper_bound_keeps_the_gather_and_broadcasts_the_token() -> None:
    graph = graph_of("upper-bound", stack="vllm", batch=4)
    collectives = {op.name: op.shape for op in graph.ops() if op.kind in COLLECTIVE_KINDS}
    assert list(collectives) == ["lm_head.all_gather", "token.broadcast"]
    assert collectives["token.broadcast"] == CollectiveShape(message_bytes=4 * 8, per_sequence=True, own_type=True)
    assert not [op for op in graph_of("ladder", stack="vllm").ops() if op.kind == "broadcast"]


@pytest.mark.parametrize(
    ("variant", "same_as"),
    [
        *((variant, "standard") for variant in ("desync:1", "delayed:0", "drop:0", "partial:100", "hybrid-desync:1:3")),
        *(("ladder:1", "ladder"), ("hybrid-ladder:5", "ladder"), ("track:1", "desync:2"), ("track:2", "desync:4")),
        # of dense models, whose MLPs all exchange what they put out
        *(("farskip", "ladder"), ("farskip:own", "delayed:1"), ("hybrid-parallel:5", "parallel")),
    ],
)
def test_equal_by_definition(variant: str, same_as: str) -> None:
    for stack, tp, phase in product(STACKS, (1, 4), PHASES):
        one, other = (graph_of(name, stack=stack, tp=tp, phase=phase) for name in (variant, same_as))
        assert [op for _, op in one.nodes(data="op")] == [op for _, op in other.nodes(data="op")]
        assert list(one.edges) == list(other.edges)


def test_one_rank_has_nothing_to_read_late_or_apart() -> None:
    """Its own part is everything, and it sums nothing."""
    standard = graph_of("standard", tp=1)
    for variant in ("delayed:3", "drop:2", "partial:50", "farskip:own", "upper-bound"):
        graph = graph_of(variant, tp=1)
        assert [op for _, op in graph.nodes(data="op")] == [op for _, op in standard.nodes(data="op")], variant
        assert list(graph.edges) == list(standard.edges), variant


def test_delayed_adds_the_own_part_at_once_and_that_of_the_others_later() -> None:
    graph, state = graph_of("delayed:2", stack="vllm"), 4096 * 2
    assert not nx.has_path(graph, "layer2.attn.all_reduce", "layer3.attn.norm")
    # the norm adds the own part, as in standard, and a kernel before it the sum without the own part
    assert set(graph.predecessors("layer3.attn.norm")) == {"layer3.attn.add_others", "layer2.mlp.down"}
    added = {"layer2.mlp.norm", "layer1.mlp.all_reduce", "layer1.mlp.down"}
    assert set(graph.predecessors("layer3.attn.add_others")) == added
    assert graph.op("layer3.attn.add_others").shape.moved_bytes == 4 * state
    assert graph.op("layer3.attn.norm").shape.moved_bytes == 4 * state
    # the last output joins in whole
    assert [name for name in graph if name.startswith("final.")] == [
        *("final.add_others", "final.add_others2", "final.norm")
    ]


def test_drop_reduces_attention_with_the_mlp() -> None:
    graph = graph_of("drop:2", stack="vllm", allreduce="nccl")
    assert "layer2.attn.all_reduce" in graph
    assert "layer3.attn.all_reduce" not in graph
    # the residual that attention read stays: the sum of both is added to it
    assert set(graph.predecessors("layer4.mlp.norm")) == {"layer4.attn.norm", "layer4.attn.o"}
    assert set(graph.predecessors("layer3.mlp.fold")) == {"layer3.attn.o", "layer3.mlp.down"}
    assert set(graph.predecessors("layer4.attn.norm")) == {"layer3.attn.norm", "layer3.mlp.all_reduce"}


@pytest.mark.parametrize(("percent", "channels"), [(50, 2048), (1, 48), (99, 4056)])
def test_partial_reduces_the_first_channels_and_averages_the_others_in_the_end(percent: int, channels: int) -> None:
    """Rounded up to a multiple of 8."""
    graph = graph_of(f"partial:{percent}", batch=4)
    reduced = [op for op in graph.ops() if op.kind == "all_reduce"]
    assert [op.shape for op in reduced[:-1]] == [CollectiveShape(message_bytes=4 * channels * 2)] * 10
    assert list(graph.predecessors("layer1.mlp.all_reduce")) == ["layer1.mlp.slice"]
    assert graph.op("layer1.mlp.slice").shape.moved_bytes == 2 * 4 * channels * 2
    assert reduced[-1].name == "final.all_reduce"
    assert reduced[-1].shape == CollectiveShape(message_bytes=4 * (4096 - channels) * 2)
    assert list(graph.successors("final.all_reduce")) == ["final.norm"]


def test_desync_folds_the_ranks_residual_into_what_it_reduces() -> None:
    graph = graph_of("desync:2")
    assert list(graph.predecessors("layer1.mlp.all_reduce")) == ["layer1.mlp.fold"]
    assert set(graph.predecessors("layer1.mlp.fold")) == {"layer1.mlp.norm", "layer1.mlp.down"}
    # the sum is the new residual: nothing is added to it
    assert list(graph.predecessors("layer2.attn.norm")) == ["layer1.mlp.all_reduce"]
    assert not [op for op in graph_of("desync:2", tp=1).ops() if op.name.endswith(".fold")]


# fusion


@pytest.mark.parametrize(
    ("variant", "residual_add", "adds"),
    [
        # ten joins, the last one before the final norm; ladder joins two there, and a norm can take only one
        ("standard", "compiled", 0),
        ("standard", "apart", 10),
        ("ladder", "compiled", 10),
        ("ladder", "fused", 1),
        ("upper-bound", "compiled", 0),
        # a norm adds the own part, but no sum without it; the last output joins late, in whole
        ("delayed:2", "compiled", 10),
        ("delayed:2", "fused", 9),
        ("delayed:2", "apart", 19),
        # what attention and MLP of two layers put out is summed before
        ("drop:2", "compiled", 2),
        ("drop:2", "apart", 12),
        # the last output joins before the ranks' own channels are averaged
        ("partial:50", "compiled", 1),
        # one add for attention + MLP of each layer
        ("parallel", "compiled", 5),
        ("parallel", "apart", 10),
    ],
)
def test_fused_and_separate_adds(variant: str, residual_add: ResidualAdd, adds: int) -> None:
    graph = graph_of(variant, stack=dataclasses.replace(catalog.stack("gpt-fast"), residual_add=residual_add))
    assert len([op for op in graph.ops() if op.kind == "add"]) == adds


def test_a_fused_norm_also_moves_the_residual() -> None:
    fused, separate = graph_of("standard", stack="sglang"), graph_of("ladder", stack="gpt-fast")
    state = 4096 * 2
    # output and residual read, residual and norm written
    assert fused.op("layer2.mlp.norm").shape.moved_bytes == 4 * state
    assert separate.op("layer2.mlp.norm").shape.moved_bytes == 2 * state
    assert separate.op("layer2.mlp.add").shape.moved_bytes == 3 * state


# one kernel of all-reduce, add and norm


def norms_and_reduces(graph: StepGraph) -> list[tuple[str, str]]:
    return [(op.name, op.kind) for op in graph.ops() if op.kind in (*NORMS, "all_reduce")]


def test_an_all_reduce_whose_sum_is_needed_at_once_is_one_kernel_with_add_and_norm() -> None:
    """vLLM on two GPUs: 64 MiB, that is 8192 tokens of 4096."""
    fields: dict[str, Any] = {"model": shallow(2), "stack": "vllm", "tp": 2}
    graph = graph_of("standard", **fields)
    assert norms_and_reduces(graph) == [
        ("embedding.all_reduce", "all_reduce"),
        ("layer0.attn.norm", "norm"),
        ("layer0.mlp.all_reduce_norm", "all_reduce_norm"),
        ("layer1.attn.all_reduce_norm", "all_reduce_norm"),
        ("layer1.mlp.all_reduce_norm", "all_reduce_norm"),
        ("final.all_reduce_norm", "all_reduce_norm"),
    ]
    # it reads the partial sums and the residual, and what it writes is the next residual
    assert set(graph.predecessors("layer1.attn.all_reduce_norm")) == {"layer0.mlp.down", "layer0.mlp.all_reduce_norm"}
    assert graph.op("layer1.attn.all_reduce_norm").shape == CollectiveShape(message_bytes=4096 * 2)
    separate = graph_of("standard", **fields | {"stack": "vllm@0.16"})
    assert weight_bytes(graph) == weight_bytes(separate)
    assert not any(kind == "all_reduce_norm" for _, kind in norms_and_reduces(separate))


# all-reduces of the engine's own in every wiring
OWN = {"overrides": {"stack.rewired_allreduce": "auto"}}


@pytest.mark.parametrize(
    ("variant", "fields", "fused"),
    [
        # 5 layers of two blocks; parallel has one
        ("standard", {}, 10),
        ("desync:1", {}, 10),
        ("parallel", OWN, 5),
        # as the plug-in runs it, NCCL
        ("parallel", {}, 0),
        # it reads the residual without the last sum, which is reduced meanwhile
        ("ladder", {}, 0),
        # all blocks of the standard layers but the last one, whose sum the first ladder layer does not read
        ("hybrid-ladder:2", OWN, 5),
        # the sum is the residual: nothing is added
        ("desync:2", {}, 0),
        ("upper-bound", {}, 0),
        ("delayed:1", {}, 0),
        # all but two of attention
        ("drop:2", OWN, 8),
        # a share of the channels
        ("partial:50", {}, 0),
        ("standard", {"tp": 1}, 0),
        # a norm of the output lies between
        ("standard", {"model": shallow(5, block_norms="both")}, 0),
        ("standard", {"overrides": {"stack.residual_add": "apart"}}, 0),
        # 2 MiB on 4 GPUs: 256 tokens of 4096
        ("standard", {"batch": 256}, 10),
        ("standard", {"batch": 257}, 0),
        ("standard", {"prompt": 256, "phase": "prefill"}, 10),
        ("standard", {"prompt": 257, "phase": "prefill"}, 0),
        ("standard", {"prompt": 255, "phase": "mixed"}, 10),
        ("standard", {"prompt": 256, "phase": "mixed"}, 0),
        # 512 KiB on 8: 64 tokens
        ("standard", {"tp": 8, "batch": 64}, 10),
        ("standard", {"tp": 8, "batch": 65}, 0),
        ("standard", {"tp": 8, "batch": 65, "allreduce": "fused-norm"}, 10),
        # by name without norms, through host memory, on GPUs and in versions that do not fuse
        ("standard", {"allreduce": "one-shot"}, 0),
        ("standard", {"allreduce": "multimem"}, 0),
        ("standard", {"p2p": False}, 0),
        ("standard", {"cluster": "a100-sxm-hdr"}, 0),
        ("standard", {"cluster": "h100-pcie", "tp": 4}, 0),
        # across the trays of one NVLink domain: 1 MiB on 8, 64 MiB on 16
        ("standard", {"cluster": "gb200-nvl72", "tp": 8, "batch": 128}, 10),
        ("standard", {"cluster": "gb200-nvl72", "tp": 8, "batch": 129}, 0),
        ("standard", {"cluster": "gb200-nvl72", "tp": 16, "batch": 129}, 10),
        ("standard", {"stack": "vllm@0.16"}, 0),
        ("standard", {"stack": "vllm@0.17"}, 10),
        ("standard", {"stack": "sglang"}, 0),
        ("standard", {"stack": "trtllm", "cluster": "a100-sxm-hdr"}, 10),
        ("standard", {"stack": "trtllm", "batch": 977}, 0),
        ("standard", {"stack": "gpt-fast"}, 0),
        ("standard", {"stack": "gpt-fast", "allreduce": "fused-norm"}, 10),
        # across nodes everything is NCCL
        ("standard", {"nodes": 2, "tp": 16, "allreduce": "fused-norm"}, 0),
        ("standard", {"nodes": 2, "tp": 16}, 0),
    ],
)
def test_which_all_reduces_are_fused(variant: str, fields: dict[str, Any], fused: int) -> None:
    graph = graph_of(variant, **{"stack": "vllm", **fields})
    kinds = [kind for _, kind in norms_and_reduces(graph)]
    assert kinds.count("all_reduce_norm") == fused
    apart = [
        kind for _, kind in norms_and_reduces(graph_of(variant, **{"stack": "vllm", **fields, "allreduce": "nccl"}))
    ]
    assert {*apart} <= {"norm", "all_reduce"}
    assert kinds.count("all_reduce") + fused == apart.count("all_reduce")
    assert kinds.count("norm") + fused == apart.count("norm")


def test_names_give_layer_and_stream() -> None:
    for op in (op for variant in VARIANTS for op in graph_of(variant, stack="vllm").ops()):
        assert op.layer == (int(op.name.split(".")[0].removeprefix("layer")) if op.name.startswith("layer") else -1)
        assert (op.stream == "comm") == (op.kind in COLLECTIVE_KINDS)


def test_query_and_key_norms_are_kernels_of_their_own() -> None:
    """Qwen3 normalises each head of its shard before the rotation; Llama does not."""
    graph = build(Scenario(model="qwen3-32b", tp=4), "decode", 100)
    norms = [op for op in graph.ops() if op.name.endswith(("q_norm", "k_norm"))]
    assert len(norms) == 2 * 64
    # 64 query and 8 key heads of 128 on 4 ranks, read and written in 16 bits
    assert {op.shape.moved_bytes for op in norms} == {2 * 16 * 128 * 2, 2 * 2 * 128 * 2}
    assert not any(op.name.endswith("q_norm") for op in build(Scenario(model="70b"), "decode", 100).ops())


def test_tensorrt_llm_normalises_and_rotates_in_one_kernel() -> None:
    """Regression: each layer of Qwen3 had two kernels, and two launches of prompts, that it does not have there."""
    counts = {
        (stack, model): sum(op.name.startswith("layer0.attn") for op in build(scenario, "decode", 100).ops())
        for stack in ("vllm", "trtllm")
        for model in ("qwen3-32b", "llama-3.1-8b", "minimax-m2.5")
        if (scenario := Scenario(model=model, tp=1, stack=stack))
    }
    fewer = {model: counts["vllm", model] - counts["trtllm", model] for _, model in counts}
    assert fewer == {"qwen3-32b": 2, "llama-3.1-8b": 0, "minimax-m2.5": 0}
    held = [
        sum(op.weight_bytes for op in build(Scenario(model="qwen3-32b", stack=stack), "decode", 100).ops())
        for stack in ("vllm", "trtllm")
    ]
    assert held[0] == held[1]
