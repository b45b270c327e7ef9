"""The kernels of one block, from the norm in front of it to its output: once for all layers that have it."""

from collections.abc import Sequence
from typing import NamedTuple

from ladder_sim.graph.ops import CollectiveKind, Op, OpKind, RankPass
from ladder_sim.kernels import STATE_BYTES, CollectiveShape, ElementwiseShape, GemmShape, Group, QuantizeShape, Shape
from ladder_sim.specs.workload import Format

# position of what a block starts from
NORM = -1


class Kernel(NamedTuple):
    """One op of a block."""

    name: str
    """In the block."""
    kind: OpKind
    after: tuple[int, ...]
    """Positions in the block of those that it needs; `NORM`: the norm in front of the block."""
    next_to: int = NORM
    """Position of the kernel during which this one and its like run, on a stream of their own; the time that they last
    longer counts; `NORM` if there is none."""


class BlockStructure(NamedTuple):
    """What the order of a block's kernels depends on: all but their sizes."""

    kernels: tuple[Kernel, ...]
    """In issue order."""
    output: int
    """Position of the one that makes the block's output."""
    shared: int = NORM
    """Position of the kernel whose output is added to the block's output when that is joined, or `NORM`."""
    own: int = NORM
    """Position of the kernel that makes the rank's own part, if the block exchanges parts itself; else `NORM`."""


class BlockKernels:
    """The kernels of a block of one rank; each method appends one and returns its position."""

    def __init__(self, rank: RankPass, part: str) -> None:
        self.rank, self.part = rank, part
        self.kernels: list[Kernel] = []
        self.ops: list[Op] = []

        # as in `Kernel`, of those that are appended
        self.next_to = NORM

        # as in `BlockStructure`
        self.output = self.shared = self.own = NORM

    @property
    def structure(self) -> BlockStructure:
        """What is the same for any size."""
        return BlockStructure(tuple(self.kernels), self.output, self.shared, self.own)

    def op(self, name: str, kind: OpKind, shape: Shape, after: Sequence[int], *, weights: float = 0.0) -> int:
        """Add a kernel; `weights` are the bytes that it holds in memory."""
        self.kernels.append(Kernel(name, kind, tuple(after), self.next_to))
        self.ops.append(Op(name=f"layer.{self.part}.{name}", kind=kind, shape=shape, weight_bytes=weights))
        return len(self.ops) - 1

    def elementwise(self, name: str, kind: OpKind, moved: float, after: Sequence[int], weights: float = 0.0) -> int:
        """Add a memory-bound kernel that moves `moved` bytes; return its number."""
        shape = ElementwiseShape(moved_bytes=moved, normalises=kind == "norm")
        return self.op(name, kind, shape, after, weights=weights)

    def collective(
        self, name: str, kind: CollectiveKind, message: float, after: Sequence[int], group: Group = "tensor"
    ) -> int:
        """Add a collective of a `message` in bytes between the ranks of a group; return its number."""
        return self.op(name, kind, CollectiveShape(message_bytes=message, group=group), after)

    def linear(
        self,
        name: str,
        n: int,
        k: int,
        after: Sequence[int],
        *,
        format: Format,
        bias: int = 0,
        kind: OpKind = "gemm",
        tokens: int | None = None,
        held: bool = True,
    ) -> int:
        """Add a linear layer of all tokens or of `tokens`, its input quantised if need be; return its number."""
        rank = self.rank
        shape = GemmShape(m=rank.tokens if tokens is None else tokens, n=n, k=k, duty=rank.duty, format=format.name)
        if format.quantizes:
            moved = float(rank.tokens) * k * rank.stack.quantize_element_bytes
            after = [self.op(f"{name}_quantize", "quantize", QuantizeShape(moved_bytes=moved), after)]
        weights = float(n) * k * format.weight_bytes + bias * STATE_BYTES if held else 0.0
        return self.op(name, kind, shape, after, weights=weights)
