"""Kernels of one pass over activations: norms, rotary embeddings, sums, lookups, quantisation, choice of tokens."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ladder_sim.des.shared import Number
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, Machine, Shape, Sizes, TableKind, Work
from ladder_sim.specs.stack import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseShape(Shape):
    """A memory-bound kernel: norm, rotary embedding, activation, add, lookup."""

    moved_bytes: float = field()
    """Read and written, bytes."""

    @property
    def work(self) -> Work:
        return Work(self.moved_bytes)

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        return type(self)(moved_bytes=rows * self.moved_bytes / sizes.smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeShape(ElementwiseShape):
    """Quantisation of the activations in front of a GEMM."""

    def floor_s(self, machine: Machine) -> Number:
        return machine.floor_s + machine.stack.quantize_s


# Choosing among the 200 most likely tokens as gpt-fast does, compiled: 23 kernels. Some of them read a row of logits by
# one block, at 1.3 G logits/s together, and all move 43 bytes a logit. Chosen on a Hopper GPU, batch 1 to 256 and
# vocabularies of 32,000 and 128,256, which they meet within 6 % (tests/data/sampling_h200.csv)
TOP_K_KERNELS, TOP_K_LOGIT_S, TOP_K_BYTES = 23, 0.765e-9, 43.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape(Shape):
    """The choice of each sequence's next token, of all logits: a memory-bound kernel if greedy."""

    tables: ClassVar = (
        TableKind(
            "sample",
            "sampling",
            ("batch", "vocab"),
            lambda _, **sizes: SampleShape(**sizes),
            has_formula=True,
        ),
    )

    batch: int
    """Sequences."""
    vocab: int
    """Logits of each."""
    sampling: Sampling = "greedy"
    """How it is chosen."""

    @property
    def work(self) -> Work:
        """Logits, read once."""
        return Work(1.0 * self.batch * self.vocab * STATE_BYTES)

    @property
    def per_sequence(self) -> bool:
        return True

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        return replace(self, batch=rows)

    @property
    def lookup(self) -> Lookup:
        return Lookup("sample", self.sampling, {"batch": self.batch, "vocab": self.vocab})

    def untabled_s(self, machine: Machine) -> Number:
        """Return the seconds of choosing among the most likely tokens, or of the greedy choice."""
        if self.sampling != "top-k":
            return Shape.untabled_s(self, machine)
        row_s = TOP_K_LOGIT_S * self.vocab * -(-self.batch // machine.sms)
        return TOP_K_KERNELS * machine.floor_s + row_s + machine.traffic_s(TOP_K_BYTES * self.batch * self.vocab)
