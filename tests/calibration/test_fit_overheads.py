"""Launches, floors, jitter and overlap: recovered as planted, and read by predictions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs.estimate import OverlapParameters, kernel_demand, memory_steps
from ladder_sim.costs.hardware import Hardware, skew_growth
from ladder_sim.costs.profile import HBM_EFFICIENCY, JITTER_KEY, RANK_SKEW
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.des.shared import Demand, Device
from ladder_sim.kernels import TABLE_KINDS
from ladder_sim.report.console import to_text
from ladder_sim.specs import catalog
from ladder_sim_calibration.fit.command import report
from ladder_sim_calibration.fit.profile import FittedProfile, make_profile
from ladder_sim_calibration.fit.samples import TABLES, MeasuredOp, Sample, SampleStore, medians
from ladder_sim_calibration.measure.points import HELD_SMS, OVERLAP_ROWS
from ladder_sim_calibration.show import describe

GPU = catalog.cluster("h100-sxm").gpu
KERNEL_S = GPU.kernel_s
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
    # of four ranks, as it is there; among eight the slowest is slower
    scenario = Scenario(model="8b", tp=4)
    assert Hardware.stated(scenario, profile).slowest == pytest.approx(0.03)
    assert profile.overheads[RANK_SKEW] == pytest.approx(0.03 / skew_growth(4))
    assert 0.03 < Hardware.stated(Scenario(model="8b", tp=8), profile).slowest < 0.06
    assert Hardware.stated(Scenario(model="8b", tp=1), profile).slowest == 0.0
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


KERNELS = (
    *(("gemm", {"m": float(m), "n": 8192.0, "k": 8192.0}) for m in OVERLAP_ROWS),
    ("attention_decode", {"batch_kv_heads": 64.0, "group": 8.0, "kv_len": 4096.0, "head_dim": 128.0}),
)


def by_law(planted: OverlapParameters) -> Iterator[Sample]:
    """Kernels and all-reduces beside each other, and kernels beside held SMs, as the simulator has them."""
    device = Device(sms=GPU.sms)
    for name, point in KERNELS:
        kind, of = TABLES[name]
        shape = TABLE_KINDS[kind].shape(of, point)
        # a GEMM of many rows takes its arithmetic
        alone_s = max(shape.flops / GPU.bf16_flops, shape.moved_bytes / (0.8 * HBM_EFFICIENCY * GPU.hbm_bandwidth_Bps))
        memory = shape.moved_bytes / (HBM_EFFICIENCY * GPU.hbm_bandwidth_Bps * alone_s)
        kernel = kernel_demand(shape, planted, float(memory), float(shape.flops / GPU.bf16_flops / alone_s))
        for held in HELD_SMS:
            ratio = 1.0 / device.rate(kernel, [Demand(held_sms=held)])
            yield sample(f"{name}_beside_held", ratio * alone_s, alone_s, **point, held=float(held))
        for size, message_s in ((1e4, 2e-5), (1e5, 3e-5), (1e6, 8e-5)):
            waits = memory_steps("nccl", "all_reduce", 1, 8) * planted.memory_step_s / message_s
            ratio = 1.0 / device.rate(Demand(held_sms=1, waits=waits), [kernel])
            both = {**point, **MESSAGE, "bytes": size}
            yield sample(f"{name}_beside_all_reduce", 1.1 * alone_s, alone_s, **both)
            yield sample(f"all_reduce_beside_{name}", ratio * message_s, message_s, **both)


def test_planted_contention_is_recovered(tmp_path: Path) -> None:
    planted = OverlapParameters(lost=0.6, gemm_delay=2.0, kernel_delay=0.3)
    result = fitted(tmp_path, list(by_law(planted)))
    # what a GEMM of few rows loses holds a little of its arithmetic
    assert result.profile.overlap == pytest.approx({"lost": 0.6, "gemm_delay": 2.0, "kernel_delay": 0.3}, rel=0.01)
    assert Hardware.of(Scenario(model="8b", tp=8), result.profile).overlap == OverlapParameters.of(
        result.profile.overlap
    )
    lines = list(report(result))
    held = f"gemm of 16 tokens, next to {', '.join(map(str, HELD_SMS))} held: 1.02, 1.04, "
    assert any(line.startswith(held) for line in lines)
    assert "gemm_delay 2" in lines
    assert not any("not measured" in line for line in lines)


@pytest.mark.parametrize(
    ("kept", "determined"),
    [
        ("gemm_beside_held", {"lost"}),
        ("all_reduce_beside_gemm", set()),
        ("beside_all_reduce", set()),
        ("gemm", {"lost", "gemm_delay", "kernel_delay"}),
        ("attention_decode", {"lost", "kernel_delay"}),
    ],
)
def test_what_was_not_measured_stays_the_default(kept: str, determined: set[str], tmp_path: Path) -> None:
    """An all-reduce tells a delay only with the kernel beside it, whose use of the memory counts."""
    result = fitted(tmp_path, [each for each in by_law(OverlapParameters(lost=0.6)) if kept in each.op])
    assert set(result.profile.overlap) == determined
    left = sorted({"lost", "gemm_delay", "kernel_delay"} - determined)
    told = [line for line in report(result) if line.startswith("not measured")]
    assert told == ([f"not measured, predictions use the default: {', '.join(left)}"] if left else [])


def test_a_gemm_bound_by_arithmetic_determines_neither_delay_nor_loss(tmp_path: Path) -> None:
    """It uses little of the memory, so that it delays little, and loses what its arithmetic does."""
    many = [each for each in by_law(OverlapParameters(lost=0.6)) if each.point.get("m") == max(OVERLAP_ROWS)]
    assert fitted(tmp_path, many).profile.overlap == {}


@pytest.mark.parametrize(("ratio", "lost"), [(0.9, 0.0), (1.0, 0.0), (50.0, 1.0)])
def test_a_kernel_loses_neither_less_than_nothing_nor_more_than_its_share(
    ratio: float, lost: float, tmp_path: Path
) -> None:
    samples = [sample("gemm_beside_held", ratio, 1.0, m=float(m), n=64.0, k=64.0, held=8.0) for m in (1, 2, 4)]
    assert fitted(tmp_path, samples).profile.overlap == {"lost": lost}


def test_the_rate_that_a_gpu_keeps_up_is_that_of_predictions(tmp_path: Path) -> None:
    shape = {"m": 4096.0, "n": 8192.0, "k": 4096.0}
    seconds = 2 * 4096 * 8192 * 4096 / (0.6 * GPU.bf16_flops)
    under_load = replace(sample("sustained_gemm", seconds, **shape), clock_MHz=1410.0)
    result = fitted(tmp_path, [sample("gemm", seconds / 1.25, **shape), under_load])
    assert "gemm of 4096 tokens under load: 1.25 times as long as cold, clock 1410 MHz" in report(result)
    scenario = Scenario(model="8b", tp=8, stack="vllm")
    assert Hardware.stated(scenario, result.profile).stack.sustained_rate == pytest.approx(1.0 / 1.25)


def test_show_lists_what_was_measured_besides_tables(tmp_path: Path) -> None:
    profile = replace(fitted(tmp_path, [sample("eager_launch", 5e-6)]).profile, overlap={"gemm_delay": 0.5})
    shown = to_text(describe(profile)).splitlines()
    assert "source  all (calibrate run)" in shown
    assert "machine  device NVIDIA H100 80GB HBM3, gpu NVIDIA H100 80GB HBM3, cpu some" in shown
    assert any(line.startswith("between kernels  eager_launch_s 5e-06, ") for line in shown)
    assert "overlap  gemm_delay 0.5" in shown


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
