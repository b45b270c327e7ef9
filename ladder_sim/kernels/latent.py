"""Attention over latent vectors, one for all heads."""

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from ladder_sim.kernels.attention import CachedAttention, kv_bytes
from ladder_sim.kernels.shape import STATE_BYTES, Kind, TableKind, TableOf


def _of_prompts(of: str, heads: Any, length: Any, nope: Any, rope: Any, value: Any) -> "MlaShape":
    lengths = {"batch": 1, "q_len": length, "kv_len": length, "heads": heads}
    return _at(of, **lengths, latent=0, rope=rope, nope=nope, value=value)


def _of_tokens(of: str, batch: Any, heads: Any, length: Any, latent: Any, rope: Any) -> "MlaShape":
    lengths = {"batch": batch, "q_len": 1, "kv_len": length, "heads": heads}
    return _at(of, **lengths, latent=latent, rope=rope, nope=0, value=0)


def _at(of: str, **sizes: Any) -> "MlaShape":
    return MlaShape(**sizes, element_bytes=STATE_BYTES, kv_element_bytes=kv_bytes(of))


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaShape(CachedAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): all heads read one latent vector per cached token.

    A single new token is multiplied into the latent space (absorbed form), so that keys and values are the latent
    vectors. Prompts expand these into keys and values of every head first.
    """

    tables: ClassVar[tuple[TableKind, ...]] = (
        TableKind(
            kind="mla_prefill",
            label="prefill latent attention",
            axes=("batch_heads", "q_len", "nope", "rope", "value"),
            at=_of_prompts,
        ),
        TableKind(
            kind="mla_decode",
            label="decode latent attention",
            axes=("batch", "heads", "kv_len", "latent", "rope"),
            at=_of_tokens,
        ),
    )

    latent: int
    """Width of the latent vector."""
    rope: int
    """Width of the part of a key that carries the position, one for all heads."""
    nope: int
    """Width of the rest of one head's key."""
    value: int
    """Width of one head's value."""

    @property
    def stored_bytes(self) -> float:
        """The latent cache of earlier tokens; what a prompt expands may still be in a cache of the GPU."""
        if self.is_prompt:
            return 0.0
        return 1.0 * self.batch * self.kv_len * (self.latent + self.rope) * self.kv_element_bytes

    @property
    def flops(self) -> float:
        """Scores and values, without the masked half of a prefill."""
        per_pair = self.nope + self.rope + self.value if self.is_prompt else 2 * self.latent + self.rope
        return 2.0 * self.batch * self.heads * per_pair * self.q_len * (self.kv_len - (self.q_len - 1) / 2.0)

    @property
    def moved_bytes(self) -> float:
        """Queries, output, and the latent cache or what it was expanded to, once."""
        if self.is_prompt:
            per_head = self.nope + self.rope + self.value
            return 1.0 * self.batch * self.heads * (self.q_len + self.kv_len) * per_head * self.element_bytes
        return self.stored_bytes + self.batch * self.heads * (2 * self.latent + self.rope) * self.element_bytes

    @property
    def label(self) -> str:
        return f"latent {self.latent} + {self.rope}, {self.heads} heads, {self.lengths}"

    @property
    def table(self) -> tuple[Kind, TableOf]:
        return "mla_prefill" if self.is_prompt else "mla_decode", self.cache

    @property
    def coordinates(self) -> dict[str, ArrayLike]:
        """Sizes of the expanded form, or of the absorbed one, whose cache is one for all heads."""
        if self.is_prompt:
            sizes = {"batch_heads": self.batch * self.heads, "q_len": self.prompt_len}
            return {**sizes, "nope": self.nope, "rope": self.rope, "value": self.value}
        sizes = {"batch": self.batch, "heads": self.heads, "kv_len": self.kv_len}
        return {**sizes, "latent": self.latent, "rope": self.rope}
