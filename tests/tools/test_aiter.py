"""The importer of AITER's tuned kernels, on made-up rows; and the profiles that it made."""

import csv
import gzip
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.kernels import TABLE_KINDS, Experts, Gpu
from ladder_sim.prediction import predict
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from tests.support.profile_files import check_same
from tools.profiles.aiter import expert_series, gemm_series, gemm_table, main, nearby

GPU = Gpu.of(catalog.cluster("mi355x").gpu)
# of the ideal time that every made-up GEMM takes
SLOWER = 1.6
COLUMNS = {
    "gemm": ("file", "gfx", "cu_num", "m", "n", "k", "out_dtype", "weight_dtype", "us"),
    "moe": (
        *("file", "gfx", "cu_num", "tokens", "hidden", "width", "experts", "top_k"),
        *("activation_dtype", "weight_dtype", "quantisation", "us"),
    ),
}
MI355X, MI300X = ("gfx950", "256"), ("gfx942", "304")


def gemm_row(file: str, m: int, n: int, k: int, us: float | None = None, **others: str) -> dict[str, Any]:
    if us is None:
        us = 1e6 * SLOWER * float(TABLE_KINDS["gemm"].shape("bf16", {"m": m, "n": n, "k": k}).roofline_s(GPU))
    row = {"file": file, "gfx": MI355X[0], "cu_num": MI355X[1], "m": m, "n": n, "k": k, "us": us}
    return {"out_dtype": "", "weight_dtype": "", **row, **others}


def scattered(file: str, sizes: Iterable[tuple[int, int]], **others: str) -> list[dict[str, Any]]:
    """Rows of weights that models have, no rectangle."""
    return [gemm_row(file, m, n, k, **others) for n, k in sizes for m in (1, 16, 100, 128, 1000, 4096)]


MODELS = {
    "a_bf16_tuned_gemm.csv": [(1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)],
    "b_bf16_tuned_gemm.csv": [(2560, 5120), (5120, 2048), (6400, 5120), (5120, 3200)],
}
BF16 = [row for file, sizes in MODELS.items() for row in scattered(file, sizes)]


def moe_row(tokens: int, us: float, file: str = "fmoe.csv", **others: Any) -> dict[str, Any]:
    layer = {"hidden": 4096, "width": 384, "experts": 128, "top_k": 8}
    types = {"activation_dtype": "torch.float8_e4m3fn", "weight_dtype": "torch.float8_e4m3fn"}
    row = {"file": file, "gfx": MI355X[0], "cu_num": MI355X[1], "tokens": tokens, "us": us, **layer, **types}
    return {**row, "quantisation": "QuantType.per_1x128", **others}


MOE = [moe_row(4**power, 20.0 + 1.5 * 4**power) for power in range(8)]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with gzip.open(folder / f"{name}.csv.gz", "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS[name])
        writer.writeheader()
        writer.writerows(rows)


def as_text(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in row.items()} for row in rows]


def test_scattered_shapes_make_a_rectangle() -> None:
    """A law that all shapes follow is that of every estimate; only what was measured counts as such."""
    table = gemm_table("bf16", gemm_series(as_text(BF16))["bf16"], GPU)
    np.testing.assert_allclose(np.exp(table.log_ratio), SLOWER, rtol=2e-3)
    measured = np.isfinite(table.seconds)
    shapes = {(row["m"], row["n"], row["k"]) for row in BF16}
    assert [tuple(point) in shapes for point in itertools.product(*table.axes)] == measured.ravel().tolist()
    assert measured.any()
    assert table.estimates is not None
    assert (np.isfinite(table.estimates) != measured).all()
    assert table.beyond == "fitted"
    assert table.left_out["every second shape"].median < 0.002
    # an odd file is found
    slow = [{**row, "us": 2.0 * row["us"]} if row["file"][0] == "b" else row for row in BF16]
    errors = gemm_table("bf16", gemm_series(as_text(slow))["bf16"], GPU).left_out
    assert errors["every second file"].median == pytest.approx(0.5, abs=0.02)


def test_a_shape_near_by_counts_most() -> None:
    known = np.array([[1.0, 1024.0], [64.0, 1024.0]])
    near, middle = nearby(known, np.array([0.0, 1.0]), np.array([[1.1, 1024.0], [8.0, 1024.0]]))
    assert near < 0.001
    assert middle == pytest.approx(0.5)


def test_which_rows_are_gemms_of_a_format() -> None:
    shapes = [(2048, 1024), (4096, 1024)]
    rows = [
        *scattered("bf16_tuned_gemm.csv", shapes),
        # router logits, a weight of no multiple of a tile, a random shape
        *scattered("bf16_tuned_gemm.csv", [(256, 7168)], out_dtype="torch.float32"),
        *scattered("bf16_tuned_gemm.csv", [(100, 1024)]),
        gemm_row("bf16_tuned_gemm.csv", 128, 2048, 941696),
        *scattered("model_configs/a8w8_blockscale_tuned_gemm_ds_v3.csv", shapes[:1]),
        *scattered("model_configs/a8w8_blockscale_bpreshuffle_tuned_gemm.csv", shapes[:1]),
        *scattered("a8w8_bpreshuffle_tuned_gemm_mxfp4_attnfp8.csv", shapes[:1], weight_dtype="torch.float8_e4m3fn"),
        *scattered("a8w8_tuned_gemm.csv", shapes[:1], weight_dtype="torch.int8"),
        *scattered("a4w4_blockscale_tuned_gemm.csv", shapes[:1]),
        *scattered("bf16_tuned_batched_gemm.csv", shapes[:1]),
    ]
    series = gemm_series(as_text(rows))
    counts = {dtype: sum(len(each.seconds) for each in many) for dtype, many in series.items()}
    assert counts == {"bf16": 12, "fp8-block": 6, "fp8": 6}


def test_experts_are_the_fastest_that_were_measured() -> None:
    """Of two files the faster; what all numbers of tokens share was copied; and tokens are sorted first."""
    copied = [moe_row(4**power, 5.0, file="copies.csv") for power in range(8)]
    slower = [moe_row(int(row["tokens"]), 2.0 * row["us"], file="slower.csv") for row in MOE]
    ((key, series),) = expert_series(as_text([*MOE, *copied, *slower]), 3e-6).items()
    assert key == Experts("fp8-block", 4096, 1536, 128, 8)
    assert series.points[:, 0].tolist() == [4.0] * 8
    np.testing.assert_allclose(series.seconds, [3e-6 + 1e-6 * row["us"] for row in MOE])
    # MXFP4 weights with activations of 4 bits before those with 8
    both = [
        {
            **row,
            "us": factor * row["us"],
            "weight_dtype": "torch.float4_e2m1fn_x2",
            "quantisation": "QuantType.per_1x32",
        }
        | {"activation_dtype": f"torch.{activations}"}
        for row in MOE
        for activations, factor in (("float4_e2m1fn_x2", 2.0), ("float8_e4m3fn", 1.0))
    ]
    ((key, series),) = expert_series(as_text(both), 0.0).items()
    assert key.format == "mxfp4"
    np.testing.assert_allclose(series.seconds, [2e-6 * row["us"] for row in MOE])


def test_profiles_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What one GPU was not tuned for is carried over from the other; files are those of the same rows."""
    assert main(["--source", str(tmp_path), "--out", str(tmp_path)]) != 0
    assert "--source names the folder" in capsys.readouterr().err
    cdna3 = {"gfx": MI300X[0], "cu_num": MI300X[1]}
    block = [{**row, **cdna3} for row in scattered("a8w8_blockscale_tuned_gemm.csv", [(2048, 1024), (4096, 1024)])]
    write(tmp_path, "gemm", [*BF16, *block])
    write(tmp_path, "moe", [*MOE, *({**row, **cdna3} for row in MOE)])
    (tmp_path / "moe").mkdir()
    made = []
    for _ in range(2):
        assert main(["--source", str(tmp_path), "--out", str(tmp_path), "--created", "2026-11-27"]) == 0
        made.append([(tmp_path / f"{name}.json.gz").read_bytes() for name in ("mi300x", "mi355x", "moe/mi300x")])
    assert made[0] == made[1]
    older, newer = (load_profile(tmp_path / f"{name}.json.gz") for name in ("mi300x", "mi355x"))
    assert set(older.gemm) == {"fp8-block", "bf16"}
    np.testing.assert_allclose(older.gemm["bf16"].log_ratio, newer.gemm["bf16"].log_ratio, atol=1e-3)
    assert (older.gemm["bf16"].beyond, older.gemm["fp8-block"].beyond) == ("transferred", "fitted")
    assert any("carried over" in note for source in older.sources for note in source.notes)
    assert set(older.moe.experts) == set(newer.moe.experts) != set()
    # whose all-reduce under vLLM was measured
    under_vllm = load_profile(tmp_path / "mi355x-vllm.json.gz")
    assert {name: set(curves) for name, curves in under_vllm.collectives["all_reduce"].items()} == {
        "one-shot": {8},
        "two-shot": {8},
    }
    save_profile(older, tmp_path / "again.json.gz")
    check_same(tmp_path / "mi300x.json.gz", tmp_path / "again.json.gz")


@pytest.mark.parametrize("name", ["mi300x", "mi355x"])
def test_shipped_profiles_are_small_and_within_the_error_bounds(name: str) -> None:
    profile = load_profile(name)
    folder = Path(catalog.__file__).parents[1] / "costs" / "profiles"
    assert (folder / f"{name}.json.gz").stat().st_size <= 60_000
    tuned = {dtype: table for dtype, table in profile.gemm.items() if np.isfinite(table.seconds).any()}
    assert set(tuned) == ({"fp8-block"} if name == "mi300x" else {"bf16", "fp8", "fp8-block"})
    assert set(profile.gemm) == {"bf16", "fp8", "fp8-block"}
    for table in tuned.values():
        assert table.left_out["aggregated"].median <= 0.05
        assert table.left_out["every second shape"].median <= 0.08
        assert table.left_out["every second file"].median <= 0.15
        assert table.left_out["every second file"].rows > 400
    for what, errors in profile.moe.left_out.items():
        assert errors["aggregated"].median <= 0.08, what
        # the MI300X has two layers in fp8 blocks
        if "other layers" in errors:
            assert errors["other layers"].median <= (0.25 if name == "mi300x" else 0.15), what
    assert {source.licence for source in profile.sources} == {"MIT"}


@pytest.mark.parametrize(
    ("cluster", "kind"), [("mi300x", "transferred"), ("mi325x", "transferred"), ("mi355x", "fitted")]
)
def test_an_answer_says_what_is_a_roofline(cluster: str, kind: str) -> None:
    prediction = predict(Scenario(model="70b", cluster=cluster, stack="vllm", tp=8, concurrency=32))
    standard, shares = prediction["standard"], Counter[str]()
    for (source, _), seconds in standard.breakdown.sources_s.items():
        shares[source] += seconds / standard.request_s
    assert shares[kind] > 0.3
    # all-reduces of eight MI355X were measured
    assert shares["roofline"] + shares["measured"] > 0.3
    assert (("measured", "all_reduce") in standard.breakdown.sources_s) == (cluster == "mi355x")
    carried = [
        text for text in prediction.confidence.warnings if text.startswith("GEMMs in bf16 were not measured on mi300x")
    ]
    assert len(carried) == (kind == "transferred")
    assert standard.breakdown.sources_s["roofline", "attention"] > 0.0
