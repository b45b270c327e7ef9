"""What every block of a decoder layer says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from ladder_sim.hf.quantization import DType, LayerPart


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBase:
    """A block of a decoder layer: what ranks share and keep of a sequence, and the formats of its weights."""

    PARTS: ClassVar[tuple[LayerPart, ...]] = ("qkv", "out")
    formats: tuple[tuple[LayerPart, DType], ...] = ()
    """Parts that its checkpoint stores in another format than most of its weights, each with the format."""

    def stored(self, formats: Mapping[LayerPart, DType]) -> Self:
        """Return the block in a checkpoint that stores these parts of its layer in formats of their own."""
        return replace(self, formats=tuple((part, formats[part]) for part in self.PARTS if part in formats))

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        """Return pairs of a window and the elements that a token keeps on each of `tp` ranks, replicas included."""
        return ()

    def state_bytes(self, tp: int) -> float:
        """Return the bytes of a sequence's recurrent states on each of `tp` ranks."""
        return 0.0

    def partition_problem(self, tp: int) -> str:
        """Say why `tp` ranks cannot share it; empty if they can."""
        return ""

    def expert_problem(self, ep: int, tp: int) -> str:
        """Say why routed experts cannot be split `ep` ways, and each of them over `tp` ranks; empty if they can."""
        return ""
