"""Kernels of one pass over activations: norms, rotary embeddings, activations, sums, lookups, quantisation."""

from dataclasses import dataclass, field
from typing import Any, Self

from ladder_sim.des.shared import Number
from ladder_sim.kernels.machine import Machine
from ladder_sim.kernels.shape import Shape, Sizes, Work


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
