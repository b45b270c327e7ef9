"""Multiplication of activations by weights: linear layers, projections of each head by itself, routed experts."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np

from ladder_sim.des.shared import Number, number
from ladder_sim.hf.quantization import FP8_BLOCK
from ladder_sim.kernels.shape import (
    GEMM_FORMATS,
    STATE_BYTES,
    Experts,
    Gpu,
    Lookup,
    Machine,
    Shape,
    Sizes,
    TableKind,
    Work,
    count_text,
)
from ladder_sim.specs.workload import Format, Imbalance


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
            m=rows, n=self.n, k=self.k, format=self.format, chunks=self.chunks, duty=cast(float, sizes.duty)
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


# rows to a multiple of which DeepGEMM's contiguous layout pads the tokens of every expert of a rank (vLLM 0.12.0,
# fused_moe/deep_gemm_utils.py, compute_aligned_M)
PADDING = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape(Multiplication):
    """The routed experts of one layer, on the rank of their group that takes longest.

    Gate and up, activation, down, the sorting of tokens by expert before and their weighted sum after; no messages.
    """

    tables: ClassVar = (
        TableKind(
            "moe", "experts", ("expert_tp", "ep", "tokens"), lambda of, **sizes: MoeShape(**of._asdict(), **sizes)
        ),
    )

    # several of one token where ranks with tokens of their own meet in one group of experts
    grows: ClassVar = "tokens"

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
    def launches(self) -> int:
        """Tokens sorted by expert, gate and up, activation, down, sum."""
        return 5

    @property
    def work(self) -> Work:
        """Weights of the experts that any token takes, and activations, if every rank has as much to do.

        What several experts return for a token is written, and read again for the sum.
        """
        width = self.width / self.expert_tp
        # of a rank, with tokens spread evenly
        taken: Any = self.experts / self.ep * (1.0 - (1.0 - self.top_k / self.experts) ** self.tokens)
        weights = 3.0 * taken * self.hidden * width * self.operands.weight_bytes
        ends = 1.0 * self.tokens * self.hidden * (self.operands.activation_bytes + STATE_BYTES)
        inner = 3.0 * width + (2.0 * self.hidden if self.top_k > 1 else 0.0)
        moved = weights + ends + self.tokens * self.top_k / self.ep * inner * STATE_BYTES
        return Work(moved, 6.0 * self.tokens * self.top_k / self.ep * self.hidden * self.width / self.expert_tp)

    @property
    def rows(self) -> Any:
        """Tokens: where there are several, experts have several on average."""
        return self.tokens

    @property
    def label(self) -> str:
        routed = f"{self.top_k} of {self.experts} x {self.width}"
        split = f", EP {self.ep}" if self.ep > 1 else ""
        return f"{count_text(self.tokens)} x {self.hidden}, {routed}{split}, {self.format}"

    @property
    def lookup(self) -> Lookup:
        """Where tables hold it, as if the ranks shared whole experts where a part of one ends within a block of scales.

        No engine has a kernel for that, and no table has it (192 of MiniMax-M2.5's 1536 on 8 ranks): whole experts have
        as many weights. 54 measured servings of vLLM on 8 H200s fit that.
        """
        splits_blocks = self.format == "fp8-block" and self.width // self.expert_tp % FP8_BLOCK > 0
        expert_tp, ep = (1, self.expert_tp * self.ep) if splits_blocks else (self.expert_tp, self.ep)
        of = Experts(*(getattr(self, name) for name in Experts._fields))
        return Lookup("moe", of, {"expert_tp": expert_tp, "ep": ep, "tokens": self.tokens}, carried_over=splits_blocks)

    def least_s(self, gpu: Gpu) -> Number:
        """Return 0: how many tokens each expert has is a guess, and so are work and traffic."""
        return 0.0

    def engine_s(self, machine: Machine) -> Number | None:
        """Return the seconds of experts whose tokens an engine pads, and of the kernels around their two GEMMs."""
        if not machine.padded_share or self.format != "fp8-block":
            return None
        experts, width = self.experts / self.ep, self.width / self.expert_tp
        rows: Any = self.tokens * self.top_k / self.ep + experts * (PADDING - 1)
        rows = np.ceil(rows / PADDING) * PADDING
        flops = 6.0 * rows * self.hidden * width
        moved_bytes = rows * (2.0 * self.hidden + 3.0 * width) * STATE_BYTES
        multiplied_s = flops / (machine.padded_share * machine.gpu.peak_flops(self.format))
        return number(multiplied_s + machine.traffic_s(moved_bytes) + (self.launches + 1) * machine.floor_s)
