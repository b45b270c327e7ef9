"""Predictions and real passes have the same model of a config.json, whatever it leaves out."""

from collections.abc import Mapping
from typing import Any

import pytest

from ladder_sim.specs.hf_reader import EXPERTS, LATENT_TYPES, TYPES
from ladder_sim.specs.model import ModelSpec
from ladder_sim_runtime.config import UNSUPPORTED, ModelConfig

# no size is a default of a class
SIZES = {
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "num_attention_heads": 32,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "mlp_bias": True,
}
GROUPED = {
    "num_key_value_heads": 16,
    "head_dim": 16,
    "attention_bias": True,
    "sliding_window": 100,
    "use_sliding_window": True,
    "max_window_layers": 2,
}
LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
# as the classes of transformers 5.23.0 say: KV heads, width of a head, window
LEFT_OUT = {
    "llama": (32, 8, 0),
    "mistral": (8, 8, 4096),
    "mixtral": (8, 8, 0),
    "qwen2": (32, 8, 0),
    "qwen3": (32, 128, 0),
    "qwen3_moe": (4, 8, 0),
    "ministral3": (8, 128, 0),
    "seed_oss": (8, 128, 0),
    "cwm": (8, 128, 8192),
}


def config_of(kind: str) -> dict[str, Any]:
    """A small model of a type, with all fields that both readers know."""
    experts: dict[str, Any] = {}
    if kind in EXPERTS:
        experts = {EXPERTS[kind].routed: 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    if kind in LATENT_TYPES:
        experts |= {"n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
    return {"model_type": kind, **SIZES, **(LATENT if kind in LATENT_TYPES else GROUPED), **experts}


def predicted(config: Mapping[str, Any]) -> dict[str, Any]:
    """What predictions read."""
    spec = ModelSpec.from_hf(config, name="m", source="config.json")
    same = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions")
    flags = ("tied_embeddings", "qkv_bias", "out_bias", "mlp_bias", "gated_mlp", "sliding_window", "window_layers")
    return {
        **{name: getattr(spec, name) for name in (*same, *flags)},
        "qk_norm": {"none": "", "heads": "heads", "all": "all"}[spec.qk_norm],
        "norms_behind": spec.block_norms == "behind",
        "experts": (spec.experts, spec.experts_per_token, spec.expert_intermediate, spec.shared_intermediate),
        "dense_layers": spec.dense_layers,
        "latent": (spec.kv_lora_rank, spec.q_lora_rank, spec.rope_head_dim, spec.value_head_dim),
    }


def run(config: Mapping[str, Any]) -> dict[str, Any]:
    """What real passes run."""
    shape = ModelConfig.from_hf(config)
    own, latent = shape.experts, shape.latent
    same = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions")
    flags = ("tied_embeddings", "qkv_bias", "out_bias", "mlp_bias", "gated_mlp", "sliding_window", "window_layers")
    return {
        **{name: getattr(shape, name) for name in (*same, *flags)},
        "qk_norm": "" if not shape.qk_norm else "all" if shape.joint_qk_norm else "heads",
        "norms_behind": shape.norms_behind,
        "experts": (own.count, own.top_k, own.intermediate, own.shared) if own else (0, 0, 0, 0),
        "dense_layers": own.dense_layers if own else (),
        "latent": (latent.kv_rank, latent.q_rank, latent.rope_dim, latent.value_dim) if latent else (0, 0, 0, 0),
    }


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in UNSUPPORTED])
def test_real_passes_have_the_shape_that_is_predicted(kind: str) -> None:
    """Regression: of mistral, mixtral and qwen3_moe the runtime had as many KV heads as queries, and no window."""
    whole = config_of(kind)
    sizes = [key for key in whole if key in GROUPED]
    for config in (whole, {key: value for key, value in whole.items() if key not in sizes}):
        assert predicted(config) == run(config)


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_files_leave_out_is_as_the_classes_have_it(kind: str) -> None:
    config = config_of(kind)
    for key in GROUPED:
        del config[key]
    assert [
        (read["kv_heads"], read["head_dim"], read["sliding_window"]) for read in (predicted(config), run(config))
    ] == [LEFT_OUT[kind]] * 2
