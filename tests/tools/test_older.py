"""Tables of an engine's older version: the files that hold them, and the profiles that come with the package."""

import os
from pathlib import Path

import pytest

from ladder_sim.costs import profile_file
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import UsageError
from tests.support.profile_files import check_same
from tools.profiles.aiconfigurator import SYSTEMS
from tools.profiles.older import NAME, VERSIONS, make_older, read_columns


def test_columns_are_numbers_and_the_names_of_the_newer_package(tmp_path: Path) -> None:
    file = tmp_path / "gemm_perf.txt"
    file.write_text("framework,gemm_dtype,m,latency\nTRTLLM,float16,1,0.5\nTRTLLM,fp8,16,1e-2\n", "utf-8")
    columns = read_columns(file)
    assert columns["gemm_dtype"].tolist() == ["bfloat16", "fp8"]
    assert columns["m"].dtype.kind == "i"
    assert columns["latency"].tolist() == [0.5, 0.01]
    with pytest.raises(UsageError, match="no such file"):
        read_columns(tmp_path / "none.txt")


@pytest.mark.parametrize("system", VERSIONS)
def test_an_older_profile_has_what_differs_between_versions(system: str) -> None:
    newest = load_profile(f"{SYSTEMS[system]}-trtllm")
    older = load_profile(f"{newest.name}-{NAME}")
    assert older.environment["engine"] == f"trtllm {VERSIONS[system]}"
    assert {name for name, table in older.gemm.items() if table != newest.gemm[name]} == {"fp8"}
    assert older.attention_decode == newest.attention_decode
    assert older.attention_prefill != newest.attention_prefill
    # kernels of the GPU itself, on which fits to runs are based
    assert older.tables_of == newest.tables_of == SYSTEMS[system]
    assert older.moe == newest.moe
    # large GEMMs and prompts of many tokens took longer
    ratio = {
        name: float(profile.gemm["fp8"].ratio(m=4096, n=8192, k=8192)[0])
        for name, profile in (("older", older), ("newest", newest))
    }
    assert 1.0 < ratio["older"] / ratio["newest"] < 1.2


AIC, OLDER = os.environ.get("LADDER_TEST_AIC", ""), os.environ.get("LADDER_TEST_AIC_OLDER", "")
if AIC and OLDER:
    # both packages are large, so this is not collected (rather than skipped) elsewhere

    @pytest.mark.parametrize("system", VERSIONS)
    def test_shipped_profiles_are_what_the_packages_give(system: str, tmp_path: Path) -> None:
        shipped = load_profile(f"{SYSTEMS[system]}-trtllm-{NAME}")
        save_profile(
            make_older(system, Path(AIC), Path(OLDER), created=shipped.created), tmp_path / f"{shipped.name}.json.gz"
        )
        folder = Path(profile_file.__file__).parent / "profiles"
        check_same(tmp_path / f"{shipped.name}.json.gz", folder / f"{shipped.name}.json.gz")
