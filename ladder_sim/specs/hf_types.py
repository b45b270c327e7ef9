"""What a model's type says without a field of its config.json.

From the configuration classes and models of Hugging Face transformers 5.23.0: defaults of fields that files leave out,
and facts of the blocks, as if they were fields. Names of our own are `gated_mlp`, `joint_qk_norm`, `post_norms`,
`norms_behind`, `weightless_qk_norm`, `parallel_blocks`, `attention_sinks`, `router_bias`, `full_attention_first` and,
where files have `layer_types`, `sliding_window_pattern`. Kimi K2 and MiniMax M2.5 are from their repositories on the
Hugging Face Hub.
"""

from collections.abc import Mapping
from typing import NamedTuple

# sizes that every config.json has, by ModelSpec field
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
}

_TIED = {"tie_word_embeddings": True}
# windows from layer 28 on, if there are any
_QWEN2 = {"num_key_value_heads": 32, "use_qkv_bias": True, "use_sliding_window": False, "max_window_layers": 28}
_QWEN2_VL = {**_QWEN2, "num_key_value_heads": 8, "max_window_layers": 80}
_QWEN3_VL = {"num_key_value_heads": 32, "head_dim": 128, "use_qk_norm": True, "use_sliding_window": False}
_QWEN3 = {**_QWEN3_VL, "max_window_layers": 28}
_GEMMA2 = {
    **_TIED,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "post_norms": True,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
}
_OLMO2 = {"use_qk_norm": True, "joint_qk_norm": True, "norms_behind": True}
# DeepSeek-V3 adds a correction to each expert's score (arXiv 2412.19437, section 2.1.2)
_DEEPSEEK_V3 = {"router_bias": True}
# biases on q, k and v alone
_BIASED = {"head_dim": 128, "attention_bias": True, "attention_out_bias": False}

TYPES: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "llamaLadder": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
    "phi3": {},
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3_VL,
    "gemma": {**_TIED, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": _GEMMA2,
    "gemma3_text": {**_GEMMA2, "use_qk_norm": True, "sliding_window_pattern": 6},
    "granite": {},
    "internlm2": {},
    "cwm": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 8192,
        "sliding_window_pattern": 4,
        "full_attention_first": True,
    },
    "hunyuan_v1_dense": {"use_qk_norm": True},
    "smollm3": {**_TIED, "num_key_value_heads": 4},
    "seed_oss": {**_BIASED, "num_key_value_heads": 8},
    "glm4": {**_BIASED, "num_key_value_heads": 2, "post_norms": True},
    "olmo2": _OLMO2,
    "olmo3": {**_OLMO2, "sliding_window": 4096, "sliding_window_pattern": 4},
    "exaone4": {"use_qk_norm": True, "norms_behind": True, "sliding_window": 4096, "sliding_window_pattern": 4},
    # one up projection and no gate
    "arcee": {"gated_mlp": False},
    "apertus": {"gated_mlp": False, "use_qk_norm": True},
    # LayerNorm in the place of RMSNorm
    "starcoder2": {**_TIED, "num_key_value_heads": 2, "use_bias": True, "gated_mlp": False},
    "nemotron": {"gated_mlp": False},
    "stablelm": {},
    "cohere": {**_TIED, "parallel_blocks": True},
    "cohere2": {**_TIED, "head_dim": 128, "parallel_blocks": True, "sliding_window": 4096, "sliding_window_pattern": 4},
    # mixtures of experts
    "mixtral": {"num_key_value_heads": 8},
    "qwen3_moe": {"num_key_value_heads": 4, "use_qk_norm": True, "use_sliding_window": False},
    "glm4_moe": {"num_key_value_heads": 8, "attention_out_bias": False, "router_bias": True},
    "gpt_oss": {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "attention_bias": True,
        "mlp_bias": True,
        "router_bias": True,
        "attention_sinks": True,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
    },
    "minimax_m2": {"num_key_value_heads": 8, "head_dim": 128, "use_qk_norm": True, "joint_qk_norm": True},
    "llama4_text": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_qk_norm": True,
        "weightless_qk_norm": True,
        # as wide as a routed one
        "n_shared_experts": 1,
        "attention_chunk_size": 8192,
        "sliding_window_pattern": 4,
    },
    # latent attention
    "deepseek_v2": {},
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
}


class ExpertFields(NamedTuple):
    """What a type calls its experts."""

    routed: str
    """Routed experts of a layer."""
    width: str = "moe_intermediate_size"
    """Width of one of them."""
    dense: str = "intermediate_size"
    """Width of an MLP without experts."""


_LOCAL = ExpertFields("num_local_experts", width="intermediate_size")
_ROUTED = ExpertFields("n_routed_experts")
# by type
EXPERTS: Mapping[str, ExpertFields] = {
    "mixtral": _LOCAL,
    "qwen3_moe": ExpertFields("num_experts"),
    "glm4_moe": _ROUTED,
    "gpt_oss": _LOCAL,
    "minimax_m2": _LOCAL,
    "llama4_text": ExpertFields("num_local_experts", width="intermediate_size", dense="intermediate_size_mlp"),
    "deepseek_v2": _ROUTED,
    "deepseek_v3": _ROUTED,
    "kimi_k2": _ROUTED,
}
LATENT_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")

# sizes of the classes, in the order of `SIZES`: a `text_config` leaves out what equals them, a file of its own does not
CLASS_SIZES: Mapping[str, Mapping[str, int]] = {
    name: dict(zip(SIZES.values(), sizes, strict=True))
    for name, sizes in {
        "llama": (32, 4096, 32, 11008, 32000, 2048),
        "mistral": (32, 4096, 32, 14336, 32000, 131072),
        "qwen2": (32, 4096, 32, 22016, 151936, 32768),
        "gemma": (28, 3072, 16, 24576, 256000, 8192),
        "gemma2": (26, 2304, 8, 9216, 256000, 8192),
        "gemma3_text": (26, 2304, 8, 9216, 262208, 131072),
    }.items()
}
