"""Shapes of one rank's kernels and messages, from which their costs follow.

Every count is per rank and per forward pass: FLOPs, bytes of device memory moved, bytes of messages.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ladder_sim.specs.stack import Sampling
from ladder_sim.specs.workload import Imbalance

# of one pass, or of many. Shapes of many passes hold arrays too (`ladder_sim.graph.sizes`); their fields are typed as
# the numbers that they are everywhere else
Count = int | NDArray[np.int64]

# whose ranks take part: a tensor-parallel group, those of the same position in all such groups of a stage, which share
# its experts, or two stages
Group = Literal["tensor", "experts", "stages"]


def varies(size: object) -> bool:
    """Whether a size is an array of those of many passes."""
    return isinstance(size, np.ndarray)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """Operands of a kernel that multiplies activations by weights: bytes of an element of each."""

    weight_element_bytes: float
    """Bytes of one weight, its share of the scales included."""
    input_element_bytes: float
    """Bytes of one input activation."""
    output_element_bytes: float
    """Bytes of one output activation."""
    format: str = "bf16"
    """Format of the operands, by `ladder_sim.specs.workload.Format.name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape(Multiplication):
    """``[m, k] @ [k, n]``: a linear layer's shard over m tokens."""

    m: int
    """Tokens."""
    n: int
    """Output features on this rank."""
    k: int
    """Input features on this rank."""
    chunks: int = 1
    """Kernels, one after another, each with its part of the rows."""
    duty: float = 0.0
    """Share of the time in which the GPU multiplies as much as here: prompts are compute bound, decode is not."""

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two."""
        return 2.0 * self.m * self.n * self.k

    @property
    def stored_bytes(self) -> float:
        """Weights, once: what no cache holds from one pass to the next."""
        return 1.0 * self.n * self.k * self.weight_element_bytes

    @property
    def moved_bytes(self) -> float:
        """Activations, each read or written once, and weights, by each of the kernels."""
        return (
            self.chunks * self.stored_bytes
            + 1.0 * self.m * self.k * self.input_element_bytes
            + 1.0 * self.m * self.n * self.output_element_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext:
    """What `q_len` new tokens of each sequence do with `kv_len` tokens of context."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAttention(InContext):
    """Attention over everything that the cache holds, or a window of it: tables have it."""

    heads: int
    """Query heads on this rank."""
    element_bytes: int
    """Bytes of one element that is not cached: of queries, scores, expanded keys and values, output."""
    kv_element_bytes: int = 2
    """Bytes of one cached element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape(CachedAttention):
    """Attention over keys and values of heads."""

    kernel: Literal["flash", "math"]
    """Flash: one fused kernel over the live context, causal; math: scores, softmax and values as separate kernels over
    the whole static cache, KV heads expanded."""
    kv_heads: int
    """Key/value heads on this rank."""
    head_dim: int
    """Width of one head."""
    window: int = 0
    """Tokens that each new one attends to at most; 0: all. The math kernel reads the whole cache all the same."""

    @property
    def windowed(self) -> bool:
        """Whether a window bounds what it reads."""
        return self.window > 0 and self.kernel == "flash"

    @property
    def attended(self) -> Any:
        """Tokens that a new one attends to on average; flash skips the masked half of a prefill."""
        if self.kernel != "flash":
            return self.kv_len
        if not self.window:
            return self.kv_len - (self.q_len - 1) / 2.0
        # the new tokens that see less than a window, each one more than the one before
        before: Any = self.kv_len - self.q_len
        short: Any = np.clip(self.window - before, 0.0, self.q_len)
        return (short * (before + (short + 1.0) / 2.0) + (self.q_len - short) * self.window) / self.q_len

    @property
    def _read(self) -> Any:
        """Tokens of the cache that all new ones of a sequence read."""
        return np.minimum(self.kv_len, self.window + self.q_len - 1) if self.windowed else self.kv_len

    @property
    def stored_bytes(self) -> float:
        """Keys and values of earlier tokens; those of a prompt may still be in a cache of the GPU."""
        if self.is_prompt:
            return 0.0
        stored: float = 2.0 * self.batch * self._read * self.head_dim * self.kv_heads * self.kv_element_bytes
        return stored

    @property
    def flops(self) -> float:
        pairs = self.q_len * self.attended
        flops: float = 4.0 * self.batch * self.heads * self.head_dim * pairs
        return flops

    @property
    def moved_bytes(self) -> float:
        """Device memory traffic: queries and output, the cache, and of the math kernel its scores.

        The score matrix is of 32 bits (PyTorch from 2.5 on computes math attention of 16 bits in 32), written, read for
        its maximum and sum, read and written by the softmax, and read for the values.
        """
        query_and_output = 2.0 * self.batch * self.q_len * self.heads * self.head_dim
        cache: float = 2.0 * self.batch * self._read * self.head_dim * self.kv_heads * self.kv_element_bytes
        moved = query_and_output * self.element_bytes + cache
        if self.kernel == "flash":
            return moved
        return moved + 5.0 * 4.0 * self.batch * self.heads * self.q_len * self.kv_len

    @property
    def expanded_bytes(self) -> float:
        """Keys and values that the math kernel reads: of every query head, most of them from the GPU's cache."""
        expanded: float = 2.0 * self.batch * self.kv_len * self.head_dim * self.heads * self.kv_element_bytes
        return expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape(Multiplication):
    """The routed experts of one layer, on the rank of their group that takes longest.

    Gate and up, activation, down, the sorting of tokens by expert before and their weighted sum after; no messages.
    """

    tokens: float
    """Tokens that enter the group, of all its ranks together; where they are spread by counts, as many as if every part
    of the experts had those of the busiest."""
    hidden: int
    """Width of the residual stream."""
    width: int
    """Intermediate width of one expert, whole."""
    experts: int
    """Routed experts of the layer, on all ranks together."""
    top_k: int
    """Experts that each token takes."""
    expert_tp: int = 1
    """Ranks that share the width of each expert."""
    ep: int = 1
    """Parts into which the experts are spread; the group has `expert_tp` * `ep` ranks."""
    imbalance: Imbalance = "power-law-1.01"
    """How unevenly tokens choose experts."""

    @property
    def experts_taken(self) -> Any:
        """Experts of a rank that any token takes, with tokens spread evenly."""
        return self.experts / self.ep * (1.0 - (1.0 - self.top_k / self.experts) ** self.tokens)

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two, if every rank has as much to do."""
        return 6.0 * self.tokens * self.top_k / self.ep * self.hidden * self.width / self.expert_tp

    @property
    def moved_bytes(self) -> float:
        """Weights of the experts that any token takes, and activations.

        What several experts return for a token is written, and read again for the sum.
        """
        width = self.width / self.expert_tp
        weights: float = 3.0 * self.experts_taken * self.hidden * width * self.weight_element_bytes
        ends = 1.0 * self.tokens * self.hidden * (self.input_element_bytes + self.output_element_bytes)
        inner = 3.0 * width + (2.0 * self.hidden if self.top_k > 1 else 0.0)
        return weights + ends + self.tokens * self.top_k / self.ep * inner * self.output_element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaShape(CachedAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): all heads read one latent vector per cached token.

    A single new token is multiplied into the latent space (absorbed form), so that keys and values are the latent
    vectors. Prompts expand these into keys and values of every head first.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingShape(InContext):
    """Mixing of tokens that no table holds: a recurrent state, attention to some entries of a cache, their choice."""

    state_bytes: float = 0.0
    """State of one sequence, which is read and written."""
    token_bytes: float = 0.0
    """What enters and leaves for one new token."""
    token_flops: float = 0.0
    """Arithmetic of one new token, whatever the context."""
    entry_bytes: float = 0.0
    """One entry of the cache."""
    entry_flops: float = 0.0
    """Arithmetic of one new token with one entry."""
    every: int = 1
    """Tokens of context that one entry stands for."""
    top_k: int = 0
    """Entries that a new token reads at most; 0: all."""

    @property
    def _entries(self) -> Any:
        """Entries that a new token reads on average, without those of later tokens."""
        entries: Any = (self.kv_len - (self.q_len - 1) / 2.0) / self.every
        return np.minimum(entries, self.top_k) if self.top_k else entries

    @property
    def stored_bytes(self) -> float:
        """State and entries of the cache, of which the tokens of a prompt may share some."""
        read: Any = np.minimum(self._entries * self.q_len, self.kv_len / self.every)
        stored: float = self.batch * (self.state_bytes + read * self.entry_bytes)
        return stored

    @property
    def flops(self) -> float:
        flops: float = self.batch * self.q_len * (self.token_flops + self._entries * self.entry_flops)
        return flops

    @property
    def moved_bytes(self) -> float:
        """State twice, entries once, and what enters and leaves."""
        return self.stored_bytes + self.batch * (self.state_bytes + self.q_len * self.token_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BmmShape(Multiplication):
    """``[heads, m, k] @ [heads, k, n]``: a projection of each head by itself, as into and out of the latent space."""

    heads: int
    """Heads on this rank."""
    m: int
    """Tokens."""
    n: int
    """Output features of a head."""
    k: int
    """Input features of a head."""

    @property
    def flops(self) -> float:
        return 2.0 * self.heads * self.m * self.n * self.k

    @property
    def stored_bytes(self) -> float:
        return 1.0 * self.heads * self.n * self.k * self.weight_element_bytes

    @property
    def moved_bytes(self) -> float:
        """Weights and activations, each read or written once."""
        rows = 1.0 * self.heads * self.m
        return self.stored_bytes + rows * (self.k * self.input_element_bytes + self.n * self.output_element_bytes)


class DataMovement:
    """What takes no arithmetic that counts next to its traffic."""

    __slots__ = ()

    @property
    def flops(self) -> float:
        """Negligible next to the traffic."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseShape(DataMovement):
    """A memory-bound kernel: norm, rotary embedding, activation, add, lookup."""

    moved_bytes: float
    """Read and written, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape(DataMovement):
    """The choice of each sequence's next token, of all logits: a memory-bound kernel if greedy."""

    batch: int
    """Sequences."""
    vocab: int
    """Logits of each."""
    element_bytes: int
    """Bytes of one logit."""
    sampling: Sampling = "greedy"
    """How it is chosen."""

    @property
    def moved_bytes(self) -> float:
        """Logits, read once."""
        return 1.0 * self.batch * self.vocab * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveShape(DataMovement):
    """A message between ranks."""

    message_bytes: float
    """All-reduce, broadcast, send: the tensor; all-gather: the result; reduce-scatter: all that is scattered;
    all-to-all: what a rank sends; dispatch and combine: its tokens in 16 bits, once for each of their experts."""
    group: Group = "tensor"
    """Whose ranks take part."""
    per_sequence: bool = False
    """It grows with the sequences, not with their tokens."""
    kernel: str = ""
    """Kernel of a dispatch or combine, by the names of `StackSpec.dispatch`; bits of a quantised all-reduce; algorithm
    of an all-reduce that is not the stack's."""
    own_type: bool = False
    """Whether elements are not of the activations' type, but token ids or 32-bit sums."""

    @property
    def moved_bytes(self) -> float:
        """Message read and written once in device memory."""
        return 2.0 * self.message_bytes


Shape = (
    GemmShape
    | MoeShape
    | BmmShape
    | AttentionShape
    | MlaShape
    | MixingShape
    | ElementwiseShape
    | SampleShape
    | CollectiveShape
)
