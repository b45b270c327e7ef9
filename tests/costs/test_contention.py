"""What ops ask of their GPU: tiles, channels, and the profile's overlap section."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs import contention
from ladder_sim.costs.collectives.algorithms import DISPATCHES
from ladder_sim.costs.contention import (
    HOLDERS,
    TILE_COLUMNS,
    OverlapParameters,
    collective_sms,
    collective_traffic_bytes,
    gemm_tiles,
    kernel_demand,
)
from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import Demand, Device
from ladder_sim.errors import ProfileError
from ladder_sim.graph.ops import Op, Phase
from ladder_sim.graph.shapes import AttentionShape, ElementwiseShape, GemmShape, Shape
from ladder_sim.graph.sizes import TILE_ROWS, PassInputs
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from tests.support.graphs import build
from tests.support.predict_one import predict_one
from tests.support.shapes import bmm_shape, mla_shape, moe_shape

DEFAULTS = OverlapParameters()
SMS = 132
SIZES = st.integers(1, 40_000)
MESSAGES = st.floats(1.0, 1e10)
ALGORITHMS = sorted(HOLDERS)
IN_SWITCH = {"nvls", "nvls-tree", "nccl-symmetric", "multimem", "fused-norm"}


def gemm(m: int, n: int, k: int) -> GemmShape:
    return GemmShape(m=m, n=n, k=k, weight_element_bytes=2, input_element_bytes=2, output_element_bytes=2)


def attention(q_len: int, **fields: object) -> AttentionShape:
    shape = AttentionShape(
        kernel="flash", batch=2, q_len=q_len, kv_len=1024, heads=8, kv_heads=1, head_dim=128, element_bytes=2
    )
    return dataclasses.replace(shape, **fields)


# tiles


@given(SIZES, SIZES, st.integers(1, 200))
def test_tiles_cover_the_output(m: int, n: int, sms: int) -> None:
    tiles = gemm_tiles(m, n, sms)
    rows = TILE_ROWS[0] if m <= TILE_ROWS[0] else TILE_ROWS[1]
    assert tiles >= 1
    assert tiles * rows * max(TILE_COLUMNS) >= m * n
    # no more than the smallest tiles, each split until the SMs are busy
    smallest = math.ceil(m / rows) * math.ceil(n / min(TILE_COLUMNS))
    assert tiles <= max(smallest, sms)


@given(SIZES, SIZES, st.integers(1, 200))
def test_a_gemm_keeps_half_of_the_sms_busy(m: int, n: int, sms: int) -> None:
    assert 2 * gemm_tiles(m, n, sms) > sms


@given(SIZES, SIZES, st.integers(1, 200))
def test_the_tile_fills_the_waves_as_well_as_any(m: int, n: int, sms: int) -> None:
    def filled(tiles: int) -> float:
        return tiles / (math.ceil(tiles / sms) * sms)

    rows = math.ceil(m / (TILE_ROWS[0] if m <= TILE_ROWS[0] else TILE_ROWS[1]))
    choices = [rows * math.ceil(n / columns) for columns in TILE_COLUMNS]
    assert filled(gemm_tiles(m, n, sms)) >= max(filled(tiles) for tiles in choices) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("m", "n", "tiles"),
    [
        # 70B on 8 GPUs: up, down and out, qkv
        (64, 7168, 112),
        (64, 8192, 128),
        (64, 1280, 80),
        # split in two along the inner dimension: 32 columns tiles of 64, four halves
        (64, 2048, 128),
        # prefill of 1024 tokens: 8 rows of tiles
        (1024, 8192, 256),
        (1024, 7168, 896),
    ],
)
def test_known_tiles(m: int, n: int, tiles: int) -> None:
    assert gemm_tiles(m, n, SMS) == tiles


@given(st.lists(SIZES, min_size=1, max_size=8), SIZES, st.integers(1, 200))
def test_tiles_of_many_sizes_are_those_of_each(rows: list[int], n: int, sms: int) -> None:
    assert gemm_tiles(np.array(rows), n, sms).tolist() == [gemm_tiles(m, n, sms) for m in rows]


def test_grids_by_tokens() -> None:
    """One token is a reduction of many small blocks, a few share a grid of tiles, more run it in waves of clusters."""
    idle = 1 - 128 / SMS
    for m, tiles, spare in ((1, 0, DEFAULTS.memory_spare), (2, 0, idle), (8, 0, idle), (9, 128, idle)):
        use = kernel_demand(gemm(m, 8192, 3584), SMS, DEFAULTS, 0.5)
        assert (use.tiles, use.spare) == (tiles, spare), m
    assert use.scatter == DEFAULTS.scatter
    # in a sweep over batches each has its own
    rows = np.array([1, 2, 8, 9])
    swept = kernel_demand(dataclasses.replace(gemm(1, 8192, 3584), m=rows), SMS, DEFAULTS, 0.5)
    np.testing.assert_array_equal(swept.tiles, [0, 0, 0, 128])
    np.testing.assert_array_equal(swept.spare, [DEFAULTS.memory_spare, *3 * [idle]])


def test_what_a_collective_costs_by_tokens() -> None:
    """Rate of a GEMM of 112 tiles next to 24 channels: all with one token, its share with four, half with many."""
    device, ring = Device(sms=SMS), Demand(held_sms=24)
    one, four, many = (device.rate(kernel_demand(gemm(m, 14336, 8192), SMS, DEFAULTS, 0.0), [ring]) for m in (1, 4, 64))
    assert one == 1.0
    assert four == pytest.approx((SMS - 24) / 112)
    assert many == 0.5
    # 112 tiles fit the 116 SMs that NVLS leaves, but not in clusters
    nvls = Demand(held_sms=collective_sms("nvls", 1e6, DEFAULTS))
    tiled = kernel_demand(gemm(64, 14336, 8192), SMS, DEFAULTS, 0.0)
    assert device.rate(tiled, [nvls]) == 0.5
    assert device.rate(dataclasses.replace(tiled, scatter=0.0), [nvls]) == 1.0


@given(st.integers(2, 4096), st.sampled_from((1280, 6656, 8192, 14336)), st.integers(1, SMS - 1))
def test_a_librarys_gemm_loses_its_share_of_the_sms(m: int, n: int, held_sms: int) -> None:
    """To whichever collective, beyond the SMs that its grid leaves idle; in waves it loses no less."""
    device, kernel = Device(sms=SMS), kernel_demand(gemm(m, n, 8192), SMS, DEFAULTS, 0.0)
    rate = device.rate(kernel, [Demand(held_sms=held_sms)])
    tiles = gemm_tiles(m, n, SMS)
    share = min(1.0, math.ceil(tiles / SMS) * (SMS - held_sms) / tiles)
    assert rate == pytest.approx(share) if m <= DEFAULTS.stream_rows else rate <= share * (1 + 1e-12)


def test_grids_of_experts_and_heads() -> None:
    """By the tokens of an expert: DeepSeek-V3 on 8 ranks has 32 of them, with 32 columns of 128 each."""

    def use(shape: Shape) -> tuple[int, float]:
        demand = kernel_demand(shape, SMS, DEFAULTS, 0.5)
        return demand.tiles, demand.spare

    # 1 - (31 / 32)^m of the experts are taken
    few, some, many = (moe_shape(tokens=tokens, ep=8) for tokens in (1, 32, 16_384))
    assert few.rows_of_expert == pytest.approx(1.0)
    assert use(few)[0] == 0
    assert some.experts_taken == pytest.approx(32 * (1 - (31 / 32) ** 32))
    # 21 experts of two rows stream their weights, 32 of 512 rows run in waves of blocks of 128
    assert use(some) == (0, pytest.approx(1 - 21 * 32 / (6 * SMS)))
    assert use(many)[0] == 32 * 4 * 32
    # shares of the width leave fewer columns
    assert use(moe_shape(tokens=16_384, expert_tp=8))[0] == 256 * 4 * 4
    # heads are as many GEMMs; one row is a reduction of many small blocks
    assert use(bmm_shape(heads=16, m=1)) == (0, DEFAULTS.memory_spare)
    assert use(bmm_shape(heads=16, m=4)) == (0, pytest.approx(1 - 64 / SMS))
    assert use(bmm_shape(heads=16, m=64)) == (64, pytest.approx(1 - 64 / SMS))
    # latent attention as any other
    assert use(mla_shape(batch=4, kv_len=1000)) == (0, DEFAULTS.grid_spare)
    assert use(mla_shape(batch=2, q_len=1000, kv_len=1000, heads=8)) == (128, 1.0)
    # in a sweep over batches each has its own
    swept = kernel_demand(moe_shape(tokens=np.array([1, 32, 16_384]), ep=8), SMS, DEFAULTS, 0.5)
    for number, shape in enumerate((few, some, many)):
        assert (swept.tiles[number], swept.spare[number]) == pytest.approx(use(shape))  # type: ignore[index]


SHAPES = st.one_of(
    st.builds(gemm, st.integers(1, 4096), st.integers(64, 60_000), st.just(8192)),
    st.builds(attention, st.integers(1, 4096), kernel=st.sampled_from(["flash", "math"])),
    st.builds(moe_shape, tokens=st.integers(1, 100_000), ep=st.sampled_from([1, 8, 64])),
    st.builds(bmm_shape, heads=st.integers(1, 128), m=st.integers(1, 4096)),
    st.builds(ElementwiseShape, moved_bytes=st.floats(1.0, 1e10)),
)


@given(SHAPES, st.sampled_from(ALGORITHMS), MESSAGES, MESSAGES, st.floats(0.0, 1.0))
def test_no_collective_speeds_a_kernel_up(
    shape: Shape, algorithm: str, one: float, other: float, memory: float
) -> None:
    """Nor does a larger message of the same algorithm, nor a kernel a collective."""
    device, kernel = Device(sms=SMS), kernel_demand(shape, SMS, DEFAULTS, memory)
    small, large = (
        Demand(held_sms=collective_sms(algorithm, size, DEFAULTS), slowdown=DEFAULTS.collective_slowdown)
        for size in sorted((one, other))
    )
    assert 0.0 < device.rate(kernel, [large]) <= device.rate(kernel, [small]) <= device.rate(kernel, []) == 1.0
    assert 1.0 / (1.0 + DEFAULTS.collective_slowdown) <= device.rate(large, [kernel]) <= 1.0


NOTHING_HELD: Mapping[str, float] = {
    "max_channels": 0.0,
    "nvls_channels": 0.0,
    "ring_traffic": 0.0,
    "nvls_traffic": 0.0,
    "collective_slowdown": 0.0,
}


@pytest.mark.parametrize("nodes", [1, 2])
def test_without_channels_there_is_no_contention(nodes: int) -> None:
    """Neither SMs nor memory taken: kernels and messages run as if alone, and ladder is faster for it."""
    for batch in (1, 4, 16):
        scenario = Scenario(model="405b", dtype="fp8", nodes=nodes, tp=8 * nodes, batch=batch)
        free, shared = (
            predict_one(scenario, "ladder", profile=profile)
            for profile in (with_overlap(**NOTHING_HELD), load_profile("h100-sxm"))
        )
        assert free.breakdown.slowed_s == pytest.approx(0.0, abs=1e-9)
        assert shared.breakdown.slowed_s > 0.0
        assert free.request_s < shared.request_s


def test_attention() -> None:
    def use(shape: AttentionShape) -> tuple[int, float]:
        demand = kernel_demand(shape, SMS, DEFAULTS, 0.5)
        return demand.tiles, demand.spare

    # prefill: two sequences, eight heads, eight blocks of 128 queries
    assert use(attention(1024)) == (128, 1.0)
    assert use(attention(1025)) == (144, 1.0)
    # decode splits the context over a fixed grid; math attention is many small blocks
    assert use(attention(1)) == (0, DEFAULTS.grid_spare)
    assert use(attention(1024, kernel="math")) == (0, DEFAULTS.memory_spare)


def test_elementwise() -> None:
    use = kernel_demand(ElementwiseShape(moved_bytes=1e6), SMS, DEFAULTS, 0.5)
    assert (use.tiles, use.held_sms, use.spare) == (0, 0, DEFAULTS.memory_spare)


# collectives


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(one=MESSAGES, other=MESSAGES)
def test_channels_grow_with_the_message_up_to_a_cap(algorithm: str, one: float, other: float) -> None:
    few, many = (collective_sms(algorithm, size, DEFAULTS) for size in sorted((one, other)))
    cap = {"ring": 24, "tree": 16, "nvls": 16, "multimem": 8, "blocks": 36, "deepep": 20}[HOLDERS[algorithm]]
    assert 1 <= few <= many <= cap
    assert collective_sms(algorithm, 1e12, DEFAULTS) == cap


@given(MESSAGES)
def test_nvls_takes_the_same_at_any_size(message_bytes: float) -> None:
    for algorithm in ("nvls", "nvls-tree"):
        assert collective_sms(algorithm, message_bytes, DEFAULTS) == DEFAULTS.nvls_channels == 16


@pytest.mark.parametrize(
    ("algorithm", "message_bytes", "sms"),
    [
        ("nccl", 1, 1),
        ("nccl", 32768, 1),
        ("nccl", 32769, 2),
        ("nccl", 2**20, 24),
        ("two-shot", 16384, 2),
        ("tree", 1, 1),
        ("tree", 16384, 4),
        ("tree-ll128", 2**17, 16),
    ],
)
def test_known_channels(algorithm: str, message_bytes: float, sms: int) -> None:
    assert collective_sms(algorithm, message_bytes, DEFAULTS) == sms


def test_the_switch_spares_the_memory() -> None:
    assert {collective_traffic_bytes(name, 1e6, DEFAULTS) for name in IN_SWITCH} == {2e6}
    for_experts = {kernel for _, kernel in DISPATCHES}
    assert {collective_traffic_bytes(name, 1e6, DEFAULTS) for name in for_experts} == {2e6}
    ring = set(ALGORITHMS) - IN_SWITCH - for_experts
    assert {collective_traffic_bytes(name, 1e6, DEFAULTS) for name in ring} == {4e6}


# parameters


def test_parameters_of_a_profile_replace_defaults() -> None:
    assert OverlapParameters.of({}) == DEFAULTS
    parameters = OverlapParameters.of({"max_channels": 8.0, "memory_spare": 0.1})
    assert parameters == dataclasses.replace(DEFAULTS, max_channels=8.0, memory_spare=0.1)


@pytest.mark.parametrize("name", ["channels", "max_channel", "", "MAX_CHANNELS"])
def test_unknown_parameters_are_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="unknown") as caught:
        OverlapParameters.of({"max_channels": 8.0, name: 1.0})
    assert f"'{name}'" in caught.value.message
    assert "max_channels" in caught.value.hint


def test_a_profile_with_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ProfileError, match="'channels' is unknown"):
        predict(Scenario(model="8b"), ["standard"], profile=with_overlap(channels=3.0))


def with_overlap(**overlap: float) -> CalibrationProfile:
    return dataclasses.replace(load_profile("h100-sxm"), overlap=overlap)


def priced(scenario: Scenario, phase: Phase, **overlap: float) -> dict[str, tuple[Op, Estimate]]:
    ops = list(build(PassInputs.of(scenario), phase, 1025).ops())
    estimates = KernelCosts(scenario, with_overlap(**overlap)).estimates(ops)
    return {op.name: (op, estimate) for op, estimate in zip(ops, estimates, strict=True)}


def test_a_profiles_overlap_section_reaches_the_demands() -> None:
    scenario = Scenario(model="70b", batch=64)
    before = priced(scenario, "decode")
    after = priced(scenario, "decode", max_channels=3.0, memory_spare=0.125, ring_traffic=8.0, collective_slowdown=0.5)
    for name, (op, estimate) in before.items():
        changed = after[name][1]
        assert changed.seconds == estimate.seconds
        if op.stream == "comm":
            # a message of 64 tokens would take the most channels there are
            assert (estimate.demand.held_sms, changed.demand.held_sms) == (24, 3)
            assert (estimate.demand.slowdown, changed.demand.slowdown) == (0.33, 0.5)
            assert changed.demand.memory == pytest.approx(2 * estimate.demand.memory)
        elif not estimate.demand.tiles:
            assert (estimate.demand.spare, changed.demand.spare) == (0.25, 0.125)
    assert any(estimate.demand.tiles for _, estimate in before.values())


def test_a_network_collective_waits_for_busy_memory_too() -> None:
    """Across nodes the network card reads and writes device memory, where the flags of LL lie."""
    for nodes in (1, 2):
        scenario = Scenario(model="405b", nodes=nodes, gpus_per_node=16 // nodes, tp=16)
        ops = priced(scenario, "decode")
        assert {use.demand.slowdown for op, use in ops.values() if op.stream == "comm"} == {
            DEFAULTS.collective_slowdown
        }


def test_a_profiles_overlap_section_changes_what_overlaps_only() -> None:
    scenario = Scenario(model="70b", batch=64)
    few, many = (
        predict(scenario, ["standard", "ladder"], profile=with_overlap(max_channels=channels))
        for channels in (1.0, 60.0)
    )
    assert few["standard"].request_s == many["standard"].request_s
    assert few["standard"].breakdown.slowed_s == many["standard"].breakdown.slowed_s == pytest.approx(0.0, abs=1e-12)
    assert few["ladder"].request_s < many["ladder"].request_s
    assert few["ladder"].breakdown.slowed_s < many["ladder"].breakdown.slowed_s


@pytest.mark.parametrize("profile", ["none", "h100-sxm"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("batch", [1, 16, 64])
def test_demands_are_possible(profile: str, phase: Phase, batch: int) -> None:
    apart = {"tp": 1, "attention_dp": 8, "ep": 8, "overrides": {"stack.dispatch": "deepep-auto"}}
    for model, stack, plan in (
        ("70b", "gpt-fast", {}),
        ("1b", "vllm", {}),
        ("minimax-m2.5", "vllm", {"ep": 8}),
        ("deepseek-v3", "sglang", apart),
    ):
        if plan and batch < 8:
            continue
        scenario = Scenario(model=model, stack=stack, batch=batch, **plan)  # type: ignore[arg-type]
        costs = KernelCosts(scenario, None if profile == "none" else load_profile(profile))
        ops = list(build(PassInputs.of(scenario), phase, 1025).ops())
        for op, estimate in zip(ops, costs.estimates(ops), strict=True):
            assert 0.0 <= estimate.demand.memory <= 1.0, op.name
            assert 0.0 <= estimate.demand.spare <= 1.0
            if op.stream == "comm":
                assert 1 <= estimate.demand.held_sms < scenario.cluster.gpu.sms
                assert estimate.demand.link == 1.0
            else:
                assert estimate.demand.held_sms == estimate.demand.link == 0
            assert np.isfinite(estimate.seconds)


def test_a_combine_takes_sms_from_the_block_that_it_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of DeepEP as many as it says, whatever the message."""
    plan = {"tp": 1, "attention_dp": 8, "ep": 8, "batch": 512, "overrides": {"stack.dispatch": "deepep-ht"}}
    scenario = Scenario(model="deepseek-v2-lite", stack="sglang", **plan)  # type: ignore[arg-type]
    slowed_s = []
    for sms in (1.0, 20.0, 60.0):
        monkeypatch.setattr(contention, "DEEPEP_SMS", sms)
        slowed_s.append(predict_one(scenario, "ladder", profile="h100-sxm").breakdown.slowed_s)
    assert 0.0 <= slowed_s[0] < slowed_s[1] < slowed_s[2]
