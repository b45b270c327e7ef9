"""Measured tables of recurrent states, their convolutions and sparse attention, in the shipped profiles."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, shipped_profiles
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import TABLE_KINDS, Shape, SparseShape, StateShape
from ladder_sim.specs.scenario import Scenario
from tests.support.graphs import build

KINDS = [kind for kind in TABLE_KINDS if kind.startswith(("state", "convolution", "sparse"))]
# median error of a table of an engine on measurements that it does not hold
WITHIN = 0.08


def seconds(profile: CalibrationProfile | None, shape: Shape, cluster: str = "h200-sxm") -> tuple[float, str]:
    costs = KernelCosts(Scenario(model="8b", cluster=cluster, stack="sglang", tp=1), profile)
    (estimate,) = costs.estimates([Op(name="kernel", kind="attention", shape=shape)])
    return float(estimate.seconds), estimate.source


def sparse(of: str, **sizes: Any) -> Shape:
    kind = "sparse_decode" if "batch" in sizes else "sparse_prefill"
    return TABLE_KINDS[kind].shape(of, sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_measurements_left_out_of_tables_are_near(kind: str) -> None:
    """Of its engines' series a table holds a part, at most three fifths; the others judge it."""
    errors = {
        (name, of): table.left_out["aggregated"]
        for name in shipped_profiles()
        for of, table in load_profile(name).moe.tables.get(kind, {}).items()
        if name.endswith(("-sglang", "-vllm", "-trtllm")) and "aggregated" in table.left_out
    }
    assert errors
    assert {at: error.median for at, error in errors.items() if error.median > WITHIN} == {}


@pytest.mark.parametrize("cache", ["bf16", "fp8"])
@pytest.mark.parametrize("profile", ["h200-sxm-sglang", "b200-sxm-sglang", None])
def test_attention_to_chosen_entries_costs_no_more_in_a_longer_context(profile: str | None, cache: str) -> None:
    """Where an earlier layer has chosen; else the index alone grows, which is less than attention to all would."""
    loaded = load_profile(profile) if profile else None
    cluster = (profile or "h200-sxm").removesuffix("-sglang")

    def of(index: int, kv_len: int) -> float:
        return seconds(loaded, sparse(f"latent-{index}-{cache}", batch=8, heads=16, kv_len=kv_len), cluster)[0]

    assert of(0, 16384) == pytest.approx(of(0, 4096), rel=0.1)
    assert of(64, 16384) > of(64, 4096)
    assert of(64, 16384) < 3.0 * of(64, 4096)


@pytest.mark.parametrize(("before", "new"), [(0, 4096), (1500, 1000), (3000, 8), (100, 200)])
def test_each_token_chooses_among_those_before_it(before: int, new: int) -> None:
    """Regression: a prompt read what its mean token chooses, up to a third more than its tokens do."""
    shape = sparse("latent-0-bf16", heads=64, q_len=new, earlier=float(before))
    read = [min(before + at + 1, 2048) for at in range(new)]
    assert shape.work.flops == pytest.approx(sum(read) * 2 * 64 * (576 + 512))


def prompt_s(stack: str, cluster: str, new: int, before: int = 0) -> float:
    """Return the seconds of attention of one layer of DeepSeek-V3.2 in a prompt."""
    scenario = Scenario(model="deepseek-v3.2", cluster=cluster, stack=stack, tp=1, prompt=new, dtype="fp8-block")
    graph = build(scenario, "prefill", before + new)
    (op,) = [op for op in graph.ops() if op.name == "layer9.attn.attention"]
    costs = KernelCosts(scenario, load_profile(f"{cluster}-{stack}"))
    return float(costs.estimates([op])[0].seconds)


def test_sglang_attends_to_all_where_the_index_would_choose_all() -> None:
    """Its whole module of 128 heads and 2,048 tokens took 714 us on a B200, with one more before them 1,573 us."""
    dense, sparse_s = (prompt_s("sglang", "b200-sxm", 2048, before) for before in (0, 1))
    assert dense == pytest.approx(714e-6 - 479e-6, rel=0.15)
    assert sparse_s > 3.0 * dense
    # vLLM's kernels are sparse at any length
    assert prompt_s("vllm", "b200-sxm", 2048) == pytest.approx(prompt_s("vllm", "b200-sxm", 2049), rel=0.05)


def test_a_choice_between_kernels_is_that_of_each_prompt() -> None:
    scenario = Scenario(model="deepseek-v3.2", cluster="b200-sxm", stack="sglang", tp=8, dtype="fp8-block")
    shape = next(op.shape for op in build(scenario, "prefill", 1024).ops() if op.name == "layer9.attn.attention")
    assert isinstance(shape, SparseShape)
    costs = KernelCosts(scenario, load_profile("b200-sxm-sglang"))
    lengths = np.array([512.0, 2048.0, 4096.0])

    def seconds_of(size: Any) -> Any:
        own = dataclasses.replace(shape, q_len=size, kv_len=size)
        return costs.estimates([Op(name="kernel", kind="attention", shape=own)])[0].seconds

    np.testing.assert_allclose(seconds_of(lengths), [float(seconds_of(each)) for each in lengths])


def test_ranks_with_fewer_heads_take_what_kernels_pad_them_to() -> None:
    """FlashMLA on Hopper computes 64 heads at least: 16 take nearly as long, where the work is a quarter."""
    profile = load_profile("h200-sxm-sglang")
    few, padded = (
        seconds(profile, sparse("latent-64-fp8", heads=heads, q_len=4096, earlier=64.0))[0] for heads in (16, 64)
    )
    assert few == pytest.approx(padded, rel=0.1)


def test_states_take_as_long_however_they_are_shared_out() -> None:
    profile = load_profile("h200-sxm-vllm")
    shape = TABLE_KINDS["state_decode"].shape("gated-delta", {"elements": 2.0**20})
    alone, source = seconds(profile, shape)
    assert source == "measured"
    four = StateShape(
        batch=4, q_len=1, kv_len=1, rule="gated-delta", elements=2.0**18, state_bytes=2.0**20, token_bytes=1.0
    )
    assert seconds(profile, four)[0] == pytest.approx(alone)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_table_a_kernel_is_a_roofline(kind: str) -> None:
    point = dict.fromkeys(TABLE_KINDS[kind].axes, 1024.0) | {"heads": 16.0, "batch": 4.0}
    shape = TABLE_KINDS[kind].shape("latent-64-bf16" if kind.startswith("sparse") else "gated-delta", point)
    time_s, source = seconds(load_profile("mi300x"), shape, "mi300x")
    assert source == "roofline"
    assert time_s >= shape.moved_bytes / Scenario(cluster="mi300x", model="8b").cluster.gpu.hbm_bandwidth_Bps
    assert np.isfinite(time_s)
