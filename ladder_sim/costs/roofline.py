"""The ideal time of one op on one GPU: a kernel's floor plus the slower of arithmetic and memory traffic.

Shapes and hardware figures may be arrays that broadcast, so thousands of shapes or thousands of GPUs are one call.
Measured tables hold ratios to this time (see `ladder_sim.costs.lookup`): what it leaves out is in the ratio, as long as
the same function makes the ratio and undoes it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.des.shared import Floats, Number, any_true
from ladder_sim.graph.ops import AttentionShape, GemmShape, Shape
from ladder_sim.specs.cluster import GpuSpec

Kind = Literal["gemm", "attention_prefill", "attention_decode"]
# axes of each kind of table; group is query heads per KV head
AXES: Mapping[Kind, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch_kv_heads", "group", "q_len", "head_dim"),
    "attention_decode": ("batch_kv_heads", "group", "kv_len", "head_dim"),
}

# bytes per element of every operand, by the dtypes that tables come in
ELEMENT_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The figures of one GPU that its kernels' times depend on; numbers, or arrays of one value per configuration."""

    bf16_flops: Number
    """Dense tensor-core peak, FLOP/s."""
    fp8_flops: Number
    """The same for fp8; equal to bf16 where the GPU has no fp8."""
    hbm_bandwidth_Bps: Number
    """Device memory bandwidth, bytes/s."""
    kernel_s: Number
    """Floor of one small kernel, seconds."""

    @classmethod
    def of(cls, spec: GpuSpec) -> Self:
        """The figures of a spec."""
        return cls(**{name: getattr(spec, name) for name in GPU_FIGURES})

    def same_as(self, other: "Gpu") -> bool:
        """Equal in every figure; an array that varies equals no single figure."""
        return not any(any_true(getattr(self, name) != getattr(other, name)) for name in GPU_FIGURES)

    def peak_flops(self, shape: Shape) -> Number:
        """Peak FLOP/s for the dtype of an op's operands."""
        return self.fp8_flops if dtype_of(shape) == "fp8" else self.bf16_flops


# their names, once: asking a dataclass for its fields takes microseconds
GPU_FIGURES = tuple(field.name for field in dataclasses.fields(Gpu))


def dtype_of(shape: Shape) -> Literal["bf16", "fp8"]:
    """Which of a GPU's peaks and which table an op's operands belong to."""
    if isinstance(shape, GemmShape):
        return "fp8" if shape.weight_element_bytes == 1 else "bf16"
    return "fp8" if isinstance(shape, AttentionShape) and shape.element_bytes == 1 else "bf16"


def roofline_s(shape: Shape, gpu: Gpu) -> Floats:
    """Ideal time of an op, seconds, in the broadcast shape of its sizes and the GPU's figures.

    Examples
    --------
    >>> gpu = Gpu(bf16_flops=1e15, fp8_flops=2e15, hbm_bandwidth_Bps=1e12, kernel_s=0.0)
    >>> float(roofline_s(table_shape("gemm", "bf16", {"m": 1, "n": 8192, "k": 8192}), gpu)) * 1e6
    134.250496
    """
    seconds: Floats = gpu.kernel_s + np.maximum(
        shape.flops / gpu.peak_flops(shape), shape.moved_bytes / gpu.hbm_bandwidth_Bps
    )
    return seconds


def table_key(shape: Shape) -> tuple[Kind, str] | None:
    """Kind and dtype of the table that holds a shape; None if tables do not hold such ops."""
    if isinstance(shape, GemmShape):
        return "gemm", dtype_of(shape)
    if isinstance(shape, AttentionShape) and shape.kernel == "flash":
        return "attention_prefill" if shape.is_prompt else "attention_decode", dtype_of(shape)
    return None


def coordinates(shape: GemmShape | AttentionShape) -> dict[str, ArrayLike]:
    """A shape's coordinates in its table.

    Work and traffic of attention depend on batch x heads alone; a prompt's has no earlier context.
    """
    if isinstance(shape, GemmShape):
        return {"m": shape.m, "n": shape.n, "k": shape.k}
    length = {"q_len": shape.q_len} if shape.is_prompt else {"kv_len": shape.kv_len}
    heads = {"batch_kv_heads": shape.batch * shape.kv_heads, "group": shape.heads / shape.kv_heads}
    return {**heads, **length, "head_dim": shape.head_dim}


def table_shape(kind: Kind, dtype: str, point: Mapping[str, ArrayLike]) -> Shape:
    """The op at a table's coordinates, which may be arrays; every operand is of the table's dtype."""
    sizes: list[Any] = [np.asarray(point[name], np.float64) for name in AXES[kind]]
    element_bytes = ELEMENT_BYTES[dtype]
    if kind == "gemm":
        m, n, k = sizes
        operands = dict.fromkeys(("weight_element_bytes", "input_element_bytes", "output_element_bytes"), element_bytes)
        return GemmShape(m=m, n=n, k=k, **operands)
    kv_heads, group, length, head_dim = sizes
    # one sequence of all the batch's heads stands for the batch
    return AttentionShape(
        kernel="flash",
        batch=1,
        q_len=length if kind == "attention_prefill" else 1,
        kv_len=length,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        element_bytes=element_bytes,
    )
