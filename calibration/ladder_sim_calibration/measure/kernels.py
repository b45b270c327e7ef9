"""Kernels to time: each reads its operands from memory as it would in a model's pass.

Those between GEMMs and attention are the runtime's own, fused as it fuses them.
"""

import itertools
import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor, nn

from ladder_sim.costs.experts import MEASURED_IMBALANCE
from ladder_sim.kernels import TABLE_KINDS
from ladder_sim.specs.stack import Sampling
from ladder_sim_calibration.fit.samples import ELEMENTWISE, LAYER, SUSTAINED, TABLES, Sample
from ladder_sim_calibration.measure.clock import DTYPE, SEED, normal
from ladder_sim_runtime.device import kind_of
from ladder_sim_runtime.model import attention_kernels, kernels

# more than any cache holds
POOL_BYTES = 512 * 10**6
# elements between two possible starts of a tensor: those of torch's allocator
ALIGNMENT = 128
# elements in a row that an elementwise kernel works on
ROW_ELEMENTS = 4096
# of a token that is rotated: query heads, key heads and their width
ROPE_HEADS, ROPE_WIDTH = (8, 1), 128
EPS = 1e-5
# choices of experts that take turns
DRAWS = 8
Run = Callable[[], object]


class WeightPool:
    """Memory of `device` in which weights and caches take turns, so that each is read from it and not from a cache.

    It is allocated at first use.
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


def launches_of(op: Sample) -> int:
    """Return at least about the number of launches by which a kernel runs on a GPU."""
    point = op.point
    if op.op == "math_attention_decode":
        return 8
    if op.op in ("sample_top_k", "sample_top_p"):
        # a sort is up to two dozen
        return 50
    if op.op == "experts":
        # two GEMMs and an activation of each that any token takes
        return 30 + 4 * int(min(point["experts"] / point["ep"], point["tokens"] * point["top_k"]))
    return 1


def _gemm(op: Sample, weights: WeightPool) -> Run:
    m, n, k = (int(op.point[name]) for name in ("m", "n", "k"))
    x = normal((m, k), weights.device)
    weight = weights.rotating((n, k))
    return lambda: nn.functional.linear(x, weight())


def _attention(op: Sample, weights: WeightPool) -> Run:
    sequences, group, width = (int(op.point[name]) for name in ("batch_kv_heads", "group", "head_dim"))
    q_len = int(op.point.get("q_len", 1))
    kv_len = int(op.point.get("kv_len", q_len))
    # kernels split work by pairs of sequence and KV head, so sequences of one KV head each stand for every such pair
    q = normal((sequences, group, q_len, width), weights.device)
    cache = weights.rotating((2, sequences, 1, kv_len, width))

    def run() -> object:
        k, v = cache()
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q_len > 1, enable_gqa=group > 1)

    return run


def _math_attention_decode(op: Sample, weights: WeightPool) -> Run:
    """Return a run of decode attention by the math kernel, compiled where blocks are by default."""
    sequences, group, kv_len, width = (int(op.point[name]) for name in TABLE_KINDS["math_attention_decode"].axes)
    q = normal((sequences, group, 1, width), weights.device)
    cache = weights.rotating((2, sequences, 1, kv_len, width))
    position = torch.full((1,), kv_len - 1, device=weights.device)
    attend, here = attention_kernels.math_attention, kind_of(q)
    if here.has_graphs and not here.compiler_problem:
        attend = here.compiled(attend, dynamic=False)

    def run() -> object:
        k, v = cache()
        return attend(q, k, v, position)

    return run


def _sample(op: Sample, weights: WeightPool) -> Run:
    batch, vocab = (int(op.point[name]) for name in TABLE_KINDS["sample"].axes)
    logits = normal((batch, 1, vocab), weights.device)
    _, sampling = TABLES[op.op]
    return lambda: kernels.next_token(logits, cast(Sampling, sampling))


def _experts(op: Sample, weights: WeightPool) -> Run:
    """Return a run of the busiest rank's experts; where tokens begin is known before, so that nothing waits."""
    names = (*LAYER, *TABLE_KINDS["moe"].axes)
    hidden, width, experts, top_k, expert_tp, ep, tokens = (int(op.point[name]) for name in names)
    held, width = experts // ep, width // expert_tp
    # of one draw a cache might hold the few experts that a few tokens take
    numbers = torch.Generator().manual_seed(SEED)
    draws = itertools.cycle([_draw(tokens, experts, top_k, ep, numbers, weights.device) for _ in range(DRAWS)])
    x = normal((tokens, hidden), weights.device)
    weight = torch.full((tokens, top_k), 1.0 / top_k, device=weights.device)
    # one tensor: two would be read from the same places
    both = weights.rotating((3 * held, width * hidden))

    def run() -> object:
        up, down = both().split((2 * held, held))
        up, down = up.view(held, 2 * width, hidden), down.view(held, hidden, width)
        chosen, first, starts = next(draws)
        return kernels.run_experts(x, weight, chosen, up, down, first, "silu", True, starts)

    # libraries choose kernels for the sizes of every draw, which takes Python long
    for _ in range(DRAWS):
        run()
    return run


def _draw(
    tokens: int, experts: int, top_k: int, ep: int, numbers: torch.Generator, device: torch.device
) -> tuple[Tensor, int, list[int]]:
    """Return each token's experts, the first expert of the part with most tokens, and where tokens of each begin.

    The i-th most frequent expert is chosen in proportion to i to minus the tables' power; any may be it.
    """
    power = float(MEASURED_IMBALANCE.rpartition("-")[2])
    chance = torch.arange(1.0, experts + 1.0) ** -power
    drawn = torch.multinomial(chance.expand(tokens, experts), top_k, generator=numbers)
    chosen = torch.randperm(experts, generator=numbers)[drawn]
    counts, held = chosen.flatten().bincount(minlength=experts), experts // ep
    first = held * int(counts.view(ep, held).sum(dim=-1).argmax())
    return chosen.to(device), first, [0, *counts.cumsum(0).tolist()][first : first + held + 1]


def _elementwise(op: Sample, weights: WeightPool) -> Run:
    """Return a run of an elementwise kernel on activations that stay in place, as after another kernel."""
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
    """Return a run of RoPE on about `moved_bytes` of queries, keys and values, with the cache writes."""
    heads, key_heads = ROPE_HEADS
    tokens = max(1, round(moved_bytes / 2.0 / DTYPE.itemsize / ROPE_WIDTH / (heads + 2 * key_heads)))
    q = normal((1, tokens, heads, ROPE_WIDTH), device)
    k, v = (normal((1, tokens, key_heads, ROPE_WIDTH), device) for _ in range(2))
    turns = normal((2, tokens, ROPE_WIDTH), device).float()
    cache = [torch.empty(1, key_heads, tokens, ROPE_WIDTH, dtype=DTYPE, device=device) for _ in range(2)]
    position = torch.arange(tokens, device=device)
    return lambda: attention_kernels.rope(q, k, v, turns, position, cache)


def _rows(moved_bytes: float, device: torch.device, tensors: float) -> Tensor:
    """Return one of the `tensors` tensors of equal size that together have `moved_bytes`."""
    elements = max(1, round(moved_bytes / tensors / DTYPE.itemsize))
    width = min(ROW_ELEMENTS, elements)
    return normal((1, elements // width, width), device)


# by op
KERNELS: dict[str, Callable[[Sample, WeightPool], Run]] = {
    **dict.fromkeys(("gemm", SUSTAINED), _gemm),
    **dict.fromkeys(("attention_prefill", "attention_decode"), _attention),
    "math_attention_decode": _math_attention_decode,
    **dict.fromkeys(("sample_greedy", "sample_top_k", "sample_top_p"), _sample),
    "experts": _experts,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}
