"""Messages between ranks."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from ladder_sim.kernels.shape import Shape, Sizes, Work
from ladder_sim.units import format_bytes

# whose ranks take part: a tensor-parallel group, those of the same position in all such groups of a stage, which share
# its experts, or two stages
Group = Literal["tensor", "experts", "stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveShape(Shape):
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
    def work(self) -> Work:
        """Message, read and written once in device memory."""
        return Work(2.0 * self.message_bytes)

    @property
    def label(self) -> str:
        return format_bytes(self.message_bytes)

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        return replace(self, message_bytes=rows * self.message_bytes / sizes.smallest)
