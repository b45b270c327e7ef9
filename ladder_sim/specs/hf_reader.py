"""Reads fields of a Hugging Face config.json, and what a model's type says without a field.

The latter is from the configuration classes and models of Hugging Face transformers 5.23.0: defaults of fields that
files leave out, and facts of the blocks, as if they were fields. Names of our own are `gated_mlp`, `joint_qk_norm`,
`post_norms`, `norms_behind`, `weightless_qk_norm`, `parallel_blocks`, `attention_sinks`, `router_bias`,
`full_attention_first` and, where files have `layer_types`, `sliding_window_pattern`. Kimi K2 and MiniMax M2.5 are from
their repositories on the Hugging Face Hub.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

from ladder_sim.errors import SpecError
from ladder_sim.units import quoted
from ladder_sim.values import flag, whole

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


# largest accepted size, by ModelSpec field: ten times that of any published model, or more
MAXIMA: dict[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 100_000,
    "intermediate": 10_000_000,
    "experts": 100_000,
    "vocab": 10_000_000,
    "max_positions": 1_000_000_000,
}

# fields with the decoder of a multimodal model, its type where they do not say it, and fields of the encoders
TEXT_CONFIGS = ("text_config", "llm_config")
_TEXT_TYPES = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text"}
ENCODERS = ("vision_config", "audio_config")
# fields in which null is a value of its own: no window, as many heads as queries, a share of the width
_NULLABLE = ("sliding_window", "num_key_value_heads", "head_dim", "q_lora_rank")


class ConfigReader:
    """Fields of one config, with errors that name file and field. JSON null counts as missing."""

    def __init__(self, config: Mapping[str, object], source: str) -> None:
        self.config = config
        self.source = source

    def decoder(self) -> Self:
        """Return the config of the decoder, which a multimodal model holds inside its own, with the type's defaults."""
        nested = next((key for key in TEXT_CONFIGS if self.config.get(key)), None)
        if nested is None:
            return self._filled({})
        text = self.config[nested]
        if not isinstance(text, dict):
            raise self.error(nested, "must be an object", "download or export the file again")
        # one setting of the whole model, which either may hold
        tied = {"tie_word_embeddings": self.config.get("tie_word_embeddings")}
        kind = {"model_type": _TEXT_TYPES.get(self.model_type(), "llama")}
        inner = type(self)({**kind, **tied, **text}, f"{self.source}: {nested}")
        return inner._filled(CLASS_SIZES.get(inner.model_type(), {}))

    def _filled(self, sizes: Mapping[str, object]) -> Self:
        """Return the config completed by what the model's type implies."""
        given = {key: value for key, value in self.config.items() if value is not None or key in _NULLABLE}
        return type(self)({**sizes, **TYPES.get(self.model_type(), {}), **given}, self.source)

    def error(self, key: str, rule: str, way_out: str) -> SpecError:
        return SpecError(f"{self.source}: {key} is {quoted(self.config.get(key))}: {rule}", hint=way_out)

    def model_type(self) -> str:
        model_type = self.config.get("model_type")
        if model_type is None:
            return "llama"
        if not isinstance(model_type, str):
            raise self.error("model_type", "must be text", 'for example "llama"')
        return model_type

    def size(self, key: str, maximum: int, *, default: int | None = None, minimum: int = 1) -> int:
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise SpecError(
                f"{self.source}: {key} is missing: a config.json of type {quoted(self.model_type())} must have it",
                hint=f'add "{key}" to the file',
            )
        return whole(value, f"{self.source}: {key}", minimum, maximum, hint=f"correct {key} in the file")

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else flag(value, f"{self.source}: {key}")

    def layer_numbers(self, key: str, layers: int) -> frozenset[int] | None:
        """Return the layers that a field lists; None if it is missing or empty."""
        value = self.config.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            raise self.error(key, "must be a list of layers", f"correct {key} in the file")
        return frozenset(whole(each, f"{self.source}: {key}: a layer", 0, layers - 1) for each in value)
