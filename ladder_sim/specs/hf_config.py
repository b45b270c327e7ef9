"""Read a Hugging Face config.json: the file, and the shape of the decoder it describes.

Field names are those of the configuration classes of Hugging Face transformers; what a model's type implies is in
`ladder_sim.specs.hf_reader`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_reader import ENCODERS, EXPERTS, LATENT_TYPES, MAXIMA, SIZES, TEXT_CONFIGS, TYPES, ConfigReader
from ladder_sim.specs.layer_data import LAYER_DATA, layer_numbers, read_layers
from ladder_sim.specs.layers import BlockNorms, QkNorm
from ladder_sim.specs.quantization import FIELDS, read_quantization
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.units import quoted

# ModelOpt's settings, in a file next to config.json
_MODELOPT_FILE = "hf_quant_config.json"


def read_config(path: Path) -> dict[str, object]:
    """Read a config.json, or that of a directory, and next to it what ModelOpt says of the quantisation.

    Raises
    ------
    SpecError
        If there is no such file, it cannot be read, or it is not a JSON object; the file is named.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    config = _read_json(file)
    modelopt = file.parent / _MODELOPT_FILE
    if file.name == "config.json" and not any(config.get(key) for key in FIELDS) and os.path.isfile(modelopt):
        config["quantization_config"] = {"quant_method": "modelopt", **_read_json(modelopt)}
    return config


def _read_json(file: Path) -> dict[str, object]:
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
    outer = ConfigReader(config, shown_path(source))
    if outer.model_type() == LAYER_DATA:
        return _listed_layers(outer)
    refuse_architectures(outer)
    reader = outer.decoder()
    refuse_architectures(reader)
    refuse_types(reader)
    names = EXPERTS.get(reader.model_type())
    keys = {**SIZES, "intermediate": names.dense} if names else SIZES
    sizes = {field: reader.size(key, MAXIMA[field]) for field, key in keys.items()}
    layers = sizes["layers"]
    latent = _latent(reader)
    if latent:
        attention = {"kv_heads": sizes["heads"], "head_dim": latent["nope_head_dim"] + latent["rope_head_dim"]}
    else:
        attention = _heads(reader, sizes["heads"], sizes["hidden"])
    quantised = next((each for each in (outer, reader) if any(each.config.get(key) for key in FIELDS)), reader)
    quantization = read_quantization(quantised.config, quantised.source, layers=layers)
    everywhere = reader.flag("use_bias")
    # Qwen2 has biases on q, k and v without a field for them, StableLM with a field of its own; Llama's attention_bias
    # covers the output as well
    qkv_only = reader.flag("use_qkv_bias")
    attention_bias = reader.flag("attention_bias", default=everywhere or qkv_only)
    return dict(
        **sizes,
        **attention,
        **latent,
        **_experts(reader, layers),
        **_window(reader, layers),
        gated_mlp=reader.flag("gated_mlp", default=True),
        tied_embeddings=reader.flag("tie_word_embeddings"),
        qkv_bias=attention_bias,
        out_bias=reader.flag("attention_out_bias", default=attention_bias and not qkv_only),
        mlp_bias=reader.flag("mlp_bias", default=everywhere),
        qk_norm=_qk_norm(reader),
        block_norms=_block_norms(reader),
        attention_sinks=reader.flag("attention_sinks"),
        ladder_layers=read_ladder_layers(reader, layers),
        wiring=read_wiring(reader),
        parallel_blocks=reader.flag("parallel_blocks"),
        multimodal=any(config.get(key) for key in (*TEXT_CONFIGS, *ENCODERS)),
        weights_dtype=quantization.dtype,
        unquantized=quantization.unquantized,
        unquantized_layers=quantization.unquantized_layers,
        kv_cache_dtype=quantization.kv_dtype,
        # llamaLadder has the same blocks, wired otherwise
        family="llama" if reader.model_type() == "llamaLadder" else reader.model_type(),
    )


def _listed_layers(reader: ConfigReader) -> dict[str, Any]:
    """Return the fields of a model whose config lists its blocks, with the precision of their parts."""
    layers = layer_numbers(reader)
    quantization = read_quantization(reader.config, reader.source, layers=max(layers, default=0) + 1)
    some = [(part, frozenset(numbers)) for part, numbers in quantization.unquantized_layers]
    kept = [{*quantization.unquantized, *(part for part, numbers in some if each in numbers)} for each in layers]
    return {
        **read_layers(reader, kept),
        "multimodal": reader.flag("multimodal"),
        "weights_dtype": quantization.dtype,
        "unquantized": quantization.unquantized,
        "kv_cache_dtype": quantization.kv_dtype,
    }


def read_wiring(reader: ConfigReader) -> str:
    """Return the wiring in the config's field `ladder_sim_wiring`: its name, or its file as JSON; empty without it."""
    value = reader.config.get("ladder_sim_wiring") or ""
    if isinstance(value, dict):
        if reader.config.get("ladder_layers"):
            raise reader.error("ladder_sim_wiring", "says which layers are ladder", "drop ladder_layers")
        return json.dumps(value)
    if not isinstance(value, str):
        raise reader.error("ladder_sim_wiring", "must be the name of a variant", "for example 'delayed:2'")
    if value and reader.model_type() == "llamaLadder":
        raise reader.error("ladder_sim_wiring", "a llamaLadder has its ladder_layers", "drop one of both")
    return value


def _qk_norm(reader: ConfigReader) -> QkNorm:
    joint, weightless = reader.flag("joint_qk_norm"), reader.flag("weightless_qk_norm")
    # StableLM has a name of its own for it
    if not reader.flag("use_qk_norm", default=reader.flag("qk_layernorm")):
        return "none"
    return "all" if joint else "weightless" if weightless else "heads"


def _block_norms(reader: ConfigReader) -> BlockNorms:
    return "behind" if reader.flag("norms_behind") else "both" if reader.flag("post_norms") else "before"


def _heads(reader: ConfigReader, heads: int, hidden: int) -> dict[str, int]:
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
    return {"kv_heads": kv_heads, "head_dim": reader.size("head_dim", MAXIMA["head_dim"], default=hidden // heads)}


# what a file says of single layers: experts, latent attention, windows, wiring; as fields of ModelSpec


def _experts(reader: ConfigReader, layers: int) -> dict[str, Any]:
    """Return the routed and shared experts, and the layers without them; empty if the model's type has none."""
    names = EXPERTS.get(reader.model_type())
    if names is None:
        return {}
    # files of transformers 5 call them all as Mixtral's do
    routed = next((key for key in (names.routed, *EXPERT_COUNTS) if reader.config.get(key)), names.routed)
    experts = reader.size(routed, MAXIMA["experts"])
    for other in EXPERT_COUNTS:
        _agree(reader, other, routed, experts)
    per_token = reader.size("num_experts_per_tok", MAXIMA["experts"])
    _agree(reader, "experts_per_token", "num_experts_per_tok", per_token)
    if per_token > experts:
        raise reader.error(
            "num_experts_per_tok",
            f"must be at most {routed}, {experts}",
            "a token is sent to different experts; correct either field",
        )
    groups = reader.size("n_group", MAXIMA["experts"], default=1)
    if experts % groups:
        raise reader.error("n_group", f"must divide {routed}, {experts}", "correct either field")
    width = reader.size(names.width, MAXIMA["intermediate"])
    shared = width * reader.size("n_shared_experts", MAXIMA["experts"], default=0, minimum=0)
    return {
        "experts": experts,
        "experts_per_token": per_token,
        "expert_intermediate": width,
        "shared_intermediate": shared
        or reader.size("shared_intermediate_size", MAXIMA["intermediate"], default=0, minimum=0),
        "router_bias": reader.flag("router_bias", default=reader.flag("use_routing_bias")),
        "dense_layers": _dense_layers(reader, layers),
    }


def _agree(reader: ConfigReader, key: str, other: str, value: int) -> None:
    """Refuse a field that says otherwise than another one of the same meaning."""
    own = reader.config.get(key)
    if own is not None and own != value:
        raise reader.error(key, f"must be {other}, {value}, which means the same", "drop the wrong one of the two")


def _dense_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    first = reader.size("first_k_dense_replace", layers, default=0, minimum=0)
    frequency = reader.size("moe_layer_freq", MAXIMA["layers"], default=1)
    # the last of so many layers has experts
    steps = [
        reader.size(key, MAXIMA["layers"], default=1) for key in ("decoder_sparse_step", "interleave_moe_layer_step")
    ]
    dense = reader.layer_numbers("mlp_only_layers", layers) or frozenset()
    sparse = reader.layer_numbers("moe_layers", layers)
    return tuple(
        layer
        for layer in range(layers)
        if layer < first
        or layer % frequency
        or layer in dense
        or (layer not in sparse if sparse is not None else any((layer + 1) % step for step in steps))
    )


def _latent(reader: ConfigReader) -> dict[str, Any]:
    if reader.model_type() not in LATENT_TYPES:
        return {}
    if reader.flag("attention_bias"):
        raise reader.error("attention_bias", "latent attention with biases is not supported", "drop the field")
    return {
        "kv_lora_rank": reader.size("kv_lora_rank", MAXIMA["hidden"]),
        "q_lora_rank": reader.size("q_lora_rank", MAXIMA["hidden"], default=0),
        "nope_head_dim": reader.size("qk_nope_head_dim", MAXIMA["head_dim"]),
        "rope_head_dim": reader.size("qk_rope_head_dim", MAXIMA["head_dim"]),
        "value_head_dim": reader.size("v_head_dim", MAXIMA["head_dim"]),
    }


def _window(reader: ConfigReader, layers: int) -> dict[str, Any]:
    """Return the window or chunk of attention, the layers that have it, and those without rotation."""
    llama_4 = reader.model_type() == "llama4_text"
    key = "attention_chunk_size" if llama_4 else "sliding_window"
    # read in any case, so that a damaged file does not pass
    tokens = 0 if reader.config.get(key) in (None, 0) else reader.size(key, MAXIMA["max_positions"])
    windowed = _window_layers(reader, layers)
    nope = sorted({*range(layers)}.difference(_rotated_layers(reader, layers))) if llama_4 else ()
    windows = {"sliding_window": tokens, "window_layers": () if len(windowed) == layers else windowed}
    return {**(windows if tokens and windowed else {}), "nope_layers": tuple(nope)}


def _window_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    kinds = reader.config.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise reader.error(
                "layer_types", f"must have an entry for each of {layers} layers", "correct it or num_hidden_layers"
            )
        return tuple(layer for layer, kind in enumerate(kinds) if kind != "full_attention")
    if not reader.flag("use_sliding_window", default=True):
        return ()
    if reader.model_type() == "llama4_text":
        # those that are rotated attend to a chunk
        return _rotated_layers(reader, layers)
    # Qwen2 and Qwen3
    first = reader.size("max_window_layers", MAXIMA["layers"], default=0, minimum=0)
    return tuple(layer for layer in _in_pattern(reader, layers) if layer >= first)


def _rotated_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Return the layers of Llama 4 with rotary embeddings."""
    rotated = reader.config.get("no_rope_layers") or []
    if not rotated:
        return _in_pattern(reader, layers)
    if not (isinstance(rotated, list) and len(rotated) >= layers and all(each in (0, 1) for each in rotated)):
        raise reader.error(
            "no_rope_layers", f"must be 0 or 1 for each of {layers} layers", "correct it or num_hidden_layers"
        )
    return tuple(layer for layer, each in enumerate(rotated[:layers]) if each)


def _in_pattern(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Return all but one layer of each period; all layers if there is no pattern."""
    if reader.config.get("sliding_window_pattern") is None:
        return tuple(range(layers))
    period = reader.size("sliding_window_pattern", MAXIMA["layers"])
    full = 0 if reader.flag("full_attention_first") else period - 1
    return tuple(layer for layer in range(layers) if layer % period != full)


def read_ladder_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Return the layers that a llamaLadder config wires as ladder; empty if there are none."""
    value = reader.config.get("ladder_layers")
    if reader.model_type() != "llamaLadder":
        if value:
            raise reader.error(
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
        raise reader.error(
            "ladder_layers",
            f"must be a count from 0 to {layers}, or a list of different layers from 0 to {layers - 1}",
            "correct ladder_layers in the file",
        )
    return tuple(sorted(chosen))


# model types in which attention and MLP read the same input, and which differ from Llama in other things as well
_PARALLEL = ("falcon", "gpt_neox", "gptj", "phi")

# values of `layer_types` that are attention
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")

_EQUAL_LAYERS = "only models in which every layer is attention and an MLP or experts can be simulated"
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
        "only models whose layers have equal widths and heads can be simulated",
    ),
    (_SIDE_BY_SIDE, ("parallel_attn", "use_parallel_residual"), _ONLY_PARALLEL),
    ("layers that attend to an encoder", ("cross_attention_layers",), _EQUAL_LAYERS),
    ("embeddings of each layer", ("hidden_size_per_layer_input",), _EQUAL_LAYERS),
)
# fields that say how many experts there are, or that attention is latent: contradictions in a type that has neither
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_FIELDS = (*EXPERT_COUNTS, "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
_LATENT_RANKS = ("kv_lora_rank", "q_lora_rank")


def refuse_architectures(reader: ConfigReader) -> None:
    """Raise a SpecError if a field says that the model has parts that cannot be simulated."""
    for what, keys, way_out in _REFUSED:
        for key in keys:
            # 0, false and empty objects are how configs say "none"
            if reader.config.get(key):
                raise reader.error(key, f"{what} are not supported", way_out)
    kinds = reader.config.get("attn_type_list")
    if kinds is not None and not (isinstance(kinds, list) and all(kind == 1 for kind in kinds)):
        raise reader.error(
            "attn_type_list", "1 is attention; layers of linear attention are not supported", _KNOWN_ATTENTION
        )
    layers = reader.config.get("layer_types")
    if layers is not None and not (isinstance(layers, list) and all(kind in _ATTENTION_LAYERS for kind in layers)):
        raise reader.error("layer_types", f"must be a list of {' and '.join(_ATTENTION_LAYERS)}", _KNOWN_ATTENTION)
    # the object around a decoder has a type of its own
    if not any(reader.config.get(key) for key in TEXT_CONFIGS):
        _refuse_contradictions(reader)


def _refuse_contradictions(reader: ConfigReader) -> None:
    """Refuse fields of experts or of latent attention in a type of model that has none."""
    for key in _EXPERT_FIELDS:
        if reader.config.get(key) and reader.model_type() not in EXPERTS:
            raise reader.error(
                key,
                f"model_type {quoted(reader.model_type())} is not a mixture-of-experts type that can be simulated",
                f"those are {', '.join(EXPERTS)}; drop {key} if its layers have no experts",
            )
    for key in _LATENT_RANKS:
        if reader.config.get(key) and reader.model_type() not in LATENT_TYPES:
            raise reader.error(
                key,
                f"model_type {quoted(reader.model_type())} is not a type whose latent attention can be simulated",
                f"those are {', '.join(LATENT_TYPES)}",
            )


def refuse_types(reader: ConfigReader) -> None:
    """Raise a SpecError if the model's type is not one that can be simulated."""
    if reader.model_type() in _PARALLEL:
        raise reader.error("model_type", f"{_SIDE_BY_SIDE} are not supported", _ONLY_PARALLEL)
    if reader.model_type() not in TYPES:
        # BERT, Mamba 2 and others share field names with Llama but not the blocks
        raise reader.error(
            "model_type",
            "must be a type that is known to have a decoder's blocks, attention and an MLP or experts, with norms",
            f'if its blocks are those of Llama, write "model_type": "llama"; known are {", ".join(TYPES)}',
        )
