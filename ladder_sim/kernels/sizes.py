"""Sizes of forward passes, to which kernels of one token are resized.

Which kernels a pass runs does not depend on how many sequences there are nor on how long they are. So one graph, of one
token, serves every size: each kernel grows with the tokens, or with the sequences.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.specs.stack import StackSpec

# of one pass, or of many. Kernels of many passes hold arrays too; their fields are typed as the numbers that they are
# everywhere else
Count = int | NDArray[np.int64]
Duty = float | NDArray[np.float64]

# mixed: a step of continuous batching, decode of some sequences and prompt tokens of others in one pass
Phase = Literal["prefill", "decode", "mixed"]
# by phase, `GemmShape.duty` of a run of such passes alone; that of mixed steps depends on how many there are
PROMPT_DUTY: Mapping[Phase, float] = {"prefill": 1.0, "decode": 0.0, "mixed": 0.0}

# rows of a large GEMM's thread-block tile (cuBLAS and CUTLASS on Ampere and Hopper)
TILE_ROWS = 128


def varies(size: object) -> bool:
    """Whether a size is an array of those of many passes."""
    return isinstance(size, np.ndarray)


class Portion(NamedTuple):
    """A part of a pass's tokens."""

    number: int = 0
    of: int = 1
    """Number of parts."""


WHOLE = Portion()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Sizes of one forward pass or of many: numbers, or arrays of one length."""

    batch: Count
    """Sequences."""
    q_len: Count
    """New tokens of each; as an array more than one everywhere, because a single one takes another kernel."""
    kv_len: Count
    """Tokens that attention reads, the new ones included."""
    every_logit: bool
    """Logits of every token, or of each sequence's last."""
    duty: Duty = 0.0
    """As `GemmShape.duty`."""
    prompts: Count = 0
    """Sequences whose prompt a mixed step runs in addition, maybe a fraction of one on average."""
    chunk: Count = 0
    """Tokens of each of those prompts in the step."""
    chunk_kv_len: Count = 0
    """What the last of these tokens reads, if the chunk is an average one."""
    whole_kv_len: Count = 0
    """`kv_len` of the whole prompts of which these are parts; 0 if they are whole."""
    smallest: int = 1
    """Tokens and sequences of the graph of one token: two in a mixed step, one of each kind."""
    _parts: "dict[Portion, Sizes]" = field(init=False, repr=False, default_factory=dict)
    """As `part` has made them."""

    @classmethod
    def of(cls, stack: StackSpec, phase: Phase, kv_len: Count, *, batch: Count, prompt: Count, gen: Count) -> Self:
        """Return the sizes of a pass over `kv_len` tokens of context, of requests of `batch`, `prompt` and `gen`."""
        return cls(
            batch=batch,
            q_len=prompt if phase == "prefill" else 1,
            kv_len=prompt + gen if stack.static_cache else kv_len,
            every_logit=stack.prefill_logits == "all",
            duty=PROMPT_DUTY[phase],
        )

    @classmethod
    def mixed(
        cls, stack: StackSpec, kv_len: Count, *, prompts: Count, chunk: Count, prompt: Count, duty: Duty, **rest: Count
    ) -> Self:
        """Return the sizes of a step that runs an average chunk of `prompts` prompts, and decodes `rest` as in `of`."""
        sizes: Any = {"prompts": prompts, "chunk": chunk, "chunk_kv_len": (prompt + chunk) / 2}
        return replace(cls.of(stack, "decode", kv_len, prompt=prompt, **rest), duty=duty, smallest=2, **sizes)

    @property
    def tokens(self) -> Any:
        """Number of new tokens of all sequences in the pass."""
        return self.batch * self.q_len + self.prompts * self.chunk

    @property
    def apart_from_context(self) -> Hashable:
        """Equal for passes that differ in context only; arrays are equal if they are the same."""
        return _same((self.batch, self.q_len, self.duty, self.prompts, self.chunk))

    @property
    def context(self) -> Hashable:
        """Equal for passes with the same context."""
        return _same((self.kv_len, self.chunk_kv_len, self.whole_kv_len))

    def part(self, portion: Portion) -> "Sizes":
        """Return the sizes of one of several parts of the tokens.

        Sequences are spread over the parts; one that decodes is in a single part. A lone prompt is cut at whole tiles
        of its GEMMs, so that the parts have no more waves than the whole; each reads what those before it left behind.
        """
        if portion == WHOLE:
            return self
        if portion not in self._parts:
            self._parts[portion] = self._part(*portion)
        return self._parts[portion]

    def _part(self, number: int, of: int) -> "Sizes":
        if self.smallest == 2:
            shares: Any = {"batch": self.batch / of, "prompts": self.prompts / of}
            return replace(self, **shares)
        if not varies(self.q_len) and self.q_len == 1:
            counted = isinstance(self.batch, int) or (varies(self.batch) and self.batch.dtype.kind == "i")
            own: Any = (self.batch + of - 1 - number) // of if counted else self.batch / of
            return replace(self, batch=own)
        start, end = _cut(self.q_len, number, of), _cut(self.q_len, number + 1, of)
        if not varies(self.batch) and self.batch != 1:
            share: Any = self.batch / of
            return replace(self, batch=share)
        alone: Any = self.batch == 1
        pairs = (
            # of a lone prompt, and of several
            (1, self.batch / of),
            (end - start, self.q_len),
            (self.kv_len - self.q_len + end, self.kv_len),
            (self.kv_len, 0),
        )
        batch, q_len, kv_len, whole = (np.where(alone, *pair) if varies(alone) else pair[0] for pair in pairs)
        return replace(self, batch=batch, q_len=q_len, kv_len=kv_len, whole_kv_len=whole)


def _same(sizes: tuple[Any, ...]) -> Hashable:
    return tuple(id(size) if varies(size) else size for size in sizes)


def _cut(tokens: Any, number: int, of: int) -> Any:
    """Return the token at which a part of a prompt begins: the first of a tile, if every part fills one."""
    if number == of:
        return tokens
    tile, even, has_tile = (
        tokens * number // (of * TILE_ROWS) * TILE_ROWS,
        tokens * number // of,
        tokens >= of * TILE_ROWS,
    )
    if varies(tokens):
        return np.where(has_tile, tile, even)
    return tile if has_tile else even
