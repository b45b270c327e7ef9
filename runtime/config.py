"""What is run: the shape of a decoder, from a Hugging Face config.json, and how its forward pass is executed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeVar

from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.system.files import read_text
from ladder_sim.units import parse_quantity

Attention = Literal["flash", "math"]
# names of `--dtype`
DTYPES = ("fp32", "bf16", "fp16")

# model types whose blocks are not Llama's, and how they differ
_UNSUPPORTED = {
    **dict.fromkeys(("qwen3", "qwen3_vl_text", "apertus", "hunyuan_v1_dense"), "norms of queries and keys"),
    **dict.fromkeys(("starcoder2", "nemotron", "stablelm"), "LayerNorm"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "scaled embeddings"),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4", "glm4"), "norms behind the blocks"),
    **dict.fromkeys(("cohere", "cohere2"), "attention and MLP side by side"),
}

_Value = TypeVar("_Value")


def read_timeout(text: str) -> float:
    """Seconds that ranks wait for each other, from the text of `--timeout`."""
    return parse_quantity(text, "s", name="--timeout", likely=("s", "ms"))


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
class ModelConfig:
    """Shape of a Llama-family decoder."""

    layers: int
    """Decoder layers, each one attention and one MLP block."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads."""
    head_dim: int
    """Width of one head."""
    intermediate: int
    """Width of the MLP."""
    vocab: int
    """Rows of the embedding and of the LM head."""
    norm_eps: float = 1e-6
    """Added to the mean square in RMSNorm."""
    rope_theta: float = 10000.0
    """Base of the rotary wavelengths."""
    rope_scaling: RopeScaling | None = None
    """None: not stretched."""
    gated_mlp: bool = True
    """Gate and up projections, or one up projection."""
    activation: str = "silu"
    """Of the MLP, a key of `kernels.ACTIVATIONS`."""
    tied_embeddings: bool = False
    """The LM head shares the embedding's weights."""
    qkv_bias: bool = False
    """Bias vectors on the query, key and value projections."""
    out_bias: bool = False
    """Bias vector on attention's output projection."""
    mlp_bias: bool = False
    """Bias vectors in the MLP."""
    ladder_layers: tuple[int, ...] = ()
    """Layers that the config itself wires as ladder (`model_type: llamaLadder`)."""
    max_positions: int = 0
    """Longest context of the training, tokens; 0: unknown."""
    sliding_window: int = 0
    """Tokens that some layers attend to; 0: every layer attends to all."""

    @property
    def variant(self) -> str:
        """The wiring in the config itself."""
        count = len(self.ladder_layers)
        if count in (0, self.layers):
            return "ladder" if count else "standard"
        return f"hybrid-ladder:{count}"

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a config.json, or the one in a directory."""
        file = path / "config.json" if path.is_dir() else path
        try:
            return cls.from_hf(read_object(file, what="a model's config.json"))
        except UsageError as error:
            raise UsageError(f"{file}: {error.message}", hint=error.hint) from None

    @classmethod
    def from_hf(cls, config: Mapping[str, object]) -> Self:
        """Translate a parsed config.json; defaults are those of Hugging Face's LlamaConfig.

        ``"gated_mlp": false`` is an MLP without a gate.

        Raises
        ------
        UsageError
            A field is missing or impossible, or the blocks are not Llama's.
        """
        kind = _field(config, "model_type", str, "llama")
        if kind in _UNSUPPORTED:
            raise UsageError(
                f"model_type '{kind}' has {_UNSUPPORTED[kind]}, which are not implemented",
                hint='for timing alone, write "model_type": "llama"',
            )
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        layers, kv_heads = _size(config, "num_hidden_layers"), _size(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise UsageError(f"num_key_value_heads is {kv_heads}: must divide num_attention_heads, {heads}")
        attention_bias = _field(config, "attention_bias", bool, kind == "qwen2")
        rope = _rope(config)
        return cls(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=_size(config, "head_dim", hidden // heads),
            intermediate=_size(config, "intermediate_size"),
            vocab=_size(config, "vocab_size"),
            norm_eps=_number(config, "rms_norm_eps", 1e-6),
            rope_theta=_number(rope, "rope_theta", 10000.0),
            rope_scaling=_rope_scaling(rope),
            gated_mlp=_field(config, "gated_mlp", bool, True),
            activation=_field(config, "hidden_act", str, "silu"),
            tied_embeddings=_field(config, "tie_word_embeddings", bool, False),
            qkv_bias=attention_bias,
            # Qwen2 has biases on q, k and v alone
            out_bias=_field(config, "attention_out_bias", bool, attention_bias and kind != "qwen2"),
            mlp_bias=_field(config, "mlp_bias", bool, False),
            ladder_layers=_ladder_layers(config, layers) if kind == "llamaLadder" else (),
            max_positions=_field(config, "max_position_embeddings", int, 0),
            sliding_window=_sliding_window(config, used=kind != "qwen2"),
        )

    @property
    def longest_context(self) -> float:
        """Tokens that every layer attends to; contexts beyond a sliding window are not implemented."""
        return min(self.max_positions or math.inf, self.sliding_window or math.inf)

    def check_context(self, tokens: int, *, hint: str) -> None:
        """Raise UsageError if this is longer than the longest context."""
        if tokens > self.longest_context:
            windowed = self.longest_context == self.sliding_window
            limit = "sliding window, beyond which nothing is implemented," if windowed else "longest context"
            raise UsageError(f"{tokens} tokens: the model's {limit} is {self.longest_context}", hint=hint)

    def check_ranks(self, tp: int) -> None:
        """Raise InfeasibleError unless `tp` ranks can share this model."""
        if part := self._indivisible_part(tp):
            degrees = [str(degree) for degree in range(1, self.heads + 1) if not self._indivisible_part(degree)]
            raise InfeasibleError(
                f"{tp} ranks cannot share {part} evenly", hint=f"degrees that divide: {', '.join(degrees)}"
            )

    def _indivisible_part(self, tp: int) -> str:
        """What `tp` ranks do not divide; empty: they divide all."""
        if self.heads % tp:
            return f"{self.heads} query heads"
        if self.intermediate % tp:
            return f"an MLP of width {self.intermediate}"
        return f"{self.kv_heads} key/value heads" if self.kv_heads % tp and tp % self.kv_heads else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a forward pass is executed: all that changes which kernels and collectives run."""

    attention: Attention = "flash"
    """Flash: fused, over the live context; math: separate kernels over the whole static cache, KV heads expanded."""
    fused_residual_add: bool = False
    """Blocking wirings add a block's output inside the next norm's kernel."""
    fused_ladder_add: bool = False
    """The same for ladder's deferred add."""
    sharded_lm_head: bool = False
    """LM head split over the vocabulary, logits gathered; else a replica on every rank."""
    sharded_embedding: bool = False
    """Embedding split over the vocabulary, rows all-reduced; else a replica on every rank."""
    prefill_logits: Literal["all", "last"] = "last"
    """Logits of every prompt position, or of the last only."""


def check_counts(minimum: int = 1, **counts: int) -> None:
    """Raise UsageError if one of these is below the minimum."""
    for name, count in counts.items():
        if count < minimum:
            raise UsageError(f"{name} is {count}: must be {minimum} or more")


def check_dtype(dtype: str) -> None:
    """Raise UsageError unless it is auto or one of DTYPES."""
    if dtype not in ("auto", *DTYPES):
        raise UsageError(f"unknown dtype '{dtype}'", hint=f"known: auto, {', '.join(DTYPES)}")


def read_object(file: Path, *, what: str) -> dict[str, object]:
    """The JSON object in a file, which should be `what`; raises UsageError."""
    try:
        value = json.loads(read_text(file, what=what, error=UsageError))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid JSON ({error})", hint=f"give {what}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{file}: not a JSON object", hint=f"give {what}")
    return value


def _field(config: Mapping[str, object], key: str, kind: type[_Value], default: _Value) -> _Value:
    """One field; JSON null counts as missing."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{key} is {value!r}: must be {kind.__name__}")
    return value


def _size(config: Mapping[str, object], key: str, default: int = 0) -> int:
    value = _field(config, key, int, default)
    if value < 1:
        missing = config.get(key) is None
        raise UsageError(f"{key} is missing" if missing else f"{key} is {value}: must be 1 or more")
    return value


def _number(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{key} is {value!r}: must be a number above 0")
    return float(value)


def _rope(config: Mapping[str, object]) -> Mapping[str, object]:
    """Rotary fields: in `rope_parameters` since transformers 5, before that in several places."""
    scaling = _field(config, "rope_parameters", dict, _field(config, "rope_scaling", dict, {}))
    return {"rope_theta": config.get("rope_theta"), **scaling}


def _rope_scaling(rope: Mapping[str, object]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UsageError(f"rope_type is {kind!r}: only llama3 is implemented")
    return RopeScaling(
        factor=_number(rope, "factor", 8.0),
        low_freq_factor=_number(rope, "low_freq_factor", 1.0),
        high_freq_factor=_number(rope, "high_freq_factor", 4.0),
        original_positions=_size(rope, "original_max_position_embeddings", 8192),
    )


def _sliding_window(config: Mapping[str, object], *, used: bool) -> int:
    kinds = _field(config, "layer_types", list, [])
    used = "sliding_attention" in kinds if kinds else _field(config, "use_sliding_window", bool, used)
    return _field(config, "sliding_window", int, 0) if used else 0


def _ladder_layers(config: Mapping[str, object], layers: int) -> tuple[int, ...]:
    """The layers by number; a count is of those next to the LM head."""
    value = config.get("ladder_layers", layers)
    numbers = list(range(layers - value, layers)) if isinstance(value, int) and value >= 0 else value
    if not isinstance(numbers, list) or not all(isinstance(i, int) and 0 <= i < layers for i in numbers):
        raise UsageError(f"ladder_layers is {value!r}: must be a count up to {layers} or a list of layers")
    return tuple(sorted(set(numbers)))
