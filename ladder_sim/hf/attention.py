"""Attention whose kernels are tabled, grouped-query and latent, with the fields of a config.json for it.

References
----------
Multi-head latent attention: DeepSeek-V2, arXiv 2405.04434; attention sinks: gpt-oss model card, arXiv 2508.10925.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ladder_sim.hf.block import BlockBase
from ladder_sim.hf.fields import MAXIMA, Fields
from ladder_sim.hf.types import LATENT

# of queries and keys, before they are rotated: head by head as in Qwen3 and Gemma 3, over all heads together as in
# OLMo 2, where ranks add up their squares first, or head by head without weights as in Llama 4
QkNorm = Literal["none", "heads", "all", "weightless"]


def rank_heads(heads: int, kv_heads: int, tp: int) -> tuple[int, int]:
    """Return the query heads and the key/value heads on each of `tp` ranks."""
    return heads // tp, max(1, kv_heads // tp)


def heads_problem(heads: int, kv_heads: int, tp: int) -> str:
    """Say why `tp` ranks cannot share heads; empty if they can."""
    if heads % tp:
        return f"heads is {heads}: not divisible by tp {tp}"
    if kv_heads % tp and tp % kv_heads:
        return f"kv_heads is {kv_heads}: neither divisible by tp {tp} nor a divisor of it"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa(BlockBase):
    """Multi-head or grouped-query attention."""

    # as in `config.Shape`
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = "none"

    sinks: bool = False
    """A learned logit for each head joins the softmax."""
    window: int = 0
    """Tokens that it attends to; 0: all."""
    rotated: bool = True
    """Queries and keys are rotated; else queries are scaled by their position instead, and neither is normalised."""

    @staticmethod
    def read(fields: Fields, heads: int, hidden: int) -> dict[str, Any]:
        """Return the fields of `config.Shape` that a config.json says of it."""
        kv_heads = fields.size("num_key_value_heads", MAXIMA["kv_heads"], default=heads)
        if heads % kv_heads:
            raise fields.error(
                "num_key_value_heads",
                f"must divide num_attention_heads, {heads}",
                "each key/value head serves the same number of query heads; correct either field",
            )
        if fields.config.get("head_dim") is None and hidden % heads:
            raise fields.error(
                "hidden_size",
                f"must be a multiple of num_attention_heads, {heads}, where head_dim is not given",
                "add head_dim to the file, or correct either field",
            )
        return {"kv_heads": kv_heads, "head_dim": fields.size("head_dim", MAXIMA["head_dim"], default=hidden // heads)}

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of `config.Shape` that stand for it."""
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}

    @property
    def parameters(self) -> int:
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = {"heads": 2 * self.head_dim, "all": q_width + kv_width}.get(self.qk_norm, 0)
        biases = (q_width + 2 * kv_width) * self.qkv_bias + self.hidden * self.out_bias
        return self.hidden * 2 * (q_width + kv_width) + biases + norms + self.heads * self.sinks

    @property
    def kv_elements(self) -> int:
        """What one token keeps in the cache, over all ranks."""
        return 2 * self.kv_heads * self.head_dim

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        return ((self.window, self.kv_elements * (rank_heads(self.heads, self.kv_heads, tp)[1] / self.kv_heads)),)

    def partition_problem(self, tp: int) -> str:
        return heads_problem(self.heads, self.kv_heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla(BlockBase):
    """Multi-head latent attention: the cache holds one compressed vector for all heads."""

    # as in `config.Shape`
    hidden: int
    heads: int
    kv_lora_rank: int
    q_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    value_head_dim: int

    index: "Index | None" = None
    """Index that chooses the tokens it reads (DeepSeek sparse attention); None: it reads all."""

    @staticmethod
    def read(fields: Fields, heads: int) -> dict[str, Any]:
        """Return the fields of `config.Shape` that a config.json says of it."""
        nope = fields.size("qk_nope_head_dim", MAXIMA["head_dim"])
        rope = fields.size("qk_rope_head_dim", MAXIMA["head_dim"])
        return {
            # each head makes its own keys and values
            "kv_heads": heads,
            "head_dim": nope + rope,
            "kv_lora_rank": fields.size("kv_lora_rank", MAXIMA["hidden"]),
            "q_lora_rank": fields.size("q_lora_rank", MAXIMA["hidden"], default=0),
            "nope_head_dim": nope,
            "rope_head_dim": rope,
            "value_head_dim": fields.size("v_head_dim", MAXIMA["head_dim"]),
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of `config.Shape` that stand for it."""
        names = ("kv_lora_rank", "q_lora_rank", "nope_head_dim", "rope_head_dim", "value_head_dim")
        heads = {"heads": self.heads, "kv_heads": self.heads, "head_dim": self.q_head_dim}
        return heads | {name: getattr(self, name) for name in names}

    @property
    def q_head_dim(self) -> int:
        """Width of a whole query head."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def parameters(self) -> int:
        q_width = self.heads * self.q_head_dim
        queries = self.q_lora_rank * (self.hidden + 1 + q_width) if self.q_lora_rank else self.hidden * q_width
        down = self.hidden * self.kv_elements + self.kv_lora_rank
        up = self.kv_lora_rank * self.heads * (self.nope_head_dim + self.value_head_dim)
        index = self.index.parameters(self.hidden, self.q_lora_rank or self.hidden) if self.index else 0
        return queries + down + up + self.heads * self.value_head_dim * self.hidden + index

    @property
    def kv_elements(self) -> int:
        """What one token keeps in the cache."""
        return self.kv_lora_rank + self.rope_head_dim

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        # every rank's heads read all
        return ((0, float(self.kv_elements + (self.index.dim if self.index else 0))),)

    def partition_problem(self, tp: int) -> str:
        return heads_problem(self.heads, self.heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Chooses the entries of the cache that attention reads, by small heads with keys of their own.

    Every rank has all of it, because a choice needs the scores of all heads.
    """

    heads: int
    """Query heads of the index, whose key is one for all; 0: an earlier layer has chosen."""
    dim: int
    """Width of one head."""
    top_k: int
    """Entries that each token attends to at most."""

    def parameters(self, hidden: int, low: int) -> int:
        """Return the weights: keys and head weights from the residual, queries from `low` channels, a LayerNorm."""
        return hidden * (self.dim + self.heads) + low * self.heads * self.dim + 2 * self.dim


def read_attention(fields: Fields, *, layers: int, heads: int, hidden: int) -> dict[str, Any]:
    """Return the fields of `config.Shape` that a config.json says of attention, of either kind."""
    everywhere = fields.flag("use_bias")
    # Qwen2 has biases on q, k and v without a field for them, StableLM with a field of its own; Llama's attention_bias
    # covers the output as well
    qkv_only = fields.flag("use_qkv_bias")
    bias = fields.flag("attention_bias", default=everywhere or qkv_only)
    return {
        **(Mla.read(fields, heads) if fields.kind in LATENT else Gqa.read(fields, heads, hidden)),
        **_window(fields, layers),
        "qkv_bias": bias,
        "out_bias": fields.flag("attention_out_bias", default=bias and not qkv_only),
        "qk_norm": _qk_norm(fields),
        "attention_sinks": fields.flag("attention_sinks"),
    }


def _qk_norm(fields: Fields) -> QkNorm:
    joint, weightless = fields.flag("joint_qk_norm"), fields.flag("weightless_qk_norm")
    # StableLM has a name of its own for it
    if not fields.flag("use_qk_norm", default=fields.flag("qk_layernorm")):
        return "none"
    return "all" if joint else "weightless" if weightless else "heads"


def _window(fields: Fields, layers: int) -> dict[str, Any]:
    """Return the window or chunk of attention, the layers that have it, and those without rotation."""
    llama_4 = fields.kind == "llama4_text"
    key = "attention_chunk_size" if llama_4 else "sliding_window"
    # read in any case, so that a damaged file does not pass
    tokens = 0 if fields.config.get(key) in (None, 0) else fields.size(key, MAXIMA["max_positions"])
    windowed = _window_layers(fields, layers)
    nope = sorted({*range(layers)}.difference(_rotated_layers(fields, layers))) if llama_4 else ()
    windows = {"sliding_window": tokens, "window_layers": () if len(windowed) == layers else windowed}
    return {**(windows if tokens and windowed else {}), "nope_layers": tuple(nope)}


def _window_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    kinds = fields.config.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise fields.error(
                "layer_types", f"must have an entry for each of {layers} layers", "correct it or num_hidden_layers"
            )
        return tuple(layer for layer, kind in enumerate(kinds) if kind != "full_attention")
    if not fields.flag("use_sliding_window", default=True):
        return ()
    if fields.kind == "llama4_text":
        # those that are rotated attend to a chunk
        return _rotated_layers(fields, layers)
    # Qwen2 and Qwen3
    first = fields.size("max_window_layers", MAXIMA["layers"], default=0, minimum=0)
    return tuple(layer for layer in _in_pattern(fields, layers) if layer >= first)


def _rotated_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    rotated = fields.config.get("no_rope_layers") or []
    if not rotated:
        return _in_pattern(fields, layers)
    if not (isinstance(rotated, list) and len(rotated) >= layers and all(each in (0, 1) for each in rotated)):
        raise fields.error(
            "no_rope_layers", f"must be 0 or 1 for each of {layers} layers", "correct it or num_hidden_layers"
        )
    return tuple(layer for layer, each in enumerate(rotated[:layers]) if each)


def _in_pattern(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return all but one layer of each period; all layers if there is no pattern."""
    if fields.config.get("sliding_window_pattern") is None:
        return tuple(range(layers))
    period = fields.size("sliding_window_pattern", MAXIMA["layers"])
    full = 0 if fields.flag("full_attention_first") else period - 1
    return tuple(layer for layer in range(layers) if layer % period != full)
