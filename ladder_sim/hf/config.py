"""A decoder as its config.json describes it: the one reader, for predictions and for real passes, and what it refuses.

What a model's type implies is a row of `ladder_sim.hf.types`; what fields say of a kind of layer stands with the kind,
in `attention` and `feed_forward`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.hf.attention import read_attention
from ladder_sim.hf.feed_forward import Moe, Routing
from ladder_sim.hf.fields import MAXIMA, Fields
from ladder_sim.hf.listed import LAYER_DATA, read_layers
from ladder_sim.hf.quantization import read_quantization
from ladder_sim.hf.shape import BlockNorms, Shape, named_wiring
from ladder_sim.hf.types import EXPERT_COUNTS, EXPERTS, LATENT, SIDE_BY_SIDE, SIZES, TYPES
from ladder_sim.system.files import shown_path
from ladder_sim.units import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of long rotary wavelengths."""

    factor: float
    """Wavelengths longer than the original context are multiplied by it."""
    low_freq_factor: float
    """Wavelengths above original context / this are stretched in full."""
    high_freq_factor: float
    """Wavelengths below original context / this stay as they are."""
    original_positions: int
    """Context of the first training, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN's stretching of long rotary wavelengths (arXiv 2309.00071)."""

    factor: float
    """Wavelengths that turn less than `beta_slow` times in the original context are multiplied by it."""
    original_positions: int
    """Context of the first training, tokens."""
    beta_fast: float
    """Wavelengths that turn more often in the original context stay as they are."""
    beta_slow: float
    """Wavelengths that turn less often in it are stretched in full."""
    amplitude: float
    """Factor of cosines and sines."""
    score_scale: float
    """Latent attention's scores are multiplied by it."""


def _rope(fields: Fields, max_positions: int | None) -> tuple[float, RopeScaling | Yarn | float | None]:
    """Return the base of the wavelengths, and how long ones are stretched, or by which factor all are.

    Fields are in `rope_parameters` since transformers 5, before that in several places. `max_positions` is the longest
    context of the training; None: the config does not say it. Raises UsageError if a number is impossible, or no code
    stretches wavelengths so.
    """
    scaling = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise fields.error("rope_scaling", "must be an object", "download or export the file again")
    rope = Fields({"rope_theta": fields.config.get("rope_theta"), **scaling}, fields.source)
    return rope.number("rope_theta", 10000.0), _stretched(rope, max_positions)


def _stretched(rope: Fields, max_positions: int | None) -> RopeScaling | Yarn | float | None:
    kind = rope.config.get("rope_type", rope.config.get("type", "default"))
    # dynamic: stretched beyond `max_position_embeddings`, where no context ends
    if kind == "default" or (kind == "dynamic" and max_positions):
        return None
    if kind == "linear":
        return rope.number("factor", 1.0)
    if kind == "yarn":
        return _yarn(rope, max_positions)
    if kind != "llama3":
        raise UsageError(f"{rope.source}: rope_type is {kind!r}: only llama3, yarn, linear and dynamic are implemented")
    return RopeScaling(
        factor=rope.number("factor", 8.0),
        low_freq_factor=rope.number("low_freq_factor", 1.0),
        high_freq_factor=rope.number("high_freq_factor", 4.0),
        original_positions=_original_positions(rope, 8192),
    )


def _original_positions(rope: Fields, default: int | None) -> int:
    return rope.size("original_max_position_embeddings", MAXIMA["max_positions"], default=default)


def _yarn(rope: Fields, max_positions: int | None) -> Yarn:
    original = _original_positions(rope, max_positions)
    factor = rope.number("factor", max(max_positions or 0, original) / original)

    def magnitude(key: str) -> float:
        # some files write 0 where others leave it out
        share = rope.number(key, 1.0) if rope.config.get(key) else 0.0
        return 0.1 * share * math.log(max(factor, 1.0)) + 1.0

    given = rope.config.get("mscale") and rope.config.get("mscale_all_dim")
    implied = magnitude("mscale") / magnitude("mscale_all_dim") if given else 0.1 * math.log(max(factor, 1.0)) + 1.0
    return Yarn(
        factor=factor,
        original_positions=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        amplitude=rope.number("attention_factor", implied),
        score_scale=magnitude("mscale_all_dim") ** 2,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Shape):
    """Shape of a decoder, and the numbers that real passes compute with, which cost nothing."""

    name: str = ""
    """Name of the model; empty: it has none."""
    max_positions: int = MAXIMA["max_positions"]
    """Longest context of the training, tokens."""
    norm_eps: float = 1e-6
    """Added to the mean square in RMSNorm."""
    rope_theta: float = 10000.0
    """Base of the rotary wavelengths."""
    rope_scaling: RopeScaling | Yarn | float | None = None
    """How rotary wavelengths are stretched; a number multiplies all. None: they are not."""
    rope_interleaved: bool = True
    """In latent attention channels 2j and 2j + 1 are rotated together, not j and j + half."""
    activation: str = "silu"
    """Activation of the MLP, a key of the runtime's `kernels.ACTIVATIONS`."""
    routing: Routing = field(default_factory=Routing)
    """How a token's experts are chosen, in a model with experts."""
    trained_tp: int = 0
    """Tensor-parallel degree of the training (`ladder_sim_tp`), where ranks read their own parts; 0: unknown."""


class ConfigWiring(NamedTuple):
    """The wiring that a config.json names, which its type need not be known for."""

    kind: str
    """`model_type`."""
    layers: int
    """Decoder layers."""
    ladder_layers: tuple[int, ...]
    """Layers that a llamaLadder config wires as ladder."""
    variant: str
    """Name of the wiring, or its file as JSON; standard by default."""
    trained_tp: int
    """Tensor-parallel degree of the training; 0: unknown."""


def read_wiring(config: Mapping[str, object]) -> ConfigWiring:
    """Return the wiring in a parsed config.json; raise SpecError if a field of it breaks a rule."""
    fields = Fields(config, "config.json")
    layers = fields.size("num_hidden_layers", MAXIMA["layers"])
    ladder_layers = _ladder_layers(fields, layers)
    variant = named_wiring(_wiring(fields), ladder_layers, layers)
    return ConfigWiring(fields.kind, layers, ladder_layers, variant, _trained_tp(fields))


def _trained_tp(fields: Fields) -> int:
    return fields.size("ladder_sim_tp", 10**6, default=0, minimum=0)


def read_shape(config: Mapping[str, object], *, source: str, runs: bool = False) -> dict[str, Any]:
    """Return the fields of `Shape` that a parsed config.json decides; errors name its file, `source`.

    `runs` says whether real passes run the model: they implement not all types, need no longest context, and know
    biases of latent attention. Raises SpecError if a field is missing or breaks a rule, or the model has layers of a
    kind that cannot be simulated; UsageError if real passes do not implement the type.
    """
    outer = Fields(config, shown_path(source))
    if outer.kind == LAYER_DATA:
        return read_layers(outer)
    fields = outer.decoder()
    if runs and fields.kind in TYPES and TYPES[fields.kind].not_run:
        raise UsageError(
            f"{source}: model_type '{fields.kind}' has {TYPES[fields.kind].not_run}, which are not implemented",
            hint='for timing alone, write "model_type": "llama"',
        )
    refuse_architectures(outer)
    refuse_architectures(fields)
    _refuse_types(fields)
    if not runs and fields.kind in LATENT and fields.flag("attention_bias"):
        raise fields.error("attention_bias", "latent attention with biases is not supported", "drop the field")
    names = EXPERTS.get(fields.kind)
    keys = {**SIZES, "intermediate": names.dense} if names else SIZES
    optional = {"max_positions": MAXIMA["max_positions"]} if runs else {}
    sizes = {name: fields.size(key, MAXIMA[name], default=optional.get(name)) for name, key in keys.items()}
    layers = sizes["layers"]
    quantised = outer.quantized(fields)
    quantization = read_quantization(quantised.config, quantised.source, layers=layers)
    norms: BlockNorms = "both" if fields.flag("post_norms") else "before"
    return dict(
        **sizes,
        **read_attention(fields, layers=layers, heads=sizes["heads"], hidden=sizes["hidden"]),
        **Moe.read(fields, layers),
        gated_mlp=fields.flag("gated_mlp", default=True),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        mlp_bias=fields.flag("mlp_bias", default=fields.flag("use_bias")),
        block_norms="behind" if fields.flag("norms_behind") else norms,
        ladder_layers=_ladder_layers(fields, layers),
        wiring=_wiring(fields),
        parallel_blocks=fields.flag("parallel_blocks"),
        multimodal=outer.is_multimodal,
        weights_dtype=quantization.dtype,
        unquantized=quantization.unquantized,
        part_formats=quantization.part_formats,
        kv_cache_dtype=quantization.kv_dtype,
        # llamaLadder has the same blocks, wired otherwise
        family="llama" if fields.kind == "llamaLadder" else fields.kind,
    )


def read_numbers(config: Mapping[str, object], shape: Shape, *, source: str) -> dict[str, Any]:
    """Return the fields of `Config` beyond the shape that a parsed config.json decides; an empty one has Llama's.

    Raises UsageError if a number is impossible, or no code computes with it.
    """
    fields = Fields(config, source).decoder()
    positions = shape.max_positions if fields.config.get("max_position_embeddings") else None
    theta, scaling = _rope(fields, positions)
    return {
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_interleaved": fields.flag("rope_interleave", default=True),
        "activation": str(fields.config.get("hidden_act", "silu")),
        "routing": Routing.read(fields, shape.experts, shape.experts_per_token) if shape.experts else Routing(),
        "trained_tp": _trained_tp(fields),
    }


def _wiring(fields: Fields) -> str:
    value = fields.config.get("ladder_sim_wiring") or ""
    if isinstance(value, dict):
        if fields.config.get("ladder_layers"):
            raise fields.error("ladder_sim_wiring", "says which layers are ladder", "drop ladder_layers")
        return json.dumps(value)
    if not isinstance(value, str):
        raise fields.error("ladder_sim_wiring", "must be the name of a variant", "for example 'delayed:2'")
    if value and fields.kind == "llamaLadder":
        raise fields.error("ladder_sim_wiring", "a llamaLadder has its ladder_layers", "drop one of both")
    return value


def _ladder_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers that a llamaLadder config wires as ladder; empty if there are none."""
    value = fields.config.get("ladder_layers")
    if fields.kind != "llamaLadder":
        if value:
            raise fields.error(
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
        raise fields.error(
            "ladder_layers",
            f"must be a count from 0 to {layers}, or a list of different layers from 0 to {layers - 1}",
            "correct ladder_layers in the file",
        )
    return tuple(sorted(chosen))


# values of `layer_types` that are attention
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")

_EQUAL_LAYERS = "only models in which every layer is attention and an MLP or experts can be simulated"
_KNOWN_ATTENTION = "only multi-head, grouped-query and DeepSeek's latent attention can be simulated"
_SIDE_BY_SIDE = "attention and MLP side by side in one block"
_ONLY_PARALLEL = 'give its sizes as "model_type": "llama" and choose --variant parallel, the only wiring it has'
# what cannot be simulated, with the way out; by fields that say so
_REFUSED = {
    "index_topk index_n_heads sparse_attention_config": (
        "sparse attention, in which an indexer chooses the tokens,",
        _KNOWN_ATTENTION,
    ),
    "linear_num_key_heads linear_attn_config full_attention_interval": ("layers of linear attention", _KNOWN_ATTENTION),
    "state_size ssm_cfg ssm_state_size mamba_d_state mamba_d_conv layers_block_type attn_layer_period "
    "hybrid_override_pattern lru_width": ("state-space and recurrent layers", _EQUAL_LAYERS),
    "is_encoder_decoder encoder_layers num_decoder_layers": (
        "encoder-decoder models",
        "only decoders can be simulated",
    ),
    "block_configs per_layer_config": (
        "layers of different shapes",
        "only models whose layers have equal widths and heads can be simulated",
    ),
    "parallel_attn use_parallel_residual": (_SIDE_BY_SIDE, _ONLY_PARALLEL),
    "cross_attention_layers": ("layers that attend to an encoder", _EQUAL_LAYERS),
    "hidden_size_per_layer_input": ("embeddings of each layer", _EQUAL_LAYERS),
}
_EXPERT_FIELDS = (*EXPERT_COUNTS, "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")


def refuse_architectures(fields: Fields) -> None:
    """Raise a SpecError if a field says that the model has parts that cannot be simulated."""
    for keys, (what, way_out) in _REFUSED.items():
        for key in keys.split():
            # 0, false and empty objects are how configs say "none"
            if fields.config.get(key):
                raise fields.error(key, f"{what} are not supported", way_out)
    kinds = fields.config.get("attn_type_list")
    if kinds is not None and not (isinstance(kinds, list) and all(kind == 1 for kind in kinds)):
        raise fields.error(
            "attn_type_list", "1 is attention; layers of linear attention are not supported", _KNOWN_ATTENTION
        )
    layers = fields.config.get("layer_types")
    if layers is not None and not (isinstance(layers, list) and all(kind in _ATTENTION_LAYERS for kind in layers)):
        raise fields.error("layer_types", f"must be a list of {' and '.join(_ATTENTION_LAYERS)}", _KNOWN_ATTENTION)
    # the object around a decoder has a type of its own
    if fields.decoder_key is not None:
        return
    for keys_of_kind, types, what, more in (
        (_EXPERT_FIELDS, EXPERTS, "a mixture-of-experts type that", "; drop {} if its layers have no experts"),
        (("kv_lora_rank", "q_lora_rank"), LATENT, "a type whose latent attention", ""),
    ):
        for key in keys_of_kind:
            if fields.config.get(key) and fields.kind not in types:
                rule = f"model_type {quoted(fields.kind)} is not {what} can be simulated"
                raise fields.error(key, rule, f"those are {', '.join(types)}{more.format(key)}")


def _refuse_types(fields: Fields) -> None:
    """Raise a SpecError if the model's type is not one that can be simulated."""
    if fields.kind in SIDE_BY_SIDE:
        raise fields.error("model_type", f"{_SIDE_BY_SIDE} are not supported", _ONLY_PARALLEL)
    if fields.kind not in TYPES:
        # BERT, Mamba 2 and others share field names with Llama but not the blocks
        raise fields.error(
            "model_type",
            "must be a type that is known to have a decoder's blocks, attention and an MLP or experts, with norms",
            f'if its blocks are those of Llama, write "model_type": "llama"; known are {", ".join(TYPES)}',
        )
