"""The profile file: what is shipped, the round trip, and every way a file can be wrong."""

import dataclasses
import gzip
import json
import math
import os
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs import profile_file
from ladder_sim.costs.collectives.algorithms import OWN
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, save_profile, shipped_profiles
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import TABLE_KINDS
from tests.support.scenarios import SERVING
from tests.support.strategies import damaged
from tools.profiles.aiconfigurator import SYSTEMS
from tools.profiles.grids import lowered

SHIPPED = tuple(SYSTEMS.values())
FOLDER = Path(profile_file.__file__).parent / "profiles"


TABLE: dict[str, Any] = {"axes": {"m": [1, 2], "n": [64], "k": [64]}, "seconds": [1e-5, None]}
LAYER: dict[str, Any] = {"format": "bf16", "hidden": 64, "width": 32, "experts": 8, "top_k": 2}


def small_document() -> dict[str, Any]:
    curve = {"bytes": [1024, 2048], "seconds": [1e-5, 2e-5]}
    return {
        "schema_version": 4,
        "name": "tiny",
        "gpu": "h100-sxm",
        "created": "2026-01-01",
        "environment": {"device": "none"},
        "sources": [],
        "reference": {"bf16_flops": 1e15, "fp8_flops": 2e15, "hbm_bandwidth_Bps": 3e12, "kernel_s": 2e-6},
        "gemm": {"bf16": deepcopy(TABLE)},
        "attention_prefill": {},
        "attention_decode": {},
        "collectives": {"all_reduce": {"nccl": {"2": curve}}},
    }


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_what_is_shipped() -> None:
    """A GPU's profile, and one of each engine on it; all together far below what a wheel may weigh (6 MB)."""
    assert {*SHIPPED, *(f"{gpu}-{engine}" for gpu in SHIPPED for engine in SERVING)} <= set(shipped_profiles())
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json.gz")) < 2e6


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_small_sourced_and_within_the_error_bounds(name: str) -> None:
    profile = load_profile(name)
    assert (FOLDER / f"{name}.json.gz").stat().st_size <= 200_000
    assert profile.name == name
    assert profile.sources[0].licence == "Apache-2.0"
    assert profile.sources[0].files
    judged = [(0.05, table) for table in profile.gemm.values()]
    judged += [(0.08, table) for tables in profile.attention_prefill.values() for table in tables.values()]
    judged += [(0.08, table) for tables in profile.attention_decode.values() for table in tables.values()]
    for bound, table in judged:
        error = table.left_out["aggregated"]
        assert error.rows > 500
        assert error.median <= bound
    for curves in profile.collectives["all_reduce"].values():
        for curve in curves.values():
            assert curve.left_out["aggregated"].rows > 0
            assert curve.left_out["aggregated"].median <= 0.08


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("engine", SERVING)
def test_an_engines_profile_is_small_and_says_which_versions_it_holds(name: str, engine: str) -> None:
    own, base = load_profile(f"{name}-{engine}"), load_profile(name)
    assert (FOLDER / f"{own.name}.json.gz").stat().st_size <= 50_000
    assert (own.base, own.cluster_name, own.reference) == (name, base.cluster_name, base.reference)
    # fp8 checkpoints of TensorRT-LLM state the scales of activations
    own_formats = {dtype for dtype, table in own.gemm.items() if table != base.gemm[dtype]}
    assert own_formats == ({"fp8"} & base.gemm.keys() if engine == "trtllm" else set())
    for what in ("engine", "all-reduce"):
        assert own.environment[what].startswith(f"{engine} ")
    assert own.environment["attention"]
    for phase in (own.attention_prefill, own.attention_decode):
        for table in phase["flash"].values():
            assert list(table.left_out)[1] == own.environment["engine"]
            assert table.left_out["aggregated"].median <= 0.08
    for curve in own.collectives["all_reduce"][OWN].values():
        assert (np.diff(curve.seconds) >= 0).all()


def test_every_format_that_was_measured_has_a_table() -> None:
    older, hopper = {"bf16", "w4a16"}, {"bf16", "fp8", "fp8-block"}
    blackwell = {*hopper, "nvfp4"}
    formats = {name: set(load_profile(name).gemm) for name in SHIPPED}
    assert formats == {
        "a100-sxm": older,
        **dict.fromkeys(("h100-sxm", "h200-sxm", "l40s-pcie"), hopper),
        **dict.fromkeys(("b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "rtx-pro-6000"), blackwell),
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_no_kernel_takes_far_longer_than_one_with_more_to_do(name: str) -> None:
    """On B200 vLLM took 6.6 times as long for m 12 as for m 13: the median then fell on quantised times."""
    profile = load_profile(name)
    for table in profile.gemm.values():
        np.testing.assert_array_equal(lowered(table.seconds, (0, 1), 1.3), table.seconds)
    for each in (profile, *(load_profile(f"{name}-{engine}") for engine in SERVING)):
        for phase in (each.attention_prefill, each.attention_decode):
            for table in phase["flash"].values():
                # of four digits
                np.testing.assert_array_equal(lowered(table.seconds, range(4), 1.04 * 1.001), table.seconds)
        for algorithms in each.collectives.values():
            assert all(
                (np.diff(curve.seconds) >= 0).all() for curves in algorithms.values() for curve in curves.values()
            )
    notes = " ".join(profile.sources[0].notes)
    assert ("quantisation subtracted" in notes) == ("fp8" in profile.gemm)
    assert "times lowered to that of a larger m or n" in notes
    assert "times lowered to that of a larger batch_kv_heads or group or kv_len or head_dim" in notes


def test_one_head_takes_no_longer_than_two() -> None:
    """vLLM on A100 took 36 us for one KV head and 12.5 for two: TPOT fell by 12 % with the batch."""
    table = load_profile("a100-sxm-vllm").attention_decode["flash"]["bf16"]
    np.testing.assert_array_less(table.seconds[0], 1.04 * 1.001 * table.seconds[1])


def test_h100_gives_the_figures_that_were_measured() -> None:
    profile = load_profile("h100-sxm")
    # 70B at TP 8 and one token: gate/up, down and output projection (facts of the source, microseconds)
    for n, k, microseconds in ((7168, 8192, 47), (8192, 3584, 23), (8192, 1024, 9)):
        ratio, in_range = profile.gemm["bf16"].ratio(m=1, n=n, k=k)
        ideal_s = TABLE_KINDS["gemm"].shape("bf16", {"m": 1, "n": n, "k": k}).roofline_s(profile.reference)
        assert in_range
        assert ratio * ideal_s == pytest.approx(microseconds * 1e-6, rel=0.06)
    nccl = profile.collectives["all_reduce"]["nccl"]
    for ranks, microseconds in ((2, 144), (4, 176), (8, 200)):
        assert nccl[ranks].seconds_at(32 * 2**20)[0] == pytest.approx(microseconds * 1e-6, rel=0.05)
    assert 2 not in profile.collectives["all_reduce"]["two-shot"]
    one_shot = profile.collectives["all_reduce"]["one-shot"][8]
    assert one_shot.seconds_at(16384)[0] == pytest.approx(3.6e-6, rel=0.1)
    assert one_shot.size_bytes[-1] < 2 * 2**20


@pytest.mark.parametrize("name", SHIPPED)
def test_round_trip(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    save_profile(profile, tmp_path / "copy.json.gz")
    save_profile(profile, tmp_path / "again.json.gz")
    save_profile(profile, tmp_path / "plain.json")
    assert (tmp_path / "copy.json.gz").read_bytes() == (tmp_path / "again.json.gz").read_bytes()
    for file in ("copy.json.gz", "plain.json"):
        copy = load_profile(tmp_path / file)
        assert (copy.name, copy.reference, copy.sources) == (profile.name, profile.reference, profile.sources)
        table, original = copy.gemm["bf16"], profile.gemm["bf16"]
        np.testing.assert_array_equal(table.seconds, original.seconds)
        np.testing.assert_array_equal(table.log_ratio, original.log_ratio)
        assert table.left_out == original.left_out


def test_grid_points_of_the_shipped_tables_give_back_their_seconds() -> None:
    profile = load_profile("h100-sxm")
    table = profile.attention_decode["flash"]["bf16"]
    points = dict(zip(table.names, np.ix_(*table.axes), strict=True))
    ratio, in_range = table.ratio(**points)
    ideal_s = TABLE_KINDS["attention_decode"].shape("bf16", points).roofline_s(profile.reference)
    measured = np.isfinite(table.seconds)
    np.testing.assert_allclose((ratio * ideal_s)[measured], table.seconds[measured], rtol=1e-9)
    np.testing.assert_array_equal(in_range, measured)


def test_an_unchanged_file_is_read_once() -> None:
    assert load_profile("h100-sxm") is load_profile("h100-sxm")


def test_rewritten_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", small_document())
    assert load_profile(path).name == "tiny"
    write(path, {**small_document(), "name": "other"})
    os.utime(path, ns=(1, 1))
    assert load_profile(path).name == "other"


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *parents, key, value = path

    def change(document: dict[str, Any]) -> None:
        for parent in parents:
            document = document[parent]
        document[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_set("schema_version", 5), "schema_version 5"),
        (_set("schema_version", "1"), "schema_version"),
        (_set("schema_version", 0), "schema_version is 0"),
        (lambda d: d.pop("gemm"), "lacks 'gemm'"),
        (lambda d: d["reference"].pop("kernel_s"), "lacks 'reference.kernel_s'"),
        (_set("reference", "bf16_flops", 0), "reference.bf16_flops is 0"),
        (_set("gemm", "bf16", "seconds", 0, -1e-5), r"gemm.bf16.seconds\[0\].* is -1e-05"),
        (_set("gemm", "bf16", "seconds", 0, 0.0), r"gemm.bf16.seconds\[0\].* is 0.0"),
        (_set("gemm", "bf16", "seconds", 0, math.nan), r"gemm.bf16.seconds\[0\].* is nan"),
        (_set("gemm", "bf16", "seconds", 0, math.inf), r"gemm.bf16.seconds\[0\].* is inf"),
        (_set("gemm", "bf16", "seconds", 0, "1e-5"), r"gemm.bf16.seconds\[0\]"),
        (_set("gemm", "bf16", "seconds", [1e-5]), "1 entries; its axes make 2 x 1 x 1"),
        (_set("gemm", "bf16", "seconds", [None, None]), "no measurement"),
        (_set("gemm", "bf16", "estimates", [1e-5, 1e-5]), "gemm.bf16 has 2 estimates; 1 are null"),
        (_set("gemm", "bf16", "axes", "m", [2, 1]), r"gemm.bf16.axes.m\[1\] is 1 after 2"),
        (_set("gemm", "bf16", "axes", "m", []), "gemm.bf16.axes.m"),
        (_set("gemm", "bf16", "axes", {"m": [1, 2]}), "must be m, n, k"),
        (_set("gemm", "int4", {}), "gemm.int4"),
        (_set("collectives", "all_reduce", "nccl", "2", "bytes", [1, 2, 3]), "3 bytes but 2 seconds"),
        (_set("collectives", "all_reduce", "nccl", "2", "bytes", [8, 8]), r"bytes\[1\] is 8 after 8"),
        (_set("collectives", "all_reduce", "nccl", "two", {}), "collectives.all_reduce.nccl.two"),
        (_set("sampling", {"beam": TABLE}), "sampling.beam"),
        (_set("sampling", {"greedy": TABLE}), "sampling.greedy.axes is m, n, k; it must be batch, vocab"),
        (_set("experts", [{**LAYER, **TABLE}]), r"experts\[0\].axes is m, n, k; it must be expert_tp, ep, tokens"),
        (_set("experts", [{**LAYER, **TABLE, "format": ""}]), r"experts\[0\].format"),
        (_set("overheads", {"eager_launch_s": -1e-3}), "overheads.eager_launch_s is -0.001"),
        (_set("overheads", {"sustained_rate": 0}), "overheads.sustained_rate is 0; must be above 0"),
        (_set("overlap", {"ring_traffic": -4}), "overlap.ring_traffic is -4"),
        (_set("surprise", 1), "surprise"),
    ],
)
def test_broken_entries_are_named(change: Callable[[Any], Any], expected: str, tmp_path: Path) -> None:
    document = small_document()
    change(document)
    path = write(tmp_path / "broken.json", document)
    with pytest.raises(ProfileError, match=expected) as caught:
        load_profile(path)
    assert "broken.json" in caught.value.message
    assert caught.value.exit_code == 2


def test_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    # a newer schema may look quite different: only its number counts
    path = write(tmp_path / "newer.json", {"schema_version": 7, "shape": "unknown"})
    with pytest.raises(ProfileError, match="written by a newer ladder-sim; upgrade"):
        load_profile(path)


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b", b"\x00\xff\xfe", b"[1]", b"3", b"null", b'{"schema_ver', b"[" * 9999]
)
def test_files_that_are_no_profile(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"bad\.json\.gz"):
        load_profile(path)


def test_truncated_profile(tmp_path: Path) -> None:
    whole = (Path(profile_file.__file__).parent / "profiles" / "h100-sxm.json.gz").read_bytes()
    path = tmp_path / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ProfileError, match="a gzip file that is cut off or damaged"):
        load_profile(path)


def test_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (profile_file.MAX_DOCUMENT_BYTES + 2), 1))
    with pytest.raises(ProfileError, match="must be at most 64 MiB"):
        load_profile(path)


@pytest.mark.parametrize("name", ["h100-sxn", "", "no/such/file.json", "nul\0byte", "."])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ProfileError, match=r"did you mean 'h100-sxm'|known: .*h100-sxm"):
        load_profile(name)


def test_saving_an_invalid_profile_or_to_nowhere_is_refused(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path / "p.json", small_document()))
    with pytest.raises(ProfileError, match="cannot be written"):
        save_profile(profile, tmp_path / "missing" / "p.json")


def loaded(content: bytes) -> CalibrationProfile | ProfileError:
    """The profile in a file, or why it is none; every other error is a bug."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_bytes(content)
        try:
            return load_profile(path)
        except ProfileError as error:
            return error


def is_profile_or_refused(content: bytes) -> bool:
    """Whether it is read as a profile that can be written and read again, or refused with the file named."""
    result = loaded(content)
    if isinstance(result, ProfileError):
        return "p.json" in result.message
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.json"
        save_profile(result, path)
        return load_profile(path).reference == result.reference


@given(content=st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    """None of them holds a profile."""
    for file in (content, b"\x1f\x8b" + content, gzip.compress(content)):
        assert isinstance(loaded(file), ProfileError)


@given(damaged(small_document()))
def test_any_damage_to_a_profile_is_seen(content: bytes) -> None:
    assert is_profile_or_refused(content)


def test_a_profile_of_an_unknown_cluster_is_refused_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="gpu: unknown cluster 'h100-sxn'"):
        load_profile(write(tmp_path / "p.json", {**small_document(), "gpu": "h100-sxn"}))


@pytest.mark.parametrize(
    ("device", "name", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB", True),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server 96GB", True),
        ("NVIDIA RTX A6000", "RTX PRO 6000 Blackwell Server 96GB", False),
        ("NVIDIA GB200", "B200 SXM6 180GB", False),
        ("NVIDIA L40S", "L40 48GB", False),
        ("NVIDIA L40S", "L40S 48GB", True),
        ("AMD Instinct MI300X", "MI300X 192GB", True),
        ("AMD Instinct MI325X", "MI300X 192GB", False),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB", True),
        ("NVIDIA A100 80GB PCIe", "A100 SXM4 80GB", False),
        ("NVIDIA A100-PCIE-40GB", "A100 SXM4 80GB", False),
        ("NVIDIA H100 PCIe", "H100 SXM5 80GB", False),
        ("NVIDIA H100 NVL", "H100 SXM5 80GB", False),
        ("NVIDIA H200 NVL", "H200 SXM5 141GB", False),
        ("NVIDIA H100 80GB HBM3", "H100 PCIe 80GB", False),
    ],
)
def test_a_device_is_known_by_its_model_and_its_form(device: str, name: str, same: bool) -> None:
    gpu = dataclasses.replace(load_profile("h100-sxm").cluster.gpu, name=name)
    assert gpu.is_called(device) is same
