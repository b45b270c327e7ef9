"""Hugging Face's model types: what each implies without a field of its config.json, and those that cannot be run.

From the configuration classes and models of transformers 5.23.0. `use_qk_norm`, `joint_qk_norm`, `norms_behind` and
`attention_out_bias` are names of our own.
"""

from collections.abc import Mapping

# windows from layer 28 on, if there are any
_QWEN_WINDOWS = {"use_sliding_window": False, "max_window_layers": 28}
_QWEN3 = {"use_qk_norm": True, **_QWEN_WINDOWS}
_DEEPSEEK_V3 = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}

TYPES: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "llamaLadder": {},
    "mistral": {},
    # biases on q, k and v alone
    "qwen2": {"attention_bias": True, "attention_out_bias": False, **_QWEN_WINDOWS},
    "qwen3": {**_QWEN3, "head_dim": 128},
    "qwen3_moe": _QWEN3,
    "olmo2": {"rms_norm_eps": 1e-5, "use_qk_norm": True, "joint_qk_norm": True, "norms_behind": True},
    "mixtral": {"norm_topk_prob": True, "rope_theta": 1e6},
    "deepseek_v2": {},
    "deepseek_v3": _DEEPSEEK_V3,
    # DeepSeek-V3 with other sizes
    "kimi_k2": _DEEPSEEK_V3,
}

# types whose blocks are others, and how they differ
UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(("qwen3_vl_text", "apertus", "hunyuan_v1_dense"), "norms of queries and keys"),
    **dict.fromkeys(("starcoder2", "nemotron", "stablelm"), "LayerNorm"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "scaled embeddings"),
    "olmo3": "rotary wavelengths that differ between layers",
    "exaone4": "layers without rotary positions",
    "glm4": "norms before and behind the blocks",
    **dict.fromkeys(("cohere", "cohere2"), "attention and MLP side by side"),
}
