"""Measured tables of recurrent states, their convolutions and sparse attention, in the shipped profiles."""

from typing import Any

import numpy as np
import pytest

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, shipped_profiles
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import TABLE_KINDS, Shape, StateShape
from ladder_sim.specs.scenario import Scenario

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
