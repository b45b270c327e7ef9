"""Launches, floors, jitter and overlap: recovered as planted, and read by predictions."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs.contention import OverlapParameters
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import JITTER_KEY, RANK_SKEW
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.report.console import to_text
from ladder_sim.specs import catalog
from ladder_sim_calibration.fit.command import report
from ladder_sim_calibration.fit.overlap import error_of, losses
from ladder_sim_calibration.fit.profile import FittedProfile, make_profile
from ladder_sim_calibration.fit.samples import MeasuredOp, Sample, SampleStore, medians
from ladder_sim_calibration.measure.points import HELD_ROWS, HELD_SMS
from ladder_sim_calibration.show import describe

KERNEL_S = catalog.cluster("h100-sxm").gpu.kernel_s
MESSAGE = {"bytes": 1e6, "ranks": 8.0, "nodes": 1.0}


def fitted(path: Path, samples: list[Sample], *, cluster: str = "h100-sxm") -> FittedProfile:
    store = SampleStore(path / "s.jsonl", {"gpu": "NVIDIA H100 80GB HBM3", "cpu": "some"})
    for m in (1.0, 16.0):
        store.append(Sample(op="gemm", point={"m": m, "n": 4096.0, "k": 4096.0}, seconds=1e-5, spread=0.02))
    for sample in samples:
        store.append(sample)
    return make_profile(store, name="mine", cluster=cluster, created="2026-01-01")


def sample(op: str, seconds: float, alone_s: float | None = None, **point: float) -> Sample:
    return Sample(op=op, point=point, seconds=seconds, alone_s=alone_s, spread=0.02)


def test_launches_waits_and_small_kernels(tmp_path: Path) -> None:
    elementwise = [
        sample(op, floor_s + size / 2e12, bytes=size)
        for op, floor_s in (("add", 1.2 * KERNEL_S), ("norm", 1.8 * KERNEL_S))
        for size in np.logspace(3.6, 8.4, 9)
    ]
    launches = [
        *(sample("eager_launch", seconds) for seconds in (4e-6, 5e-6, 9e-6)),
        sample("graph_launch", 7e-6),
        sample("graph_kernel", 1.5e-6),
        sample("queued_kernel", 2.0e-6, streams=1.0),
        sample("queued_kernel", 3.5e-6, streams=2.0),
        sample("queued_all_reduce", 20e-6, streams=1.0, bytes=16384.0, ranks=8.0, nodes=1.0),
        sample("queued_all_reduce", 25e-6, streams=2.0, bytes=16384.0, ranks=8.0, nodes=1.0),
    ]
    result = fitted(tmp_path, [*elementwise, *launches])
    assert result.profile.overheads == {
        "eager_launch_s": 5e-6,
        "graph_launch_s": 7e-6,
        "graph_kernel_s": 1.5e-6,
        "stream_wait_s": pytest.approx(1.5e-6),
        # two waits are not part of it
        "collective_launch_s": pytest.approx(2e-6),
        "small_kernel_factor": pytest.approx(1.5, rel=1e-3),
        JITTER_KEY: pytest.approx(0.02 / 0.6745),
    }
    assert result.warnings == result.refused == ()


def test_the_lag_of_the_slowest_rank_is_what_lasts(tmp_path: Path) -> None:
    # rank 2 is 3 % slower in most kernels; another one is in one of them
    rows = [(1.0, 1.0, 1.03, 1.0), (2.0, 2.0, 2.06, 2.0), (1.0, 1.5, 1.0, 1.0), (3.0, 3.0, 3.09, 3.0)]
    samples = [replace(sample("gemm", 1e-5, m=float(m), n=64.0, k=64.0), by_rank=row) for m, row in enumerate(rows, 1)]
    profile = fitted(tmp_path, samples).profile
    assert profile.overheads[RANK_SKEW] == pytest.approx(0.03)
    scenario = Scenario(model="8b", tp=8)
    assert Hardware.stated(scenario, profile).rank_skew == pytest.approx(0.03)
    by_hand = Scenario(model="8b", tp=8, overrides={f"cluster.{RANK_SKEW}": "0.01"})
    assert Hardware.stated(by_hand, profile).rank_skew == 0.01


def test_bursts_count_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    shapes = [{"m": m, "n": 64.0, "k": 64.0} for m in (1.0, 2.0)]
    samples = [
        *(sample("gemm", 2e-5, **shapes[0]) for _ in range(2)),
        *(replace(sample("gemm", 1e-5, **shape), burst=True) for shape in shapes for _ in range(3)),
    ]
    points = medians(samples)[MeasuredOp("gemm", ("m", "n", "k"))]
    assert points == {(1.0, 64.0, 64.0): 2e-5, (2.0, 64.0, 64.0): 1e-5}
    (warning,) = fitted(tmp_path, samples).warnings
    assert warning == "6 samples were bursts: the GPU's clock fell while they were taken"


def test_planted_contention_is_recovered_from_kernels_next_to_held_sms(tmp_path: Path) -> None:
    planted = OverlapParameters(memory_spare=0.1, grid_spare=0.2, scatter=1.0, gemv_rows=2.0, stream_rows=16.0)
    shapes = [
        *(("gemm", {"m": m, "n": n, "k": 4096.0}) for n in (1280.0, 7168.0) for m in HELD_ROWS),
        ("attention_decode", {"batch_kv_heads": 8.0, "group": 8.0, "kv_len": 4096.0, "head_dim": 128.0}),
        *((kind, {"bytes": 2.0**28}) for kind in ("add", "norm")),
    ]
    unknown = [
        sample(f"{name}_beside_held", 1.0, 1.0, **point, held=float(held))
        for name, point in shapes
        for held in HELD_SMS
    ]
    samples = [
        replace(each, seconds=loss.predicted(132, planted)) for each, loss in zip(unknown, losses(unknown), strict=True)
    ]
    result = fitted(tmp_path, samples)
    assert max(loss.ratio for loss in result.losses) > 1.2
    assert error_of(result.losses, 132, result.profile.overlap) == pytest.approx(0.0, abs=1e-9)
    for name in ("memory_spare", "grid_spare", "gemv_rows"):
        assert result.profile.overlap[name] == pytest.approx(getattr(planted, name))
    hardware = Hardware.of(Scenario(model="8b", tp=8), result.profile)
    assert hardware.overlap.grid_spare == pytest.approx(0.2)
    assert error_of(result.losses, 132, {}) > 1e-4


def test_measured_contention_is_shown_next_to_the_default(tmp_path: Path) -> None:
    """As with the cuBLAS of CUDA 13: 112 tiles do not fit next to 24 SMs of 132 and as many halves."""
    samples = [
        sample("gemm_beside_held", ratio, 1.0, m=16.0, n=14336.0, k=4096.0, held=held)
        for held, ratio in ((4.0, 1.07), (24.0, 1.09))
    ]
    lines = list(report(fitted(tmp_path, samples)))
    assert "gemm of 16 tokens, next to 4, 24 held: 1.07, 1.09 times as long, by default 1.00, 2.00" in lines


def test_the_rate_that_a_gpu_keeps_up_is_that_of_predictions(tmp_path: Path) -> None:
    shape = {"m": 4096.0, "n": 8192.0, "k": 4096.0}
    seconds = 2 * 4096 * 8192 * 4096 / (0.6 * catalog.cluster("h100-sxm").gpu.bf16_flops)
    under_load = replace(sample("sustained_gemm", seconds, **shape), clock_MHz=1410.0)
    result = fitted(tmp_path, [sample("gemm", seconds / 1.25, **shape), under_load])
    assert "gemm of 4096 tokens under load: 1.25 times as long as cold, clock 1410 MHz" in report(result)
    scenario = Scenario(model="8b", tp=8, stack="vllm")
    assert Hardware.stated(scenario, result.profile).stack.sustained_share == pytest.approx(0.6)


def test_show_lists_what_was_measured_besides_tables(tmp_path: Path) -> None:
    profile = replace(fitted(tmp_path, [sample("eager_launch", 5e-6)]).profile, overlap={"collective_slowdown": 0.5})
    shown = to_text(describe(profile)).splitlines()
    assert "source  all (calibrate run)" in shown
    assert "machine  device NVIDIA H100 80GB HBM3, gpu NVIDIA H100 80GB HBM3, cpu some" in shown
    assert any(line.startswith("between kernels  eager_launch_s 5e-06, ") for line in shown)
    assert "overlap  collective_slowdown 0.5" in shown


def test_predictions_take_measured_launches_but_for_what_is_set_by_hand(tmp_path: Path) -> None:
    profile = fitted(tmp_path, [sample("eager_launch", 6e-6), sample("graph_launch", 7e-6)]).profile
    scenario = Scenario(model="8b", tp=8)
    stack = Hardware.stated(scenario, profile).stack
    assert (stack.eager_launch_s, stack.graph_launch_s) == (6e-6, 7e-6)
    by_hand = Scenario(model="8b", tp=8, overrides={"stack.eager_launch": "2us"})
    assert Hardware.stated(by_hand, profile).stack.eager_launch_s == 2e-6
    assert stack.stream_wait_s == scenario.stack.stream_wait_s


def test_predictions_warn_of_a_profile_that_was_measured_elsewhere(tmp_path: Path) -> None:
    profile = fitted(tmp_path, []).profile
    scenario = Scenario(model="8b", tp=8)
    for device, warned in (("NVIDIA H100 80GB HBM3", False), ("AMD EPYC", True)):
        elsewhere = replace(profile, environment={"device": device})
        warnings = predict(scenario, ["standard"], profile=elsewhere)["standard"].confidence.warnings
        assert any(f"measured on '{device}'" in warning for warning in warnings) is warned


def test_jitter_is_what_predictions_read(tmp_path: Path) -> None:
    profile = fitted(tmp_path, []).profile
    scenario = Scenario(model="8b", tp=8, prompt=16, gen=2)
    prediction = predict(scenario, ["standard"], profile=profile, jitter="measured")["standard"]
    assert prediction.unevenness is not None


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({"m": 1.0, "n": 8.0, "k": 8.0}, {"collective_slowdown": pytest.approx(0.5)}),
        ({"m": 1024.0, "n": 8.0, "k": 8.0}, {}),
        ({"kv_len": 4096.0, "batch_kv_heads": 1.0}, {"collective_slowdown": pytest.approx(0.5)}),
    ],
)
def test_only_memory_bound_kernels_show_how_they_slow_collectives(
    ratios: Mapping[str, float], expected: Mapping[str, float], tmp_path: Path
) -> None:
    name = "gemm" if "m" in ratios else "attention_decode"
    pairs = [
        pair
        for size, ratio in ((1e4, 1.4), (1e5, 1.5), (1e6, 9.0))
        for pair in (
            sample(f"{name}_beside_all_reduce", 1.1e-5, 1e-5, **{**ratios, **MESSAGE, "bytes": size}),
            sample(f"all_reduce_beside_{name}", ratio * 2e-5, 2e-5, **{**ratios, **MESSAGE, "bytes": size}),
        )
    ]
    result = fitted(tmp_path, pairs)
    assert result.profile.overlap == expected
    assert [np.median(slowdown.ratios) for slowdown in result.slowdowns] == pytest.approx([1.1, 1.5])
    default = OverlapParameters().collective_slowdown
    hardware = Hardware.of(Scenario(model="8b", tp=8), result.profile)
    assert hardware.overlap.collective_slowdown == expected.get("collective_slowdown", default)


def test_a_profile_of_a_cluster_of_ones_own_is_at_home_there_and_warns_elsewhere(tmp_path: Path) -> None:
    text = (Path(catalog.__file__).parent / "data/clusters/h100-sxm.toml").read_text("utf-8")
    own = tmp_path / "own.toml"
    own.write_text(text, "utf-8")
    out = tmp_path / "mine.json.gz"
    save_profile(fitted(tmp_path, [], cluster=str(own)).profile, out)

    def warned(cluster: str) -> bool:
        scenario = Scenario(model="8b", tp=8, cluster=cluster)
        prediction = predict(scenario, ["standard"], profile=load_profile(out))["standard"]
        return any("was measured on" in warning for warning in prediction.confidence.warnings)

    assert not warned(str(own))
    assert warned("a100-sxm-hdr")


def test_samples_of_other_hardware_than_the_cluster_has_are_reported(tmp_path: Path) -> None:
    (warning,) = fitted(tmp_path, [], cluster="a100-sxm-hdr").warnings
    assert warning == "measured on 'NVIDIA H100 80GB HBM3', while the GPU of 'a100-sxm-hdr' is A100 SXM4 80GB"
