"""The importer, on a small made-up package in the real one's form; and on the real one where it is at hand."""

import gzip
import itertools
import json
import os
import re
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ladder_sim.costs import profile_file
from ladder_sim.costs.collectives.algorithms import OWN, bracketed
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import MissingDependencyError, UsageError, install_command
from ladder_sim.report.console import to_text
from ladder_sim_calibration.show import describe
from tests.support.profile_files import check_same
from tools.profiles import parquet
from tools.profiles.__main__ import main
from tools.profiles.aiconfigurator import (
    Measurements,
    make_engine_profile,
    make_profile,
    read_system,
)
from tools.profiles.allreduce import engine_curves, one_shot_sizes, two_shot_sizes
from tools.profiles.clean import from_memory, outlier_note, without_excluded
from tools.profiles.grids import Series, dense, distinct, lowered, merge, outliers
from tools.profiles.package import find_systems, newest_files, read_columns, read_gpu_figures
from tools.profiles.thin import thin, thin_curve

BANDWIDTH_BPS = 3.35e12
YAML = """data_dir: data/h100_sxm
gpu:
  mem_bw: 3350000000000 # 3350GB/s
  bfloat16_tc_flops: 989000000000000
  fp8_tc_flops: 1978000000000000 # dense
node:
  mem_bw: 1
"""
ENGINES = {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def gemm_rows(slower: float = 1.0, *, quantise_us: float = 0.0) -> list[dict[str, Any]]:
    sizes = [64, 256, 1024, 4096, 16384]
    return [
        {
            "device": "NVIDIA TEST",
            "gemm_dtype": dtype,
            "m": m,
            "n": n,
            "k": k,
            "latency": slower * 1e3 * (3e-6 + 1.15 * n * k * size / BANDWIDTH_BPS + 2.6 * m * n * k / 989e12)
            + 1e-3 * quantise_us * (dtype == "fp8"),
        }
        for dtype, size in (("bfloat16", 2), ("fp8", 1))
        for m, n, k in itertools.product([1, 2, 4, 8, 16, 32, 64, 128], sizes, sizes)
        if (n, k) != (16384, 16384)
    ]


def attention_rows(phase: str, slower: float = 1.0) -> list[dict[str, Any]]:
    rows = []
    for batch, kv_heads, group, head_dim in itertools.product([1, 2, 4, 8], [1, 2, 8], [1, 4, 8, 64], [64, 128, 192]):
        for length in (16, 64, 256, 1024, 4096):
            work = batch * kv_heads * length * head_dim
            seconds = 8e-6 + 5e-13 * work * (10 if phase == "generation" else 0.01 * group * length)
            shape = {"batch_size": batch, "num_heads": kv_heads * group, "num_key_value_heads": kv_heads}
            step = {"isl": 1, "step": length - 1} if phase == "generation" else {"isl": length, "step": 0}
            kinds = {"head_dim": head_dim, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0}
            row = {**shape, **step, **kinds, "kernel_source": "main", "latency": seconds * slower * 1e3}
            rows.append(row)
            # where a prompt's cache is fp8, so is its arithmetic
            fp8 = {**row, "kv_cache_dtype": "fp8", "latency": row["latency"] / 2}
            rows += [fp8] if phase == "generation" else [{**fp8, "latency": 1e-6}, {**fp8, "attn_dtype": "fp8"}]
            # rows of other kernels, which must not count
            rows.append({**row, "window_size": 128, "latency": 1e-6})
            rows += [{**row, "kernel_source": "other", "latency": 1e-6}] * (batch == 1)
    return rows


def quantise_rows(microseconds: float) -> list[dict[str, Any]]:
    return [
        {"m": m, "k": k, "latency": microseconds * 1e-3}
        for m, k in itertools.product([1, 2, 4, 8, 16, 32, 64, 128], [64, 256, 1024, 4096, 16384])
    ]


def nccl_seconds(size_bytes: float, ranks: int) -> float:
    return 3e-6 * ranks**0.8 + size_bytes / 250e9


def nccl_rows() -> list[dict[str, Any]]:
    return [
        {"nccl_dtype": dtype, "num_gpus": ranks, "message_size": elements, "op_name": op, "latency": latency}
        for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
        for ranks in (2, 4, 8)
        for elements in 2 ** np.arange(8, 27)
        for dtype, latency in (("half", 1e3 * nccl_seconds(2.0 * elements, ranks)), ("int8", 1e-6))
    ]


def custom_rows(engine: str, backends: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for ranks, elements, backend in itertools.product((2, 4, 8), (2 ** np.arange(7, 27)).tolist(), backends):
        size = 2.0 * elements
        one_shot = 3e-6 + (ranks - 1) * size / 300e9
        two_shot = 5e-6 + size / 300e9
        seconds = min(one_shot if size < 2**19 or ranks == 2 else two_shot, nccl_seconds(size, ranks))
        if size > 2**23:
            seconds = nccl_seconds(size, ranks)
        row = {"framework": engine, "num_gpus": ranks, "message_size": elements, "op_name": "all_reduce"}
        rows.append({**row, "backend": backend, "latency": 1e3 * (2e-5 if backend.endswith("eager") else seconds)})
    return rows


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("package")
    systems = root / "systems"
    data = systems / "data" / "h100_sxm"
    data.mkdir(parents=True)
    (systems / "h100_sxm.yaml").write_text(YAML, encoding="utf-8")
    for i, (engine, version) in enumerate(ENGINES.items()):
        own = gemm_rows(1.0 + 0.1 * (i - 1), quantise_us=9.0 if engine == "trtllm" else 0.0)
        write_rows(data / "gemm" / engine / version / "gemm_perf.parquet", own)
        # an older version that would change every median
        write_rows(data / "gemm" / engine / "0.0.9" / "gemm_perf.parquet", gemm_rows(50.0))
        for phase in ("context", "generation"):
            folder = data / "attention" / engine / version
            write_rows(folder / f"{phase}_attention_perf.parquet", attention_rows(phase, 1.0 + 0.2 * i))
    for name, microseconds in (("computescale", 7.5), ("scale_matrix", 1.5)):
        folder = data / "quantize" / "trtllm" / ENGINES["trtllm"]
        write_rows(folder / f"{name}_perf.parquet", quantise_rows(microseconds))
    for version in ("2.27.3", "2.29.2"):
        write_rows(data / "comm" / "nccl" / version / "nccl_perf.parquet", nccl_rows())
    for engine, label in (("vllm", "vLLM"), ("sglang", "SGLang")):
        backends = (f"{engine}_graph", f"{engine}_eager")
        path = data / "comm" / engine / ENGINES[engine] / "custom_allreduce_perf.parquet"
        write_rows(path, custom_rows(label, backends))
    trtllm = [{k: v for k, v in row.items() if k != "backend"} for row in custom_rows("TRTLLM", ("trtllm_graph",))]
    write_rows(data / "comm" / "trtllm" / "1.3.0rc20" / "custom_allreduce_perf.parquet", trtllm)
    # a copy in another engine's folder still is TRT-LLM's
    write_rows(data / "comm" / "sglang" / "0.5.6" / "custom_allreduce_perf.parquet", trtllm)
    return root


@pytest.fixture(scope="module")
def measured(package: Path) -> Measurements:
    return read_system("h100_sxm", package)


@pytest.fixture(scope="module")
def profile(measured: Measurements) -> CalibrationProfile:
    return make_profile(measured, created="2026-01-01")


def test_units_engines_and_figures(profile: CalibrationProfile) -> None:
    assert profile.reference.hbm_bandwidth_Bps == BANDWIDTH_BPS
    assert profile.reference.fp8_flops == 1978e12
    assert profile.environment == {
        "device": "NVIDIA TEST",
        "engines": "sglang 0.5.14, trtllm 1.3.0rc20, vllm 0.24.0",
        "nccl": "2.27.3, 2.29.2",
    }
    table = profile.gemm["bf16"]
    at = [int(np.flatnonzero(axis == value)[0]) for axis, value in zip(table.axes, (1, 1024, 1024), strict=True)]
    # milliseconds became seconds, of the newest versions' median engine
    expected = 3e-6 + 1.15 * 1024 * 1024 * 2 / BANDWIDTH_BPS + 2.6 * 1024 * 1024 / 989e12
    assert table.seconds[tuple(at)] == pytest.approx(expected, rel=1e-3)
    # elements became bytes, outside a CUDA graph does not count
    nccl = profile.collectives["all_reduce"]["nccl"][8]
    assert nccl.size_bytes[0] == 512
    assert nccl.seconds_at(2**20)[0] == pytest.approx(nccl_seconds(2**20, 8), rel=0.05)
    assert profile.collectives["all_reduce"]["one-shot"][8].seconds[0] < 1e-5


def test_missing_corner_is_a_hole_filled_by_its_neighbours(profile: CalibrationProfile) -> None:
    table = profile.gemm["bf16"]
    ratio, in_range = table.ratio(m=1, n=16384, k=16384)
    assert not in_range
    assert 1.0 < ratio < 2.0


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
def test_attention_keeps_its_own_kernel_and_judges_on_the_width_between(
    profile: CalibrationProfile, kv_dtype: str
) -> None:
    for tables in (profile.attention_prefill, profile.attention_decode):
        table = tables["flash"][kv_dtype]
        assert set(table.axes[3]) <= {64.0, 128.0}
        assert table.axes[1][-1] <= parquet.MAX_GROUP
        assert table.left_out["aggregated"].rows > 0
        assert np.nanmin(table.seconds) > 1e-7
    assert profile.attention_decode["flash"]["bf16"].axes[2].tolist()[0] == 16


def test_collective_algorithms(profile: CalibrationProfile) -> None:
    curves = profile.collectives["all_reduce"]
    assert set(curves) == {"nccl", "one-shot", "two-shot"}
    assert set(curves["two-shot"]) == {4, 8}
    assert curves["two-shot"][4].size_bytes[0] == 2**19
    assert curves["two-shot"][8].size_bytes[0] == 2**18
    assert curves["one-shot"][8].size_bytes[-1] <= 2**19
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        assert set(profile.collectives[op]) == {"nccl"}


def test_a_copy_counts_once(measured: Measurements) -> None:
    assert len(measured.custom["trtllm", 8]) == 2
    assert len(distinct(measured.custom["trtllm", 8])) == 1


def test_a_table_errs_little_on_what_it_leaves_out(profile: CalibrationProfile) -> None:
    assert profile.gemm["bf16"].left_out["aggregated"].median < 0.05


def test_outlier_is_dropped_only_without_support() -> None:
    sizes = np.arange(1.0, 8.0)[:, None]
    flat = np.ones(7)
    spike = np.where(np.arange(7) == 3, 5.0, 1.0)
    step = np.where(np.arange(7) >= 3, 5.0, 1.0)

    def dropped(*many: np.ndarray) -> int:
        return int(outliers(np.log(many)).sum())

    assert dropped(flat, spike) == 1
    series = [Series(label=str(i), points=sizes, seconds=seconds) for i, seconds in enumerate((flat, spike))]
    np.testing.assert_allclose(merge(("bytes",), series).seconds, 1.0)
    # another series agrees, or the neighbours do: not an outlier
    assert dropped(spike, spike * 1.1) == 0
    assert dropped(step, flat) == 0
    # nothing to compare with
    assert dropped(spike) == 0


def test_quorum_leaves_out_points_of_a_lone_series() -> None:
    wide = Series(label="wide", points=np.array([[1.0], [2.0], [4.0]]), seconds=np.ones(3))
    narrow = [Series(label=str(i), points=np.array([[1.0], [4.0]]), seconds=np.ones(2)) for i in range(2)]
    assert np.isfinite(merge(("m",), [wide, *narrow], quorum=0.5).seconds).tolist() == [True, False, True]


def test_thinning_keeps_what_cannot_be_interpolated() -> None:
    axes = {"a": 2.0 ** np.arange(10)}
    seconds = np.where(np.arange(10) == 6, 4.0, 1.0)
    table = thin(axes, seconds, np.ones(10), max_points=5, target=0.01)
    assert 2.0**6 in table.axes[0]
    assert len(table.axes[0]) <= 5
    curve = thin_curve(axes["a"], seconds, target=0.01, max_share=0.8)
    assert 2.0**6 in curve.size_bytes
    np.testing.assert_allclose(curve.seconds_at(axes["a"])[0], seconds, rtol=0.01)
    # a flat curve keeps sizes so near each other that those between count as measured
    sizes = 2.0 ** np.arange(8, 31)
    flat = thin_curve(sizes, np.ones(23), target=0.01, max_share=0.8)
    assert bracketed(flat, sizes).all()
    assert len(flat.seconds) == 5


def test_algorithm_ranges_end_where_the_engine_changes() -> None:
    sizes = [2.0**i for i in range(10, 26)]
    nccl = {size: 15e-6 + size / 100e9 for size in sizes}
    affine = {size: 3e-6 + 7 * size / 300e9 for size in sizes}
    assert one_shot_sizes(affine, nccl)[-1] < 2**21
    falls = {size: 3e-6 + 7 * min(size, 2**19) / 3000e9 + max(0.0, size - 2**19) / 3000e9 for size in sizes}
    assert one_shot_sizes(falls, nccl)[-1] == 2**19
    assert two_shot_sizes(affine, nccl, 2) == []
    assert two_shot_sizes(nccl, nccl, 8) == []


def test_an_engines_profile_holds_what_the_engine_does_by_itself(
    measured: Measurements, profile: CalibrationProfile, tmp_path: Path
) -> None:
    base = load_profile("h100-sxm")
    made = {name: make_engine_profile(measured, name, base, created="2026-01-01") for name in ENGINES}
    for name, own in made.items():
        save_profile(own, tmp_path / "own.json")
        document = json.loads((tmp_path / "own.json").read_text())
        assert document["base"] == "h100-sxm"
        # static checkpoints are TensorRT-LLM's; other GEMMs are libraries' that all engines call
        assert set(document["gemm"]) == ({"fp8"} if name == "trtllm" else set())
        assert set(document["attention_decode"]["flash"]) == {"bf16", "fp8"}
        assert document["collectives"].keys() == {"all_reduce"}
        assert document["collectives"]["all_reduce"].keys() == {OWN}
        assert document["environment"]["engine"] == f"{name} {ENGINES[name]}"
        assert "aiconfigurator" in document["sources"][0]["citation"]
        again = load_profile(tmp_path / "own.json")
        assert (again.name, again.tables_of) == (f"h100-sxm-{name}", "h100-sxm")
        assert again.gemm["bf16"] is base.gemm["bf16"]
        assert (again.gemm["fp8"] is base.gemm["fp8"]) == (name != "trtllm")
        assert again.collectives["all_gather"]["nccl"] is base.collectives["all_gather"]["nccl"]
        assert again.environment == own.environment
    point = {"batch_kv_heads": 8.0, "group": 4.0, "kv_len": 1024.0, "head_dim": 128.0}
    own_ratio = [float(own.attention_decode["flash"]["bf16"].factor(**point)) for own in made.values()]
    assert own_ratio == pytest.approx([own_ratio[0] * slower for slower in (1.0, 1.2, 1.4)], rel=0.01)


def test_an_engines_own_all_reduce_never_falls_and_is_its_newest(measured: Measurements) -> None:
    sizes = 2.0 ** np.arange(10, 20)
    times = np.where(sizes == 2.0**13, 9e-6, 1e-6 + sizes / 300e9)
    series = [
        Series(label=label, points=sizes[:, None], seconds=times * k) for k, label in ((1, "a 1.10"), (9, "a 1.9"))
    ]
    copy = Series(label="b 2.0", points=sizes[:, None], seconds=times)
    label, curves = engine_curves({("a", 4): [*series, copy], ("b", 4): []}, "a")
    assert label == "a 1.10"
    assert curves[4].seconds_at(2.0**13)[0] == pytest.approx(times[4], rel=0.03)
    assert (np.diff(curves[4].seconds_at(sizes)[0]) >= 0).all()
    assert engine_curves(measured.custom, "trtllm")[0] == "trtllm 1.3.0rc20"


def test_static_fp8_is_without_the_quantisation_of_activations(measured: Measurements) -> None:
    """TensorRT-LLM's fp8 times hold 9 us of it here, the others none."""
    by_engine = {series.label.split()[0]: series for series in measured.tables["gemm", "fp8"]}
    slower = {"sglang": 0.9, "trtllm": 1.0, "vllm": 1.1}
    floor = 2e-6 + by_engine["trtllm"].points[:, 1:].prod(axis=1) / (0.92 * BANDWIDTH_BPS)
    expected = np.maximum(by_engine["vllm"].seconds / slower["vllm"], floor)
    np.testing.assert_allclose(by_engine["trtllm"].seconds, expected, rtol=1e-6)
    assert any("fp8 of trtllm" in note and "computescale" in note for note in measured.notes)


def test_no_time_is_faster_than_memory() -> None:
    """Repeated calls on L40S read weights of up to 100 MB from its cache."""
    points = np.array([[1.0, 1024.0, 1024.0], [1.0, 4096.0, 4096.0]])
    series = Series(label="a 1.0", points=points, seconds=np.array([1e-5, 1e-5]))
    size_bytes = 2.0 * points[:, 1:].prod(axis=1)
    raised, notes = from_memory(series, size_bytes, 1e12, "gemm bf16")
    assert raised.seconds.tolist() == [1e-5, 2 * 4096**2 / 1e12]
    assert notes == ["gemm bf16 of a 1.0: 1 of 2 times raised to what reading its operands takes"]
    assert from_memory(raised, size_bytes, 1e12, "gemm bf16")[1] == []


def test_times_that_fall_far_are_lowered_and_named() -> None:
    points = np.array(list(itertools.product([1.0, 2.0, 4.0], [64.0, 128.0], [64.0])))
    flat = Series(label="even 1.0", points=points, seconds=np.full(6, 1e-5))
    # within what libraries do by themselves, and far beyond it
    spiked = Series(label="odd 2.0", points=points, seconds=np.array([1.2e-5, 1e-5, 4e-5, 1e-5, 1e-5, 1e-5]))
    assert lowered(dense([np.unique(axis) for axis in points.T], spiked), (0, 1), 1.3).max() == 1.2e-5
    note = outlier_note("gemm", "fp8", [flat, spiked])
    assert "1 of 12 times lowered" in note
    assert "odd 2.0 m 2 n 64 k 64, 40.0 to 10.0 us" in note
    assert outlier_note("gemm", "fp8", [flat]) == ""
    grid = merge(("m", "n", "k"), [spiked, spiked], rising=("m", "n"), far=1.3)
    assert grid.seconds.max() == pytest.approx(1.2e-5)


def test_what_does_not_measure_the_gemm_is_left_out_with_its_reason() -> None:
    points = np.array([[1.0, 64.0, 64.0], [1024.0, 64.0, 64.0]])
    for label, system, dtype, rows in (
        ("vllm 0.24.0", "h100_sxm", "fp8-block", 0),
        ("sglang 0.5.14", "h100_sxm", "fp8-block", 2),
        ("trtllm 1.3.0rc20", "b200_sxm", "nvfp4", 1),
        ("trtllm 1.3.0rc20", "rtx_pro_6000_server", "nvfp4", 2),
    ):
        kept, notes = without_excluded(Series(label=label, points=points, seconds=np.ones(2)), system, dtype)
        assert (len(kept.seconds), len(notes)) == (rows, int(rows < 2))
        assert all(label in note and dtype in note and ": " in note for note in notes)


def test_command_line(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--system", "h100_sxm", "--source", str(package), "--out", str(tmp_path)]) == 0
    names = ["h100-sxm", *(f"h100-sxm-{engine}" for engine in ("vllm", "trtllm", "sglang"))]
    files = [tmp_path / f"{name}.json.gz" for name in names]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert [load_profile(file).name for file in files] == names
    shown = to_text(describe(load_profile(files[1])))
    assert "decode attention flash fp8" in shown
    assert "quantisation subtracted" in shown
    assert "engine vllm 0.24.0" in " ".join(shown.split())


def test_command_line_errors(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--source", str(package), "--system", "h100"]) == 2
    assert "did you mean 'h100_sxm'" in capsys.readouterr().err
    assert main(["--source", str(tmp_path), "--system", "h100_sxm"]) == 2
    assert "systems/data" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "none")]) == 2
    assert "must be a folder that exists" in capsys.readouterr().err


def test_absent_package_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install aiconfigurator-core==0\.12\.0"):
        find_systems(None)


def test_absent_pyarrow_names_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install_command("parquet"))):
        read_columns(tmp_path / "x.parquet")


def test_damaged_parquet_and_lacking_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="not a readable parquet file"):
        read_columns(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu:\n  mem_bw: 3.35e12\n", r"gpu\.bfloat16_tc_flops must be a number above 0"),
        ("gpu:\n  bfloat16_tc_flops: 1.2.3\n  mem_bw: 1e12\n", r"gpu\.bfloat16_tc_flops must be a number"),
        (b"\xff\xfe", "not UTF-8 text"),
        (None, "is a device: must be a file"),
    ],
)
def test_the_figures_of_a_gpu_that_cannot_be_read(tmp_path: Path, text: str | bytes | None, words: str) -> None:
    file = tmp_path / "h100_sxm.yaml"
    if text is None:
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UsageError, match=words):
        read_gpu_figures(file)


def test_release_candidates_come_before_their_release(tmp_path: Path) -> None:
    for version in ("1.3.0rc20", "1.3.0rc9", "1.3.0", "1.2.9"):
        write_rows(tmp_path / "trtllm" / version / "x.parquet", [{"a": 1}])
    assert [label for label, _ in newest_files(tmp_path, "x.parquet")] == ["trtllm 1.3.0"]


@pytest.mark.parametrize(
    ("doctored", "same"),
    [
        ('{"rows": 48, "median": 0.03331563494232681}', True),
        ('{"rows": 48, "median": 0.03331563494}', False),
        ('{"rows": 49, "median": 0.033315634942326866}', False),
        ('{"rows": 48.0, "median": 0.033315634942326866}', False),
        ('{"rows": 48, "p50": 0.033315634942326866}', False),
        ('{"rows": 48, "median": null}', False),
        ('{"median": 0.033315634942326866, "rows": 48}', False),
    ],
)
def test_files_may_differ_in_last_digits_alone(doctored: str, same: bool, tmp_path: Path) -> None:
    """Regression: bytes were compared, and another processor rounds the last digit of an error differently."""
    texts = {"shipped": '{"rows": 48, "median": 0.033315634942326866}', "doctored": doctored}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    with nullcontext() if same else pytest.raises(AssertionError):
        check_same(tmp_path / "doctored", tmp_path / "shipped")


SOURCE = os.environ.get("LADDER_TEST_AIC", "")
if SOURCE or find_spec("aiconfigurator_core"):
    # The package is large and optional, so this runs where it is and is not collected (rather than skipped) elsewhere.

    @pytest.fixture(scope="module")
    def hopper() -> Measurements:
        return read_system("h100_sxm", Path(SOURCE) if SOURCE else None)

    def test_shipped_profiles_are_what_the_package_gives(hopper: Measurements, tmp_path: Path) -> None:
        shipped = load_profile("h100-sxm")
        save_profile(make_profile(hopper, created=shipped.created), tmp_path / "made.json.gz")
        folder = Path(profile_file.__file__).parent / "profiles"
        check_same(tmp_path / "made.json.gz", folder / "h100-sxm.json.gz")
        for engine in ENGINES:
            made = make_engine_profile(hopper, engine, shipped, created=shipped.created)
            save_profile(made, tmp_path / "own.json.gz")
            check_same(tmp_path / "own.json.gz", folder / f"h100-sxm-{engine}.json.gz")

    def test_static_fp8_of_tensorrt_llm_is_near_the_others(hopper: Measurements) -> None:
        """Its raw times are 1.6 to 3 times vLLM's there."""
        static, other = (
            {tuple(point): seconds for point, seconds in zip(series.points.tolist(), series.seconds, strict=True)}
            for engine in ("trtllm", "vllm")
            for series in hopper.tables["gemm", "fp8"]
            if series.label.startswith(engine)
        )
        ratios = [
            static[m, n, k] / other[m, n, k]
            for m, n, k in static.keys() & other.keys()
            if m <= 128 and min(n, k) >= 1024
        ]
        assert abs(np.median(ratios) - 1.0) < 0.15
