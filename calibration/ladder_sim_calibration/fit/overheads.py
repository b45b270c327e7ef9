"""Figures of a stack as this machine shows them: what lies between kernels, and how unevenly kernels run."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ladder_sim.costs.hardware import skew_growth
from ladder_sim.costs.profile import JITTER_KEY, RANK_SKEW
from ladder_sim.costs.roofline import Gpu
from ladder_sim.des.shared import Floats
from ladder_sim_calibration.fit.samples import ELEMENTWISE, SUSTAINED, TABLES, MeasuredOp, Points, Sample

LAUNCHES = ("eager_launch", "graph_launch", "graph_kernel")
# half the distance between a normal distribution's quartiles, in standard deviations
QUARTILE = 0.6745
# from a median absolute deviation to a normal distribution's standard deviation
MAD_TO_SD = 1.4826
# where the search for a floor and a bandwidth starts
START = (3e-6, 1e12)
# noise of a logarithm that the search assumes first, and the lowest it works with
FIRST_NOISE, MIN_NOISE = 0.05, 1e-6


def overheads(medians: Mapping[MeasuredOp, Points], samples: Sequence[Sample], reference: Gpu) -> dict[str, float]:
    """Return the figures that were measured, by name.

    Those of a stack's specs, the share of its peak that the GPU keeps up, the jitter, the lag of the slowest rank, and
    a tiny kernel's time in a CUDA graph.
    """
    points = {op.op: at for op, at in medians.items() if not op.ranks}
    figures = {f"{op}_s": points[op][()] for op in LAUNCHES if op in points}
    queued = points.get("queued_kernel", {})
    if len(queued) == 2:
        figures["stream_wait_s"] = max(0.0, queued[2.0,] - queued[1.0,])
    pairs = {streams: s for op, at in medians.items() if op.op == "queued_all_reduce" for (streams, _), s in at.items()}
    if len(pairs) == 2 and "stream_wait_s" in figures:
        # the pair waits twice, and a wait has its own figure
        figures["collective_launch_s"] = max(0.0, pairs[2.0] - pairs[1.0] - 2.0 * figures["stream_wait_s"])
    # two parameters need three points
    floors_s = [floor_s(points[op]) for op in ELEMENTWISE if len(points.get(op, ())) > 2]
    if floors_s:
        # a kernel that this runtime does not fuse takes several floors
        figures["small_kernel_factor"] = float(np.median(floors_s) / reference.kernel_s)
    rates = [2.0 * m * n * k / seconds for (m, n, k), seconds in points.get(SUSTAINED, {}).items()]
    if rates:
        figures["sustained_share"] = max(rates) / float(reference.bf16_flops)
    spreads: dict[Any, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op in (*TABLES, *ELEMENTWISE) and sample.seconds is not None:
            spreads[sample.key].append(sample.spread)
    # the median of each point first: the least certain points have the most samples
    figures[JITTER_KEY] = float(np.median([np.median(each) for each in spreads.values()])) / QUARTILE
    relative = rank_factors(samples)
    if len(relative) > 1:
        figures[RANK_SKEW] = max(0.0, float(relative.max()) - 1.0) / skew_growth(len(relative))
    return figures


class Sustained(NamedTuple):
    """A GEMM under load for seconds."""

    m: float
    """Tokens."""
    ratio: float
    """How many times as long it takes as on a GPU that is just warm."""
    clock_MHz: float | None
    """Clock of the GPU at the end, MHz; None if it is not known."""


def sustained(medians: Mapping[MeasuredOp, Points], samples: Sequence[Sample]) -> Iterator[Sustained]:
    """Yield the GEMMs that were measured both ways."""
    points = {op.op: at for op, at in medians.items()}
    clocks = {sample.key: sample.clock_MHz for sample in samples if sample.op == SUSTAINED}
    for at, seconds in points.get(SUSTAINED, {}).items():
        cold_s = points["gemm"].get(at)
        if cold_s is not None:
            key = SUSTAINED, tuple(sorted(zip(("m", "n", "k"), at, strict=True)))
            yield Sustained(at[0], seconds / cold_s, clocks[key])


def rank_factors(samples: Sequence[Sample]) -> Floats:
    """Return how long each rank computes, over the median of ranks; empty for one rank.

    What lasts, and not that one rank or another is slower in each single sample.
    """
    rows = [sample.by_rank for sample in samples if sample.op in (*TABLES, *ELEMENTWISE) and sample.by_rank]
    if not rows:
        return np.zeros(0)
    seconds = np.array([row for row in rows if len(row) == len(rows[-1])])
    factors: Floats = np.median(seconds / np.median(seconds, axis=1, keepdims=True), axis=0)
    return factors


def floor_s(points: Points) -> float:
    """Time of an elementwise kernel that moves next to nothing.

    Fits a floor plus time in proportion to the bytes, by robust least squares on the logarithm of time.
    """
    size_bytes, seconds = np.array([size for (size,) in points]), np.array(list(points.values()))

    def residuals(log_parameters: Floats) -> Floats:
        floor, bandwidth_Bps = np.exp(log_parameters)
        return np.asarray(np.log(seconds / (floor + size_bytes / bandwidth_Bps)), np.float64)

    # a CPU's times and a GPU's differ by orders of magnitude: start at the samples' own level
    level = np.exp(np.median(residuals(np.log(np.array(START)))))
    log_parameters, noise = np.log([START[0] * level, START[1] / level]), FIRST_NOISE
    for _ in range(2):
        # the second time with the noise that the first one saw, so that an outlier pulls no more than other samples
        solved = least_squares(residuals, log_parameters, loss="cauchy", f_scale=2.0 * noise, max_nfev=2000)
        log_parameters = solved.x
        noise = max(MIN_NOISE, MAD_TO_SD * float(np.median(np.abs(residuals(log_parameters)))))
    return float(np.exp(log_parameters[0]))
