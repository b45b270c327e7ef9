"""Ids that say an architecture of the catalogue and a format."""

import pytest

from ladder_sim import Scenario
from ladder_sim.errors import UnknownNameError
from ladder_sim.specs import catalog
from tests.support.commands import run


@pytest.mark.parametrize(
    ("hub_id", "name", "dtype"),
    [
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-r1", "nvfp4"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.1-70b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8-dynamic", "llama-3.1-405b", "fp8-dynamic"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", "fp8-block"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "w4a16"),
        ("amd/Llama-3.1-70B-Instruct-MXFP4", "llama-3.1-70b", "mxfp4"),
        ("moonshotai/Kimi-K2.5", "kimi-k2", "w4a16"),
        ("moonshotai/Kimi-K2.6", "kimi-k2", "w4a16"),
        ("nvidia/Kimi-K2.7-Code-NVFP4", "kimi-k2", "nvfp4"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3", "fp8-block"),
        ("MiniMaxAI/MiniMax-M2.7", "minimax-m2.5", "fp8-block"),
    ],
)
def test_an_id_says_the_format(hub_id: str, name: str, dtype: str) -> None:
    catalog._by_its_name.cache_clear()
    with pytest.warns(UserWarning, match=f"is taken for {name} in {dtype}, as its name says"):
        spec = catalog.model(hub_id)
    assert (spec.name, spec.weights_dtype) == (name, dtype)
    assert hub_id in spec.source
    assert Scenario(model=spec, tp=8).workload.dtype == dtype


@pytest.mark.parametrize(
    ("hub_id", "kept"),
    [
        ("nvidia/DeepSeek-V3.1-NVFP4", ("qkv",)),
        ("nvidia/Kimi-K2.5-NVFP4", ("qkv", "out")),
        ("nvidia/MiniMax-M2.5-NVFP4", ("qkv", "out")),
        ("nvidia/Qwen3-235B-A22B-NVFP4", ()),
    ],
)
@pytest.mark.filterwarnings("ignore:.* is taken for")
def test_an_id_in_nvfp4_keeps_what_its_config_does(hub_id: str, kept: tuple[str, ...]) -> None:
    assert catalog.model(hub_id).unquantized == kept


@pytest.mark.parametrize(
    "hub_id", ["deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "ibm/Granite-72B-FP8", "Qwen/Qwen3-Next-80B-A3B-Instruct"]
)
def test_another_architecture_stays_unknown(hub_id: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown model"):
        catalog.model(hub_id)


def test_an_id_that_is_known_is_taken_as_it_is() -> None:
    for hub_id, name in catalog._hub_ids().items():
        assert catalog.model(hub_id) == catalog.model(name)


def test_the_command_says_what_it_took() -> None:
    catalog._by_its_name.cache_clear()
    answer = run("predict", "--model", "nvidia/Llama-3.1-70B-Instruct-FP8", "--tp", "4")
    assert answer.code == 0, answer.err
    assert "warning: 'nvidia/Llama-3.1-70B-Instruct-FP8' is taken for llama-3.1-70b in fp8" in answer.err
    assert "llama-3.1-70b fp8" in answer.out
