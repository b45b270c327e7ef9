"""The routed experts of a layer."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ladder_sim.des.shared import Number, number
from ladder_sim.hf.quantization import FP8_BLOCK
from ladder_sim.kernels.gemm import Multiplication
from ladder_sim.kernels.machine import Gpu, Machine
from ladder_sim.kernels.shape import STATE_BYTES, Experts, Lookup, Sizes, TableKind, Work, count_text
from ladder_sim.specs.workload import Imbalance

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
    launches: ClassVar[int] = 5
    """Tokens sorted by expert, gate and up, activation, down, sum."""

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

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        # several where ranks with tokens of their own meet in one group of experts
        return replace(self, tokens=rows * self.tokens / sizes.smallest)

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
