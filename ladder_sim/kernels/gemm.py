"""Multiplication of activations by weights: linear layers, and projections of each head by itself."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np

from ladder_sim.des.shared import Number
from ladder_sim.kernels.machine import GEMM_FORMATS, Machine
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, Shape, Sizes, TableKind, Work, count_text
from ladder_sim.specs.workload import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication(Shape):
    """A kernel that multiplies activations by weights; what it returns has 16 bits in every format."""

    on_tensor_cores: ClassVar[bool] = True

    format: str = "bf16"
    """Format of the operands, by `ladder_sim.specs.workload.Format.name`."""

    @property
    def operands(self) -> Format:
        """Bytes of a weight and of an input."""
        return GEMM_FORMATS[self.format]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixMultiplication(Multiplication):
    """Rows of tokens times matrices of weights."""

    m: int
    """Tokens."""
    n: int
    """Output features."""
    k: int
    """Input features."""

    @property
    def rows(self) -> Any:
        return self.m

    def stack_factor(self, machine: Machine, *, tabled: bool) -> Number:
        """Return the factor of one row, of several that are memory bound, or of prompts, which are compute bound."""
        gpu, stack = machine.gpu, machine.stack
        if isinstance(self.m, int) and self.m == 1:
            return stack.gemv_factor
        work = self.work
        memory_bound = self.arithmetic_s(gpu, work) < work.moved_bytes / gpu.hbm_bandwidth_Bps
        if isinstance(memory_bound, bool):
            return stack.gemm_factor if memory_bound else stack.prompt_factor
        several = np.where(memory_bound, stack.gemm_factor, stack.prompt_factor)
        return np.where(np.asarray(self.m) == 1, stack.gemv_factor, several)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape(MatrixMultiplication):
    """``[m, k] @ [k, n]``: a linear layer's shard over m tokens."""

    tables: ClassVar = (TableKind("gemm", "gemm", ("m", "n", "k"), lambda of, **sizes: GemmShape(format=of, **sizes)),)

    chunks: int = 1
    """Kernels, one after another, each with its part of the rows."""
    duty: float = 0.0
    """Share of the time in which the GPU multiplies as much as here: prompts are compute bound, decode is not."""

    @property
    def rows(self) -> Any:
        return self.m / self.chunks if self.chunks > 1 else self.m

    @property
    def work(self) -> Work:
        """Activations are read or written once, weights read by each of the kernels."""
        stored = 1.0 * self.n * self.k * self.operands.weight_bytes
        read = 1.0 * self.m * self.k * self.operands.activation_bytes
        written = 1.0 * self.m * self.n * STATE_BYTES
        return Work(self.chunks * stored + read + written, 2.0 * self.m * self.n * self.k, stored)

    @property
    def label(self) -> str:
        return f"{count_text(self.m)} x {self.k} x {self.n}, {self.format}"

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        # written out: `replace` takes several times as long, and there are many of them
        return type(self)(
            m=rows,
            n=self.n,
            k=self.k,
            format=self.format,
            chunks=self.chunks,
            duty=cast(float, sizes.duty),
        )

    @property
    def lookup(self) -> Lookup:
        """Where tables hold one of its chunks."""
        return Lookup("gemm", self.format, {"m": self.rows, "n": self.n, "k": self.k}, times=self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class BmmShape(MatrixMultiplication):
    """``[heads, m, k] @ [heads, k, n]``: a projection of each head by itself, as into and out of the latent space."""

    tables: ClassVar = (
        TableKind(
            "bmm",
            "latent projections",
            ("heads", "m", "n", "k"),
            lambda of, **sizes: BmmShape(format=of, input_bytes=GEMM_FORMATS[of].activation_bytes, **sizes),
            stand_ins={"fp8-block": "fp8"},
        ),
    )

    heads: int
    """Heads on this rank."""
    input_bytes: float = STATE_BYTES
    """Bytes of one input: tables have them in the format of the weights, models in 16 bits."""

    @property
    def work(self) -> Work:
        """Weights and activations are read or written once."""
        stored, rows = 1.0 * self.heads * self.n * self.k * self.operands.weight_bytes, 1.0 * self.heads * self.m
        moved = stored + rows * (self.k * self.input_bytes + self.n * STATE_BYTES)
        return Work(moved, 2.0 * self.heads * self.m * self.n * self.k, stored)

    @property
    def label(self) -> str:
        return f"{self.heads} heads, {count_text(self.m)} x {self.k} x {self.n}, {self.format}"

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        # single new tokens alone: those of prompts are expanded instead
        new: Any = sizes.batch * sizes.q_len
        return replace(self, m=new)

    @property
    def lookup(self) -> Lookup:
        return Lookup("bmm", self.format, {"heads": self.heads, "m": self.m, "n": self.n, "k": self.k})
