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
        ("Qwen/Qwen3-Next-80B-A3B-Thinking-FP8", "qwen3-next-80b-a3b", "fp8-block"),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen3.5-397b-a17b", "fp8-block"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "qwen3-coder-480b-a35b", "fp8-block"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b", "bf16"),
        ("deepseek-ai/DeepSeek-V3.2-Speciale", "deepseek-v3.2", "fp8-block"),
        ("sgl-project/DeepSeek-V4-Flash-FP8", "deepseek-v4-flash", "fp8-block"),
        ("sgl-project/DeepSeek-V4-Pro-FP8", "deepseek-v4-pro", "fp8-block"),
        ("stepfun-ai/Step-3.7-Flash-FP8", "step-3.7-flash", "fp8-block"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "nemotron-3-ultra-550b-a55b", "nvfp4"),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b", "fp8-block"),
        ("zai-org/GLM-4.7-FP8", "glm-4.6", "fp8"),
        ("zai-org/GLM-5-FP8", "glm-5", "fp8-block"),
        ("zai-org/GLM-5.3-FP8", "glm-5.2", "fp8-block"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano-30b-a3b", "fp8"),
        ("unsloth/DeepSeek-V3-bf16", "deepseek-v3", "bf16"),
        ("cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", "kimi-linear-48b-a3b", "w4a16"),
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
        ("nvidia/DeepSeek-V3.2-NVFP4", ("qkv",)),
        ("nvidia/Kimi-K2.6-NVFP4", ("qkv", "out", "mlp")),
        ("nvidia/GLM-5-NVFP4", ("qkv", "out")),
        ("nvidia/GLM-5.2-NVFP4", ("qkv", "out", "mlp")),
        ("nvidia/Qwen3.5-397B-A17B-NVFP4", ("qkv", "out", "mlp")),
        ("nvidia/Gemma-4-31B-IT-NVFP4", ("qkv", "out")),
        ("nvidia/Gemma-4-26B-A4B-NVFP4", ("qkv", "out", "mlp")),
    ],
)
@pytest.mark.filterwarnings("ignore:.* is taken for")
def test_an_id_in_nvfp4_keeps_what_its_config_does(hub_id: str, kept: tuple[str, ...]) -> None:
    assert catalog.model(hub_id).unquantized == kept


@pytest.mark.parametrize(
    ("hub_id", "most", "others"),
    [
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "nvfp4", {"qkv": "fp8-block", "out": "fp8-block", "mlp": "fp8-block"}),
        ("nvidia/MiniMax-M3-NVFP4", "nvfp4", {"qkv": "fp8-block", "out": "fp8-block", "mlp": "fp8-block"}),
        ("nvidia/Qwen3.6-27B-NVFP4", "w4a16", {"qkv": "fp8", "out": "fp8"}),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "w4a16", {"qkv": "fp8", "out": "fp8"}),
    ],
)
@pytest.mark.filterwarnings("ignore:.* is taken for")
def test_an_id_mixes_formats_as_its_config_does(hub_id: str, most: str, others: dict[str, str]) -> None:
    spec = catalog.model(hub_id)
    assert spec.weights_dtype == most
    assert {part: dtype for part, dtype, _ in spec.part_formats} == others
    # blocks that are listed have them
    stored = {pair for block in spec.block_kinds for pair in block.formats}
    assert {("qkv", others["qkv"]), ("out", others["out"])} <= stored <= others.items()


@pytest.mark.parametrize("hub_id", ["deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "ibm/Granite-72B-FP8", "tencent/Hy3"])
def test_another_architecture_stays_unknown(hub_id: str) -> None:
    """And the way out is one that works: its config.json, not the id of another checkpoint."""
    with pytest.raises(UnknownNameError, match="unknown model") as error:
        catalog.model(hub_id)
    assert f"save https://huggingface.co/{hub_id}/blob/main/config.json and pass its path" in error.value.hint


def test_an_id_that_is_known_is_taken_as_it_is() -> None:
    for hub_id, name in catalog._hub_ids().items():
        assert catalog.model(hub_id) == catalog.model(name)


def test_the_command_says_what_it_took() -> None:
    catalog._by_its_name.cache_clear()
    answer = run("predict", "--model", "nvidia/Llama-3.1-70B-Instruct-FP8", "--tp", "4")
    assert answer.code == 0, answer.err
    assert "warning: 'nvidia/Llama-3.1-70B-Instruct-FP8' is taken for llama-3.1-70b in fp8" in answer.err
    assert "llama-3.1-70b fp8" in answer.out
