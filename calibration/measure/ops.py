"""Times single ops on this machine's device: with weights that rotate through memory, after warm-ups, by medians."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from calibration.fit.samples import Sample

DTYPE = torch.bfloat16
REPEATS = 9
WARM_UPS = 2
ROTATION_BYTES = 256e6
# operands are taken in turns from as many copies as this holds: more than any cache


def measure(op: Sample, device: torch.device) -> Sample:
    """The op with its median time; without one if it does not fit the memory."""
    try:
        run = _COLLECTIVES[op.op](op, device) if op.op in _COLLECTIVES else _KERNELS[op.op](op, device)
        times = [_timed(run, device) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
    except torch.OutOfMemoryError:
        return replace(op, seconds=None)
    low, middle, high = (float(q) for q in np.quantile(times, [0.25, 0.5, 0.75]))
    return replace(op, seconds=middle, spread=(high - low) / 2.0 / middle)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start_s = time.perf_counter()
        run()
        return time.perf_counter() - start_s
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def _gemm(op: Sample, device: torch.device) -> Callable[[], object]:
    m, n, k = (int(op.point[name]) for name in ("m", "n", "k"))
    x = torch.ones(m, k, dtype=DTYPE, device=device)
    take = _rotating((n, k), device)
    return lambda: nn.functional.linear(x, take())


def _attention(op: Sample, device: torch.device) -> Callable[[], object]:
    prefill = op.op == "attention_prefill"
    length = int(op.point["q_len" if prefill else "kv_len"])
    sequences, group, width = (int(op.point[name]) for name in ("batch_kv_heads", "group", "head_dim"))
    # work is split over pairs of sequence and KV head, so one KV head a sequence stands for all
    q = torch.ones(sequences, group, length if prefill else 1, width, dtype=DTYPE, device=device)
    take = _rotating((2, sequences, 1, length, width), device)

    def run() -> object:
        k, v = take()
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=prefill, enable_gqa=group > 1)

    return run


def _rotating(shape: tuple[int, ...], device: torch.device) -> Callable[[], torch.Tensor]:
    size_bytes = float(np.prod(shape, dtype=float)) * DTYPE.itemsize
    copies = [torch.ones(shape, dtype=DTYPE, device=device) for _ in range(1 + int(ROTATION_BYTES // size_bytes))]
    turn = 0

    def take() -> torch.Tensor:
        nonlocal turn
        turn += 1
        return copies[turn % len(copies)]

    return take


def _collective(op: Sample, device: torch.device) -> Callable[[], object]:
    ranks = int(op.point["ranks"])
    whole = torch.zeros(
        max(ranks, round(op.point["bytes"] / DTYPE.itemsize) // ranks * ranks), dtype=DTYPE, device=device
    )
    part = whole[: whole.numel() // ranks].clone()
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }[op.op]


_KERNELS = {"gemm": _gemm, "attention_prefill": _attention, "attention_decode": _attention}
_COLLECTIVES = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), _collective)
