"""Attention to a part of the cache: to the best entries by an index, or to entries that stand for several tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ladder_sim.des.shared import Number
from ladder_sim.kernels.attention import InContext
from ladder_sim.kernels.machine import Machine
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, TableKind, Work, count_text
from ladder_sim.specs.workload import KV_BYTES

# scores of an index, the choice of the best, attention
INDEXED_KERNELS = 3
# in tables: entries that are read, and width of an index's key; latent vector with its rotated part, and without
# (DeepSeek-V3.2, GLM-5); width of a head, and query heads of each KV head (MiniMax M3)
TOP_K, INDEX_DIM, LATENT_KEY, LATENT, HEAD_DIM, GROUP = 2048, 128, 576, 512, 128, 16

# earlier tokens of a prompt than which fewer make no difference
LEAST_EARLIER = 64


def _at(of: str, *, heads: Any, **lengths: Any) -> "SparseShape":
    form, index_heads, cache = of.split("-")
    element_bytes = KV_BYTES["fp8" if cache == "fp8" else "bf16"]
    latent = form == "latent"
    entry = LATENT_KEY if latent else 2 * HEAD_DIM * np.maximum(1.0, heads / GROUP)
    widths = LATENT_KEY + LATENT if latent else 2 * HEAD_DIM
    return SparseShape(
        **lengths,
        form="latent" if latent else "heads",
        heads=heads,
        token_bytes=heads * widths * STATE_BYTES,
        entry_bytes=entry * element_bytes,
        entry_flops=2.0 * heads * widths,
        kv_element_bytes=element_bytes,
        top_k=TOP_K,
        index_heads=int(index_heads),
        index_dim=INDEX_DIM,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseShape(InContext):
    """Attention to some entries of a cache; an index scores all of them by small heads and chooses, where there is one.

    DeepSeek-V3.2 (arXiv 2512.02556, section 2.1); vLLM 0.32.0, deepseek_v2.py, Indexer. Tables' keys have the form,
    the heads of the index and the type of the KV cache.
    """

    tables: ClassVar = (
        TableKind(
            "sparse_prefill",
            "prefill sparse attention",
            ("heads", "q_len", "earlier"),
            lambda of, q_len, earlier, heads: _at(of, batch=1, q_len=q_len, kv_len=q_len + earlier, heads=heads),
            has_formula=True,
        ),
        TableKind(
            "sparse_decode",
            "decode sparse attention",
            ("batch", "heads", "kv_len"),
            lambda of, **sizes: _at(of, q_len=1, **sizes),
            has_formula=True,
        ),
    )

    form: Literal["latent", "heads"]
    """Entries: one latent vector for all heads, or keys and values of heads."""
    heads: int
    """Query heads on this rank."""
    token_bytes: float
    """What enters and leaves for one new token."""
    entry_bytes: float
    """One entry of the cache."""
    entry_flops: float
    """Arithmetic of one new token with one entry."""
    kv_element_bytes: int
    """Bytes of one cached element."""
    every: int = 1
    """Tokens of context that one entry stands for."""
    top_k: int = 0
    """Entries that a new token reads at most; 0: all."""
    index_heads: int = 0
    """Heads of the index, all of them on every rank; 0: an earlier layer has chosen."""
    index_dim: int = 0
    """Width of one of them, and of the key that each entry has for them, in 8 bits."""

    @property
    def work(self) -> Work:
        """Entries that are read, of which the tokens of a prompt may share some, and all keys of the index."""
        entries: Any = self.kv_len / self.every

        # that a new token sees on average, without those of later tokens
        seen: Any = (self.kv_len - (self.q_len - 1) / 2.0) / self.every
        read = np.minimum(seen, self.top_k) if self.top_k else seen
        keys = entries * self.index_dim * KV_BYTES["fp8"] if self.index_heads else 0.0
        stored = self.batch * (np.minimum(read * self.q_len, entries) * self.entry_bytes + keys)
        scores = 2.0 * self.index_heads * self.index_dim * seen
        tokens = self.batch * self.q_len
        return Work(stored + tokens * self.token_bytes, tokens * (read * self.entry_flops + scores), stored)

    @property
    def launches(self) -> int:
        return INDEXED_KERNELS if self.index_heads else 1

    @property
    def label(self) -> str:
        chosen = f"{self.top_k} of " if self.top_k else ""
        return f"sparse, {self.heads} heads, {count_text(self.q_len)} on {chosen}{count_text(self.kv_len)}"

    @property
    def lookup(self) -> Lookup | None:
        """Where tables hold it: for each of several prompts, by its new and its earlier tokens."""
        if not self.top_k:
            return None
        of = f"{self.form}-{self.index_heads}-{'fp8' if self.kv_element_bytes == KV_BYTES['fp8'] else 'bf16'}"
        if not self.is_prompt:
            return Lookup("sparse_decode", of, {"batch": self.batch, "heads": self.heads, "kv_len": self.kv_len})
        earlier: Any = np.maximum(self.kv_len - self.q_len, LEAST_EARLIER)
        point: dict[str, Any] = {"heads": self.heads, "q_len": self.q_len, "earlier": earlier}
        return Lookup("sparse_prefill", of, point, times=self.batch)

    def floor_s(self, machine: Machine) -> Number:
        return machine.floor_s * self.launches
