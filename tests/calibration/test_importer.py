"""The importer, on a small made-up package in the real one's form; and on the real one where it is at hand."""

import itertools
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration.__main__ import main
from calibration.importers import parquet
from calibration.importers.aiconfigurator import left_out_errors, make_profile, read_system
from calibration.importers.allreduce import one_shot_sizes, two_shot_sizes
from calibration.importers.grids import Series, distinct, merge, outliers
from calibration.importers.thin import thin, thin_curve
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import MissingDependencyError, UsageError, install_command

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


def gemm_rows(slower: float = 1.0) -> list[dict[str, Any]]:
    sizes = [64, 256, 1024, 4096, 16384]
    return [
        {
            "device": "NVIDIA TEST",
            "gemm_dtype": dtype,
            "m": m,
            "n": n,
            "k": k,
            "latency": slower * 1e3 * (3e-6 + 1.15 * n * k * size / BANDWIDTH_BPS + 2.6 * m * n * k / 989e12),
        }
        for dtype, size in (("bfloat16", 2), ("fp8", 1))
        for m, n, k in itertools.product([1, 2, 4, 8, 16, 32, 64, 128], sizes, sizes)
        if (n, k) != (16384, 16384)
    ]


def attention_rows(phase: str) -> list[dict[str, Any]]:
    rows = []
    for batch, kv_heads, group, head_dim in itertools.product([1, 2, 4, 8], [1, 2, 8], [1, 4, 8, 64], [64, 128, 192]):
        for length in (16, 64, 256, 1024, 4096):
            work = batch * kv_heads * length * head_dim
            seconds = 8e-6 + 5e-13 * work * (1 if phase == "generation" else 0.01 * group * length)
            shape = {"batch_size": batch, "num_heads": kv_heads * group, "num_key_value_heads": kv_heads}
            step = {"isl": 1, "step": length - 1} if phase == "generation" else {"isl": length, "step": 0}
            kinds = {"head_dim": head_dim, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0}
            rows.append({**shape, **step, **kinds, "latency": seconds * 1e3})
            # rows of other kernels, which must not count
            rows.append({**shape, **step, **kinds, "window_size": 128, "latency": 1e-6})
            rows.append({**shape, **step, **kinds, "kv_cache_dtype": "fp8", "latency": 1e-6})
    return rows


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
        write_rows(data / "gemm" / engine / version / "gemm_perf.parquet", gemm_rows(1.0 + 0.1 * (i - 1)))
        # an older version that would change every median
        write_rows(data / "gemm" / engine / "0.0.9" / "gemm_perf.parquet", gemm_rows(50.0))
        for phase in ("context", "generation"):
            folder = data / "attention" / engine / version
            write_rows(folder / f"{phase}_attention_perf.parquet", attention_rows(phase))
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
def profile(package: Path) -> CalibrationProfile:
    return make_profile(read_system("h100_sxm", package), created="2026-01-01")


def test_units_engines_and_figures(profile: CalibrationProfile) -> None:
    assert profile.reference.hbm_bandwidth_Bps == BANDWIDTH_BPS
    assert profile.reference.fp8_flops == 1978e12
    assert profile.environment == {
        "device": "NVIDIA TEST",
        "engines": "sglang 0.5.14, trtllm 1.3.0rc20, vllm 0.24.0",
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


def test_attention_keeps_its_own_kernel_and_judges_on_the_width_between(profile: CalibrationProfile) -> None:
    for tables in (profile.attention_prefill, profile.attention_decode):
        table = tables["flash"]["bf16"]
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
    assert set(profile.collectives["all_gather"]) == {"nccl"}


def test_a_copy_counts_once(package: Path) -> None:
    measured = read_system("h100_sxm", package)
    assert len(measured.custom["trtllm", 8]) == 2
    assert len(distinct(measured.custom["trtllm", 8])) == 1


def test_errors_computed_again_from_the_source_equal_the_stored_ones(
    package: Path, profile: CalibrationProfile
) -> None:
    measured = read_system("h100_sxm", package)
    table = profile.gemm["bf16"]
    again = left_out_errors("gemm", "bf16", table, measured.tables["gemm", "bf16"], profile.reference)
    assert again == table.left_out
    assert table.left_out["aggregated"].median < 0.05


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


def test_algorithm_ranges_end_where_the_engine_changes() -> None:
    sizes = [2.0**i for i in range(10, 26)]
    nccl = {size: 15e-6 + size / 100e9 for size in sizes}
    affine = {size: 3e-6 + 7 * size / 300e9 for size in sizes}
    assert one_shot_sizes(affine, nccl)[-1] < 2**21
    falls = {size: 3e-6 + 7 * min(size, 2**19) / 3000e9 + max(0.0, size - 2**19) / 3000e9 for size in sizes}
    assert one_shot_sizes(falls, nccl)[-1] == 2**19
    assert two_shot_sizes(affine, nccl, 2) == []
    assert two_shot_sizes(nccl, nccl, 8) == []


def test_command_line(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made.json.gz"
    command = ["import", "aiconfigurator", "--system", "h100_sxm", "--source", str(package), "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert load_profile(out).name == "h100-sxm"
    assert main(["show", str(out)]) == 0
    stored = capsys.readouterr().out
    assert main(["show", str(out), "--source", str(package)]) == 0
    computed = capsys.readouterr().out
    assert "gemm bf16" in stored
    assert [line for line in stored.splitlines() if "%" in line] == [
        line for line in computed.splitlines() if "%" in line
    ]


def test_command_line_errors(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["import", "aiconfigurator", "--source"]
    assert main([*base, str(package), "--system", "h100"]) == 2
    assert "did you mean 'h100_sxm'" in capsys.readouterr().err
    assert main([*base, str(tmp_path), "--system", "h100_sxm"]) == 2
    assert "systems/data" in capsys.readouterr().err
    assert main(["show", "h100-sxn"]) == 2
    assert "h100-sxm" in capsys.readouterr().err
    assert main(["--debug", *base, str(package), "--system", "h100"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_absent_package_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install aiconfigurator-core==0\.12\.0"):
        parquet.find_systems(None)


def test_absent_pyarrow_names_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install_command("import"))):
        parquet.read_columns(tmp_path / "x.parquet")


def test_damaged_parquet_and_lacking_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="not a readable parquet file"):
        parquet.read_columns(path)


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
        parquet.read_gpu_figures(file)


def test_release_candidates_come_before_their_release(tmp_path: Path) -> None:
    for version in ("1.3.0rc20", "1.3.0rc9", "1.3.0", "1.2.9"):
        write_rows(tmp_path / "trtllm" / version / "x.parquet", [{"a": 1}])
    assert [label for label, _ in parquet.newest_files(tmp_path, "x.parquet")] == ["trtllm 1.3.0"]


SOURCE = os.environ.get("LADDER_TEST_AIC", "")
if SOURCE or find_spec("aiconfigurator_core"):
    # The package is large and optional, so this runs where it is and is not collected (rather than skipped) elsewhere.

    def test_shipped_profile_is_what_the_package_gives() -> None:
        measured = read_system("h100_sxm", Path(SOURCE) if SOURCE else None)
        shipped = load_profile("h100-sxm")
        made = make_profile(measured, created=shipped.created)
        np.testing.assert_array_equal(made.gemm["bf16"].seconds, shipped.gemm["bf16"].seconds)
        again = left_out_errors(
            "gemm", "bf16", shipped.gemm["bf16"], measured.tables["gemm", "bf16"], shipped.reference
        )
        assert again["aggregated"].rows == shipped.gemm["bf16"].left_out["aggregated"].rows
        assert again["aggregated"].median <= 0.05
