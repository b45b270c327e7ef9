"""Kernels to time: each takes its operands from memory as a model's pass would."""

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import nn

from calibration.fit.samples import Sample

DTYPE = torch.bfloat16
# weights and caches are taken in turns from all over a pool of this size: more than any cache holds
POOL_BYTES = 512 * 10**6
# elements, so that each starts where an allocation would
ALIGNED = 128
# of the rows that a norm works on
WIDTH = 4096
Run = Callable[[], object]


def kernel(op: Sample, device: torch.device) -> Run:
    """What runs a kernel once; its operands are there."""
    return KERNELS[op.op](op, device)


def _gemm(op: Sample, device: torch.device) -> Run:
    m, n, k = (int(op.point[name]) for name in ("m", "n", "k"))
    x = torch.ones(m, k, dtype=DTYPE, device=device)
    take = rotating((n, k), device)
    return lambda: nn.functional.linear(x, take())


def _attention_prefill(op: Sample, device: torch.device) -> Run:
    return _attention(op, int(op.point["q_len"]), int(op.point["q_len"]), device)


def _attention_decode(op: Sample, device: torch.device) -> Run:
    return _attention(op, 1, int(op.point["kv_len"]), device)


def _attention(op: Sample, q_len: int, kv_len: int, device: torch.device) -> Run:
    sequences, group, width = (int(op.point[name]) for name in ("batch_kv_heads", "group", "head_dim"))
    # work is split over pairs of sequence and KV head, so one KV head a sequence stands for all
    q = torch.ones(sequences, group, q_len, width, dtype=DTYPE, device=device)
    take = rotating((2, sequences, 1, kv_len, width), device)

    def run() -> object:
        k, v = take()
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q_len > 1, enable_gqa=group > 1)

    return run


def _add(op: Sample, device: torch.device) -> Run:
    x = _activations(op.point["bytes"] / 3.0, device)
    y = x.clone()
    return lambda: torch.add(x, y)


def _norm(op: Sample, device: torch.device) -> Run:
    x = _activations(op.point["bytes"] / 2.0, device)
    weight = torch.ones(x.shape[1], dtype=DTYPE, device=device)
    return lambda: nn.functional.rms_norm(x, weight.shape, weight)


def _activations(size_bytes: float, device: torch.device) -> torch.Tensor:
    """Rows of so many bytes, always the same: in a pass the kernel before has just written them."""
    elements = max(1, round(size_bytes / DTYPE.itemsize))
    width = min(WIDTH, elements)
    return torch.ones(elements // width, width, dtype=DTYPE, device=device)


def rotating(shape: tuple[int, ...], device: torch.device) -> Callable[[], torch.Tensor]:
    """What gives a tensor of ones, each time from elsewhere in memory."""
    elements, pool = math.prod(shape), _pool(device)
    step = -(-elements // ALIGNED) * ALIGNED
    if step > pool.numel():
        whole = torch.ones(shape, dtype=DTYPE, device=device)
        return lambda: whole
    turns = itertools.cycle(range(0, pool.numel() - step + 1, step))

    def take() -> torch.Tensor:
        start = next(turns)
        return pool[start : start + elements].view(shape)

    return take


@functools.cache
def _pool(device: torch.device) -> torch.Tensor:
    return torch.ones(POOL_BYTES // DTYPE.itemsize, dtype=DTYPE, device=device)


# by op
KERNELS: dict[str, Callable[[Sample, torch.device], Run]] = {
    "gemm": _gemm,
    "attention_prefill": _attention_prefill,
    "attention_decode": _attention_decode,
    "add": _add,
    "norm": _norm,
}
