"""What ops ask of their GPU: SMs, steps through memory, and the profile's overlap section."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs import kernels
from ladder_sim.costs.collectives.algorithms import DISPATCHES
from ladder_sim.costs.estimate import (
    CLUSTERED,
    HOST_ROUND_TRIP_S,
    KERNELS,
    Estimate,
    OverlapParameters,
    collective_sms,
    collective_traffic_bytes,
    kernel_demand,
    memory_steps,
)
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import Demand, Device
from ladder_sim.errors import ProfileError
from ladder_sim.graph.ops import COLLECTIVE_KINDS, Op, PassInputs
from ladder_sim.kernels import AttentionShape, ElementwiseShape, GemmShape, Phase, Shape
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from tests.support.graphs import build
from tests.support.predict_one import predict_one
from tests.support.shapes import bmm_shape, mla_shape, moe_shape

DEFAULTS = OverlapParameters()
SMS = 132
MESSAGES = st.floats(1.0, 1e10)
ALGORITHMS = sorted(KERNELS)
KINDS = sorted(COLLECTIVE_KINDS)
IN_SWITCH = {"nvls", "nvls-tree", "nccl-symmetric", "multimem", "fused-norm"}


def gemm(m: int, n: int, k: int) -> GemmShape:
    return GemmShape(m=m, n=n, k=k)


def attention(q_len: int, **fields: object) -> AttentionShape:
    shape = AttentionShape(kernel="flash", batch=2, q_len=q_len, kv_len=1024, heads=8, kv_heads=1, head_dim=128)
    return dataclasses.replace(shape, **fields)


# kernels


def delay(shape: Shape, memory: float = 1.0) -> float:
    return float(kernel_demand(shape, DEFAULTS, memory, 0.0).delay)


def test_what_a_kernel_delays_a_step_by() -> None:
    """A library's GEMM of several rows more than other kernels, of which a reduction of one row is one."""
    assert DEFAULTS.gemm_delay > DEFAULTS.kernel_delay
    many, one = gemm(64, 8192, 3584), gemm(1, 8192, 3584)
    # one token's experts have one row each, whatever part of how many
    parts = [moe_shape(tokens=1, experts=experts, top_k=6, ep=ep) for experts in (64, 160) for ep in (1, 8)]
    others = (
        attention(1),
        attention(1024),
        attention(1, kernel="math"),
        mla_shape(),
        ElementwiseShape(moved_bytes=1e6),
    )
    for shape in (many, gemm(2, 8192, 3584), bmm_shape(m=2), moe_shape(tokens=2)):
        assert delay(shape) == DEFAULTS.gemm_delay
    for shape in (one, bmm_shape(m=1), dataclasses.replace(many, chunks=64), *parts, *others):
        assert delay(shape) == DEFAULTS.kernel_delay, shape
    # in a sweep over batches each has its own
    swept = kernel_demand(dataclasses.replace(one, m=np.array([1, 2, 64])), DEFAULTS, np.array([1.0, 1.0, 0.5]), 0.0)
    np.testing.assert_array_equal(swept.delay, [delay(one), delay(many), delay(many, 0.5)])


SHAPES = st.one_of(
    st.builds(gemm, st.integers(1, 4096), st.integers(64, 60_000), st.just(8192)),
    st.builds(attention, st.integers(1, 4096), kernel=st.sampled_from(["flash", "math"])),
    st.builds(moe_shape, tokens=st.integers(1, 100_000), ep=st.sampled_from([1, 8, 64])),
    st.builds(bmm_shape, heads=st.integers(1, 128), m=st.integers(1, 4096)),
    st.builds(ElementwiseShape, moved_bytes=st.floats(1.0, 1e10)),
)


@given(SHAPES, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_kernel_delays_by_its_share_of_the_memory(shape: Shape, memory: float, arithmetic: float) -> None:
    use = kernel_demand(shape, DEFAULTS, memory, arithmetic)
    assert use.delay == pytest.approx(memory * delay(shape))
    assert DEFAULTS.lost <= use.lost <= CLUSTERED
    assert (use.memory, use.held_sms, use.waits) == (memory, 0, 0)


def test_a_gemm_loses_more_sms_the_more_it_is_bound_by_arithmetic() -> None:
    """From half of what is held to its neighbours as well; other kernels lose half."""
    shape = gemm(512, 8192, 3584)
    lost = [float(kernel_demand(shape, DEFAULTS, 0.8, arithmetic).lost) for arithmetic in (0.0, 0.2, 0.4, 0.8, 1.0)]
    assert lost == sorted(lost)
    assert (lost[0], lost[-2:]) == (DEFAULTS.lost, [CLUSTERED, CLUSTERED])
    assert kernel_demand(attention(1024), DEFAULTS, 0.1, 1.0).lost == DEFAULTS.lost


@given(SHAPES, st.sampled_from(ALGORITHMS), MESSAGES, MESSAGES, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_no_collective_speeds_a_kernel_up(
    shape: Shape, algorithm: str, one: float, other: float, memory: float, arithmetic: float
) -> None:
    """Nor does a larger message of the same algorithm, nor a kernel a collective."""
    device, kernel = Device(sms=SMS), kernel_demand(shape, DEFAULTS, memory, arithmetic)
    small, large = (
        Demand(held_sms=collective_sms(algorithm, size, DEFAULTS), waits=1.0) for size in sorted((one, other))
    )
    assert 0.0 < device.rate(kernel, [large]) <= device.rate(kernel, [small]) <= device.rate(kernel, []) == 1.0
    assert 1.0 / (1.0 + DEFAULTS.gemm_delay) <= device.rate(large, [kernel]) <= 1.0


NOTHING_HELD: Mapping[str, float] = {
    "max_channels": 0.0,
    "nvls_channels": 0.0,
    "ring_traffic": 0.0,
    "nvls_traffic": 0.0,
    "memory_step_s": 0.0,
}


@pytest.mark.parametrize("nodes", [1, 2])
def test_without_channels_there_is_no_contention(nodes: int) -> None:
    """Neither SMs nor memory taken, nor waited for: all run as if alone, and ladder is faster for it."""
    for batch in (1, 4, 16):
        scenario = Scenario(model="405b", dtype="fp8", nodes=nodes, tp=8 * nodes, batch=batch)
        free, shared = (
            predict_one(scenario, "ladder", profile=profile)
            for profile in (with_overlap(**NOTHING_HELD), load_profile("h100-sxm"))
        )
        assert free.breakdown.slowed_s == pytest.approx(0.0, abs=1e-9)
        assert shared.breakdown.slowed_s > 0.0
        assert free.request_s < shared.request_s


# collectives


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(one=MESSAGES, other=MESSAGES)
def test_channels_grow_with_the_message_up_to_a_cap(algorithm: str, one: float, other: float) -> None:
    few, many = (collective_sms(algorithm, size, DEFAULTS) for size in sorted((one, other)))
    cap = {"ring": 24, "tree": 16, "nvls": 16, "multimem": 8, "blocks": 36, "deepep": 20}[KERNELS[algorithm]]
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


COUNTS = st.integers(1, 64)


@given(st.sampled_from(ALGORITHMS), st.sampled_from(KINDS), COUNTS, COUNTS, COUNTS, COUNTS)
def test_steps_grow_with_ranks_and_nodes(
    algorithm: str, kind: str, nodes: int, ranks: int, more_nodes: int, more_ranks: int
) -> None:
    """Wherever a message is passed on; there and back takes no fewer than one way."""
    steps = memory_steps(algorithm, kind, nodes, ranks)
    assert steps >= 3.0 or nodes * ranks == 1
    nodes_on, ranks_on = (
        memory_steps(algorithm, kind, *more) for more in ((nodes + more_nodes, ranks), (nodes, ranks + more_ranks))
    )
    assert (ranks_on > steps) is (KERNELS[algorithm] in ("ring", "tree"))
    assert (nodes_on > steps) is (KERNELS[algorithm] in ("ring", "tree", "nvls"))
    assert min(nodes_on, ranks_on) >= steps
    assert memory_steps(algorithm, "all_gather", nodes, ranks) <= memory_steps(algorithm, "all_reduce", nodes, ranks)


@pytest.mark.parametrize(
    ("algorithm", "kind", "nodes", "ranks", "steps"),
    [
        # begin and end, and seven hops there and back, or one way
        ("nccl", "all_reduce", 1, 8, 2 + 14),
        ("nccl", "all_gather", 1, 8, 2 + 7),
        # the next node and back
        ("tree-ll128", "all_reduce", 2, 8, 2 + 14 + 2),
        # to the switch and back, each with a flag
        ("nvls", "all_reduce", 1, 8, 2 + 4),
        ("nvls-tree", "all_reduce_norm", 4, 8, 2 + 4 + 4),
        # rounds between barriers
        ("one-shot", "all_reduce", 1, 8, 3),
        ("two-shot", "all_reduce", 1, 2, 5),
        ("deepep-ll", "dispatch", 2, 8, 3),
    ],
)
def test_known_steps(algorithm: str, kind: str, nodes: int, ranks: int, steps: int) -> None:
    assert memory_steps(algorithm, kind, nodes, ranks) == steps


# parameters


def test_parameters_of_a_profile_replace_defaults() -> None:
    assert OverlapParameters.of({}) == DEFAULTS
    parameters = OverlapParameters.of({"max_channels": 8.0, "gemm_delay": 1.5})
    assert parameters == dataclasses.replace(DEFAULTS, max_channels=8.0, gemm_delay=1.5)


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
    figures = {"max_channels": 3.0, "ring_traffic": 8.0, "lost": 0.25, "gemm_delay": 7.0, "memory_step_s": 0.4e-6}
    after = priced(scenario, "decode", **figures)
    delays = set()
    for name, (op, estimate) in before.items():
        was, now = estimate.demand, after[name][1].demand
        assert after[name][1].seconds == estimate.seconds
        if op.stream == "comm":
            # a message of 64 tokens would take the most channels there are
            assert (was.held_sms, now.held_sms) == (24, 3)
            assert now.waits == pytest.approx(was.waits / 2)
            assert now.memory == pytest.approx(2 * was.memory)
        else:
            assert now.lost - 0.25 == pytest.approx((was.lost - DEFAULTS.lost) * (CLUSTERED - 0.25) / (CLUSTERED - 0.5))
            delays.add(now.delay / was.delay)
    # of others, and of GEMMs
    assert sorted(delays) == pytest.approx([1.0, 7.0 / DEFAULTS.gemm_delay])


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_collective_waits_as_long_as_its_steps_take(nodes: int, phase: Phase) -> None:
    scenario = Scenario(model="405b", nodes=nodes, tp=8 * nodes)
    of_comm = [(op, use) for op, use in priced(scenario, phase).values() if op.stream == "comm"]
    for op, use in of_comm:
        steps_s = memory_steps(use.algorithm, op.kind, nodes, 8) * DEFAULTS.memory_step_s
        assert use.demand.waits == pytest.approx(min(1.0, steps_s / use.seconds)), op.name
    assert of_comm


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_without_peer_to_peer_access_a_collective_waits(nodes: int, phase: Phase) -> None:
    """Whatever its size, through host memory: each round trip passes through the device memory once.

    What trees and rings do outside of an island's GPUs does not. All of NVLS is steps through device memory.
    """
    ops = priced(Scenario(model="405b", nodes=nodes, tp=8 * nodes, p2p=False), phase)
    collectives = [use for op, use in ops.values() if op.stream == "comm"]
    whole = DEFAULTS.memory_step_s / HOST_ROUND_TRIP_S
    for use in collectives:
        if use.algorithm == "nvls-tree":
            assert use.demand.waits == pytest.approx(1.0)
        else:
            assert 0.0 < use.demand.waits < whole
    small = {1: "ring", 2: "tree"}[nodes]
    assert {use.algorithm for use in collectives} == {small if phase == "decode" else "nvls-tree"}


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
            if op.stream == "comm":
                assert 1 <= estimate.demand.held_sms < scenario.cluster.gpu.sms
                assert estimate.demand.link == 1.0
                assert 0.0 < estimate.demand.waits <= 1.0
                assert estimate.demand.lost == estimate.demand.delay == 0
            else:
                assert estimate.demand.held_sms == estimate.demand.link == estimate.demand.waits == 0
                assert DEFAULTS.lost <= estimate.demand.lost <= CLUSTERED
                assert 0.0 < estimate.demand.delay <= DEFAULTS.gemm_delay
            assert np.isfinite(estimate.seconds)


def test_a_combine_takes_sms_from_the_block_that_it_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of DeepEP as many as it says, whatever the message."""
    plan = {"tp": 1, "attention_dp": 8, "ep": 8, "batch": 512, "overrides": {"stack.dispatch": "deepep-ht"}}
    scenario = Scenario(model="deepseek-v2-lite", stack="sglang", **plan)  # type: ignore[arg-type]
    slowed_s = []
    for sms in (1.0, 20.0, 60.0):
        monkeypatch.setattr("ladder_sim.costs.estimate.DEEPEP_SMS", sms)
        # estimates are kept for as long as figures of a scenario or profile stay
        kernels._all_kept.cache_clear()
        slowed_s.append(predict_one(scenario, "ladder", profile="h100-sxm").breakdown.slowed_s)
    kernels._all_kept.cache_clear()
    assert 0.0 <= slowed_s[0] < slowed_s[1] < slowed_s[2]
