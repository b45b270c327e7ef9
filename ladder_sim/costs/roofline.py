"""The ideal time of one op on one GPU: a kernel's floor plus the slower of arithmetic and memory traffic.

Shapes and hardware figures may be arrays that broadcast, so thousands of shapes or thousands of GPUs are one call.
Measured tables hold ratios to this time (see `ladder_sim.costs.lookup`): what it leaves out is in the ratio, as long as
the same function makes the ratio and undoes it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.des.shared import Floats, Number, any_true
from ladder_sim.graph.shapes import (
    AttentionShape,
    BmmShape,
    CachedAttention,
    GemmShape,
    MlaShape,
    MoeShape,
    Multiplication,
    SampleShape,
    Shape,
)
from ladder_sim.graph.sizes import STATE_BYTES, operands
from ladder_sim.hf.quantization import FP8_BLOCK
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.stack import AttentionKernel
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Format, Imbalance, TensorCores

Kind = Literal[
    "gemm",
    "attention_prefill",
    "attention_decode",
    "math_attention_decode",
    "sample",
    "moe",
    "mla_prefill",
    "mla_decode",
    "bmm",
]
# axes of each kind of table; group is query heads per KV head
AXES: Mapping[Kind, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch_kv_heads", "group", "q_len", "head_dim"),
    "attention_decode": ("batch_kv_heads", "group", "kv_len", "head_dim"),
    "math_attention_decode": ("batch_kv_heads", "group", "kv_len", "head_dim"),
    "sample": ("batch", "vocab"),
    "moe": ("expert_tp", "ep", "tokens"),
    "mla_prefill": ("batch_heads", "q_len", "nope", "rope", "value"),
    "mla_decode": ("batch", "heads", "kv_len", "latent", "rope"),
    "bmm": ("heads", "m", "n", "k"),
}

# of kinds of tables of attention: where profiles hold them, phase and kernel
ATTENTION: Mapping[Kind, tuple[str, AttentionKernel]] = {
    "attention_prefill": ("attention_prefill", "flash"),
    "attention_decode": ("attention_decode", "flash"),
    "math_attention_decode": ("attention_decode", "math"),
}

# kernels of the experts of one layer: tokens sorted by expert, gate and up, activation, down, sum
MOE_KERNELS = 5

# formats that tables of GEMMs and experts come in, and types of the KV cache that those of attention come in
GEMM_FORMATS: Mapping[str, Format] = {each.name: each for each in FORMATS.values() if not each.quantizes}


class Experts(NamedTuple):
    """What a table of experts was measured for: the layer, the format, and how unevenly tokens choose."""

    format: str
    """Format of the operands, by `ladder_sim.specs.workload.Format.name`."""

    # as in `MoeShape`
    hidden: int
    width: int
    experts: int
    top_k: int
    imbalance: Imbalance = "power-law-1.01"


# what tables of one kind are told apart by: the layer of experts, the format, the type of the KV cache, or how tokens
# are chosen
TableOf = str | Experts
TabledShape = GemmShape | AttentionShape | MoeShape | MlaShape | BmmShape | SampleShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The figures of one GPU that its kernels' times depend on; numbers, or arrays of one value per configuration."""

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

    def peak_flops(self, shape: Shape) -> Number:
        """Return the peak FLOP/s of the tensor cores that an op runs on."""
        if not isinstance(shape, Multiplication):
            return self.bf16_flops
        peaks: dict[TensorCores, Number] = {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops}
        return peaks[GEMM_FORMATS[shape.format].tensor_cores]


# their names, once: asking a dataclass for its fields takes microseconds
GPU_FIGURES = tuple(field.name for field in dataclasses.fields(Gpu))


def roofline_s(shape: Shape, gpu: Gpu) -> Floats:
    """Return the ideal time of an op, seconds, in the broadcast shape of its sizes and the GPU's figures.

    Examples
    --------
    >>> gpu = Gpu(bf16_flops=1e15, fp8_flops=2e15, fp4_flops=4e15, hbm_bandwidth_Bps=1e12, kernel_s=0.0)
    >>> float(roofline_s(table_shape("gemm", "bf16", {"m": 1, "n": 8192, "k": 8192}), gpu)) * 1e6
    134.250496
    """
    seconds: Floats = (MOE_KERNELS if isinstance(shape, MoeShape) else 1) * gpu.kernel_s + np.maximum(
        shape.flops / gpu.peak_flops(shape), shape.moved_bytes / gpu.hbm_bandwidth_Bps
    )
    return seconds


def table_key(shape: Shape) -> tuple[Kind, TableOf] | None:
    """Return the kind of the table that holds a shape, and its key in that kind; None if no table holds such ops."""
    if isinstance(shape, GemmShape):
        return "gemm", shape.format
    if isinstance(shape, AttentionShape) and shape.kernel == "flash":
        return "attention_prefill" if shape.is_prompt else "attention_decode", _cache(shape)
    if isinstance(shape, AttentionShape) and not shape.is_prompt:
        return "math_attention_decode", _cache(shape)
    if isinstance(shape, SampleShape):
        return "sample", shape.sampling
    if isinstance(shape, MoeShape):
        return "moe", Experts(*(getattr(shape, name) for name in Experts._fields))
    if isinstance(shape, MlaShape):
        return "mla_prefill" if shape.is_prompt else "mla_decode", _cache(shape)
    if isinstance(shape, BmmShape):
        return "bmm", shape.format
    return None


def _cache(shape: CachedAttention) -> str:
    return "fp8" if shape.kv_element_bytes == KV_BYTES["fp8"] else "bf16"


def coordinates(shape: TabledShape) -> dict[str, ArrayLike]:
    """Return the coordinates of a shape in its table.

    Work and traffic of attention depend on batch x heads alone, but for a latent cache, which is one for all heads; a
    prompt's has no earlier context. A chunk of a prompt is looked up as the whole prompt, of whose time it takes its
    share.
    """
    if isinstance(shape, GemmShape):
        return {"m": shape.m / shape.chunks if shape.chunks > 1 else shape.m, "n": shape.n, "k": shape.k}
    if isinstance(shape, SampleShape):
        return {"batch": shape.batch, "vocab": shape.vocab}
    if isinstance(shape, BmmShape):
        return {"heads": shape.heads, "m": shape.m, "n": shape.n, "k": shape.k}
    if isinstance(shape, MoeShape):
        expert_tp, ep = shape.expert_tp, shape.ep
        if splits_blocks(shape):
            expert_tp, ep = 1, expert_tp * ep
        return {"expert_tp": expert_tp, "ep": ep, "tokens": shape.tokens}
    if isinstance(shape, MlaShape):
        if shape.is_prompt:
            sizes = {"batch_heads": shape.batch * shape.heads, "q_len": prompt_len(shape)}
            return {**sizes, "nope": shape.nope, "rope": shape.rope, "value": shape.value}
        sizes = {"batch": shape.batch, "heads": shape.heads, "kv_len": shape.kv_len}
        return {**sizes, "latent": shape.latent, "rope": shape.rope}
    length = {"q_len": prompt_len(shape)} if shape.is_prompt else {"kv_len": _kv_len(shape)}
    heads = {"batch_kv_heads": shape.batch * shape.kv_heads, "group": shape.heads / shape.kv_heads}
    return {**heads, **length, "head_dim": shape.head_dim}


def splits_blocks(shape: MoeShape) -> bool:
    """Whether a rank's share of an expert's width ends within a block of scales.

    No engine has a kernel for that, and no table has it (192 of MiniMax-M2.5's 1536 on 8 ranks): it is looked up as if
    the ranks shared whole experts, which have as many weights. 54 measured servings of vLLM on 8 H200s fit that.
    """
    return shape.format == "fp8-block" and shape.width // shape.expert_tp % FP8_BLOCK > 0


def _kv_len(shape: AttentionShape) -> Any:
    """Return the tokens of the cache that a single new token reads."""
    return np.minimum(shape.kv_len, shape.window) if shape.windowed else shape.kv_len


def prompt_len(shape: CachedAttention) -> Any:
    """Return the tokens of the prompts whose average chunk a shape is; without earlier context its new tokens."""
    return 2 * shape.kv_len - shape.q_len if shape.shares_step else shape.q_len


def table_shape(kind: Kind, table_of: TableOf, point: Mapping[str, ArrayLike]) -> Shape:
    """Return the op at coordinates, maybe arrays, of the table of `kind` with the key `table_of`."""
    sizes: list[Any] = [np.asarray(point[name], np.float64) for name in AXES[kind]]
    if isinstance(table_of, Experts):
        expert_tp, ep, tokens = sizes
        layer = {**operands(GEMM_FORMATS[table_of.format]), **table_of._asdict()}
        return MoeShape(tokens=tokens, expert_tp=expert_tp, ep=ep, **layer)
    if kind == "gemm":
        m, n, k = sizes
        return GemmShape(m=m, n=n, k=k, **operands(GEMM_FORMATS[table_of]))
    if kind == "bmm":
        heads, m, n, k = sizes
        return BmmShape(heads=heads, m=m, n=n, k=k, **operands(GEMM_FORMATS[table_of]))
    if kind == "sample":
        batch, vocab = sizes
        return SampleShape(batch=batch, vocab=vocab, element_bytes=STATE_BYTES)
    elements: dict[str, Any] = {
        "element_bytes": STATE_BYTES,
        "kv_element_bytes": KV_BYTES["fp8" if table_of == "fp8" else "bf16"],
    }
    if kind == "mla_prefill":
        heads, length, nope, rope, value = sizes
        widths = {"latent": 0, "rope": rope, "nope": nope, "value": value}
        return MlaShape(batch=1, q_len=length, kv_len=length, heads=heads, **widths, **elements)
    if kind == "mla_decode":
        batch, heads, length, latent, rope = sizes
        widths = {"latent": latent, "rope": rope, "nope": 0, "value": 0}
        return MlaShape(batch=batch, q_len=1, kv_len=length, heads=heads, **widths, **elements)
    kv_heads, group, length, head_dim = sizes
    # one sequence of all the batch's heads stands for the batch
    return AttentionShape(
        kernel=ATTENTION[kind][1],
        batch=1,
        q_len=length if kind == "attention_prefill" else 1,
        kv_len=length,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        **elements,
    )
