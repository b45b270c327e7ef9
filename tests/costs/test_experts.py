"""Times of routed experts and latent attention: measured ones, and those of layers that were not measured."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.experts import ANY_LAYER, experts_table, over, transferred
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import MEASURED_FALL, KernelCosts
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.graph.ops import Op
from ladder_sim.hf.quantization import DType
from ladder_sim.kernels import TABLE_KINDS, Experts, MoeShape, Shape
from ladder_sim.specs.workload import FORMATS
from tests.support.scenarios import SERVING
from tests.support.shapes import bmm_shape, mla_shape, moe_shape
from tools.profiles.aiconfigurator import SYSTEMS

SMALL = Experts("bf16", 1024, 512, 16, 2)
SPLITS = {"expert_tp": [1.0, 2.0, 4.0], "ep": [1.0, 2.0, 4.0]}
GPUS = tuple(SYSTEMS.values())
ENGINES = ("", "-vllm", "-trtllm", "-sglang")
# published layers of experts that no engine was measured on: DeepSeek-V2-Lite, V2, GLM-4.5, GLM-4.5-Air
UNMEASURED = ((2048, 1408, 64, 6), (5120, 1536, 160, 6), (5120, 1536, 160, 8), (4096, 1408, 128, 8))


def made_up(ratio: float, tokens: list[float] | None = None) -> RatioTable:
    axes = {**SPLITS, "tokens": tokens or [1.0, 16.0, 256.0]}
    shape = [len(values) for values in axes.values()]
    return RatioTable.from_seconds(axes, np.full(shape, ratio), np.ones(shape))


def sized(dtype: DType, **sizes: Any) -> MoeShape:
    return moe_shape(format=FORMATS[dtype].name, **sizes)


def estimate(shape: Shape, **scenario: Any) -> Estimate:
    given = Scenario(**{"model": "70b", "stack": "vllm", **scenario})
    profile = load_profile(f"{given.cluster.profile}{'-' if given.stack.engine else ''}{given.stack.engine}")
    (only,) = KernelCosts(given, profile).estimates([Op(name="experts", kind="gemm", shape=shape)])
    return only


def test_every_shape_is_what_its_coordinates_in_its_table_say() -> None:
    gpu = load_profile("h100-sxm").reference
    for shape in (
        sized("fp8-block", tokens=48, ep=4, expert_tp=2, imbalance="balanced"),
        mla_shape(batch=3, kv_len=700, heads=16),
        mla_shape(batch=3, q_len=700, kv_len=700, heads=16, kv_element_bytes=1),
        bmm_shape(m=7, heads=4),
    ):
        lookup = shape.lookup
        assert lookup is not None
        looked_up = TABLE_KINDS[lookup.kind].shape(lookup.of, lookup.point)
        assert float(looked_up.roofline_s(gpu)) == pytest.approx(float(shape.roofline_s(gpu)))


def test_a_layer_like_a_measured_one_takes_its_ratio() -> None:
    """Twice the experts of half the width, at twice the tokens and EP, is the same work for every rank."""
    alike = SMALL._replace(width=256, experts=32)
    other = Experts("bf16", 1024, 512, 512, 2)
    table = transferred(alike, {SMALL: made_up(2.0), other: made_up(8.0)})
    ratio, in_range = table.ratio(expert_tp=1, ep=4, tokens=16)
    # the other one, with 16 times as many experts, has little say
    assert 2.0 < ratio < 2.2
    assert not in_range
    assert table.beyond == "transferred"


def test_a_layer_that_a_tuner_missed_is_near_its_roofline() -> None:
    """Guards against 53 ms a token for Llama 4 Scout in fp8, where reading all weights takes 16."""
    for stack in SERVING:
        scenario = Scenario(model="llama-4-scout", dtype="fp8", tp=2, stack=stack, batch=16, gen=16)
        prediction = predict(scenario, ["standard"], ignore_memory=True)["standard"]
        assert prediction.tpot_s == pytest.approx(0.0165, rel=0.05)


def test_layers_that_are_as_near_count_alike() -> None:
    lower, higher = SMALL._replace(hidden=512), SMALL._replace(hidden=2048)
    table = transferred(SMALL, {lower: made_up(2.0), higher: made_up(8.0)})
    assert table.factor(expert_tp=2, ep=1, tokens=16) == pytest.approx(4.0)


def test_another_imbalance_is_a_factor() -> None:
    factor = RatioTable.from_seconds(
        {"expert_tp": [1.0], "ep": [1.0, 4.0], "tokens": [1.0, 256.0]}, [[[1.0, 0.8], [0.5, 0.4]]], 1.0
    )
    measured = {SMALL: made_up(2.0), ANY_LAYER._replace(experts=16, top_k=2, imbalance="balanced"): factor}
    balanced = experts_table(SMALL._replace(imbalance="balanced"), measured)
    assert balanced is not None
    ratio, in_range = balanced.ratio(expert_tp=2, ep=4, tokens=256)
    assert ratio == pytest.approx(2.0 * 0.4)
    assert not in_range
    assert balanced.beyond == "fitted"
    # nothing is known of the other one
    skewed = experts_table(SMALL._replace(imbalance="power-law-1.2"), measured)
    assert skewed is measured[SMALL]


def test_a_format_that_was_not_measured_has_no_table() -> None:
    assert experts_table(SMALL._replace(format="nvfp4"), {SMALL: made_up(2.0)}) is None


def test_splits_that_an_engine_was_not_measured_with_are_those_of_others() -> None:
    others = made_up(2.0)
    seconds = others.seconds.copy() / 2
    seconds[1] = np.nan
    own = RatioTable.from_seconds(dict(zip(others.names, others.axes, strict=True)), seconds, 1.0)
    table = over(own, others)
    assert table.factor(expert_tp=[1, 2], ep=2, tokens=16) == pytest.approx([1.0, 2.0])
    assert table.ratio(expert_tp=[1, 2], ep=2, tokens=16)[1].tolist() == [True, False]


def every_profile() -> Iterator[str]:
    for gpu in GPUS:
        for engine in ENGINES:
            yield gpu + engine


def test_every_gpu_and_engine_prices_every_layer_near_its_roofline() -> None:
    """Neither a fault of the collection nor a kernel that no engine takes is left.

    With EP the slowest rank has several times the work of the mean one, which the roofline has.
    """
    for name in every_profile():
        profile = load_profile(name)
        for key, table in profile.moe.experts.items():
            assert np.isfinite(table.log_ratio).all(), (name, key)
            if key.format:
                ratio = np.exp(table.log_ratio)
                assert (ratio > 0.3).all(), (name, key)
                assert (ratio[:, table.axes[1] == 1] < 12).all(), (name, key)
                assert (ratio[:, table.axes[1] <= 8] < 35).all(), (name, key)
        for layer in UNMEASURED:
            made = profile.moe.experts_table(Experts("bf16", *layer))
            assert made is not None
            assert np.isfinite(made.log_ratio).all()


def test_no_engine_is_above_the_median_of_its_gpu() -> None:
    """In particular TensorRT-LLM's fp8 blocks on Blackwell, measured with a kernel that it does not take by itself."""
    for gpu in GPUS:
        median = load_profile(gpu).moe.experts
        for engine in ENGINES[1:]:
            own = load_profile(gpu + engine).moe.experts
            assert own.keys() == median.keys()
            for key, table in own.items():
                measured = np.isfinite(table.seconds)
                assert (table.seconds[measured] <= median[key].seconds[measured] * (1 + 1e-9)).all(), (gpu, engine, key)


def test_latent_attention_splits_the_context_of_one_sequence() -> None:
    """TensorRT-LLM's kernel on RTX PRO 6000, L40S and A100 does not: others are not priced by it."""
    for gpu in GPUS:
        if table := load_profile(gpu).moe.tables["mla_decode"].get("bf16"):
            one, many = (
                float(table.factor(batch=batch, heads=16, kv_len=4096, latent=512, rope=64))
                * float(mla_shape(batch=batch, heads=16, kv_len=4096).roofline_s(load_profile(gpu).reference))
                for batch in (1, 16)
            )
            assert many > 1.2 * one, gpu
    assert "bf16" not in load_profile("a100-sxm").moe.tables["mla_decode"]
    assert "bf16" in load_profile("a100-sxm-trtllm").moe.tables["mla_decode"]


def test_experts_take_longer_with_more_tokens_and_less_time_on_more_ranks() -> None:
    tokens = [1, 8, 64, 512, 4096]
    times = [float(estimate(sized("fp8-block", tokens=count)).seconds) for count in tokens]
    assert times == sorted(times)
    for split in ("ep", "expert_tp"):
        parts = [float(estimate(sized("fp8-block", tokens=256, **{split: ranks})).seconds) for ranks in (1, 2, 4, 8)]
        assert parts == sorted(parts, reverse=True)


def test_the_slowest_rank_takes_longer_where_tokens_choose_unevenly() -> None:
    of = {"tokens": 4096, "ep": 8}
    even, measured, uneven = (
        float(estimate(sized("fp8-block", imbalance=imbalance, **of)).seconds)
        for imbalance in ("balanced", "power-law-1.01", "power-law-1.2")
    )
    assert even < measured < uneven


@pytest.mark.parametrize(
    ("shape", "scenario", "source"),
    [
        (sized("fp8-block", tokens=64), {}, "measured"),
        (sized("fp8-block", tokens=64), {"stack": "gpt-fast"}, "measured"),
        (sized("fp8-block", tokens=64, experts=64), {}, "transferred"),
        (sized("fp8-block", tokens=64), {"overrides": {"gpu.hbm_bandwidth": "4TB/s"}}, "transferred"),
        (sized("fp8-block", tokens=64, imbalance="balanced"), {}, "fitted"),
        # unpacked to 16 bits, at the rates of w4a16
        (sized("nvfp4", tokens=64), {}, "transferred"),
        (mla_shape(batch=8, kv_len=2048, heads=16), {"stack": "trtllm"}, "measured"),
        (mla_shape(batch=8, kv_len=2048, heads=16), {"stack": "vllm"}, "transferred"),
        (mla_shape(q_len=2048, kv_len=2048, heads=16), {"stack": "trtllm"}, "measured"),
        # measured in another form than servers take
        (mla_shape(q_len=2048, kv_len=2048, heads=16), {"stack": "sglang"}, "transferred"),
        (mla_shape(batch=8, kv_len=2048, heads=16, latent=256), {"stack": "trtllm"}, "fitted"),
        (bmm_shape(m=8, heads=16), {}, "measured"),
        (bmm_shape(m=8, heads=16, n=128, k=512), {}, "measured"),
    ],
    ids=str,
)
def test_where_a_time_comes_from(shape: Shape, scenario: dict[str, Any], source: str) -> None:
    priced = estimate(shape, **scenario)
    assert priced.source == source
    assert 0 < priced.seconds < 1


def test_a_chunk_of_a_prompt_takes_its_share_of_the_whole() -> None:
    whole = estimate(mla_shape(q_len=4096, kv_len=4096, heads=16), stack="trtllm")
    chunk = estimate(
        mla_shape(q_len=np.array([1024]), kv_len=(4096 + 1024) / 2, heads=16, shares_step=True), stack="trtllm"
    )
    assert float(np.atleast_1d(chunk.seconds)[0]) == pytest.approx(float(whole.seconds) / 4)


def test_blocks_of_scales_are_not_split() -> None:
    """MiniMax-M2.5 on 8 ranks would have 192 columns of an expert each: whole experts are priced, as carried over."""
    layer = {"hidden": 3072, "width": 1536, "experts": 256, "top_k": 8, "tokens": 40}
    for stack in ("vllm", "trtllm"):
        split, whole = (
            estimate(sized("fp8-block", **layer, expert_tp=tp, ep=8 // tp), cluster="h200-sxm", stack=stack)
            for tp in (8, 1)
        )
        assert split.seconds == whole.seconds
        assert split.source == "transferred"
        halves, quarters = (
            estimate(sized("fp8-block", **layer, expert_tp=tp, ep=1), cluster="h200-sxm", stack=stack) for tp in (2, 4)
        )
        assert halves.seconds > quarters.seconds
        assert quarters.source != "transferred"


def test_products_of_heads_in_fp8_blocks_are_priced_as_plain_fp8() -> None:
    """Their own tables have neither; what engines multiply is fp8 (DeepSeek-R1: 0.5 ms of a step of 11 ms)."""
    plain, blocks, wide = (
        estimate(bmm_shape(m=4, heads=16, format=FORMATS[dtype].name), cluster="h200-sxm", stack="trtllm").seconds
        for dtype in ("fp8", "fp8-block", "bf16")
    )
    # a stand-in's times do not fall with the rows
    assert blocks == pytest.approx(plain, rel=MEASURED_FALL - 1.0)
    assert plain != pytest.approx(wide, rel=0.1)


def test_padded_experts_take_as_long_for_a_few_tokens_as_for_many() -> None:
    """DeepGEMM's layout in vLLM 0.12: 128 rows for every expert of a rank, in fp8 blocks on Hopper."""
    layer = {"hidden": 4096, "width": 1536, "experts": 128, "top_k": 8}
    padded, usual = "vllm@0.12", "vllm@0.13"
    where = {"cluster": "h200-sxm"}

    def seconds(stack: str, tokens: int, dtype: DType = "fp8-block", **given: Any) -> float:
        split = {"ep": given.pop("ep", 2), "expert_tp": 1}
        return float(estimate(sized(dtype, **layer, **split, tokens=tokens), stack=stack, **{**where, **given}).seconds)

    assert seconds(padded, 16) == pytest.approx(seconds(padded, 4), rel=0.02)
    assert seconds(usual, 16) > 1.5 * seconds(usual, 4)
    # 64 experts of 128 rows: 53 GFLOP of a layer at 0.45 of 1,979 TFLOP/s, and what small kernels move
    multiplied_s = 6 * 128 * 64 * 4096 * 1536 / (0.45 * 1979e12)
    assert multiplied_s < seconds(padded, 4) < 1.25 * multiplied_s
    assert seconds(padded, 4, ep=4) == pytest.approx(seconds(padded, 4) / 2, rel=0.1)
    # neither other formats nor other GPUs
    assert seconds(padded, 4, "bf16") == seconds(usual, 4, "bf16")
    assert seconds(padded, 4, cluster="b200-sxm") == seconds(usual, 4, cluster="b200-sxm")


def test_factors_of_a_stack_are_those_of_attention_and_of_gemms() -> None:
    single, several = bmm_shape(m=1, heads=16), bmm_shape(m=4, heads=16)
    token, prompt = mla_shape(kv_len=500, heads=16), mla_shape(q_len=500, kv_len=500, heads=16)
    for shape, factor in (
        (single, "gemv_factor"),
        (several, "gemm_factor"),
        (token, "attention_factor"),
        (prompt, "prompt_factor"),
    ):
        scenario = Scenario(model="deepseek-v3", tp=8, stack="trtllm")
        hardware = Hardware.of(scenario)
        doubled = dataclasses.replace(hardware, stack=dataclasses.replace(hardware.stack, **{factor: 2.0}))
        usual, twice = (
            KernelCosts(scenario, None, each).estimates([Op(name="", kind="gemm", shape=shape)])[0].seconds
            for each in (hardware, doubled)
        )
        assert twice == pytest.approx(2.0 * usual), factor
