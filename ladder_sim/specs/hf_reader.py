"""Reads fields of a Hugging Face config.json, and refuses what they say that cannot be simulated."""

from collections.abc import Mapping
from typing import Self

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_types import CLASS_SIZES, EXPERTS, LATENT_TYPES, TYPES
from ladder_sim.specs.values import flag, whole
from ladder_sim.units import quoted

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

# model types in which attention and MLP read the same input, and which differ from Llama in other things as well
_PARALLEL = ("falcon", "gpt_neox", "gptj", "phi")

# values of `layer_types` that are attention
ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")


_EQUAL_LAYERS = "only models in which every layer is attention and an MLP can be simulated"
_KNOWN_ATTENTION = "only multi-head, grouped-query and DeepSeek's latent attention can be simulated"
_SIDE_BY_SIDE = "attention and MLP side by side in one block"
_ONLY_PARALLEL = 'give its sizes as "model_type": "llama" and choose --variant parallel, the only wiring it has'
# what cannot be simulated, the fields that say so, and the way out
_REFUSED = (
    (
        "sparse attention, in which an indexer chooses the tokens,",
        ("index_topk", "index_n_heads", "sparse_attention_config"),
        _KNOWN_ATTENTION,
    ),
    (
        "layers of linear attention",
        ("linear_num_key_heads", "linear_attn_config", "full_attention_interval"),
        _KNOWN_ATTENTION,
    ),
    (
        "state-space and recurrent layers",
        (
            *("state_size", "ssm_cfg", "ssm_state_size", "mamba_d_state", "mamba_d_conv", "layers_block_type"),
            *("attn_layer_period", "hybrid_override_pattern", "lru_width"),
        ),
        _EQUAL_LAYERS,
    ),
    (
        "encoder-decoder models",
        ("is_encoder_decoder", "encoder_layers", "num_decoder_layers"),
        "only decoders can be simulated",
    ),
    (
        "layers of different shapes",
        ("block_configs", "per_layer_config"),
        "only models whose layers are all alike can be simulated",
    ),
    (_SIDE_BY_SIDE, ("parallel_attn", "use_parallel_residual"), _ONLY_PARALLEL),
    ("layers that attend to an encoder", ("cross_attention_layers",), _EQUAL_LAYERS),
    ("embeddings of each layer", ("hidden_size_per_layer_input",), _EQUAL_LAYERS),
)
# fields that say how many experts there are, or that attention is latent: contradictions in a type that has neither
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_FIELDS = (*EXPERT_COUNTS, "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
_LATENT_RANKS = ("kv_lora_rank", "q_lora_rank")


class ConfigReader:
    """Fields of one config, with errors that name file and field. JSON null counts as missing.

    Parameters
    ----------
    config
        The file, or the object in it that describes the decoder.
    source
        Where the object is.
    """

    def __init__(self, config: Mapping[str, object], source: str) -> None:
        self.config = config
        self.source = source

    def decoder(self) -> Self:
        """The config of the decoder: the one in it of a multimodal model, else itself; with the type's defaults."""
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
        """With what the model's type implies."""
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

    def refuse_other_architectures(self) -> None:
        for what, keys, way_out in _REFUSED:
            for key in keys:
                # 0, false and empty objects are how configs say "none"
                if self.config.get(key):
                    raise self.error(key, f"{what} are not supported", way_out)
        kinds = self.config.get("attn_type_list")
        if kinds is not None and not (isinstance(kinds, list) and all(kind == 1 for kind in kinds)):
            raise self.error(
                "attn_type_list", "1 is attention; layers of linear attention are not supported", _KNOWN_ATTENTION
            )
        layers = self.config.get("layer_types")
        if layers is not None and not (isinstance(layers, list) and all(kind in ATTENTION_LAYERS for kind in layers)):
            raise self.error("layer_types", f"must be a list of {' and '.join(ATTENTION_LAYERS)}", _KNOWN_ATTENTION)
        # the object around a decoder has a type of its own
        if any(self.config.get(key) for key in TEXT_CONFIGS):
            return
        for key in _EXPERT_FIELDS:
            if self.config.get(key) and self.model_type() not in EXPERTS:
                raise self.error(
                    key,
                    f"model_type {quoted(self.model_type())} is not a mixture-of-experts type that can be simulated",
                    f"those are {', '.join(EXPERTS)}; drop {key} if its layers have no experts",
                )
        for key in _LATENT_RANKS:
            if self.config.get(key) and self.model_type() not in LATENT_TYPES:
                raise self.error(
                    key,
                    f"model_type {quoted(self.model_type())} is not a type whose latent attention can be simulated",
                    f"those are {', '.join(LATENT_TYPES)}",
                )

    def refuse_other_types(self) -> None:
        if self.model_type() in _PARALLEL:
            raise self.error("model_type", f"{_SIDE_BY_SIDE} are not supported", _ONLY_PARALLEL)
        if self.model_type() not in TYPES:
            # BERT, Mamba 2 and others share field names with Llama but not the blocks
            raise self.error(
                "model_type",
                "must be a type that is known to have a decoder's blocks, attention and an MLP or experts, with norms",
                f'if its blocks are those of Llama, write "model_type": "llama"; known are {", ".join(TYPES)}',
            )

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
        """The layers that a field lists; None if it is missing or empty."""
        value = self.config.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            raise self.error(key, "must be a list of layers", f"correct {key} in the file")
        return frozenset(whole(each, f"{self.source}: {key}: a layer", 0, layers - 1) for each in value)

    def ladder_layers(self, layers: int, *, ladder: bool) -> tuple[int, ...]:
        value = self.config.get("ladder_layers")
        if not ladder:
            if value:
                raise self.error(
                    "ladder_layers",
                    'only read with "model_type": "llamaLadder"',
                    "set the model_type, or drop the field and choose the wiring with --variant",
                )
            return ()
        if value is None:
            return ()
        if isinstance(value, list):
            chosen = value
        elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= layers:
            # a count is taken from the top of the stack, next to the LM head
            chosen = list(range(layers - value, layers))
        else:
            chosen = [None]
        good = all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < layers for i in chosen)
        if not good or len(set(chosen)) != len(chosen):
            raise self.error(
                "ladder_layers",
                f"must be a count from 0 to {layers}, or a list of different layers from 0 to {layers - 1}",
                "correct ladder_layers in the file",
            )
        return tuple(sorted(chosen))
