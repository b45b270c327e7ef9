"""Measures one op: prepares it once, warms it up, repeats it, on all ranks together."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from calibration.fit.samples import BESIDE, Sample
from calibration.measure.clock import Timing, clock_of, timed
from calibration.measure.collectives import collective
from calibration.measure.kernels import KERNELS, kernel
from calibration.measure.launches import launch
from calibration.measure.overlap import OverlapMeasurement
from calibration.measure.plan import WARM_UPS
from calibration.measure.ranks import Ranks

# measures once: timings by name of the op
Repeat = Callable[[], Mapping[str, Timing]]


def measure(op: Sample, repeats: int, ranks: Ranks) -> list[Sample]:
    """Measure an op, and the op that overlaps it if there is one.

    Returns
    -------
    list of Sample
        The op with its median time; without a time if it does not fit in some rank's memory, or the backend lacks it.
    """
    try:
        repeat = _prepare(op, ranks)
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        repeat = None
    # before any rank waits for the others in a collective
    if not ranks.agree(fine=repeat is not None) or repeat is None:
        return [op]
    try:
        rows = [repeat() for _ in range(WARM_UPS + repeats)][WARM_UPS:]
    except RuntimeError as error:
        # gloo of an older torch has no reduce-scatter; the error is raised on every rank
        if "does not support" not in str(error):
            raise
        return [op]
    return [_sample(op, name, [row[name] for row in rows]) for name in rows[0]]


def _prepare(op: Sample, ranks: Ranks) -> Repeat:
    if BESIDE in op.op:
        return OverlapMeasurement(op, ranks).measure
    if op.op in KERNELS:
        run, clock = kernel(op, ranks.weights), clock_of(ranks.device)
        # its result needs memory as well
        run()
        return lambda: {op.op: Timing(timed(run, clock))}
    seconds = collective(op, ranks) if "ranks" in op.point else launch(op, ranks.device)
    return lambda: {op.op: Timing(seconds())}


def _sample(op: Sample, name: str, timings: list[Timing]) -> Sample:
    low, middle, high = (float(q) for q in np.quantile([timing.seconds for timing in timings], [0.25, 0.5, 0.75]))
    alone_s = [timing.alone_s for timing in timings if timing.alone_s is not None]
    return replace(
        op,
        op=name,
        seconds=middle,
        spread=(high - low) / 2.0 / middle,
        alone_s=float(np.median(alone_s)) if alone_s else None,
    )


def _out_of_memory(error: RuntimeError) -> bool:
    # for CPU memory torch has no exception class of its own
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
