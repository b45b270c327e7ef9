"""Launches, floors, jitter and overlap: recovered as planted, and read by predictions."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.fit.profile import FittedProfile, make_profile
from calibration.fit.samples import Sample, SampleStore
from calibration.show import describe
from ladder_sim import Scenario, predict
from ladder_sim.costs.contention import OverlapParameters
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import JITTER_KEY
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.display.console import to_text
from ladder_sim.specs import catalog

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
    ]
    result = fitted(tmp_path, [*elementwise, *launches])
    assert result.profile.overheads == {
        "eager_launch_s": 5e-6,
        "graph_launch_s": 7e-6,
        "graph_kernel_s": 1.5e-6,
        "stream_wait_s": pytest.approx(1.5e-6),
        "small_kernel_factor": pytest.approx(1.5, rel=1e-3),
        JITTER_KEY: pytest.approx(0.02 / 0.6745),
    }
    assert result.warnings == result.refused == ()


def test_show_lists_what_was_measured_besides_tables(tmp_path: Path) -> None:
    profile = replace(fitted(tmp_path, [sample("eager_launch", 5e-6)]).profile, overlap={"collective_slowdown": 0.5})
    shown = to_text(describe(profile)).splitlines()
    assert "source  all (calibrate run)" in shown
    assert "machine  device NVIDIA H100 80GB HBM3, gpu NVIDIA H100 80GB HBM3, cpu some" in shown
    assert any(line.startswith("between kernels  eager_launch_s 5e-06, ") for line in shown)
    assert "overlap  collective_slowdown 0.5" in shown


def test_predictions_take_measured_launches_but_for_what_is_set_by_hand(tmp_path: Path) -> None:
    profile = fitted(tmp_path, [sample("eager_launch", 5e-6), sample("graph_launch", 7e-6)]).profile
    scenario = Scenario.of(model="8b", tp=8, overrides={"stack.graph_launch": "2us"})
    stack = Hardware.stated(scenario, profile).stack
    assert (stack.eager_launch_s, stack.graph_launch_s) == (5e-6, 2e-6)
    assert stack.stream_wait_s == scenario.stack.stream_wait_s


def test_predictions_warn_of_a_profile_that_was_measured_elsewhere(tmp_path: Path) -> None:
    profile = fitted(tmp_path, []).profile
    scenario = Scenario.of(model="8b", tp=8)
    for device, warned in (("NVIDIA H100 80GB HBM3", False), ("AMD EPYC", True)):
        elsewhere = replace(profile, environment={"device": device})
        warnings = predict(scenario, ["standard"], profile=elsewhere)["standard"].confidence.warnings
        assert any(f"measured on '{device}'" in warning for warning in warnings) is warned


def test_jitter_is_what_predictions_read(tmp_path: Path) -> None:
    profile = fitted(tmp_path, []).profile
    scenario = Scenario.of(model="8b", tp=8, prompt=16, gen=2)
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
    hardware = Hardware.of(Scenario.of(model="8b", tp=8), result.profile)
    assert hardware.overlap.collective_slowdown == expected.get("collective_slowdown", default)


def test_a_profile_of_a_cluster_of_ones_own_is_at_home_there_and_warns_elsewhere(tmp_path: Path) -> None:
    text = (Path(catalog.__file__).parent / "data/clusters/h100-sxm.toml").read_text("utf-8")
    own = tmp_path / "own.toml"
    own.write_text(text, "utf-8")
    out = tmp_path / "mine.json.gz"
    save_profile(fitted(tmp_path, [], cluster=str(own)).profile, out)

    def warned(cluster: str) -> bool:
        scenario = Scenario.of(model="8b", tp=8, cluster=cluster)
        prediction = predict(scenario, ["standard"], profile=load_profile(out))["standard"]
        return any("was measured on" in warning for warning in prediction.confidence.warnings)

    assert not warned(str(own))
    assert warned("a100-sxm-hdr")


def test_samples_of_other_hardware_than_the_cluster_has_are_reported(tmp_path: Path) -> None:
    (warning,) = fitted(tmp_path, [], cluster="a100-sxm-hdr").warnings
    assert warning == "measured on 'NVIDIA H100 80GB HBM3', while the GPU of 'a100-sxm-hdr' is A100 SXM4 80GB"
