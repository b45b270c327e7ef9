"""How much kernels and all-reduces slow each other, from samples of both at the same time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.fit.samples import BESIDE, Sample
from ladder_sim.costs.contention import OverlapParameters

# points that a figure needs
MIN_POINTS = 3
_DEFAULT = OverlapParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How many times as long one op takes while another runs."""

    pair: str
    """E.g. "all_reduce_beside_gemm"."""
    memory_bound: bool
    """Whether the kernel of the two only streams from memory."""
    ratios: tuple[float, ...]
    """One per point."""


def slowdowns(samples: Sequence[Sample]) -> list[Slowdown]:
    """Slowdowns by pair of ops, and by what bounds the kernel."""
    points: dict[tuple[str, bool], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.seconds is not None and sample.alone_s is not None:
            # decode attention has no m
            memory_bound = sample.point.get("m", 1.0) <= _DEFAULT.stream_rows
            points[sample.op, memory_bound][sample.key].append(sample.seconds / sample.alone_s)
    return [
        Slowdown(pair=pair, memory_bound=bound, ratios=tuple(float(np.median(ratios)) for ratios in by_point.values()))
        for (pair, bound), by_point in points.items()
    ]


def parameters(slowdowns: Sequence[Slowdown]) -> dict[str, float]:
    """Overlap parameters that the slowdowns determine; `memory_spare` and SM counts are not among them."""
    ratios = [
        ratio
        for slowdown in slowdowns
        if slowdown.memory_bound and slowdown.pair.startswith(f"all_reduce{BESIDE}")
        for ratio in slowdown.ratios
    ]
    return {"collective_slowdown": max(0.0, float(np.median(ratios)) - 1.0)} if len(ratios) >= MIN_POINTS else {}
