"""Which profile prices a scenario: its engine's on its GPU, its stack's fit, or the GPU's."""

import dataclasses
from pathlib import Path

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs import profile_file
from ladder_sim.prediction import _own_profile, resolve_profile
from ladder_sim.specs.catalog import stack
from tests.support.scenarios import SERVING


def resolved(**arguments: object) -> str:
    profile = resolve_profile(Scenario(model="8b", **arguments), None)
    return profile.name if profile else ""


def test_an_engine_is_priced_by_its_own_profile_of_the_gpu() -> None:
    for engine in SERVING:
        for cluster in ("h100-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "l40s-pcie", "rtx-pro-6000"):
            assert resolved(stack=engine, cluster=cluster, tp=1) == f"{cluster}-{engine}"
        # other nodes of the same GPU
        assert resolved(stack=engine, cluster="a100-sxm-roce", tp=1) == f"a100-sxm-{engine}"
    assert resolved(stack="gpt-fast") == "h100-sxm-gpt-fast"
    assert resolved(stack="gpt-fast", cluster="h200-sxm") == "h200-sxm"


def test_a_profile_that_is_named_is_taken_as_it_is() -> None:
    scenario = Scenario(model="8b", stack="vllm")
    for name in ("h100-sxm", "h100-sxm-sglang"):
        profile = resolve_profile(scenario, name)
        assert profile is not None
        assert profile.name == name
    assert resolve_profile(scenario, "none") is None


def test_a_stack_of_ones_own_takes_its_engines_profile() -> None:
    scenario = Scenario(model="8b")
    mine = dataclasses.replace(stack("vllm"), name="mine")
    for given, name in ((mine, "h100-sxm-vllm"), (dataclasses.replace(mine, engine=""), "h100-sxm")):
        profile = resolve_profile(scenario.having(stack=given), None)
        assert profile is not None
        assert profile.name == name


def test_a_prediction_reads_the_files_of_its_gpu_and_engine_alone_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_bytes = profile_file.read_bytes

    def recorded(path: Path, **how: object) -> bytes:
        read.append(path.name)
        return read_bytes(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(profile_file, "read_bytes", recorded)
    profile_file._load.cache_clear()
    _own_profile.cache_clear()
    scenario = Scenario(model="8b", stack="vllm", cluster="h200-sxm", tp=2)
    for _ in range(2):
        predict(scenario, ["standard"])
        assert [name for name in read if "gpt-fast" not in name] == ["h200-sxm-vllm.json.gz", "h200-sxm.json.gz"]
