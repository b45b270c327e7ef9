"""Techniques as rewrites of a pass: what they replace, and that short cuts and engines still agree."""

import dataclasses
from typing import Any

import pytest

from ladder_sim import Scenario, predict, sweep
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.graph.techniques import DECODE_TOKENS, OVERLAPPED_BYTES, PROMPT_TOKENS, QUANTIZED_BYTES, REWRITES
from ladder_sim.kernels import CollectiveShape, Phase
from ladder_sim.kernels.shape import TILE_ROWS
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import simulate
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim.specs.techniques import CONFLICTS, TECHNIQUES, Techniques
from tests.support.graphs import StepGraph, build
from tests.support.predict_one import predict_one
from tests.support.scenarios import VARIANTS as KNOWN

TECHNIQUE_SETS = (
    "fused-norm",
    "token-split",
    "fused-norm+token-split:3",
    "sequence-parallel",
    "sequence-parallel+token-split",
    "gemm-overlap",
    "quantized-allreduce:int4",
    "ideal-overlap",
    "fused-norm+ideal-overlap",
    "quantized-allreduce:fp8+token-split",
    "weight-prefetch",
    "fused-norm+weight-prefetch",
)
# wirings whose ranks keep different residuals, of which none has a share
APART = ("desync", "delayed", "drop", "partial", "track", "farskip")
VARIANTS = (*KNOWN, "ladder:4", "delayed:2", "drop:4", "partial:50", "track:2", "farskip")
PHASES: tuple[Phase, ...] = ("prefill", "decode")


def graph_of(variant: str, technique: str, *, phase: Phase = "decode", **fields: Any) -> StepGraph:
    scenario = Scenario(**{"model": "8b", "stack": "vllm", **fields}, variant=variant, technique=technique)
    return build(scenario, phase, scenario.workload.prompt if phase == "prefill" else 64)


@pytest.mark.parametrize("technique", TECHNIQUE_SETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_short_cuts_and_engines_agree(variant: str, technique: str) -> None:
    """Layers left out are equal to those kept, and event by event on simpy a pass takes as long."""
    if any(name in variant for name in APART) and ("sequence" in technique or "gemm" in technique):
        return
    for stack in ("vllm", "gpt-fast"):
        scenario = Scenario(model="8b", stack=stack, tp=8, prompt=8192, variant=variant, technique=technique)
        costs = KernelCosts(scenario, resolve_profile(scenario, None))
        for phase in PHASES:
            few, every = (simulate(scenario, phase, 8192, costs, keep=keep) for keep in (3, 1000))
            assert few.seconds == pytest.approx(every.seconds, rel=1e-9)
            events = simulate(scenario, phase, 8192, costs, engine="des")
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


def test_parts_take_turns_block_by_block() -> None:
    graph = graph_of("standard", "token-split", prompt=1200, phase="prefill", stack="vllm@0.16")
    names = list(graph.nodes)
    blocks = [name for name in names if name.startswith("layer1.") and "all_reduce" in name]
    assert blocks == [f"layer1.{part}.all_reduce[{turn}]" for part in ("attn", "mlp") for turn in (1, 2)]
    # the second part's attention runs next to the first one's all-reduce, and reads what that left in the cache
    order = [names.index(f"layer1.attn.{name}") for name in ("all_reduce[1]", "norm[2]", "all_reduce[2]")]
    assert order == sorted(order)
    assert names.index("layer1.attn.all_reduce[2]") < names.index("layer1.mlp.norm[1]")
    assert set(graph.predecessors("layer1.attn.attention[2]")) == {"layer1.attn.rope[1]", "layer1.attn.rope[2]"}
    # whole tiles first
    tokens = [graph.op(f"layer1.mlp.up[{turn}]").shape.m for turn in (1, 2)]
    assert tokens == [512, 688]
    first, second = (graph.op(f"layer1.attn.attention[{turn}]").shape for turn in (1, 2))
    assert (first.q_len, first.kv_len, second.q_len, second.kv_len) == (512, 512, 688, 1200)
    whole = build(Scenario(model="8b", stack="vllm", prompt=1200), "prefill", 1200).op("layer1.attn.attention").shape
    assert first.flops + second.flops == pytest.approx(whole.flops)
    assert set(graph.predecessors("lm_head")) == {"final.norm[1]", "final.norm[2]"}


@pytest.mark.parametrize(
    ("phase", "fields", "parts"),
    [
        ("decode", {"batch": 31}, (31,)),
        ("decode", {"batch": 33}, (17, 16)),
        ("prefill", {"prompt": 511}, (511,)),
        ("prefill", {"prompt": 512}, (256, 256)),
        ("prefill", {"prompt": 512, "batch": 3}, (768, 768)),
        ("mixed", {"prompt": 510, "batch": 2}, (256, 256)),
    ],
)
def test_small_passes_are_not_split(phase: Phase, fields: dict[str, Any], parts: tuple[int, ...]) -> None:
    graph = graph_of("standard", "token-split", phase=phase, **fields)
    assert tuple(op.shape.m for op in graph.ops() if op.name.startswith("layer1.mlp.up")) == parts


def test_weights_are_read_for_each_part() -> None:
    """Decode waits for memory: over links without delay it is faster whole."""
    fields: dict[str, Any] = {"model": "8b", "tp": 2, "stack": "vllm", "batch": 32, "gen": 8}
    whole, split = (predict_one(Scenario(**fields, technique=name)) for name in ("none", "token-split"))
    assert split.tpot_s > 1.2 * whole.tpot_s


def test_exact_techniques_do_not_beat_communication_and_norms_for_nothing() -> None:
    for fields in (
        {"model": "70b", "prompt": 8192},
        {"model": "8b", "tp": 2, "batch": 64, "prompt": 256},
        {"model": "70b", "cluster": "l40s-pcie", "stack": "sglang", "prompt": 2048, "dtype": "fp8"},
        {"model": "mixtral-8x7b", "batch": 4, "prompt": 1024},
    ):
        for technique in TECHNIQUE_SETS:
            if "quantized" in technique or ("fused" in technique and "cluster" in fields):
                continue
            scenario = Scenario(**{"stack": "vllm", "gen": 4, **fields}, technique=technique)
            predictions = predict(scenario, ["standard", "ladder"], ignore_memory=True)
            free = predict(Scenario(**{"stack": "vllm", "gen": 4, **fields}), ["upper-bound"], ignore_memory=True)[
                "upper-bound"
            ]
            norms_s = free.request.breakdown.busy_s["norm"]
            for prediction in predictions.values():
                assert prediction.request_s > 0.995 * (free.request_s - norms_s), (fields, technique)


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
        own, asked = predict(Scenario(**fields)), predict(Scenario(**fields, technique="fused-norm"))
        assert asked["standard"].tpot_s == pytest.approx(own["standard"].tpot_s, rel=1e-12)


def test_sequence_parallel_is_the_one_of_the_plan() -> None:
    fields: dict[str, Any] = {"model": "8b", "stack": "vllm", "tp": 4, "batch": 8, "gen": 4}
    technique = predict_one(Scenario(**fields, technique="sequence-parallel"), "ladder")
    assert technique.request_s == predict_one(Scenario(**fields, sp=True), "ladder").request_s


def test_gemms_and_collectives_chunk_by_chunk() -> None:
    """The longer of both, a chunk of the other, and an event for each of them; what ranks sent is added up."""
    fields: dict[str, Any] = {"model": "8b", "stack": "vllm", "tp": 4, "prompt": 4096, "gen": 1}
    plain, overlapped = (
        predict_one(Scenario(**fields, technique=name)).request.prefill.ops
        for name in ("sequence-parallel", "gemm-overlap")
    )
    before, after = ({op.op.name: op for op in ops} for ops in (plain, overlapped))
    assert sorted(after.keys() - before.keys()) == sorted(
        f"{op.op.name}.sum" for op in plain if op.op.kind == "reduce_scatter"
    )
    assert before.keys() <= after.keys()
    for collective, gemm in (
        ("layer1.attn.reduce_scatter", "layer1.attn.o"),
        ("layer1.mlp.all_gather", "layer1.mlp.up"),
        ("layer1.mlp.reduce_scatter", "layer1.mlp.down"),
    ):
        own_s, gemm_s = before[collective].seconds, after[gemm].seconds
        expected_s = max(0.0, own_s - gemm_s) + min(own_s, gemm_s) / 4 + 4e-6
        assert after[collective].seconds == pytest.approx(expected_s, rel=0.02)
        # each chunk reads all weights
        whole, chunked = before[gemm].op, after[gemm].op
        assert chunked.shape == dataclasses.replace(whole.shape, chunks=4, duty=chunked.shape.duty)
        costs = KernelCosts(Scenario(**fields), None)
        quarter = dataclasses.replace(whole, shape=dataclasses.replace(whole.shape, m=whole.shape.m // 4))
        chunked_s, quarter_s = (estimate.seconds for estimate in costs.estimates([chunked, quarter]))
        assert chunked_s == pytest.approx(4 * quarter_s)
    # 4 chunks of 8 MiB
    names = {
        tokens: [op.kind for op in graph_of("standard", "gemm-overlap", tp=4, batch=tokens).ops()]
        for tokens in (4095, 4096)
    }
    assert "reduce_scatter" not in names[4095]
    assert "reduce_scatter" in names[4096]


def test_experts_run_as_they_are() -> None:
    """What feeds a router and sorted tokens, and what experts feed, is exchanged whole."""
    fields: dict[str, Any] = {"model": "qwen3-235b-a22b", "stack": "vllm", "tp": 8, "prompt": 8192, "gen": 1}
    plain, overlapped = (
        {op.op.name: op.seconds for op in predict_one(Scenario(**fields, technique=name)).request.prefill.ops}
        for name in ("sequence-parallel", "gemm-overlap")
    )
    for name in ("layer1.mlp.all_gather", "layer1.mlp.reduce_scatter"):
        assert overlapped[name] == pytest.approx(plain[name])
    assert overlapped["layer1.attn.reduce_scatter"] < plain["layer1.attn.reduce_scatter"]


def test_a_layer_overlaps_ideally() -> None:
    """It takes the longer of its kernels and its collectives."""
    for cluster, tp in (("h100-sxm", 8), ("l40s-pcie", 8)):
        fields: dict[str, Any] = {
            "model": "8b",
            "cluster": cluster,
            "stack": "vllm",
            "tp": tp,
            "prompt": 4096,
            "gen": 1,
        }
        apart, ideal = (
            predict_one(Scenario(**fields, technique=name)).request.prefill for name in ("none", "ideal-overlap")
        )
        comm_s = apart.breakdown.comm_s
        longer_s = max(comm_s, apart.seconds - comm_s)
        assert longer_s * 0.97 < ideal.seconds < longer_s * 1.05
        assert ideal.breakdown.slowed_s == pytest.approx(0.0, abs=1e-9)


def test_quantised_all_reduces() -> None:
    """Of 2 MiB or more; fewer bits take less time, and the reader is warned."""
    fields: dict[str, Any] = {"model": "8b", "cluster": "l40s-pcie", "stack": "vllm", "tp": 4}
    for tokens, kernel in ((255, ""), (256, "int8")):
        graph = graph_of("standard", "quantized-allreduce", batch=tokens, **fields)
        shapes = [op.shape for op in graph.ops() if op.name == "layer1.mlp.all_reduce"]
        assert shapes == [CollectiveShape(message_bytes=tokens * 8192.0, kernel=kernel)]
    ttft_s = {}
    for bits in ("int8", "fp8", "int4"):
        scenario = Scenario(**fields, technique=f"quantized-allreduce:{bits}")
        assert any("is lossy" in line for line in scenario_warnings(scenario))
        ttft_s[bits] = predict_one(scenario).ttft_s
    assert ttft_s["int4"] < ttft_s["int8"] == ttft_s["fp8"] < predict_one(Scenario(**fields)).ttft_s


def test_what_is_quantised_is_not_fused() -> None:
    """On two H100s vLLM fuses all-reduces of up to 64 MiB by itself."""
    for tokens, kind, kernel in ((255, "all_reduce_norm", ""), (256, "all_reduce", "int8")):
        ops = graph_of("standard", "quantized-allreduce", tp=2, batch=tokens).ops()
        (op,) = [op for op in ops if op.name in ("layer1.mlp.all_reduce", "layer2.attn.all_reduce_norm")]
        assert (op.kind, op.shape.kernel) == (kind, kernel)


def test_parts_are_quantised_by_their_own_size() -> None:
    for tokens, kernel in ((511, ""), (512, "int8")):
        graph = graph_of("standard", "quantized-allreduce+token-split", cluster="l40s-pcie", tp=4, batch=tokens)
        assert graph.op("layer1.mlp.all_reduce[1]").shape.kernel == kernel


def test_what_cannot_be_combined() -> None:
    for pair in CONFLICTS:
        first, second = sorted(pair)
        with pytest.raises(UsageError, match="cannot be combined"):
            Techniques.of([first, second])
        assert pair <= set(TECHNIQUES)
    with pytest.raises(UsageError, match="no all-reduce is left"):
        Scenario(model="8b", tp=2, sp=True, technique="quantized-allreduce")
    with pytest.raises(UsageError, match="in turn"):
        Scenario(model="8b", tp=2, pp=2, technique="token-split")
    with pytest.raises(UsageError, match="of their own node"):
        Scenario(model="8b", nodes=2, technique="quantized-allreduce")


def test_names() -> None:
    assert Techniques.of(["Fused-Norm"]).name == "fused-norm"
    assert Techniques.of("none").chosen == Techniques.of([]).chosen == ()
    with pytest.raises(UnknownNameError, match="technique 'fused'"):
        Techniques.of("fused")
    with pytest.raises(UsageError, match="given twice"):
        Techniques.of("fused-norm+fused-norm")
    assert {*REWRITES} == {*TECHNIQUES, "own-fused-norm"}
    for technique in TECHNIQUES.values():
        assert technique.summary
        assert technique.limit != bool(technique.needs)
        # of weight-prefetch no engine is known
        assert not (technique.limit and technique.support)


def test_what_techniques_are_said_to_need_is_what_passes_are_asked_for() -> None:
    for name, least_bytes in (("gemm-overlap", OVERLAPPED_BYTES), ("quantized-allreduce", QUANTIZED_BYTES)):
        assert f" {least_bytes / 2**20:.0f} MiB" in TECHNIQUES[name].needs
    assert f"at most {TILE_ROWS} tokens" in TECHNIQUES["weight-prefetch"].needs
    said = f"prompts of {PROMPT_TOKENS} tokens, or {DECODE_TOKENS} requests that decode"
    assert TECHNIQUES["token-split"].needs == said


@pytest.mark.parametrize(
    ("variant", "blocks"),
    # of 32 layers; the head's is no GEMM of a block, and ladder waits for none of them at once
    [("standard", 63), ("hybrid-ladder:8", 47), ("ladder", 0), ("parallel", 31)],
)
def test_weights_are_read_ahead_where_an_all_reduce_is_waited_for(variant: str, blocks: int) -> None:
    scenario = Scenario(model="8b", stack="vllm", tp=4, technique="weight-prefetch")
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    scenario = scenario.having(variant=variant)
    layout = simulate(scenario, "decode", 64, costs, keep=1000).schedule.layout
    ahead = {gemm for gemms in layout.prefetching.values() for gemm in gemms}
    kinds = [kind for like, kind in zip(layout.same_as, layout.kinds, strict=True) if like in ahead]
    assert kinds == ["gemm"] * blocks
    # a prompt multiplies longer than it reads
    assert not simulate(scenario, "prefill", 1024, costs).schedule.layout.prefetching


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "glm-4.5-air"])
def test_shared_experts_that_run_next_to_routed_ones_are_not_read_ahead(model: str) -> None:
    """Their GEMM may be the first behind an all-reduce; `versus` of DeepSeek-V3 ended in a KeyError."""
    scenario = Scenario(model=model, stack="vllm", tp=2, technique="weight-prefetch")
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    layout = simulate(scenario, "decode", 64, costs, keep=1000).schedule.layout
    beside = {*layout.next_to, *(other for others in layout.next_to.values() for other in others)}
    ahead = {gemm for gemms in layout.prefetching.values() for gemm in gemms}
    assert beside
    assert ahead
    assert not beside & ahead


def test_weights_read_ahead_shorten_their_gemm_by_what_the_cache_and_the_all_reduce_allow() -> None:
    """The law of `op_times`: what is read ahead costs half as much later, and delays the all-reduce meanwhile."""

    def decode_s(technique: str, **settings: float) -> float:
        overrides = {f"gpu.{name}": value for name, value in settings.items()}
        scenario = Scenario(model="70b", stack="vllm", gen=2, technique=technique, overrides=overrides)
        return float(predict_one(scenario).tpot_s)

    plain_s = decode_s("none")
    small = {size: plain_s - decode_s("weight-prefetch", l2_bytes=size) for size in (1e6, 2e6, 1e9, 1e10)}
    # as long as the cache is the limit, each byte gains as much
    assert small[2e6] == pytest.approx(2.0 * small[1e6], rel=1e-6)
    assert small[2e6] > 0.0
    # in 159 GEMMs of which none gains more than half of half the cache at the memory's rate
    assert small[2e6] <= 159 * 0.5 * 0.5 * 2e6 / 3.35e12
    # then the time of the all-reduce and the GEMM's own weights are
    assert small[1e10] == pytest.approx(small[1e9])
    bound = predict(Scenario(model="70b", stack="vllm", gen=2), ["upper-bound"])["upper-bound"].tpot_s
    assert bound is not None
    assert bound < plain_s - small[1e9] < plain_s


def test_a_cache_of_unknown_size_is_refused() -> None:
    with pytest.raises(UsageError, match="L2 cache is not known") as caught:
        Scenario(model="8b", cluster="mi300x", technique="weight-prefetch")
    assert caught.value.hint == "--set gpu.l2=50MB"
    assert Scenario(model="8b", cluster="mi300x", technique="weight-prefetch", overrides={"gpu.l2": "50MB"})


def test_one_gpu_has_nothing_to_fuse() -> None:
    scenario = Scenario(model="8b", tp=1, technique="fused-norm")
    assert any("changes nothing: one GPU" in line for line in scenario_warnings(scenario))
    assert predict_one(scenario).request_s == predict_one(Scenario(model="8b", tp=1)).request_s


def test_sweeps_and_searches_take_them() -> None:
    points = sweep(None, {"model": "8b", "stack": "vllm", "tp": "1,2", "batch": "1,16", "technique": "none,fused-norm"})
    assert points.feasible.all()
    for tp, technique, batch, ttft_s in zip(
        points["tp"], points["technique"], points["batch"], points["standard.ttft_s"], strict=True
    ):
        scenario = Scenario(model="8b", stack="vllm", tp=int(tp), batch=int(batch), technique=str(technique))
        assert ttft_s == pytest.approx(predict_one(scenario).ttft_s, rel=1e-8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": 2}, "NCCL's"),
        ({"cluster": "l40s-pcie"}, "^technique 'fused-norm' needs an NVLink switch"),
    ],
)
def test_where_there_is_nothing_to_fuse(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predict(Scenario(**{"model": "8b", "stack": "vllm", **fields}, technique="fused-norm"))


def test_fewer_channels_are_quantised_by_their_own_size() -> None:
    """Regression: half of the channels are 1 MiB, where a whole message has the 2 MiB from which it pays."""
    fields: dict[str, Any] = {"model": "8b", "cluster": "l40s-pcie", "stack": "vllm", "tp": 4, "gen": 2, "prompt": 1}
    for batch, variant, quantizes in ((256, "partial:50", False), (512, "partial:50", True), (256, "standard", True)):
        plain_s, asked_s = (
            predict_one(Scenario(**fields, batch=batch, technique=name), variant).tpot_s
            for name in ("none", "quantized-allreduce")
        )
        assert (asked_s != pytest.approx(plain_s, rel=1e-9)) == quantizes, (batch, variant)
    batches = sweep(None, {**fields, "batch": "256,512", "technique": "quantized-allreduce"}, ["partial:50"])
    for batch, tpot_s in zip(batches["batch"], batches["partial:50.tpot_s"], strict=True):
        scenario = Scenario(**fields, batch=int(batch), technique="quantized-allreduce")
        assert tpot_s == pytest.approx(predict_one(scenario, "partial:50").tpot_s, rel=1e-8)


def test_stages_overlap_ideally() -> None:
    """What one stage sends runs next to the first layer of the next, and nothing exact gains more."""
    fields: dict[str, Any] = {"model": "8b", "stack": "vllm", "tp": 2, "pp": 2, "prompt": 4096, "gen": 1}
    prefills = {
        name: predict(Scenario(**fields, technique=name), ["standard", "ladder"])
        for name in ("none", "ideal-overlap", "fused-norm", "sequence-parallel", "gemm-overlap")
    }
    ideal = prefills["ideal-overlap"]["standard"].request.prefill
    (sent,) = [each for each in ideal.collectives if each.name.endswith("send")]
    assert sent.hidden_s == pytest.approx(sent.seconds)
    apart = prefills["none"]["standard"].request.prefill
    assert ideal.slowest_stage == pytest.approx(apart.slowest_stage, rel=1e-3)
    for name, predictions in prefills.items():
        for prediction in predictions.values():
            assert ideal.seconds <= prediction.ttft_s * (1 + 1e-9), (name, prediction.variant)
