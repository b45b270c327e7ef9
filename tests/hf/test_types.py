"""What is read of a config.json is what Hugging Face's own configuration classes say."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ladder_sim.errors import SpecError
from ladder_sim.hf.types import EXPERTS, SIZES, TYPES
from ladder_sim.specs.model import ModelSpec
from ladder_sim_runtime.config import ModelConfig
from tests.conftest import DATA

pytestmark = pytest.mark.torch

FILES = sorted((DATA / "configs").glob("*.json"))
# its repository holds its class
WITHOUT_FILE = ("Kimi-K2-Instruct",)
# types without a class of their own
WITHOUT_CLASS = ("llamaLadder", "internlm2", "kimi_k2")


def decoder(config: Mapping[str, Any]) -> Any:
    """The class's object for the decoder."""
    given = dict(config)
    return AutoConfig.for_model(given.pop("model_type"), **given).get_text_config()


@pytest.mark.parametrize("file", [file for file in FILES if file.stem not in WITHOUT_FILE], ids=lambda file: file.stem)
def test_files(file: Path) -> None:
    config = json.loads(file.read_text("utf-8"))
    theirs, ours = decoder(config), ModelSpec.from_hf(config, name="m", source="config.json")
    names = EXPERTS.get(theirs.model_type)
    keys = SIZES | ({"intermediate": names.dense, "expert_intermediate": names.width} if names else {})
    assert {key: getattr(ours, field) for field, key in keys.items()} == {
        key: getattr(theirs, key) for key in keys.values()
    }
    if names:
        assert (ours.experts, ours.experts_per_token) == (getattr(theirs, names.routed), theirs.num_experts_per_tok)
    assert (ours.heads, ours.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    if ours.kv_lora_rank:
        assert (ours.kv_lora_rank, ours.q_lora_rank) == (theirs.kv_lora_rank, theirs.q_lora_rank or 0)
        assert ours.head_dim == theirs.qk_nope_head_dim + theirs.qk_rope_head_dim
    else:
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.qkv_bias == getattr(theirs, "attention_bias", False)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * ours.layers
    windowed = [layer for layer, kind in enumerate(kinds) if kind != "full_attention"]
    window = getattr(theirs, "sliding_window", None) or getattr(theirs, "attention_chunk_size", None) or 0
    assert ours.sliding_window == (window if windowed else 0)
    windows = [kind.attention.caches(1)[0][0] for kind in ours.kinds]
    assert [layer for layer, own in enumerate(windows) if own] == (windowed if window else [])


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in WITHOUT_CLASS])
def test_a_field_that_is_left_out_is_the_one_of_the_class(kind: str) -> None:
    """Regressions: DeepSeek-V3 was read without groups and shared experts, seven types with the epsilon of Llama."""
    whole = {**decoder({"model_type": kind}).to_dict(), "model_type": kind}
    assert TYPES[kind].sizes in ((), tuple(whole[key] for key in SIZES.values()))
    if kind == "glm4_moe":
        # heads of no width divide the class's own hidden size
        whole["head_dim"] = 128
    if kind == "deepseek_v2":
        # which its class leaves open
        whole["num_experts_per_tok"] = 6
    for read in (predicted, run) if not TYPES[kind].not_run else (predicted,):
        expected = read(whole)
        for key in {*whole} - {"model_type", "head_dim" if kind == "glm4_moe" else ""}:
            rest = {name: value for name, value in whole.items() if name != key}
            try:
                found = read(rest)
            except SpecError as error:
                # sizes must be there: guessed ones would be another model
                assert " is missing: " in str(error)  # noqa: PT017
            else:
                assert found == expected, key


def predicted(config: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec.from_hf(config, name="m", source="config.json")


def run(config: Mapping[str, Any]) -> ModelConfig:
    """Configs for measurements need no longest context."""
    return dataclasses.replace(ModelConfig.from_hf(config), max_positions=1)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in WITHOUT_CLASS])
def test_layers_with_a_window(kind: str) -> None:
    """Which layers they are follows from the type where a file does not list them."""
    theirs = decoder({"model_type": kind, "num_hidden_layers": 30})
    kinds = getattr(theirs, "layer_types", None)
    if kinds is None or not any(getattr(theirs, key, None) for key in ("sliding_window", "attention_chunk_size")):
        return
    given = {key: value for key, value in theirs.to_dict().items() if key not in ("layer_types", "no_rope_layers")}
    ours = ModelSpec.from_hf(given, name="m", source="config.json")
    assert [bool(each.attention.window) for each in ours.kinds] == [name != "full_attention" for name in kinds]
