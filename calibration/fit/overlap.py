"""What kernels and all-reduces cost each other, as samples of both at once tell."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.fit.samples import BESIDE, Sample
from ladder_sim.costs.contention import OverlapParameters

# points that a figure needs
LEAST = 3
_DEFAULT = OverlapParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How much longer one op takes beside another, as a multiple."""

    what: str
    """E.g. "all_reduce_beside_gemm"."""
    memory_bound: bool
    """Whether the kernel of the two only streams from memory."""
    ratios: tuple[float, ...]
    """One for every point."""


def slowdowns(samples: Sequence[Sample]) -> list[Slowdown]:
    """By pair of ops, and by what bounds the kernel."""
    points: dict[tuple[str, bool], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.seconds is not None and sample.alone_s is not None:
            # decode attention has no m
            memory_bound = sample.point.get("m", 1.0) <= _DEFAULT.gemv_rows
            points[sample.op, memory_bound][sample.key].append(sample.seconds / sample.alone_s)
    return [
        Slowdown(what=what, memory_bound=bound, ratios=tuple(float(np.median(ratios)) for ratios in found.values()))
        for (what, bound), found in points.items()
    ]


def parameters(found: Sequence[Slowdown]) -> dict[str, float]:
    """Overlap parameters that the slowdowns tell; `memory_spare` and SM counts they do not."""
    beside_memory = [
        ratio
        for slowdown in found
        if slowdown.memory_bound and slowdown.what.startswith(f"all_reduce{BESIDE}")
        for ratio in slowdown.ratios
    ]
    if len(beside_memory) < LEAST:
        return {}
    return {"collective_slowdown": max(0.0, float(np.median(beside_memory)) - 1.0)}
