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
from ladder_sim.graph.build import STATE_BYTES
from ladder_sim.graph.ops import AttentionShape, GemmShape, Shape
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Format, TensorCores

Kind = Literal["gemm", "attention_prefill", "attention_decode"]
# axes of each kind of table; group is query heads per KV head
AXES: Mapping[Kind, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch_kv_heads", "group", "q_len", "head_dim"),
    "attention_decode": ("batch_kv_heads", "group", "kv_len", "head_dim"),
}

# formats that tables of GEMMs come in, and types of the KV cache that those of attention come in
GEMM_FORMATS: Mapping[str, Format] = {each.name: each for each in FORMATS.values() if not each.quantizes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The figures of one GPU that its kernels' times depend on; numbers, or arrays of one value per configuration."""

    bf16_flops: Number
    """Dense tensor-core peak, FLOP/s."""
    fp8_flops: Number
    """The same for fp8; equal to bf16 where the GPU has no fp8."""
    fp4_flops: Number
    """The same for 4-bit floating point, likewise."""
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
        """Peak FLOP/s of the tensor cores that an op runs on."""
        if not isinstance(shape, GemmShape):
            return self.bf16_flops
        peaks: dict[TensorCores, Number] = {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops}
        return peaks[GEMM_FORMATS[shape.format].tensor_cores]


# their names, once: asking a dataclass for its fields takes microseconds
GPU_FIGURES = tuple(field.name for field in dataclasses.fields(Gpu))


def roofline_s(shape: Shape, gpu: Gpu) -> Floats:
    """Ideal time of an op, seconds, in the broadcast shape of its sizes and the GPU's figures.

    Examples
    --------
    >>> gpu = Gpu(bf16_flops=1e15, fp8_flops=2e15, fp4_flops=4e15, hbm_bandwidth_Bps=1e12, kernel_s=0.0)
    >>> float(roofline_s(table_shape("gemm", "bf16", {"m": 1, "n": 8192, "k": 8192}), gpu)) * 1e6
    134.250496
    """
    seconds: Floats = gpu.kernel_s + np.maximum(
        shape.flops / gpu.peak_flops(shape), shape.moved_bytes / gpu.hbm_bandwidth_Bps
    )
    return seconds


def table_key(shape: Shape) -> tuple[Kind, str] | None:
    """Kind of the table that holds a shape, and its format or type of KV cache; None if tables do not hold such ops."""
    if isinstance(shape, GemmShape):
        return "gemm", shape.format
    if isinstance(shape, AttentionShape) and shape.kernel == "flash":
        cache = "fp8" if shape.kv_element_bytes == KV_BYTES["fp8"] else "bf16"
        return "attention_prefill" if shape.is_prompt else "attention_decode", cache
    return None


def coordinates(shape: GemmShape | AttentionShape) -> dict[str, ArrayLike]:
    """A shape's coordinates in its table.

    Work and traffic of attention depend on batch x heads alone; a prompt's has no earlier context. A chunk of a prompt
    is looked up as the whole prompt, of whose time it takes its share.
    """
    if isinstance(shape, GemmShape):
        return {"m": shape.m, "n": shape.n, "k": shape.k}
    length = {"q_len": prompt_len(shape)} if shape.is_prompt else {"kv_len": shape.kv_len}
    heads = {"batch_kv_heads": shape.batch * shape.kv_heads, "group": shape.heads / shape.kv_heads}
    return {**heads, **length, "head_dim": shape.head_dim}


def prompt_len(shape: AttentionShape) -> Any:
    """Tokens of the prompts whose average chunk a shape is; without earlier context its own new tokens."""
    return 2 * shape.kv_len - shape.q_len if shape.shares_step else shape.q_len


def table_shape(kind: Kind, dtype: str, point: Mapping[str, ArrayLike]) -> Shape:
    """The op at a table's coordinates, which may be arrays; `dtype` is the table's format or type of KV cache."""
    sizes: list[Any] = [np.asarray(point[name], np.float64) for name in AXES[kind]]
    if kind == "gemm":
        m, n, k = sizes
        own = GEMM_FORMATS[dtype]
        return GemmShape(
            m=m,
            n=n,
            k=k,
            weight_element_bytes=own.weight_bytes,
            input_element_bytes=own.activation_bytes,
            output_element_bytes=STATE_BYTES,
            format=own.name,
        )
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
        element_bytes=STATE_BYTES,
        kv_element_bytes=KV_BYTES["fp8" if dtype == "fp8" else "bf16"],
    )
