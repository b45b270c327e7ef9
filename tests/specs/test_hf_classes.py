"""What is read of a config.json is what Hugging Face's own configuration classes say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ladder_sim.specs.hf_reader import CLASS_SIZES, EXPERTS, SIZES, TYPES
from ladder_sim.specs.model import ModelSpec
from tests.conftest import DATA

pytestmark = pytest.mark.torch

FILES = sorted((DATA / "configs").glob("*.json"))
# its repository holds its class
WITHOUT_FILE = ("Kimi-K2-Instruct",)
# names of blocks' facts, and a type without a class of its own
OWN = (
    "gated_mlp",
    "joint_qk_norm",
    "post_norms",
    "norms_behind",
    "parallel_blocks",
    "use_qkv_bias",
    "use_qk_norm",
    "attention_out_bias",
    "weightless_qk_norm",
    "attention_sinks",
    "router_bias",
    "n_shared_experts",
    "full_attention_first",
)
WITHOUT_CLASS = ("llamaLadder", "internlm2", "kimi_k2")
# the class is that of the whole model
WHOLE = ("qwen2_vl", "qwen2_5_vl")


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


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in WITHOUT_CLASS + WHOLE])
def test_defaults(kind: str) -> None:
    theirs = decoder({"model_type": kind})
    said = {key: value for key, value in TYPES[kind].items() if key not in OWN and hasattr(theirs, key)}
    assert said == {key: getattr(theirs, key) for key in said}
    sizes = CLASS_SIZES.get(kind, {})
    assert sizes == {key: getattr(theirs, key) for key in sizes}


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in WITHOUT_CLASS + WHOLE])
def test_layers_with_a_window(kind: str) -> None:
    """Which layers they are follows from the type where a file does not list them."""
    theirs = decoder({"model_type": kind, "num_hidden_layers": 30})
    kinds = getattr(theirs, "layer_types", None)
    if kinds is None or not any(getattr(theirs, key, None) for key in ("sliding_window", "attention_chunk_size")):
        return
    given = {key: value for key, value in theirs.to_dict().items() if key not in ("layer_types", "no_rope_layers")}
    ours = ModelSpec.from_hf(given, name="m", source="config.json")
    assert [bool(each.attention.window) for each in ours.kinds] == [name != "full_attention" for name in kinds]
