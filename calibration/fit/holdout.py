"""How well tables and curves predict: each is made without a fifth of its points, and looked up at those."""

from collections.abc import Mapping

import numpy as np

from calibration.fit.samples import CURVES, MeasuredOp, Points
from calibration.fit.tables import curve_of, table_of
from ladder_sim.costs.lookup import ErrorStats
from ladder_sim.costs.roofline import Gpu, roofline_s, table_shape
from ladder_sim.des.shared import Floats

# every point is held out of one trial, drawn at random
TRIALS = 5


def judge(medians: Mapping[MeasuredOp, Points], reference: Gpu) -> dict[MeasuredOp, ErrorStats | None]:
    """Errors of every op that becomes a table or a curve; the same draws every time.

    None for an op with fewer points than trials.
    """
    return {
        op: _errors(op, points, reference) if len(points) >= TRIALS else None
        for op, points in medians.items()
        if op.table or op.op in CURVES
    }


def _errors(op: MeasuredOp, points: Points, reference: Gpu) -> ErrorStats:
    """Errors at all points but the ends of a curve, which lie between no others."""
    every = sorted(points)
    drawn = np.random.default_rng(0).permutation(every if len(op.axes) > 1 else every[1:-1]).tolist()
    looked_up: list[float] = []
    measured: list[float] = []
    for trial in range(min(TRIALS, len(drawn))):
        held_out = [tuple(at) for at in drawn[trial::TRIALS]]
        kept = {at: seconds for at, seconds in points.items() if at not in set(held_out)}
        looked_up.extend(_look_up(op, kept, reference, op.columns(held_out)))
        measured.extend(points[at] for at in held_out)
    return ErrorStats.of(looked_up, measured)


def _look_up(op: MeasuredOp, points: Points, reference: Gpu, columns: Mapping[str, Floats]) -> Floats:
    """Times that a prediction would take from the points."""
    if op.table:
        ratio, _ = table_of(*op.table, points, reference).ratio(**columns)
        return ratio * roofline_s(table_shape(*op.table, columns), reference)
    return curve_of(points).seconds_at(columns["bytes"])[0]
