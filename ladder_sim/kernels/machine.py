"""What the time of a kernel depends on apart from the kernel: figures of the GPU and of the engine that runs on it.

Each is a number, or an array of one value per configuration.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ladder_sim.des.shared import Number, any_true
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.workload import FORMATS, Format, TensorCores

# formats that kernels multiply in, by name
GEMM_FORMATS: Mapping[str, Format] = {each.name: each for each in FORMATS.values() if not each.quantizes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The figures of one GPU that its kernels' times depend on."""

    # as in `GpuSpec`
    bf16_flops: Number
    fp8_flops: Number
    fp4_flops: Number
    hbm_bandwidth_Bps: Number
    kernel_s: Number

    @classmethod
    def of(cls, spec: GpuSpec) -> Self:
        return cls(**{name: getattr(spec, name) for name in GPU_FIGURES})

    def same_as(self, other: "Gpu") -> bool:
        """Say whether every figure is equal; an array that varies equals no single figure."""
        return not any(any_true(getattr(self, name) != getattr(other, name)) for name in GPU_FIGURES)

    def over(self, stated: GpuSpec, reference: "Gpu") -> "Gpu":
        """Return the figures of this GPU with which rooflines of tables are drawn that were measured on another.

        Ratios of tables belong to the figures `reference`. The `stated` ones of that GPU may be rounded otherwise, so
        this GPU's enter relative to them.
        """
        relative = {name: getattr(self, name) / getattr(stated, name) for name in GPU_FIGURES}
        return Gpu(**{name: getattr(reference, name) * ratio for name, ratio in relative.items()})

    def peak_flops(self, format: str) -> Number:
        """Return the peak FLOP/s of the tensor cores that multiply operands of a format."""
        peaks: dict[TensorCores, Number] = {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops}
        return peaks[GEMM_FORMATS[format].tensor_cores]


# names of a GPU's figures, once: asking a dataclass for its fields takes microseconds
GPU_FIGURES = tuple(field.name for field in dataclasses.fields(Gpu))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """What the inference engine adds to each op."""

    # as in `StackSpec`
    collective_launch_s: Number
    stream_wait_s: Number
    eager_launch_s: Number
    host_request_s: Number
    host_rank_s: Number
    host_state_s: Number
    frontend_s: Number
    frontend_steps: Number
    frontend_token_s: Number
    quantize_s: Number
    sustained_rate: Number
    """Share of their cold rate that GEMMs keep up over long prompts, limited by power; 1 or more: no limit."""
    kernel_gap_s: Number = 0.0
    """Idle time before each kernel beyond what the tables hold, seconds; 0: not measured."""
    graph_launch_s: Number = 0.0
    """CPU time from deciding to run a CUDA graph to its first kernel, seconds; 0: not measured."""
    kernel_factor: Number = 1.0
    """Time of every kernel, as a multiple of what all else says."""
    collective_factor: Number = 1.0
    """Time of every collective, as a multiple of what all else says."""
    gemv_factor: Number = 1.0
    """Time of a one-row GEMM, as a multiple of the table's."""
    gemm_factor: Number = 1.0
    """Time of a memory-bound GEMM of several rows, as a multiple of the table's."""
    prompt_factor: Number = 1.0
    """Time of a compute-bound GEMM and of attention over a prompt, as a multiple of the table's."""
    attention_factor: Number = 1.0
    """Time of decode attention's memory traffic, as a multiple of the table's."""
    small_kernel_factor: Number = 1.0
    """Floor of a small kernel, as a multiple of the GPU's."""
    batched_attention_s: Number = 10e-6
    """Fixed time that math attention of several sequences takes beyond one sequence's, seconds: four kernels of 2.5 us
    (cache update, expansion and layout of heads, which one sequence fuses away)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """A GPU with an engine on it."""

    gpu: Gpu
    stack: Stack
    sms: int
    """Streaming multiprocessors of the GPU."""
    memory_efficiency: float
    """Share of the memory's bandwidth that memory-bound kernels reach."""
    padded_share: float
    """As `StackSpec.padded_share`; 0: the engine does not pad the tokens of experts on this GPU."""

    @property
    def floor_s(self) -> Number:
        """Seconds of a small kernel of the engine."""
        return self.stack.small_kernel_factor * self.gpu.kernel_s

    def traffic_s(self, moved_bytes: Number) -> Number:
        """Return the seconds of memory traffic at the rate that memory-bound kernels reach."""
        return moved_bytes / (self.memory_efficiency * self.gpu.hbm_bandwidth_Bps)
