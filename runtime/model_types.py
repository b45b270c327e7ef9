"""Hugging Face's model types: what each implies without a field of its config.json, and those that cannot be run.

From the configuration classes and models of transformers 5.23.0, as `ladder_sim.specs.hf_types` has them for
predictions. `use_qk_norm`, `joint_qk_norm`, `norms_behind`, `attention_out_bias`, `gated_mlp`, `full_attention_first`,
`expert_width` and, where files have `layer_types`, `sliding_window_pattern` are names of our own.
"""

from collections.abc import Mapping

# windows from layer 28 on, if there are any; biases on q, k and v alone
_QWEN2 = {
    "num_key_value_heads": 32,
    "attention_bias": True,
    "attention_out_bias": False,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
_QWEN2_VL = {**_QWEN2, "num_key_value_heads": 8, "max_window_layers": 80}
_MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096}
_DEEPSEEK_V3 = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}

TYPES: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "llamaLadder": {},
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
    "qwen2": _QWEN2,
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2_VL),
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_qk_norm": True,
        "use_sliding_window": False,
        "max_window_layers": 28,
    },
    "qwen3_moe": {"num_key_value_heads": 4, "use_qk_norm": True, "use_sliding_window": False},
    "cwm": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 8192,
        "sliding_window_pattern": 4,
        "full_attention_first": True,
    },
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True, "attention_out_bias": False},
    "arcee": {"gated_mlp": False, "hidden_act": "relu2"},
    "olmo2": {"rms_norm_eps": 1e-5, "use_qk_norm": True, "joint_qk_norm": True, "norms_behind": True},
    "mixtral": {
        "num_key_value_heads": 8,
        "expert_width": "intermediate_size",
        "norm_topk_prob": True,
        "rope_theta": 1e6,
    },
    "deepseek_v2": {},
    "deepseek_v3": _DEEPSEEK_V3,
    # DeepSeek-V3 with other sizes
    "kimi_k2": _DEEPSEEK_V3,
}

_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2")
# types that have latent attention, or experts, and the field that says so
LATENT: Mapping[str, str] = dict.fromkeys(_DEEPSEEK, "kv_lora_rank")
EXPERTS: Mapping[str, str] = {
    "qwen3_moe": "num_experts",
    "mixtral": "num_local_experts",
    **dict.fromkeys(_DEEPSEEK, "n_routed_experts"),
}

# fields in which null is a value of its own: no window, as many heads as queries, a share of the width
NULLABLE = ("sliding_window", "num_key_value_heads", "head_dim")

# types whose blocks are others, and how they differ
UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(("qwen3_vl_text", "apertus", "hunyuan_v1_dense"), "norms of queries and keys"),
    **dict.fromkeys(("starcoder2", "nemotron", "stablelm"), "LayerNorm"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "scaled embeddings"),
    "olmo3": "rotary wavelengths that differ between layers",
    **dict.fromkeys(("exaone4", "smollm3"), "layers without rotary positions"),
    "glm4": "norms before and behind the blocks",
    **dict.fromkeys(("cohere", "cohere2"), "attention and MLP side by side"),
    **dict.fromkeys(("glm4_moe", "gpt_oss", "minimax_m2", "llama4_text"), "experts of another kind"),
}
