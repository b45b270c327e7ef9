"""What is read of a config.json is what Hugging Face's own configuration classes say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ladder_sim.specs.hf_types import CLASS_SIZES, SIZES, TYPES
from ladder_sim.specs.model import ModelSpec
from tests.conftest import DATA

pytestmark = pytest.mark.torch

FILES = sorted((DATA / "configs").iterdir())
# names of blocks' facts, and a type without a class of its own
OWN = (
    "gated_mlp",
    "joint_qk_norm",
    "post_norms",
    "parallel_blocks",
    "use_qkv_bias",
    "use_qk_norm",
    "attention_out_bias",
)
WITHOUT_CLASS = ("llamaLadder", "internlm2")
# the class is that of the whole model
WHOLE = ("qwen2_vl", "qwen2_5_vl")


def decoder(config: Mapping[str, Any]) -> Any:
    """The class's object for the decoder."""
    given = dict(config)
    return AutoConfig.for_model(given.pop("model_type"), **given).get_text_config()


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_files(file: Path) -> None:
    config = json.loads(file.read_text("utf-8"))
    theirs, ours = decoder(config), ModelSpec.from_hf(config, name="m", source="config.json")
    assert {key: getattr(ours, field) for field, key in SIZES.items()} == {
        key: getattr(theirs, key) for key in SIZES.values()
    }
    assert (ours.heads, ours.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.qkv_bias == getattr(theirs, "attention_bias", False)
    windowed = "sliding_attention" in (getattr(theirs, "layer_types", None) or ["sliding_attention"])
    assert ours.sliding_window == ((getattr(theirs, "sliding_window", None) or 0) if windowed else 0)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in WITHOUT_CLASS + WHOLE])
def test_defaults(kind: str) -> None:
    theirs = decoder({"model_type": kind})
    said = {key: value for key, value in TYPES[kind].items() if key not in OWN and hasattr(theirs, key)}
    assert said == {key: getattr(theirs, key) for key in said}
    sizes = CLASS_SIZES.get(kind, {})
    assert sizes == {key: getattr(theirs, key) for key in sizes}
