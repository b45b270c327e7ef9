"""Read a Hugging Face config.json: the file, and the shape of the dense decoder it describes.

Field names and defaults are those of the configuration classes of Hugging Face transformers (LlamaConfig,
MistralConfig, Qwen2Config, Qwen3Config, GemmaConfig, Starcoder2Config, NemotronConfig, StableLmConfig and others).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_sim.errors import SpecError
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.units import quoted

# largest accepted size, by ModelSpec field: ten times that of any published model, or more
MAXIMA: dict[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 100_000,
    "intermediate": 10_000_000,
    "vocab": 10_000_000,
    "max_positions": 1_000_000_000,
}

# required sizes, by ModelSpec field
_FIELDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
}

# model types whose blocks are known to be Llama's
_LLAMA_FAMILY = ("llama", "mistral", "qwen2", "qwen3", "llamaLadder")

# model types with one up projection and no gate
_UNGATED = ("starcoder2", "nemotron", "arcee", "apertus")

# model types with LayerNorm in the place of RMSNorm, whose blocks are otherwise those of Llama
_LAYER_NORM = ("starcoder2", "nemotron", "stablelm")

# model types in which attention and MLP read the same input: their only wiring is `parallel`
_PARALLEL = ("cohere", "cohere2", "falcon", "gpt_neox", "gptj", "phi")

# model types whose LM head shares the embedding unless the file says otherwise
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "starcoder2")

# model types that normalise queries and keys, head by head
_QK_NORM = ("qwen3", "gemma3_text")

# model types that give a sliding window and use it only if `use_sliding_window` says so
_WINDOW_OFF_BY_DEFAULT = ("qwen2", "qwen3")

# values of `layer_types` that are attention
_ATTENTION_LAYERS = ("full_attention", "sliding_attention")


_EQUAL_LAYERS = "only models in which every layer is attention and an MLP can be simulated"
_SIDE_BY_SIDE = "attention and MLP side by side in one block"
_ONLY_PARALLEL = 'give its sizes as "model_type": "llama" and choose --variant parallel, the only wiring it has'
# models that are not plain dense decoders: what they are, the fields that say so, and the way out
_REFUSED = (
    (
        "mixture-of-experts models",
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        "only dense decoders can be simulated; no dense model stands in for it",
    ),
    (
        "multi-head latent attention",
        ("kv_lora_rank", "q_lora_rank"),
        "only multi-head and grouped-query attention can be simulated",
    ),
    (
        "encoder-decoder models",
        ("is_encoder_decoder", "encoder_layers", "num_decoder_layers"),
        "only decoders can be simulated",
    ),
    (
        "state-space and recurrent layers",
        (
            *("state_size", "ssm_cfg", "ssm_state_size", "mamba_d_state", "mamba_d_conv", "layers_block_type"),
            *("attn_layer_period", "linear_num_key_heads", "hybrid_override_pattern", "lru_width"),
        ),
        _EQUAL_LAYERS,
    ),
    (
        "layers of different shapes",
        ("block_configs", "per_layer_config"),
        "only models whose layers are all alike can be simulated",
    ),
    (_SIDE_BY_SIDE, ("parallel_attn", "use_parallel_residual"), _ONLY_PARALLEL),
    (
        "quantized weights",
        ("quantization_config",),
        "for 8-bit weights take the unquantized config with --dtype fp8; 4-bit weights cannot be simulated",
    ),
    (
        "multimodal models",
        ("text_config", "llm_config", "vision_config", "audio_config"),
        "save the object under 'text_config' as a config.json of its own and give that file",
    ),
)


def read_config(path: Path) -> dict[str, object]:
    """Read a config.json, or the one in a directory.

    Parameters
    ----------
    path
        The file or its directory; at most 10 MB.

    Returns
    -------
    dict
        The parsed object.

    Raises
    ------
    SpecError
        If there is no such file, it cannot be read, or it is not a JSON object; the file is named.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    text = read_text(file, what="a config.json")
    name = shown_path(file)
    try:
        config = json.loads(text)
    except RecursionError:
        raise SpecError(
            f"{name}: JSON nested too deeply", hint="give the model's config.json, not another JSON file"
        ) from None
    except ValueError as error:
        raise SpecError(
            f"{name}: not valid JSON ({error}); {'the file is empty' if not text.strip() else 'truncated?'}",
            hint="download or export the file again, and check it with `python -m json.tool`",
        ) from None
    if not isinstance(config, dict):
        raise SpecError(
            f"{name}: holds {quoted(config)}: a config.json must be a JSON object",
            hint='give the model\'s config.json, which starts with "{"',
        )
    return config


def shape_from_hf(config: Mapping[str, object], *, source: str) -> dict[str, Any]:
    """Translate a parsed config.json into the fields of ModelSpec that it decides; see `ModelSpec.from_hf`."""
    reader = _Reader(config, shown_path(source))
    model_type = reader.model_type()
    reader.refuse_other_architectures()
    sizes = {field: reader.size(key, MAXIMA[field]) for field, key in _FIELDS.items()}
    heads, hidden = sizes["heads"], sizes["hidden"]
    kv_heads = reader.size("num_key_value_heads", MAXIMA["kv_heads"], default=heads)
    if heads % kv_heads:
        raise reader.error(
            "num_key_value_heads",
            f"must divide num_attention_heads, {heads}",
            "each key/value head serves the same number of query heads; correct either field",
        )
    if config.get("head_dim") is None and hidden % heads:
        raise reader.error(
            "hidden_size",
            f"must be a multiple of num_attention_heads, {heads}, where head_dim is not given",
            "add head_dim to the file, or correct either field",
        )
    everywhere = reader.flag("use_bias", default=model_type == "starcoder2")
    # Qwen2 has biases on q, k and v without a field for them, StableLM with a field of its own; Llama's attention_bias
    # covers the output as well
    qkv_only = reader.flag("use_qkv_bias", default=model_type == "qwen2")
    attention_bias = reader.flag("attention_bias", default=everywhere or qkv_only)
    return dict(
        **sizes,
        kv_heads=kv_heads,
        head_dim=reader.size("head_dim", MAXIMA["head_dim"], default=hidden // heads),
        gated_mlp=reader.flag("gated_mlp", default=model_type not in _UNGATED),
        tied_embeddings=reader.flag("tie_word_embeddings", default=model_type in _TIED_BY_DEFAULT),
        qkv_bias=attention_bias,
        out_bias=reader.flag("attention_out_bias", default=attention_bias and not qkv_only),
        mlp_bias=reader.flag("mlp_bias", default=everywhere),
        qk_norm=model_type in _QK_NORM,
        sliding_window=reader.sliding_window(used=model_type not in _WINDOW_OFF_BY_DEFAULT),
        ladder_layers=reader.ladder_layers(sizes["layers"], ladder=model_type == "llamaLadder"),
    )


class _Reader:
    """Fields of one config, with errors that name file and field. JSON null counts as missing."""

    def __init__(self, config: Mapping[str, object], source: str) -> None:
        self.config = config
        self.source = source

    def error(self, key: str, rule: str, way_out: str) -> SpecError:
        return SpecError(f"{self.source}: {key} is {quoted(self.config.get(key))}: {rule}", hint=way_out)

    def model_type(self) -> str:
        model_type = self.config.get("model_type")
        if model_type is None:
            return "llama"
        if not isinstance(model_type, str):
            raise self.error("model_type", "must be text", f"write one of {', '.join(_LLAMA_FAMILY)}")
        return model_type

    def refuse_other_architectures(self) -> None:
        for kind, keys, way_out in _REFUSED:
            for key in keys:
                # 0, false and empty objects are how dense configs say "none"
                if self.config.get(key):
                    raise self.error(key, f"{kind} are not supported", way_out)
        layers = self.config.get("layer_types")
        if layers is not None and not (isinstance(layers, list) and all(kind in _ATTENTION_LAYERS for kind in layers)):
            raise self.error("layer_types", f"must be a list of {' and '.join(_ATTENTION_LAYERS)}", _EQUAL_LAYERS)
        if self.model_type() in _PARALLEL:
            raise self.error("model_type", f"{_SIDE_BY_SIDE} are not supported", _ONLY_PARALLEL)
        known = (*_LLAMA_FAMILY, *_LAYER_NORM)
        if self.model_type() not in known and self.config.get("rms_norm_eps") is None:
            # RMSNorm marks the Llama family; BERT, OPT and others share the field names but not the blocks
            raise self.error(
                "model_type",
                f"known are {', '.join(known)}, and others only with RMSNorm (rms_norm_eps)",
                'if its blocks are those of Llama, write "model_type": "llama"',
            )

    def size(self, key: str, maximum: int, *, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise SpecError(
                f"{self.source}: {key} is missing: a dense decoder's config.json must have it",
                hint=f'add "{key}" to the file; supported types are {", ".join(_LLAMA_FAMILY)}',
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise self.error(key, f"must be a whole number from 1 to {maximum}", f"correct {key} in the file")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false", f"correct {key} in the file")
        return value

    def sliding_window(self, *, used: bool) -> int:
        """Tokens that some layers attend to; 0 where every layer attends to all."""
        layer_types = self.config.get("layer_types")
        if isinstance(layer_types, list):
            used = "sliding_attention" in layer_types
        else:
            used = self.flag("use_sliding_window", default=used)
        window = self.config.get("sliding_window")
        # read in any case, so that a damaged file does not pass
        tokens = 0 if window in (None, 0) else self.size("sliding_window", MAXIMA["max_positions"])
        return tokens if used else 0

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
            return tuple(range(layers))
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
