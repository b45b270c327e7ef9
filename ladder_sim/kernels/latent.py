"""Attention over latent vectors, one for all heads."""

from dataclasses import dataclass
from typing import ClassVar

from ladder_sim.kernels.attention import CachedAttention
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, TableKind, Work
from ladder_sim.specs.workload import KV_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaShape(CachedAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): all heads read one latent vector per cached token.

    A single new token is multiplied into the latent space (absorbed form), so that keys and values are the latent
    vectors. Prompts expand these into keys and values of every head first.
    """

    tables: ClassVar = (
        TableKind(
            "mla_prefill",
            "prefill latent attention",
            ("batch_heads", "q_len", "nope", "rope", "value"),
            lambda of, batch_heads, q_len, **widths: MlaShape(
                batch=1, heads=batch_heads, q_len=q_len, kv_len=q_len, latent=0, **widths, kv_element_bytes=KV_BYTES[of]
            ),
        ),
        TableKind(
            "mla_decode",
            "decode latent attention",
            ("batch", "heads", "kv_len", "latent", "rope"),
            lambda of, **sizes: MlaShape(q_len=1, nope=0, value=0, **sizes, kv_element_bytes=KV_BYTES[of]),
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
    def work(self) -> Work:
        """Queries, output, and the latent cache or what it was expanded to, once; a prompt skips the masked half.

        What a prompt expands may still be in a cache of the GPU.
        """
        width = self.nope + self.rope + self.value if self.is_prompt else 2 * self.latent + self.rope
        flops = 2.0 * self.batch * self.heads * width * self.q_len * (self.kv_len - (self.q_len - 1) / 2.0)
        if self.is_prompt:
            moved = 1.0 * self.batch * self.heads * (self.q_len + self.kv_len) * width * STATE_BYTES
            return Work(moved, flops)
        stored = 1.0 * self.batch * self.kv_len * (self.latent + self.rope) * self.kv_element_bytes
        return Work(stored + self.batch * self.heads * width * STATE_BYTES, flops, stored)

    @property
    def label(self) -> str:
        return f"latent {self.latent} + {self.rope}, {self.heads} heads, {self.lengths}"

    @property
    def lookup(self) -> Lookup:
        """Where tables hold the expanded form, or the absorbed one, whose cache is one for all heads."""
        if self.is_prompt:
            sizes = {"batch_heads": self.batch * self.heads, "q_len": self.prompt_len}
            widths = {"nope": self.nope, "rope": self.rope, "value": self.value}
            return Lookup("mla_prefill", self.cache, {**sizes, **widths}, times=self.chunk_share)
        sizes = {"batch": self.batch, "heads": self.heads, "kv_len": self.kv_len}
        return Lookup("mla_decode", self.cache, {**sizes, "latent": self.latent, "rope": self.rope})
