"""Attention to a cache or a part of it, of heads or latent vectors, and what all kernels over a context share."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ladder_sim.des.shared import Number, any_true, maximum, where
from ladder_sim.hf.quantization import KvDType
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, Machine, Shape, Sizes, TableKind, Work, count_text, varies
from ladder_sim.specs.stack import AttentionKernel
from ladder_sim.specs.workload import KV_BYTES

# scores, softmax with mask, values; keys and values are read expanded
MATH_ATTENTION_KERNELS = 3
# of the bf16 peak, what the same GPU multiplies in 32 bits (datasheets: A100 19.5 of 312 TFLOP/s, H100 67 of 989), in
# tiles of so many rows and columns (cuBLAS)
FP32_SHARE, TILE = 1.0 / 16.0, 128
# rate at which keys and values that are expanded to every query head are read, of the memory's bandwidth: 201 MB in
# 46.2 us on an H100 (h100_beside, kernels_of_a_layer.csv)
CACHE_RATE = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext(Shape):
    """What `q_len` new tokens of each sequence do with `kv_len` tokens of context."""

    reads_context: ClassVar[bool] = True

    batch: int
    """Sequences."""
    q_len: int
    """New tokens per sequence."""
    kv_len: int
    """Cached tokens that the kernel reads per sequence, the new ones included."""
    shares_step: bool = False
    """Whether the step of a prompt decodes other sequences too; `kv_len` is what its tokens read on average."""

    @property
    def is_prompt(self) -> bool:
        """Several new tokens per sequence, which takes another kernel than one."""
        return varies(self.q_len) or self.q_len > 1

    @property
    def reads_whole_cache(self) -> bool:
        """Whether it reads a static cache, however few of its tokens are live."""
        return False

    def seen(self, most: float = 0) -> Any:
        """Return the tokens up to itself that a new one attends to on average, `most` of them at most; 0: all."""
        if not most:
            return self.kv_len - (self.q_len - 1) / 2.0
        # the new tokens that see less, each one more than the one before
        before: Any = self.kv_len - self.q_len
        short: Any = np.clip(most - before, 0.0, self.q_len)
        return (short * (before + (short + 1.0) / 2.0) + (self.q_len - short) * most) / self.q_len

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        own: Any = {"batch": sizes.batch, "q_len": sizes.q_len, "kv_len": sizes.kv_len}
        if self.shares_step:
            own = {"batch": sizes.prompts, "q_len": sizes.chunk, "kv_len": sizes.chunk_kv_len}
        elif np.any(sizes.whole_kv_len):
            whole = where(sizes.whole_kv_len > 0, sizes.whole_kv_len, sizes.kv_len)
            own |= {"kv_len": whole} if self.reads_whole_cache else {"shares_step": True}
        return replace(self, **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAttention(InContext):
    """Attention over everything that the cache holds, or a window of it: tables have it."""

    on_tensor_cores: ClassVar[bool] = True

    heads: int
    """Query heads on this rank."""
    kv_element_bytes: int = 2
    """Bytes of one cached element; all others have 16 bits."""

    @property
    def lengths(self) -> str:
        """New tokens and context in a few characters."""
        return f"{count_text(self.q_len)} on {count_text(self.kv_len)}"

    @property
    def cache(self) -> str:
        """Type of the KV cache, by which its tables are told apart."""
        return "fp8" if self.kv_element_bytes == KV_BYTES["fp8"] else "bf16"

    @property
    def prompt_len(self) -> Any:
        """Tokens of the prompts whose average chunk it is; without earlier context its new tokens."""
        return 2 * self.kv_len - self.q_len if self.shares_step else self.q_len

    @property
    def chunk_share(self) -> Any:
        """Share that a chunk takes of the whole prompt, as which it is looked up."""
        return self.q_len / self.prompt_len if self.is_prompt and self.shares_step else 1.0

    def stack_factor(self, machine: Machine, *, tabled: bool) -> Number:
        """Return the factor of prompts or of decode; of math attention without a table the traffic alone has that."""
        if self.is_prompt:
            return machine.stack.prompt_factor
        return machine.stack.attention_factor if tabled or not self.reads_whole_cache else 1.0


def _at(
    kernel: AttentionKernel, of: KvDType, *, batch_kv_heads: Any, group: Any, head_dim: Any, **length: Any
) -> "Shape":
    q_len = length.get("q_len", 1)
    return AttentionShape(
        kernel=kernel,
        # one sequence of all the batch's heads stands for the batch
        batch=1,
        q_len=q_len,
        kv_len=length.get("kv_len", q_len),
        heads=batch_kv_heads * group,
        kv_heads=batch_kv_heads,
        head_dim=head_dim,
        kv_element_bytes=KV_BYTES[of],
    )


# axes of its tables for prompts and for single tokens; group: query heads per KV head
PROMPT_AXES = ("batch_kv_heads", "group", "q_len", "head_dim")
TOKEN_AXES = ("batch_kv_heads", "group", "kv_len", "head_dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape(CachedAttention):
    """Attention over keys and values of heads."""

    tables: ClassVar = (
        TableKind("attention_prefill", "prefill attention flash", PROMPT_AXES, partial(_at, "flash")),
        TableKind("attention_decode", "decode attention flash", TOKEN_AXES, partial(_at, "flash")),
        TableKind("math_attention_decode", "decode attention math", TOKEN_AXES, partial(_at, "math"), has_formula=True),
    )

    kernel: AttentionKernel
    """Flash: one fused kernel over the live context, causal; math: scores, softmax and values as separate kernels over
    the whole static cache, KV heads expanded."""
    kv_heads: int
    """Key/value heads on this rank."""
    head_dim: int
    """Width of one head."""
    window: int = 0
    """Tokens that each new one attends to at most; 0: all. The math kernel reads the whole cache all the same."""

    @property
    def reads_whole_cache(self) -> bool:
        return self.kernel == "math"

    @property
    def windowed(self) -> bool:
        """Whether a window bounds what it reads."""
        return self.window > 0 and not self.reads_whole_cache

    @property
    def attended(self) -> Any:
        """Tokens that a new one attends to on average; flash skips the masked half of a prefill."""
        return self.kv_len if self.reads_whole_cache else self.seen(self.window)

    @property
    def work(self) -> Work:
        """Queries, output, the cache, and of the math kernel its scores.

        The score matrix is of 32 bits (PyTorch from 2.5 on computes math attention of 16 bits in 32), written, read for
        its maximum and sum, read and written by the softmax, and read for the values. The cache of a prompt's tokens
        may still be in one of the GPU.
        """
        read: Any = np.minimum(self.kv_len, self.window + self.q_len - 1) if self.windowed else self.kv_len
        cache = 2.0 * self.batch * read * self.head_dim * self.kv_heads * self.kv_element_bytes
        moved = 2.0 * self.batch * self.q_len * self.heads * self.head_dim * STATE_BYTES + cache
        if self.reads_whole_cache:
            moved = moved + 5.0 * 4.0 * self.batch * self.heads * self.q_len * self.kv_len
        pairs = self.q_len * self.attended
        return Work(moved, 4.0 * self.batch * self.heads * self.head_dim * pairs, 0.0 if self.is_prompt else cache)

    @property
    def expanded_bytes(self) -> float:
        """Keys and values that the math kernel reads: of every query head, most of them from the GPU's cache."""
        return 2.0 * self.batch * self.kv_len * self.head_dim * self.heads * self.kv_element_bytes

    @property
    def label(self) -> str:
        cache = ", fp8 cache" if self.cache == "fp8" else ""
        return f"{self.kernel}, {self.heads}/{self.kv_heads} heads, {self.lengths}{cache}"

    @property
    def lookup(self) -> Lookup | None:
        """Where tables hold it: prompts whole and without a window, of whose time it takes its shares.

        Work and traffic depend on batch and heads as their product alone; a prompt has no earlier context.
        """
        heads = {"batch_kv_heads": self.batch * self.kv_heads, "group": self.heads / self.kv_heads}
        if not self.is_prompt:
            kind = "math_attention_decode" if self.reads_whole_cache else "attention_decode"
            read: Any = np.minimum(self.kv_len, self.window) if self.windowed else self.kv_len
            return Lookup(kind, self.cache, {**heads, "kv_len": read, "head_dim": self.head_dim})
        if self.reads_whole_cache:
            return None
        times = self.chunk_share
        if self.windowed:
            times = times * self.attended / self.seen()
        point = {**heads, "q_len": self.prompt_len, "head_dim": self.head_dim}
        return Lookup("attention_prefill", self.cache, point, times)

    @property
    def outlasts(self) -> tuple[Any, Shape] | None:
        """A chunk behind others takes its share of the prompt's time, but at least as long as one token does."""
        continues: Any = self.shares_step and self.prompt_len > self.q_len
        return (continues, replace(self, q_len=1, shares_step=False)) if any_true(continues) else None

    def untabled_s(self, machine: Machine) -> Number:
        """Return the seconds of attention by separate kernels, which no table holds."""
        gpu, stack = machine.gpu, machine.stack
        token = replace(self, q_len=1) if self.is_prompt else self
        expanded_s = token.expanded_bytes / (CACHE_RATE * gpu.hbm_bandwidth_Bps)
        read_s = maximum(machine.traffic_s(token.moved_bytes), expanded_s)
        floor_s = MATH_ATTENTION_KERNELS * machine.floor_s
        several = where(self.batch > 1, 1.0, 0.0)
        token_s: Number = floor_s + stack.batched_attention_s * several + read_s * stack.attention_factor
        if not self.is_prompt:
            return token_s
        # scores and values, each in tiles of so many of its rows and columns; one that is not full takes as long
        work, multiplied_s = self.work, 0.0
        for columns in (self.kv_len, self.head_dim):
            tiles: Any = self.batch * self.heads * -(-self.q_len // TILE) * -(-columns // TILE)
            slots = -(-tiles // machine.sms) * machine.sms * np.minimum(self.q_len, TILE) * np.minimum(columns, TILE)
            filled = self.batch * self.heads * self.q_len * columns / slots
            multiplied_s = multiplied_s + work.flops / (2.0 * FP32_SHARE * gpu.bf16_flops * filled)
        return maximum(token_s, floor_s + multiplied_s + machine.traffic_s(work.moved_bytes))


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


# scores of an index, the choice of the best, attention
INDEXED_KERNELS = 3
# in tables: entries that are read, and width of an index's key; latent vector with its rotated part, and without
# (DeepSeek-V3.2, GLM-5); width of a head, and query heads of each KV head (MiniMax M3)
TOP_K, INDEX_DIM, LATENT_KEY, LATENT, HEAD_DIM, GROUP = 2048, 128, 576, 512, 128, 16

# earlier tokens of a prompt than which fewer make no difference
LEAST_EARLIER = 64


def _sparse_at(of: str, *, heads: Any, **lengths: Any) -> "SparseShape":
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
            lambda of, q_len, earlier, heads: _sparse_at(of, batch=1, q_len=q_len, kv_len=q_len + earlier, heads=heads),
            has_formula=True,
        ),
        TableKind(
            "sparse_decode",
            "decode sparse attention",
            ("batch", "heads", "kv_len"),
            lambda of, **sizes: _sparse_at(of, q_len=1, **sizes),
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
    dense: MlaShape | None = None
    """Attention to all entries, which the engine takes for prompts that would choose all; None: it does not."""

    @property
    def replaced(self) -> tuple[Any, Shape] | None:
        """Prompts of at most `top_k` tokens, those before them included, in engines with another kernel for these."""
        if self.dense is None or not self.is_prompt or not any_true(few := self.kv_len <= self.top_k):
            return None
        own: Any = {name: getattr(self, name) for name in ("batch", "q_len", "kv_len", "shares_step")}
        return few, replace(self.dense, **own)

    @property
    def work(self) -> Work:
        """Entries that are read, of which the tokens of a prompt may share some, and all keys of the index."""
        entries: Any = self.kv_len / self.every
        seen, read = (self.seen(most) / self.every for most in (0, self.top_k * self.every))
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
