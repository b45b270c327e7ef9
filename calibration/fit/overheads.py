"""Figures of a stack as this machine shows them: what lies between kernels, and how unevenly kernels run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from calibration.fit.samples import MeasuredOp, Points, Sample
from calibration.fit.tables import KINDS
from ladder_sim.costs.profile import JITTER_KEY
from ladder_sim.costs.roofline import Gpu
from ladder_sim.des.shared import Floats

LAUNCHES = ("eager_launch", "graph_launch", "graph_kernel")
ELEMENTWISE = ("add", "norm")
# half the distance between a normal distribution's quartiles, in standard deviations
QUARTILE = 0.6745
# from a median absolute deviation to a normal distribution's standard deviation
MAD_TO_SD = 1.4826
# where the search for a floor and a bandwidth starts
START = (3e-6, 1e12)
# noise of a logarithm that the search assumes first, and the lowest it works with
FIRST_NOISE, MIN_NOISE = 0.05, 1e-6


def overheads(medians: Mapping[MeasuredOp, Points], samples: Sequence[Sample], reference: Gpu) -> dict[str, float]:
    """Figures that were measured, by name: of a stack's specs, the jitter, a tiny kernel's time in a CUDA graph."""
    points = {op.op: at for op, at in medians.items() if not op.ranks}
    figures = {f"{op}_s": points[op][()] for op in LAUNCHES if op in points}
    queued = points.get("queued_kernel", {})
    if len(queued) == 2:
        figures["stream_wait_s"] = max(0.0, queued[2.0,] - queued[1.0,])
    # two parameters need three points
    floors_s = [floor_s(points[op]) for op in ELEMENTWISE if len(points.get(op, ())) > 2]
    if floors_s:
        figures["small_kernel_factor"] = float(np.mean(floors_s) / reference.kernel_s)
    spreads: dict[Any, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op in (*KINDS, *ELEMENTWISE) and sample.seconds is not None:
            spreads[sample.key].append(sample.spread)
    # the median of each point first: the least certain points have the most samples
    figures[JITTER_KEY] = float(np.median([np.median(each) for each in spreads.values()])) / QUARTILE
    return figures


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
