"""Profiles of samples hold them, a planted floor is recovered, and a bad fit is refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.__main__ import main
from calibration.fit.overheads import floor_s
from calibration.fit.profile import make_profile
from calibration.fit.samples import Sample, SampleStore
from ladder_sim import Scenario
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile_file import load_profile

SIZES = np.logspace(3, 8.5, 24)


@given(
    planted_us=st.floats(2, 100),
    bandwidth_GBps=st.floats(50, 5000),
    noise=st.floats(0.001, 0.05),
    seed=st.integers(0, 1000),
)
def test_a_planted_floor_is_recovered_in_spite_of_an_outlier(
    planted_us: float, bandwidth_GBps: float, noise: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    seconds = planted_us * 1e-6 + SIZES / (bandwidth_GBps * 1e9)
    seconds *= np.exp(random.normal(0, noise, SIZES.size))
    seconds[seed % SIZES.size] *= 3.0
    points = {(float(size),): float(time_s) for size, time_s in zip(SIZES, seconds, strict=True)}
    assert floor_s(points) == pytest.approx(planted_us * 1e-6, rel=0.01 + 5 * noise)


def samples(path: Path, *, noise: float = 0.0) -> SampleStore:
    store = SampleStore(path, {"gpu": "H100"})
    random = np.random.default_rng(0)
    for m in (1, 4, 16, 64, 256, 1024):
        for n in (1024, 4096, 8192):
            for k in (1024, 4096):
                seconds = 3e-6 + 2.0 * n * k / 3e12 + 2.0 * m * n * k / 7e14
                store.append(_gemm(m, n, k, seconds * float(np.exp(random.normal(0, noise)))))
    for size in SIZES:
        for nodes in (1, 2):
            point = {"bytes": float(size), "ranks": 8.0 * nodes, "nodes": float(nodes)}
            store.append(Sample(op="all_reduce", point=point, seconds=float(nodes * 1e-5 + size / 2e11)))
    store.append(Sample(op="gemm", point={"m": 4096.0, "n": 8192.0, "k": 4096.0}, seconds=None))
    return store


def _gemm(m: float, n: float, k: float, seconds: float) -> Sample:
    return Sample(op="gemm", point={"m": float(m), "n": float(n), "k": float(k)}, seconds=seconds)


def test_a_profile_holds_its_samples(tmp_path: Path) -> None:
    fitted = make_profile(samples(tmp_path / "s.jsonl"), name="mine", cluster="h100-sxm", created="2026-01-01")
    assert fitted.refused == ()
    assert fitted.errors["gemm"].rows == 36
    assert fitted.errors["gemm"].median < 0.25
    table = fitted.profile.gemm["bf16"]
    assert 4096 not in table.axes[0]
    assert table.seconds[0, 0, 0] == pytest.approx(3e-6 + 2 * 1024**2 / 3e12 + 2 * 1024**2 / 7e14)
    # the all-reduce across nodes goes into a fabric file
    curves = fitted.profile.collectives["all_reduce"]["nccl"]
    assert set(curves) == {8}
    assert curves[8].left_out["held out"] == fitted.errors["all_reduce, 8 ranks"]


def test_every_group_is_judged_by_itself_and_too_few_points_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, random = samples(tmp_path / "s.jsonl"), np.random.default_rng(0)
    for ranks, count in ((2, 4), (4, 24)):
        for size in SIZES[:count]:
            point = {"bytes": float(size), "ranks": float(ranks), "nodes": 1.0}
            wild = 1e-5 * float(np.exp(random.normal(0, 1.5)))
            store.append(Sample(op="all_reduce", point=point, seconds=wild))
    fitted = make_profile(store, name="mine", cluster="h100-sxm", created="2026-01-01")
    assert [refused.partition(":")[0] for refused in fitted.refused] == ["all_reduce, 4 ranks"]
    assert fitted.unjudged == ("all_reduce, 2 ranks",)
    curves = fitted.profile.collectives["all_reduce"]["nccl"]
    assert curves[2].left_out == {}
    assert curves[8].left_out["held out"].median < 0.01 < curves[4].left_out["held out"].median
    arguments = ["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(tmp_path / "p.json.gz")]
    assert main(arguments) == 2
    assert "all_reduce, 2 ranks: too few points to judge\n" in capsys.readouterr().err


def test_the_all_reduce_across_nodes_becomes_a_fabric(tmp_path: Path) -> None:
    samples(tmp_path / "s.jsonl")
    profile, fabric = tmp_path / "p.json.gz", tmp_path / "fabric.toml"
    arguments = ["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(profile)]
    assert main([*arguments, "--fabric", str(fabric)]) == 0
    written = fabric_curve(str(fabric))
    assert written is not None
    assert (written.cluster.name, written.nodes, written.ranks_per_node) == ("h100-sxm", 2, 8)
    assert written.curve.seconds == pytest.approx(2e-5 + SIZES / 2e11, rel=1e-4)


def test_curves_of_other_all_reduces_stand_under_their_own_names(tmp_path: Path) -> None:
    store = samples(tmp_path / "s.jsonl")
    for size in SIZES:
        point = {"bytes": float(size), "ranks": 8.0, "nodes": 1.0}
        store.append(Sample(op="multimem_all_reduce", point=point, seconds=5e-6 + size / 4e11))
        store.append(Sample(op="all_to_all", point=point, seconds=8e-6 + size / 3e11))
    out = tmp_path / "p.json.gz"
    assert main(["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(out)]) == 0
    profile = load_profile(out)
    assert {kind: set(curves) for kind, curves in profile.collectives.items()} == {
        "all_reduce": {"nccl", "multimem"},
        "all_to_all": {"nccl"},
    }
    scenario = Scenario.of(model="8b", tp=8, overrides={"stack.allreduce": "multimem"})
    times = Network(scenario, profile, Hardware.of(scenario, profile)).times("all_reduce", np.array([1e6]))
    assert times.in_range[0]
    assert times.seconds[0] == pytest.approx(5e-6 + 1e6 / 4e11, rel=0.05)


def test_fit_diff_and_export_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples(tmp_path / "s.jsonl")
    for name in ("one", "two"):
        out = tmp_path / f"{name}.json.gz"
        assert main(["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(out)]) == 0
    assert load_profile(out).cluster_name == "h100-sxm"
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "one.json.gz"), str(out)]) == 0
    assert "gemm bf16: 36 points" in (shown := capsys.readouterr().out)
    assert "takes 1.000 times as long" in shown
    assert main(["export", str(out)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "table,point,seconds"
    assert len(rows) == 36 + len(SIZES)


def test_a_bad_fit_is_refused_and_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples(tmp_path / "s.jsonl", noise=1.5)
    out = tmp_path / "p.json.gz"
    arguments = ["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(out)]
    assert main(arguments) == 2
    assert "median errors above 25%: gemm" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--force"]) == 0
    assert gzip.decompress(out.read_bytes())
