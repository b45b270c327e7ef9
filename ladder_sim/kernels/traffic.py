"""What moves bytes and multiplies nothing: norms, rotary embeddings, sums, the choice of tokens, messages of ranks."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ladder_sim.des.shared import Number
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, Machine, Shape, TableKind, Work
from ladder_sim.specs.stack import Sampling
from ladder_sim.units import format_bytes

# whose ranks take part: a tensor-parallel group, those of the same position in all such groups of a stage, which share
# its experts, or two stages
Group = Literal["tensor", "experts", "stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveShape(Shape):
    """A message between ranks."""

    grows: ClassVar = "message_bytes"
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
    def work(self) -> Work:
        """Message, read and written once in device memory."""
        return Work(2.0 * self.message_bytes)

    @property
    def label(self) -> str:
        return format_bytes(self.message_bytes)


# floors of kernels that torch.compile writes, as multiples of a small kernel's. Medians of 38 pointwise kernels and 24
# norms on an H100 are 1.75 and 3.39 us, of 2.5; 0.45 us of each are the gap ahead of it (tests/data/h100_beside)
POINTWISE_FLOOR, NORM_FLOOR = 0.70, 1.36


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseShape(Shape):
    """A memory-bound kernel: norm, rotary embedding, activation, add, lookup."""

    grows: ClassVar = "moved_bytes"
    moved_bytes: float = field()
    """Read and written, bytes."""
    normalises: bool = False
    """Whether it sums over each row before it writes."""

    @property
    def work(self) -> Work:
        return Work(self.moved_bytes)

    def floor_s(self, machine: Machine) -> Number:
        if not machine.compiled:
            return machine.floor_s
        return machine.floor_s * (NORM_FLOOR if self.normalises else POINTWISE_FLOOR)


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
        TableKind("sample", "sampling", ("batch", "vocab"), lambda _, **sizes: SampleShape(**sizes), has_formula=True),
    )

    grows: ClassVar = "batch"
    per_sequence: ClassVar = True

    batch: float
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
    def lookup(self) -> Lookup:
        return Lookup("sample", self.sampling, {"batch": self.batch, "vocab": self.vocab})

    def untabled_s(self, machine: Machine) -> Number:
        """Return the seconds of choosing among the most likely tokens, or of the greedy choice."""
        if self.sampling != "top-k":
            return Shape.untabled_s(self, machine)
        row_s = TOP_K_LOGIT_S * self.vocab * -(-self.batch // machine.sms)
        return TOP_K_KERNELS * machine.floor_s + row_s + machine.traffic_s(TOP_K_BYTES * self.batch * self.vocab)
