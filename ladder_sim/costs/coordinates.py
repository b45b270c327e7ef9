"""The axes of each kind of table, how an op's shape maps onto them, and the roofline at a grid point.

Attention kernels split work over (sequence, head) pairs, so a batch of 8 with 4 heads costs what a batch of 4 with 8
heads does (measured on H100: half of such pairs agree within 2 %, nine tenths within 9 %). That makes six shape
parameters four axes. KV heads are counted, not query heads, so that every combination of axis values can exist.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.costs.roofline import attention_roofline_s, gemm_roofline_s

Kind = Literal["gemm", "attention_prefill", "attention_decode"]
Floats = NDArray[np.float64]

AXES: dict[Kind, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch_kv_heads", "group", "q_len", "head_dim"),
    "attention_decode": ("batch_kv_heads", "group", "kv_len", "head_dim"),
}
# group is query heads per KV head


def prefill_point(
    *, batch: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, q_len: ArrayLike, head_dim: ArrayLike
) -> dict[str, Floats]:
    """Coordinates of a whole-prompt attention (no earlier context) in an ``attention_prefill`` table."""
    return {**_head_point(batch, heads, kv_heads), "q_len": _floats(q_len), "head_dim": _floats(head_dim)}


def decode_point(
    *, batch: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, kv_len: ArrayLike, head_dim: ArrayLike
) -> dict[str, Floats]:
    """Coordinates of a one-token attention over `kv_len` tokens, itself included, in an ``attention_decode`` table."""
    return {**_head_point(batch, heads, kv_heads), "kv_len": _floats(kv_len), "head_dim": _floats(head_dim)}


def grid_roofline_s(
    kind: Kind,
    points: Mapping[str, ArrayLike],
    *,
    element_bytes: float,
    flops_per_s: float,
    bandwidth_Bps: float,
    kernel_s: float,
) -> Floats:
    """Ideal time at a table's coordinates, seconds.

    Parameters
    ----------
    kind
        Kind of table.
    points
        One array per axis of `kind`; they broadcast.
    element_bytes
        Size of one element of every operand, bytes.
    flops_per_s, bandwidth_Bps, kernel_s
        Peak arithmetic rate (FLOP/s), peak memory bandwidth (bytes/s) and floor of one kernel (seconds).
    """
    gpu = {"flops_per_s": flops_per_s, "bandwidth_Bps": bandwidth_Bps, "kernel_s": kernel_s}
    columns = [np.asarray(points[name], np.float64) for name in AXES[kind]]
    if kind == "gemm":
        m, n, k = columns
        sizes = {"weight_bytes_per_element": element_bytes, "activation_bytes_per_element": element_bytes}
        return gemm_roofline_s(m, n, k, **sizes, **gpu)
    pairs, group, length, head_dim = columns
    # work and traffic depend on batch x heads alone, so one sequence of that many heads stands for them
    q_len = length if kind == "attention_prefill" else 1.0
    return attention_roofline_s(1, q_len, length, pairs * group, pairs, head_dim, element_bytes=element_bytes, **gpu)


def _head_point(batch: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike) -> dict[str, Floats]:
    context_heads = _floats(kv_heads)
    return {"batch_kv_heads": _floats(batch) * context_heads, "group": _floats(heads) / context_heads}


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64)
