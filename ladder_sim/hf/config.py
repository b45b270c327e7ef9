"""A decoder as its config.json describes it: the one reader, for predictions and for real passes.

What a model's type implies is a row of `ladder_sim.hf.types`; what fields say of a kind of layer stands with the kind,
in `attention` and `feed_forward`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.hf.attention import read_attention
from ladder_sim.hf.feed_forward import Moe, Routing
from ladder_sim.hf.fields import MAXIMA, Fields
from ladder_sim.hf.listed import LAYER_DATA, read_layers
from ladder_sim.hf.quantization import read_quantization
from ladder_sim.hf.refused import refuse_architectures, refuse_types
from ladder_sim.hf.rope import RopeScaling, Yarn, read_rope
from ladder_sim.hf.shape import BlockNorms, Shape, named_wiring
from ladder_sim.hf.types import EXPERTS, LATENT, SIZES, TYPES
from ladder_sim.system.files import shown_path


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
    refuse_types(fields)
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
        unquantized_layers=quantization.unquantized_layers,
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
    theta, scaling = read_rope(fields, positions)
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
    """Return the wiring in the config's field `ladder_sim_wiring`: its name, or its file as JSON; empty without it."""
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
