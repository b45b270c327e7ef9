"""Profiles of samples hold them, a planted floor is recovered, and a bad fit is refused."""

import gzip
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import SpecError
from ladder_sim.kernels import TABLE_KINDS, Experts, Gpu
from ladder_sim.prediction import predict
from ladder_sim.specs import catalog
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.fit.profile import floor_s, make_profile
from ladder_sim_calibration.fit.samples import Sample, SampleStore
from tests.support.graphs import build

SIZES = np.logspace(3, 8.5, 24).round()


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
    scenario = Scenario(model="8b", tp=8, overrides={"stack.allreduce": "multimem"})
    times = Network(scenario, profile, Hardware.of(scenario, profile)).times("all_reduce", np.array([1e6]))
    assert times.in_range[0]
    assert times.seconds[0] == pytest.approx(5e-6 + 1e6 / 4e11, rel=0.05)


def test_what_is_measured_of_attention_sampling_and_experts_is_what_predictions_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = samples(tmp_path / "s.jsonl")
    for kv_len in (128.0, 512.0, 2048.0):
        for pairs in (1.0, 16.0):
            point = {"batch_kv_heads": pairs, "group": 8.0, "kv_len": kv_len, "head_dim": 128.0}
            store.append(Sample(op="math_attention_decode", point=point, seconds=1e-5 + 1e-9 * pairs * kv_len))
    for batch in (1.0, 4.0, 16.0, 64.0, 256.0):
        point = {"batch": batch, "vocab": 151936.0}
        store.append(Sample(op="sample_greedy", point=point, seconds=2e-5 + 1e-7 * batch))
        store.append(Sample(op="sample_top_p", point=point, seconds=2e-4 + 1e-5 * batch))
    layer, gpu = Experts("bf16", 2048, 768, 128, 8), Gpu.of(catalog.cluster("h100-sxm").gpu)
    sizes = {"hidden": 2048.0, "width": 768.0, "experts": 128.0, "top_k": 8.0}
    expected = {}
    for tokens in (1.0, 4.0, 16.0, 64.0, 256.0):
        for expert_tp, ep in ((8.0, 1.0), (1.0, 8.0)):
            split = {"expert_tp": expert_tp, "ep": ep, "tokens": tokens}
            seconds = (1.0 + ep / 8.0) * float(TABLE_KINDS["moe"].shape(layer, split).roofline_s(gpu))
            expected[ep, tokens] = seconds
            store.append(Sample(op="experts", point={**sizes, **split}, seconds=seconds))
    path = tmp_path / "p.json.gz"
    assert main(["fit", str(store.path), "--cluster", "h100-sxm", "--out", str(path)]) == 0
    said = capsys.readouterr().err
    for name, rows in (
        *(("math_attention_decode", 6), ("sample_greedy", 5), ("sample_top_p", 5)),
        ("experts 128 of 2048 x 768, top 8", 10),
    ):
        assert f"{name}: {rows} points held out, error " in said
    profile = load_profile(path)
    for table in (*profile.attention_decode["math"].values(), *profile.sampling.values(), *profile.experts.values()):
        assert table.left_out["held out"].rows >= 5

    def predicted_s(kind: str, overheads: Mapping[str, float] = MappingProxyType({}), **given: Any) -> float:
        whole: dict[str, Any] = {"model": "qwen3-30b-a3b", "tp": 8, "batch": 16, "prompt": 448, "gen": 64, **given}
        scenario = Scenario(**whole)
        ops = [op for op in build(scenario, "decode", 512).ops() if op.kind == kind]
        (estimate, *_) = KernelCosts(
            scenario, replace(profile, overheads={**profile.overheads, **overheads})
        ).estimates(ops)
        assert estimate.source == "measured"
        return float(estimate.seconds)

    # 32 query heads on 4 KV heads: a rank of four has one of these
    math = {"stack": "gpt-fast", "tp": 4}
    assert predicted_s("attention", **math) == pytest.approx(1e-5 + 1e-9 * 16 * 512)
    twice = {"attention_factor": 2.0, "batched_attention_s": 1e-3}
    assert predicted_s("attention", twice, **math) == pytest.approx(2 * (1e-5 + 1e-9 * 16 * 512))
    assert predicted_s("sample") == pytest.approx(2e-5 + 1e-7 * 16)
    assert predicted_s("sample", overrides={"stack.sampling": "top-p"}) == pytest.approx(2e-4 + 1e-5 * 16)
    assert predicted_s("experts") == pytest.approx(expected[1.0, 16.0])
    assert predicted_s("experts", ep=8) == pytest.approx(expected[8.0, 16.0])

    for stack, model, warned in (("vllm", "qwen3-30b-a3b", 1), ("gpt-fast", "qwen3-30b-a3b", 0), ("vllm", "8b", 0)):
        predictions = predict(Scenario(model=model, stack=stack, tp=4), ["ladder"], profile=profile)
        assert sum("one after another" in line for line in predictions.confidence.warnings) == warned

    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    for name in ("decode attention math bf16", "sampling top-p", "experts 128 of 2048 x 768, top 8 bf16"):
        assert re.search(rf"{name} +[\dx ]+ held out", shown), name
    assert main(["diff", str(path), str(path)]) == 0
    assert "experts 128 of 2048 x 768, top 8 bf16: 10 points" in capsys.readouterr().out


def test_without_measurements_sampling_is_a_small_kernel_however_it_is_done(tmp_path: Path) -> None:
    profile = make_profile(samples(tmp_path / "s.jsonl"), name="p", cluster="h100-sxm", created="2026-01-01").profile
    greedy, drawn = (
        predict(Scenario(model="8b", tp=8, overrides={"stack.sampling": name}), ["ladder"], profile=profile)
        for name in ("greedy", "top-p")
    )
    assert greedy["ladder"].tpot_s == drawn["ladder"].tpot_s
    assert [line for line in drawn.confidence.warnings if line not in greedy.confidence.warnings] == [
        "profile 'p' holds no sampling by top-p: it is priced as the greedy choice"
    ]


def test_fit_and_diff_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples(tmp_path / "s.jsonl")
    for name in ("one", "two"):
        out = tmp_path / f"{name}.json.gz"
        assert main(["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(out)]) == 0
    assert load_profile(out).cluster_name == "h100-sxm"
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "one.json.gz"), str(out)]) == 0
    assert "gemm bf16: 36 points" in (shown := capsys.readouterr().out)
    assert "takes 1.000 times as long" in shown


def test_samples_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a profile took their place, and what was measured in hours was gone."""
    path = samples(tmp_path / "s.jsonl").path
    measured = path.read_bytes()
    for written in (["--out", str(path)], ["--out", str(tmp_path / "p.json.gz"), "--fabric", str(path)]):
        assert main(["fit", str(path), "--cluster", "h100-sxm", *written]) == 2
        assert "is the samples file" in capsys.readouterr().err
    assert path.read_bytes() == measured


def test_a_number_of_cores_that_is_none(tmp_path: Path) -> None:
    """Regression: a traceback."""
    store = SampleStore(tmp_path / "s.jsonl", {"cpu": "one", "cpu_cores": "two"})
    store.append(_gemm(1, 8, 8, 1e-6))
    with pytest.raises(SpecError, match="cpu_cores is 'two': must be a whole number"):
        make_profile(store, name="p", cluster="h100-sxm", created="2026-11-23")


@pytest.mark.parametrize("flags", [(), ("--cluster", "h100-sxm", "--out", "p.json", "--fast")])
def test_a_missing_or_unknown_option_is_an_error_like_any_other(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    assert main(["fit", "s.jsonl", *flags]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert ("--fast" if flags else "--cluster, --out") in error
    assert hint.endswith("`ladder-sim calibrate fit --help` lists the options")


def test_a_bad_fit_is_refused_and_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples(tmp_path / "s.jsonl", noise=1.5)
    out = tmp_path / "p.json.gz"
    arguments = ["fit", str(tmp_path / "s.jsonl"), "--cluster", "h100-sxm", "--out", str(out)]
    assert main(arguments) == 2
    assert "median errors above 25%: gemm" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--force"]) == 0
    assert gzip.decompress(out.read_bytes())
