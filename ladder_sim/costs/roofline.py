"""The ideal time of one op on one GPU: a kernel's floor plus the slower of arithmetic and memory traffic.

Pure numpy: every argument broadcasts, hardware figures included, so thousands of shapes or thousands of GPUs are
one call. Measured tables are kept as ratios to these functions (see `ladder_sim.costs.lookup`), so what they leave
out is in the ratio, as long as the same function is used to make the ratio and to undo it.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def gemm_roofline_s(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    weight_bytes_per_element: float | Floats,
    activation_bytes_per_element: float | Floats,
    flops_per_s: float | Floats,
    bandwidth_Bps: float | Floats,
    kernel_s: float | Floats,
) -> Floats:
    """Ideal time of ``(m, k) @ (k, n)``, each matrix read or written once.

    Parameters
    ----------
    m, n, k
        Rows of the activations, columns and rows of the weights.
    weight_bytes_per_element, activation_bytes_per_element
        Element sizes, bytes.
    flops_per_s
        Peak arithmetic rate, FLOP/s.
    bandwidth_Bps
        Peak memory bandwidth, bytes/s.
    kernel_s
        Floor of one kernel, seconds.

    Returns
    -------
    ndarray
        Seconds, in the broadcast shape of all arguments.

    Examples
    --------
    >>> t = gemm_roofline_s(1, 8192, 8192, weight_bytes_per_element=2, activation_bytes_per_element=2,
    ...                     flops_per_s=1e15, bandwidth_Bps=1e12, kernel_s=0.0)
    >>> round(float(t) * 1e6, 1)
    134.3
    """
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    size_bytes = n * k * weight_bytes_per_element + m * (n + k) * activation_bytes_per_element
    seconds: Floats = kernel_s + np.maximum(2.0 * m * n * k / flops_per_s, size_bytes / bandwidth_Bps)
    return seconds


def attention_roofline_s(
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    *,
    element_bytes: float | Floats,
    flops_per_s: float | Floats,
    bandwidth_Bps: float | Floats,
    kernel_s: float | Floats,
) -> Floats:
    """Ideal time of causal attention whose scores never leave the chip (a flash kernel).

    Parameters
    ----------
    batch
        Sequences.
    q_len, kv_len
        Query tokens and context tokens of each sequence; the queries are the context's last tokens, so query i
        attends to ``kv_len - q_len + i + 1`` of them.
    heads, kv_heads, head_dim
        Query heads, key/value heads and width of one head.
    element_bytes
        Size of one element of q, k, v and the output, bytes.
    flops_per_s, bandwidth_Bps, kernel_s
        As in `gemm_roofline_s`.

    Returns
    -------
    ndarray
        Seconds, in the broadcast shape of all arguments.

    Examples
    --------
    >>> t = attention_roofline_s(1, 1, 1024, 8, 1, 128, element_bytes=2, flops_per_s=1e15, bandwidth_Bps=1e12,
    ...                          kernel_s=0.0)
    >>> round(float(t) * 1e6, 3)
    0.528
    """
    args = (batch, q_len, kv_len, heads, kv_heads, head_dim)
    batch, q_len, kv_len, heads, kv_heads, head_dim = (np.asarray(x, dtype=np.float64) for x in args)
    # q k^T and p v are 2 FLOPs per element each; a causal query sees on average (q_len - 1) / 2 tokens fewer
    flops = 4.0 * batch * heads * head_dim * q_len * (kv_len - (q_len - 1.0) / 2.0)
    size_bytes = 2.0 * batch * head_dim * (q_len * heads + kv_len * kv_heads) * element_bytes
    seconds: Floats = kernel_s + np.maximum(flops / flops_per_s, size_bytes / bandwidth_Bps)
    return seconds


Kind = Literal["gemm", "attention_prefill", "attention_decode"]


# group is query heads per KV head
AXES: dict[Kind, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch_kv_heads", "group", "q_len", "head_dim"),
    "attention_decode": ("batch_kv_heads", "group", "kv_len", "head_dim"),
}


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
