"""Measures one op: prepares it once, warms it up, repeats it, on all ranks together."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
import torch

from ladder_sim_calibration.fit.samples import BESIDE, HELD, SUSTAINED, Sample
from ladder_sim_calibration.measure.clock import CHAIN_LAUNCHES, Timing, clock_of, timed
from ladder_sim_calibration.measure.collectives import UNSUPPORTED, collective, queued_all_reduce
from ladder_sim_calibration.measure.kernels import KERNELS, kernel, launches_of
from ladder_sim_calibration.measure.launches import launch
from ladder_sim_calibration.measure.overlap import OverlapMeasurement, held_kernel
from ladder_sim_calibration.measure.plan import SUSTAINED_S, WARM_UPS
from ladder_sim_calibration.measure.ranks import Ranks

# measures an op once: timings by name, also of what overlaps it
Repeat = Callable[[], Mapping[str, Timing]]
# a clock that falls by more than this share during the repeats had not settled: NVML reports it in steps of 15 MHz
BURST = 0.02


class _OfRank(NamedTuple):
    """What one rank measured of an op in all repeats: fields as in `Sample`."""

    seconds: float
    spread: float
    alone_s: float | None
    burst: bool

    @classmethod
    def of(cls, timings: Sequence[Timing], *, burst: bool) -> Self:
        low, middle, high = (float(q) for q in np.quantile([timing.seconds for timing in timings], [0.25, 0.5, 0.75]))
        alone_s = [timing.alone_s for timing in timings if timing.alone_s is not None]
        return cls(middle, (high - low) / 2.0 / middle, float(np.median(alone_s)) if alone_s else None, burst)


def measure(op: Sample, repeats: int, ranks: Ranks) -> list[Sample]:
    """Measure an op, and the op that overlaps it if there is one.

    Raises RuntimeError if it failed while ranks were waiting for each other, or the GPU computes nothing more in this
    process.

    Returns
    -------
    list of Sample
        The op with its median time; without a time, but with the cause, if it fails on some rank.
    """
    repeat, cause = None, "it failed on another rank"
    try:
        repeat = _prepare(op, ranks)
    except RuntimeError as error:
        cause = _first_line(error)
        _check_alive(ranks.device)
    # before any rank waits for the others in a collective
    if not ranks.agree(fine=repeat is not None) or repeat is None:
        return [replace(op, cause=cause)]
    clock = clock_of(ranks.device)
    try:
        _warm_up(repeat, SUSTAINED_S if op.op == SUSTAINED else clock.warm_s, ranks)
        before_MHz = clock.frequency()
        rows = [repeat() for _ in range(repeats)]
        after_MHz = clock.frequency()
    except RuntimeError as error:
        # other ranks may be waiting for this one, unless it is raised on every rank
        if ranks.size > 1 and UNSUPPORTED not in str(error):
            raise
        _check_alive(ranks.device)
        return [replace(op, cause=_first_line(error))]
    burst = before_MHz is not None and after_MHz is not None and after_MHz < (1.0 - BURST) * before_MHz
    own = {name: _OfRank.of([row[name] for row in rows], burst=burst) for name in rows[0]}
    by_rank = ranks.gather(own)
    return [_sample(op, name, [each[name] for each in by_rank], after_MHz) for name in own]


def _warm_up(repeat: Repeat, warm_s: float, ranks: Ranks) -> None:
    """Run until the device's clock has followed the load; as often on every rank."""
    start_s = time.monotonic()
    for _ in range(WARM_UPS):
        repeat()
    once_s = (time.monotonic() - start_s) / WARM_UPS
    if warm_s:
        for _ in range(ranks.share(math.ceil(warm_s / once_s))):
            repeat()


def _prepare(op: Sample, ranks: Ranks) -> Repeat:
    if HELD in op.point:
        return held_kernel(op, ranks)
    if BESIDE in op.op:
        return OverlapMeasurement(op, ranks).measure
    if op.op in KERNELS:
        run, clock, launches = kernel(op, ranks.weights), clock_of(ranks.device), launches_of(op)
        # its result needs memory as well
        run()
        # as long as can be: the GPU rests while it is held for the next one
        chain = CHAIN_LAUNCHES if op.op == SUSTAINED else clock.chain(timed(run, clock, launches))
        runs = max(1, min(chain, CHAIN_LAUNCHES // launches))
        return lambda: {op.op: Timing(timed(run, clock, launches, runs=runs))}
    if op.op == "queued_all_reduce":
        seconds = queued_all_reduce(op, ranks)
    else:
        seconds = collective(op, ranks) if "ranks" in op.point else launch(op, ranks.device)
    return lambda: {op.op: Timing(seconds())}


def _sample(op: Sample, name: str, by_rank: Sequence[_OfRank], clock_MHz: float | None) -> Sample:
    """Return the slowest rank's sample if it keeps the others waiting, else a typical one's."""
    counted = [max(by_rank, key=lambda each: each.seconds)] if "ranks" in op.point else by_rank
    alone_s = [each.alone_s for each in counted if each.alone_s is not None]
    return replace(
        op,
        op=name,
        seconds=float(np.median([each.seconds for each in counted])),
        spread=float(np.median([each.spread for each in counted])),
        alone_s=float(np.median(alone_s)) if alone_s else None,
        by_rank=tuple(each.seconds for each in by_rank) if len(by_rank) > 1 else (),
        clock_MHz=clock_MHz,
        burst=any(each.burst for each in by_rank),
    )


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _check_alive(device: torch.device) -> None:
    """Raise RuntimeError if a failed kernel has left the GPU unusable: all later ops of the process would fail."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
