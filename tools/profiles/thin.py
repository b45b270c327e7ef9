"""Which axis values of a measured grid to keep, so that the rest can be interpolated.

Starts from the ends of every axis and adds, one at a time, the value whose points are interpolated worst, until every
left-out value is interpolated well or the table is full. Values that were measured in few combinations with the other
axes (48 KV heads without grouping only) are never added, because a table is a full rectangle: they serve to judge it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.collectives.algorithms import MAX_GAP
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.des.shared import Floats

Mask = NDArray[np.bool_]

# an axis value needs this share of the combinations that the best covered value has
COVERED = 0.25


def thin(
    axes: Mapping[str, Floats],
    seconds: Floats,
    roofline_s: Floats,
    *,
    max_points: int,
    target: float,
    keep: Mapping[str, tuple[float, ...]] | None = None,
    judge: Mapping[str, tuple[float, ...]] | None = None,
) -> RatioTable:
    """Choose a subgrid.

    Parameters
    ----------
    axes
        Name and values of each axis of the whole grid.
    seconds, roofline_s
        Measured (NaN: not) and ideal times on the whole grid, seconds.
    max_points
        Maximum number of grid points.
    target
        Mean relative error below which a left-out axis value need not be added.
    keep
        Values that are always kept, by axis.
    judge
        Values that are never kept, by axis: the table is judged on them.
    """
    judged = [np.isin(values, (judge or {}).get(name, ())) for name, values in axes.items()]
    allowed = covered(np.isfinite(seconds), [~mask for mask in judged])
    kept = []
    for (name, values), candidates in zip(axes.items(), allowed, strict=True):
        ends = np.flatnonzero(candidates)[[0, -1]]
        kept.append(candidates & (np.isin(np.arange(len(values)), ends) | np.isin(values, (keep or {}).get(name, ()))))
    while True:
        at, chosen = np.ix_(*kept), {name: axes[name][mask] for name, mask in zip(axes, kept, strict=True)}
        table = RatioTable.from_seconds(chosen, seconds[at], np.broadcast_to(roofline_s, seconds.shape)[at])
        error = np.abs(np.log(predicted_s(table, axes, roofline_s) / seconds))
        worst = _worst(error, kept, allowed)
        if worst is None or worst[0] <= target:
            return table
        _, axis, index = worst
        grown = table.seconds.size // kept[axis].sum() * (kept[axis].sum() + 1)
        if grown > max_points:
            return table
        kept[axis][index] = True


def predicted_s(table: RatioTable, axes: Mapping[str, Floats], roofline_s: Floats) -> Floats:
    """Return times that `table` gives on the whole grid, seconds."""
    ratio, _ = table.ratio(**dict(zip(axes, np.ix_(*axes.values()), strict=True)))
    times: Floats = ratio * roofline_s
    return times


def covered(measured: Mask, candidates: list[Mask]) -> list[Mask]:
    """Return candidate axis values that were measured in many combinations with other axes' covered values."""
    kept = candidates
    while True:
        before = kept.copy()
        for axis, mask in enumerate(kept):
            others = [k if i != axis else np.ones_like(k) for i, k in enumerate(kept)]
            counts = np.moveaxis(measured[np.ix_(*others)], axis, 0).reshape(len(mask), -1).sum(axis=1)
            kept[axis] = mask & (counts >= COVERED * counts.max())
        if all((now == was).all() for now, was in zip(kept, before, strict=True)):
            return kept


def _worst(error: Floats, kept: list[Mask], allowed: list[Mask]) -> tuple[float, int, int] | None:
    """Return the left-out axis value with the largest mean error, over the points where it alone is off the grid."""
    worst: tuple[float, int, int] | None = None
    for axis, (on_grid, candidates) in enumerate(zip(kept, allowed, strict=True)):
        for index in np.flatnonzero(candidates & ~on_grid):
            others = [k if i != axis else np.arange(len(k)) == index for i, k in enumerate(kept)]
            points = error[np.ix_(*others)]
            points = points[np.isfinite(points)]
            if points.size and (worst is None or points.mean() > worst[0]):
                worst = (float(points.mean()), axis, int(index))
    return worst


def thin_curve(size_bytes: Floats, seconds: Floats, *, target: float, max_share: float) -> Curve:
    """Choose message sizes of a collective until every left-out one is within `target`, or `max_share` are kept.

    Kept sizes are as near as measured ones must be for what lies between to count as measured.
    """
    kept = np.isin(np.arange(len(size_bytes)), [0, len(size_bytes) - 1])
    while True:
        curve = Curve(size_bytes=size_bytes[kept], seconds=seconds[kept])
        error = np.abs(np.log(curve.seconds_at(size_bytes)[0] / seconds))
        if error.max() <= target or kept.sum() + 1 > max_share * len(kept):
            break
        kept[int(np.argmax(error))] = True
    last = 0
    for index in range(1, len(kept)):
        # the next one is too far from the last one that is kept
        if size_bytes[index] > MAX_GAP * size_bytes[last] and index - 1 > last:
            kept[index - 1] = True
        if kept[index - 1]:
            last = index - 1
    return Curve(size_bytes=size_bytes[kept], seconds=seconds[kept])


def leave_one_out(table: RatioTable) -> ErrorStats:
    """Return the error at the table's own points when their axis value is taken out.

    Left-out values were chosen because they are easy to interpolate. This is a harder test, and an upper limit for
    lookups between grid points: the gap is twice as wide.
    """
    predicted, measured = [], []
    for axis, values in enumerate(table.axes):
        for index in range(1, len(values) - 1):
            low, middle, high = (np.take(table.log_ratio, i, axis) for i in (index - 1, index, index + 1))
            share = np.log(values[index] / values[index - 1]) / np.log(values[index + 1] / values[index - 1])
            there = np.isfinite(np.take(table.seconds, (index - 1, index, index + 1), axis)).all(axis=axis)
            predicted.append(np.exp(low * (1.0 - share) + high * share)[there])
            measured.append(np.exp(middle)[there])
    if not predicted:
        return ErrorStats.of([], [])
    return ErrorStats.of(np.concatenate(predicted), np.concatenate(measured))
