"""What lies between kernels, and how unevenly they run: figures of a stack as this machine shows them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibration.fit.curves import Fit
from calibration.fit.samples import Points, Sample, Series
from calibration.fit.tables import KINDS
from ladder_sim.costs.profile import JITTER_KEY, ReferenceGpu

LAUNCHES = ("eager_launch", "graph_launch", "graph_kernel")
ELEMENTWISE = ("add", "norm")
# half the distance between a normal distribution's quartiles, in standard deviations
QUARTILE = 0.6745


def overheads(
    medians: Mapping[Series, Points], samples: Sequence[Sample], fits: Mapping[str, Fit], reference: ReferenceGpu
) -> dict[str, float]:
    """Figures by name, those that were measured: of a stack's specs, jitter, and a tiny kernel's time in a CUDA graph.

    Parameters
    ----------
    medians, samples
        What was measured.
    fits
        Parametric, by op.
    reference
        The measured GPU.
    """
    points = {series.op: found for series, found in medians.items() if not series.ranks}
    found = {f"{op}_s": points[op][()] for op in LAUNCHES if op in points}
    queued = points.get("queued_kernel", {})
    if len(queued) == 2:
        found["stream_wait_s"] = max(0.0, queued[2.0,] - queued[1.0,])
    floors_s = [fits[op].values[0] for op in ELEMENTWISE if op in fits]
    if floors_s:
        found["small_kernel_factor"] = float(np.mean(floors_s)) / reference.kernel_s
    spreads: dict[Any, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op in (*KINDS, *ELEMENTWISE) and sample.seconds is not None:
            spreads[sample.key].append(sample.spread)
    # of points first: the least certain have most samples
    found[JITTER_KEY] = float(np.median([np.median(each) for each in spreads.values()])) / QUARTILE
    return found
