"""Lookups in measured tables: exact on the grid, honest off it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.kernels import TABLE_KINDS, AttentionShape, Gpu, Kind

GPU = Gpu(bf16_flops=1e15, fp8_flops=2e15, fp4_flops=4e15, hbm_bandwidth_Bps=3e12, kernel_s=2e-6)


def gemm_table(seed: int = 0, hole: bool = False) -> RatioTable:
    axes = {"m": [1.0, 8.0, 64.0], "n": [256.0, 4096.0], "k": [512.0, 1024.0, 65536.0]}
    m, n, k = np.ix_(*axes.values())
    ideal_s = TABLE_KINDS["gemm"].shape("bf16", {"m": m, "n": n, "k": k}).roofline_s(GPU)
    seconds = ideal_s * np.random.default_rng(seed).uniform(1.0, 3.0, ideal_s.shape)
    if hole:
        seconds[-1, -1, -1] = np.nan
    return RatioTable.from_seconds(axes, seconds, ideal_s)


def test_grid_points_give_back_the_measured_seconds() -> None:
    table = gemm_table()
    m, n, k = np.ix_(*table.axes)
    ratio, in_range = table.ratio(m=m, n=n, k=k)
    seconds = ratio * TABLE_KINDS["gemm"].shape("bf16", {"m": m, "n": n, "k": k}).roofline_s(GPU)
    np.testing.assert_allclose(seconds, table.seconds, rtol=1e-9)
    assert in_range.all()


@given(m=st.floats(1, 64), n=st.floats(256, 4096), k=st.floats(512, 65536))
def test_between_grid_points_the_ratio_stays_between_its_neighbours(m: float, n: float, k: float) -> None:
    table = gemm_table()
    ratio, in_range = table.ratio(m=m, n=n, k=k)
    assert in_range
    assert np.exp(table.log_ratio.min()) * (1 - 1e-9) <= ratio <= np.exp(table.log_ratio.max()) * (1 + 1e-9)


def test_outside_the_grid_the_edge_counts_and_is_flagged() -> None:
    table = gemm_table()
    inside, _ = table.ratio(m=64, n=4096, k=1024)
    outside, in_range = table.ratio(m=[64, 1e6], n=[128256, 4096], k=1024)
    np.testing.assert_allclose(outside, inside)
    assert not in_range.any()


def test_unmeasured_corner_takes_its_neighbours_ratio_and_is_flagged_where_it_counts() -> None:
    table = gemm_table(hole=True)
    assert np.isfinite(table.log_ratio).all()
    _, in_range = table.ratio(m=[8, 63, 64, 64], n=4096, k=[65536, 60000, 1024, 65536])
    assert in_range.tolist() == [True, False, True, False]


def test_an_estimate_takes_the_place_of_neighbours_and_is_no_measurement() -> None:
    seconds, made = [[2.0, np.nan], [np.nan, 4.0]], [[9.0, 6.0], [8.0, 9.0]]
    axes = {"m": [1.0, 4.0], "n": [8.0, 32.0]}
    table = RatioTable.from_seconds(axes, seconds, 1.0, estimates=made)
    ratio, in_range = table.ratio(m=[1, 1, 4, 4], n=[8, 32, 8, 32])
    assert ratio.round(9).tolist() == [2.0, 6.0, 8.0, 4.0]
    assert in_range.tolist() == [True, False, False, True]
    assert table.beyond == "fitted"
    # of another GPU
    nothing = np.full((2, 2), np.nan)
    assert RatioTable.from_seconds(axes, nothing, 1.0, estimates=made).beyond == "transferred"


def test_axis_of_one_value_is_in_range_at_that_value_only() -> None:
    table = RatioTable.from_seconds({"a": [1.0, 2.0], "b": [128.0]}, [[2.0], [4.0]], [[1.0], [1.0]])
    ratio, in_range = table.ratio(a=2.0, b=[128.0, 64.0, 256.0])
    np.testing.assert_allclose(ratio, 4.0)
    assert in_range.tolist() == [True, False, False]


def test_wrong_axis_names_are_refused() -> None:
    with pytest.raises(TypeError, match="m, n, k"):
        gemm_table().ratio(m=1, n=1)


@given(b=st.lists(st.floats(1.0, 1e10), min_size=2, max_size=20))
def test_curve_is_monotone_when_its_measurements_are(b: list[float]) -> None:
    curve = Curve(size_bytes=np.array([1e3, 1e6, 1e9]), seconds=np.array([5e-6, 2e-5, 4e-3]))
    seconds, in_range = curve.seconds_at(sorted(b))
    assert (np.diff(seconds) >= -1e-18).all()
    assert in_range.tolist() == [1e3 <= size <= 1e9 for size in sorted(b)]


@given(bandwidth=st.floats(1e11, 1e13), factor=st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(bandwidth: float, factor: float) -> None:
    shape = TABLE_KINDS["gemm"].shape("bf16", {"m": [1, 64], "n": 8192, "k": 8192})
    slow, fast = (
        shape.roofline_s(dataclasses.replace(GPU, hbm_bandwidth_Bps=each)) for each in (bandwidth, bandwidth * factor)
    )
    assert (fast <= slow).all()


def test_hardware_figures_broadcast_too() -> None:
    gpu = dataclasses.replace(GPU, hbm_bandwidth_Bps=np.array([1e12, 2e12]))
    seconds = attention("attention_decode").roofline_s(gpu)
    assert seconds.shape == (2,)
    assert seconds[0] > seconds[1] > GPU.kernel_s


@pytest.mark.parametrize("kind", ["attention_prefill", "attention_decode"])
def test_coordinates_keep_the_roofline_of_the_whole_shape(kind: Kind) -> None:
    shape = attention(kind)
    lookup = shape.lookup
    assert lookup is not None
    assert (lookup.kind, lookup.of) == (kind, "bf16")
    assert tuple(lookup.point) == TABLE_KINDS[kind].axes
    assert TABLE_KINDS[kind].shape("bf16", lookup.point).roofline_s(GPU) == shape.roofline_s(GPU)


def attention(kind: Kind) -> AttentionShape:
    q_len = 512 if kind == "attention_prefill" else 1
    return AttentionShape(kernel="flash", batch=4, q_len=q_len, kv_len=512, heads=16, kv_heads=2, head_dim=128)


def test_error_statistics() -> None:
    stats = ErrorStats.of([1.1, 0.8, 1.0], [1.0, 1.0, 1.0])
    assert (stats.rows, round(stats.median, 6), round(stats.max, 6)) == (3, 0.1, 0.2)
    assert ErrorStats.of([], []).rows == 0
