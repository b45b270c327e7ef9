"""Kernels to time: each reads its operands from memory as it would in a model's pass."""

import itertools
import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from calibration.fit.samples import Sample

DTYPE = torch.bfloat16
# more than any cache holds
POOL_BYTES = 512 * 10**6
# elements between two possible starts of a tensor: those of torch's allocator
ALIGNMENT = 128
# elements in a row that a norm works on
ROW_ELEMENTS = 4096
Run = Callable[[], object]


class WeightPool:
    """Memory in which weights and caches take turns, so that each is read from device memory and not from a cache.

    Parameters
    ----------
    device
        Where the memory is; it is allocated at first use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @cached_property
    def _elements(self) -> torch.Tensor:
        return torch.ones(POOL_BYTES // DTYPE.itemsize, dtype=DTYPE, device=self.device)

    def rotating(self, shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
        """Return a function that gives a tensor of ones, at another place in memory on every call."""
        elements = math.prod(shape)
        step = -(-elements // ALIGNMENT) * ALIGNMENT
        if step > self._elements.numel():
            whole = torch.ones(shape, dtype=DTYPE, device=self.device)
            return lambda: whole
        starts = itertools.cycle(range(0, self._elements.numel() - step + 1, step))

        def take() -> torch.Tensor:
            start = next(starts)
            return self._elements[start : start + elements].view(shape)

        return take


def kernel(op: Sample, weights: WeightPool) -> Run:
    """Allocate a kernel's operands; return a function that runs it once."""
    return KERNELS[op.op](op, weights)


def _gemm(op: Sample, weights: WeightPool) -> Run:
    m, n, k = (int(op.point[name]) for name in ("m", "n", "k"))
    x = torch.ones(m, k, dtype=DTYPE, device=weights.device)
    weight = weights.rotating((n, k))
    return lambda: nn.functional.linear(x, weight())


def _attention_prefill(op: Sample, weights: WeightPool) -> Run:
    return _attention(op, int(op.point["q_len"]), int(op.point["q_len"]), weights)


def _attention_decode(op: Sample, weights: WeightPool) -> Run:
    return _attention(op, 1, int(op.point["kv_len"]), weights)


def _attention(op: Sample, q_len: int, kv_len: int, weights: WeightPool) -> Run:
    sequences, group, width = (int(op.point[name]) for name in ("batch_kv_heads", "group", "head_dim"))
    # kernels split work by pairs of sequence and KV head, so sequences of one KV head each stand for every such pair
    q = torch.ones(sequences, group, q_len, width, dtype=DTYPE, device=weights.device)
    cache = weights.rotating((2, sequences, 1, kv_len, width))

    def run() -> object:
        k, v = cache()
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q_len > 1, enable_gqa=group > 1)

    return run


def _add(op: Sample, weights: WeightPool) -> Run:
    x = _activations(op.point["bytes"] / 3.0, weights.device)
    y = x.clone()
    return lambda: torch.add(x, y)


def _norm(op: Sample, weights: WeightPool) -> Run:
    x = _activations(op.point["bytes"] / 2.0, weights.device)
    weight = torch.ones(x.shape[1], dtype=DTYPE, device=weights.device)
    return lambda: nn.functional.rms_norm(x, weight.shape, weight)


def _activations(size_bytes: float, device: torch.device) -> torch.Tensor:
    """Rows of this total size, the same on every run: in a pass the kernel before has just written them."""
    elements = max(1, round(size_bytes / DTYPE.itemsize))
    width = min(ROW_ELEMENTS, elements)
    return torch.ones(elements // width, width, dtype=DTYPE, device=device)


# by op
KERNELS: dict[str, Callable[[Sample, WeightPool], Run]] = {
    "gemm": _gemm,
    "attention_prefill": _attention_prefill,
    "attention_decode": _attention_decode,
    "add": _add,
    "norm": _norm,
}
