"""Times one op: prepared once, warmed up, repeated, on all ranks together."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from calibration.fit.samples import BESIDE, Sample
from calibration.measure.clock import clock_of, timed
from calibration.measure.collectives import collective
from calibration.measure.kernels import KERNELS, kernel
from calibration.measure.launches import launch
from calibration.measure.overlap import Pair
from calibration.measure.plan import WARM_UPS
from calibration.measure.ranks import Ranks


class Timing(NamedTuple):
    """One repeat."""

    seconds: float
    alone_s: float | None = None
    """Without what ran beside it."""


# one repeat, by the names of the ops that it times
Once = Callable[[], Mapping[str, Timing]]


def measure(op: Sample, repeats: int, ranks: Ranks) -> list[Sample]:
    """The op with its median time, and what ran beside it with its own.

    Without a time if a rank lacks the memory, or the backend the op.
    """
    try:
        once = _prepare(op, ranks)
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        once = None
    # before any rank waits for the others in a collective
    if not ranks.agree(fine=once is not None) or once is None:
        return [op]
    try:
        rows = [once() for _ in range(WARM_UPS + repeats)][WARM_UPS:]
    except RuntimeError as error:
        # gloo of an older torch has no reduce-scatter, and tells every rank so
        if "does not support" not in str(error):
            raise
        return [op]
    return [_sample(op, name, [row[name] for row in rows]) for name in rows[0]]


def _prepare(op: Sample, ranks: Ranks) -> Once:
    if BESIDE in op.op:
        return _both(op, Pair(op, ranks))
    if op.op in KERNELS:
        run, clock = kernel(op, ranks.device), clock_of(ranks.device)
        # its result needs memory too
        run()
        return lambda: {op.op: Timing(timed(run, clock))}
    seconds = collective(op, ranks) if "ranks" in op.point else launch(op, ranks.device)
    return lambda: {op.op: Timing(seconds())}


def _both(op: Sample, pair: Pair) -> Once:
    name, _, message = op.op.partition(BESIDE)

    def once() -> Mapping[str, Timing]:
        both = pair.measure()
        return {
            op.op: Timing(both.kernel_s, both.kernel_alone_s),
            f"{message}{BESIDE}{name}": Timing(both.message_s, both.message_alone_s),
        }

    return once


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
    # of a CPU torch says it in words only
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
