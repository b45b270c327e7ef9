"""Read a Hugging Face config.json: the file, and the shape of the dense decoder it describes.

Field names are those of the configuration classes of Hugging Face transformers; what a model's type implies is in
`ladder_sim.specs.hf_types`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_types import CLASS_SIZES, SIZES, TYPES
from ladder_sim.specs.quantization import FIELDS, read_quantization
from ladder_sim.specs.values import flag, whole
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

# fields with the decoder of a multimodal model, its type where they do not say it, and fields of the encoders
_TEXT_CONFIGS = ("text_config", "llm_config")
_TEXT_TYPES = {"gemma3": "gemma3_text", "mistral3": "mistral"}
_ENCODERS = ("vision_config", "audio_config")
# fields in which null is a value of its own: no window, as many heads as queries, a share of the width
_NULLABLE = ("sliding_window", "num_key_value_heads", "head_dim")

# model types in which attention and MLP read the same input, and which differ from Llama in other things as well
_PARALLEL = ("falcon", "gpt_neox", "gptj", "phi")

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
        "layers that attend to an encoder",
        ("cross_attention_layers",),
        _EQUAL_LAYERS,
    ),
    (
        "embeddings of each layer",
        ("hidden_size_per_layer_input",),
        _EQUAL_LAYERS,
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
    outer = _Reader(config, shown_path(source))
    outer.refuse_other_architectures()
    reader = outer.decoder()
    reader.refuse_other_architectures()
    reader.refuse_other_types()
    sizes = {field: reader.size(key, MAXIMA[field]) for field, key in SIZES.items()}
    heads, hidden = sizes["heads"], sizes["hidden"]
    kv_heads = reader.size("num_key_value_heads", MAXIMA["kv_heads"], default=heads)
    if heads % kv_heads:
        raise reader.error(
            "num_key_value_heads",
            f"must divide num_attention_heads, {heads}",
            "each key/value head serves the same number of query heads; correct either field",
        )
    if reader.config.get("head_dim") is None and hidden % heads:
        raise reader.error(
            "hidden_size",
            f"must be a multiple of num_attention_heads, {heads}, where head_dim is not given",
            "add head_dim to the file, or correct either field",
        )
    quantised = next((each for each in (outer, reader) if any(each.config.get(key) for key in FIELDS)), reader)
    weights_dtype, kv_cache_dtype = read_quantization(quantised.config, quantised.source)
    everywhere = reader.flag("use_bias")
    # Qwen2 has biases on q, k and v without a field for them, StableLM with a field of its own; Llama's attention_bias
    # covers the output as well
    qkv_only = reader.flag("use_qkv_bias")
    attention_bias = reader.flag("attention_bias", default=everywhere or qkv_only)
    return dict(
        **sizes,
        kv_heads=kv_heads,
        head_dim=reader.size("head_dim", MAXIMA["head_dim"], default=hidden // heads),
        gated_mlp=reader.flag("gated_mlp", default=True),
        tied_embeddings=reader.flag("tie_word_embeddings"),
        qkv_bias=attention_bias,
        out_bias=reader.flag("attention_out_bias", default=attention_bias and not qkv_only),
        mlp_bias=reader.flag("mlp_bias", default=everywhere),
        # StableLM has a name of its own for it
        qk_norm=reader.flag("use_qk_norm", default=reader.flag("qk_layernorm")),
        joint_qk_norm=reader.flag("joint_qk_norm"),
        post_norms=reader.flag("post_norms"),
        sliding_window=reader.sliding_window(),
        ladder_layers=reader.ladder_layers(sizes["layers"], ladder=reader.model_type() == "llamaLadder"),
        parallel_blocks=reader.flag("parallel_blocks"),
        multimodal=any(config.get(key) for key in (*_TEXT_CONFIGS, *_ENCODERS)),
        weights_dtype=weights_dtype,
        kv_cache_dtype=kv_cache_dtype,
        # llamaLadder has the same blocks, wired otherwise
        family="llama" if reader.model_type() == "llamaLadder" else reader.model_type(),
    )


class _Reader:
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
        nested = next((key for key in _TEXT_CONFIGS if self.config.get(key)), None)
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
        for kind, keys, way_out in _REFUSED:
            for key in keys:
                # 0, false and empty objects are how dense configs say "none"
                if self.config.get(key):
                    raise self.error(key, f"{kind} are not supported", way_out)
        layers = self.config.get("layer_types")
        if layers is not None and not (isinstance(layers, list) and all(kind in _ATTENTION_LAYERS for kind in layers)):
            raise self.error("layer_types", f"must be a list of {' and '.join(_ATTENTION_LAYERS)}", _EQUAL_LAYERS)

    def refuse_other_types(self) -> None:
        if self.model_type() in _PARALLEL:
            raise self.error("model_type", f"{_SIDE_BY_SIDE} are not supported", _ONLY_PARALLEL)
        if self.model_type() not in TYPES:
            # BERT, Mamba 2 and others share field names with Llama but not the blocks
            raise self.error(
                "model_type",
                "must be a type that is known to have a dense decoder's blocks, attention and an MLP with their norms",
                f'if its blocks are those of Llama, write "model_type": "llama"; known are {", ".join(TYPES)}',
            )

    def size(self, key: str, maximum: int, *, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise SpecError(
                f"{self.source}: {key} is missing: a dense decoder's config.json must have it",
                hint=f'add "{key}" to the file',
            )
        return whole(value, f"{self.source}: {key}", 1, maximum, hint=f"correct {key} in the file")

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else flag(value, f"{self.source}: {key}")

    def sliding_window(self) -> int:
        """Tokens that some layers attend to; 0 where every layer attends to all."""
        layer_types = self.config.get("layer_types")
        if isinstance(layer_types, list):
            used = "sliding_attention" in layer_types
        else:
            used = self.flag("use_sliding_window", default=True)
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
