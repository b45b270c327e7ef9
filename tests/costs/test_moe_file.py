"""Files of experts and latent attention: what is shipped, the round trip, when they are read, how they can be wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs import moe_file, profile_file
from ladder_sim.costs.lookup import RatioTable
from ladder_sim.costs.moe_file import read_moe
from ladder_sim.costs.profile import MoeTables
from ladder_sim.costs.profile_file import MOE_FOLDER, load_profile, save_profile
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import Experts
from ladder_sim.specs import catalog
from tests.support.schemas import check
from tools.profiles.aiconfigurator import SYSTEMS
from tools.profiles.moe import write_moe
from tools.profiles.older import NAME

FOLDER = Path(profile_file.__file__).parent / "profiles"
REFERENCE = load_profile("h100-sxm").reference
SMALL = Experts("bf16", 1024, 512, 16, 2)
PART = {"format": "bf16", "hidden": 1024, "width": 512, "experts": 16, "top_k": 2}
AXES = {"expert_tp": [1], "ep": [1, 2], "tokens": [1, 8]}


def document(**entries: Any) -> dict[str, Any]:
    base = {"schema_version": 1, "name": "tiny", "created": "2026-01-01", "sources": []}
    return {**base, "experts": [{**PART, "axes": AXES, "percent": [150, 200, None, 120]}], **entries}


def write(path: Path, entries: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(entries).encode()))
    return str(path)


def read(path: Path, entries: dict[str, Any], base: MoeTables | None = None) -> MoeTables:
    return read_moe(write(path, entries), REFERENCE, base)


def test_every_profile_of_a_gpu_and_of_an_engine_on_it_has_a_file() -> None:
    """Of a size that the wheel hardly notices."""
    files = {file.name: file.stat().st_size for file in (FOLDER / MOE_FOLDER).glob("*")}
    # fits to runs, versions that have their engine's, and an engine whose all-reduce alone was measured
    others = ("gpt-fast", f"trtllm-{NAME}", "mi355x-vllm")
    profiles = {file.name for file in FOLDER.glob("*.json.gz") if not any(other in file.name for other in others)}
    assert files.keys() == profiles
    gpus = sum(not any(engine in name for engine in catalog.stack_names()) for name in files)
    assert sum(files.values()) < 60e3 * gpus
    assert max(files.values()) < 48_000


def test_shipped_files_name_their_sources() -> None:
    for name in ("h100-sxm", "b200-sxm-trtllm"):
        sources = load_profile(name).moe.sources
        assert all(source.licence == "Apache-2.0" and source.files for source in sources)
        assert any("without" in note for source in sources for note in source.notes)


def test_tables_and_layers_made_of_others_are_within_the_error_bounds() -> None:
    for name in SYSTEMS.values():
        tables = load_profile(name).moe
        for what, errors in tables.left_out.items():
            assert errors["aggregated"].rows > 300, (name, what)
            assert errors["aggregated"].median < 0.06, (name, what)
            if "other layers" in errors and "mxfp4" not in what:
                assert errors["other layers"].median < 0.25, (name, what)
        for of_kind in tables.tables.values():
            for table in of_kind.values():
                assert table.left_out["aggregated"].median < 0.08, name


def test_dense_predictions_do_not_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(moe_file, "read_moe", refuse)
    profile_file._load.cache_clear()
    predict(Scenario(model="70b", stack="vllm"))
    with pytest.raises(AssertionError, match="read"):
        _ = load_profile("h100-sxm-vllm").moe
    profile_file._load.cache_clear()


def test_a_file_says_the_same_when_it_is_written_again(tmp_path: Path) -> None:
    for engine in ("", "-trtllm"):
        name = f"h100-sxm{engine}"
        base = load_profile("h100-sxm").moe if engine else None
        shipped = FOLDER / MOE_FOLDER / f"{name}.json.gz"
        tables = read_moe(str(shipped), REFERENCE, base)
        if base:
            # what an engine lacks is of the GPU
            own = {key: table for key, table in tables.experts.items() if key.format and has_own(table)}
            of_kinds = {
                kind: {of: table for of, table in each.items() if has_own(table)}
                for kind, each in tables.tables.items()
            }
            tables = MoeTables(
                experts=own, tables=of_kinds, collectives=tables.collectives, sources=tables.sources[-1:]
            )
        out = tmp_path / "moe" / shipped.name
        write_moe(tables, out, name=name, created="2026-11-22", base=base, reference=REFERENCE)
        assert out.read_bytes() == shipped.read_bytes()
        if base:
            check("profile-moe", json.loads(gzip.decompress(out.read_bytes())))


def has_own(table: RatioTable) -> bool:
    return bool(np.isfinite(table.seconds).any())


def test_a_profile_elsewhere_finds_its_file_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.json.gz"
    save_profile(load_profile("h100-sxm"), path)
    assert load_profile(path).moe.experts == {}
    write(tmp_path / MOE_FOLDER / path.name, document())
    profile_file._load.cache_clear()
    assert load_profile(path).moe.experts.keys() == {SMALL}


def test_a_fit_has_the_tables_of_its_base() -> None:
    assert load_profile("h100-sxm-gpt-fast").moe is load_profile("h100-sxm").moe


def test_an_engine_takes_its_share_of_the_gpus_time(tmp_path: Path) -> None:
    base = read(tmp_path / "gpu", document())
    of_engine = document(experts=[], shares=[{**PART, "percent": [100, 50, None, None]}])
    own = read(tmp_path / "engine", of_engine, base).experts[SMALL]
    ratio, in_range = own.ratio(expert_tp=1, ep=[1, 1, 2], tokens=[1, 8, 8])
    assert ratio.tolist() == pytest.approx([1.5, 1.0, 1.2])
    assert in_range.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"experts": [{**PART, "axes": AXES, "percent": [1, 2]}]}, r"experts\[0\].percent has 2 entries; .* 1 x 2 x 2"),
        ({"experts": [{**PART, "axes": AXES, "percent": [None] * 4}]}, r"experts\[0\].percent holds no measurement"),
        ({"experts": [{**PART, "axes": AXES, "percent": [0] * 4}]}, r"percent\[0\] is 0"),
        ({"experts": [{**PART, "axes": {"tokens": [1]}, "percent": [1]}]}, "it must be expert_tp, ep, tokens"),
        ({"experts": [{**PART, "top_k": 0, "axes": AXES, "percent": [1] * 4}]}, r"experts\[0\].top_k is 0"),
        ({"experts": [{**PART, "format": "int3", "axes": AXES, "percent": [1] * 4}]}, "format is 'int3'"),
        ({"shares": [{**PART, "percent": [100] * 4}]}, r"shares\[0\]: the file of its GPU has no such experts"),
        ({"schema_version": 2}, "schema_version 2; this ladder-sim reads up to 1"),
        ({"surprise": 1}, "surprise is 1; there is no such entry"),
    ],
)
def test_damaged_files_are_refused_by_entry(tmp_path: Path, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        read(tmp_path / "x.json.gz", document(**entries))


@pytest.mark.parametrize(
    ("percent", "words"), [([101, 1, 1, 1], r"percent\[0\] is 101"), ([1], "percent has 1 entries; .* has 4")]
)
def test_shares_of_an_engine_that_cannot_be(tmp_path: Path, percent: list[int], words: str) -> None:
    base = read(tmp_path / "gpu", document())
    with pytest.raises(ProfileError, match=words):
        read(tmp_path / "engine", document(experts=[], shares=[{**PART, "percent": percent}]), base)


def test_a_file_that_is_no_file_of_this_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b"{"))
    with pytest.raises(ProfileError, match="is not JSON"):
        read_moe(str(path), REFERENCE, None)
