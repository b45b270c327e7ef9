"""Kernels to time: each reads its operands from memory as it would in a model's pass.

Those between GEMMs and attention are the runtime's own, fused as it fuses them.
"""

import itertools
import math
from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from calibration.fit.samples import ELEMENTWISE, SUSTAINED, Sample
from calibration.measure.numbers import DTYPE, normal
from runtime.model import kernels

# more than any cache holds
POOL_BYTES = 512 * 10**6
# elements between two possible starts of a tensor: those of torch's allocator
ALIGNMENT = 128
# elements in a row that an elementwise kernel works on
ROW_ELEMENTS = 4096
# of a token that is rotated: query heads, key heads and their width
ROPE_HEADS, ROPE_WIDTH = (8, 1), 128
EPS = 1e-5
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
    def _elements(self) -> Tensor:
        return normal((POOL_BYTES // DTYPE.itemsize,), self.device)

    def rotating(self, shape: tuple[int, ...]) -> Callable[[], Tensor]:
        """Return a function that gives a tensor of random numbers, at another place in memory on every call."""
        elements = math.prod(shape)
        step = -(-elements // ALIGNMENT) * ALIGNMENT
        if step > self._elements.numel():
            whole = normal(shape, self.device)
            return lambda: whole
        starts = itertools.cycle(range(0, self._elements.numel() - step + 1, step))

        def take() -> Tensor:
            start = next(starts)
            return self._elements[start : start + elements].view(shape)

        return take


def kernel(op: Sample, weights: WeightPool) -> Run:
    """Allocate a kernel's operands; return a function that runs it once."""
    return KERNELS[op.op](op, weights)


def _gemm(op: Sample, weights: WeightPool) -> Run:
    m, n, k = (int(op.point[name]) for name in ("m", "n", "k"))
    x = normal((m, k), weights.device)
    weight = weights.rotating((n, k))
    return lambda: nn.functional.linear(x, weight())


def _attention_prefill(op: Sample, weights: WeightPool) -> Run:
    return _attention(op, int(op.point["q_len"]), int(op.point["q_len"]), weights)


def _attention_decode(op: Sample, weights: WeightPool) -> Run:
    return _attention(op, 1, int(op.point["kv_len"]), weights)


def _attention(op: Sample, q_len: int, kv_len: int, weights: WeightPool) -> Run:
    sequences, group, width = (int(op.point[name]) for name in ("batch_kv_heads", "group", "head_dim"))
    # kernels split work by pairs of sequence and KV head, so sequences of one KV head each stand for every such pair
    q = normal((sequences, group, q_len, width), weights.device)
    cache = weights.rotating((2, sequences, 1, kv_len, width))

    def run() -> object:
        k, v = cache()
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q_len > 1, enable_gqa=group > 1)

    return run


def _elementwise(op: Sample, weights: WeightPool) -> Run:
    """Activations stay where they are: in a pass the kernel before has just written them."""
    rows = partial(_rows, op.point["bytes"], weights.device)
    if op.op == "rope":
        return _rope(op.point["bytes"], weights.device)
    if op.op == "activation":
        # gate and up are read, one is written
        gate_up = rows(3.0).repeat(1, 1, 2)
        return lambda: kernels.activate(gate_up, "silu", True)
    if op.op == "add":
        x, y = rows(3.0), rows(3.0)
        return lambda: kernels.add(x, y)
    x = rows(2.0 if op.op == "norm" else 4.0)
    weight = normal(x.shape[-1:], weights.device)
    if op.op == "norm":
        return lambda: kernels.norm(x, weight, EPS)
    # sum and norm are written
    y = x.clone()
    return lambda: kernels.add_norm(x, y, weight, EPS)


def _rope(moved_bytes: float, device: torch.device) -> Run:
    """Queries, keys and values are read; what they become is written, the last two to the cache."""
    heads, key_heads = ROPE_HEADS
    tokens = max(1, round(moved_bytes / 2.0 / DTYPE.itemsize / ROPE_WIDTH / (heads + 2 * key_heads)))
    q = normal((1, tokens, heads, ROPE_WIDTH), device)
    k, v = (normal((1, tokens, key_heads, ROPE_WIDTH), device) for _ in range(2))
    turns = normal((2, tokens, ROPE_WIDTH), device).float()
    cache = [torch.empty(1, key_heads, tokens, ROPE_WIDTH, dtype=DTYPE, device=device) for _ in range(2)]
    position = torch.arange(tokens, device=device)
    return lambda: kernels.rope(q, k, v, turns, position, cache)


def _rows(moved_bytes: float, device: torch.device, tensors: float) -> Tensor:
    """One of as many tensors of equal size as are read and written."""
    elements = max(1, round(moved_bytes / tensors / DTYPE.itemsize))
    width = min(ROW_ELEMENTS, elements)
    return normal((1, elements // width, width), device)


# by op
KERNELS: dict[str, Callable[[Sample, WeightPool], Run]] = {
    **dict.fromkeys(("gemm", SUSTAINED), _gemm),
    "attention_prefill": _attention_prefill,
    "attention_decode": _attention_decode,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}
