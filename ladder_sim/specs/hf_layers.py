"""What a config.json says of single layers: experts, latent attention, windows, wiring; as fields of ModelSpec."""

from typing import Any

from ladder_sim.specs.hf_reader import MAXIMA, ConfigReader
from ladder_sim.specs.hf_refusals import EXPERT_COUNTS
from ladder_sim.specs.hf_types import EXPERTS, LATENT_TYPES


def read_experts(reader: ConfigReader, layers: int) -> dict[str, Any]:
    """Routed and shared experts, and the layers without them; nothing if the model's type has none."""
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


def read_latent(reader: ConfigReader) -> dict[str, Any]:
    """Widths of latent attention; nothing if the model's type has another."""
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


def read_window(reader: ConfigReader, layers: int) -> dict[str, Any]:
    """The window or chunk that layers attend to, which of them do, and which are not rotated."""
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
    """Layers of Llama 4 with rotary embeddings."""
    rotated = reader.config.get("no_rope_layers") or []
    if not rotated:
        return _in_pattern(reader, layers)
    if not (isinstance(rotated, list) and len(rotated) >= layers and all(each in (0, 1) for each in rotated)):
        raise reader.error(
            "no_rope_layers", f"must be 0 or 1 for each of {layers} layers", "correct it or num_hidden_layers"
        )
    return tuple(layer for layer, each in enumerate(rotated[:layers]) if each)


def _in_pattern(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """All but one layer of each period; all if there is no pattern."""
    if reader.config.get("sliding_window_pattern") is None:
        return tuple(range(layers))
    period = reader.size("sliding_window_pattern", MAXIMA["layers"])
    full = 0 if reader.flag("full_attention_first") else period - 1
    return tuple(layer for layer in range(layers) if layer % period != full)


def read_ladder_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Those that a llamaLadder config wires as ladder; empty: none."""
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
