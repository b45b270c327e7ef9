"""Merges several published measurements of the same grid.

Frameworks and their versions measure the same shapes with different kernels and on different days. Each version is a
`Series`: coordinates and times. `merge` puts the series on one grid, drops outliers, and takes the median.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.lookup import envelope
from ladder_sim.des.shared import Floats

# a point is an outlier if its neighbours and the other series differ from it by more than a factor of two
OUTLIER_LOG = np.log(2.0)
# significant digits of a stored time: a tenth of the repeat noise
DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Measurements of one framework's version."""

    label: str
    """Framework and version, e.g. "vllm 0.24.0"."""
    points: Floats
    """Coordinates, shape (rows, axes)."""
    seconds: Floats
    """Measured times, shape (rows,)."""

    @property
    def engine(self) -> str:
        """The framework."""
        return self.label.split()[0]

    def at(self, rows: NDArray[Any]) -> Self:
        """Return some of the rows, chosen by a mask or by their places."""
        return replace(self, points=self.points[rows], seconds=self.seconds[rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Median of several series on every combination of their coordinates."""

    axes: dict[str, Floats]
    """Name and increasing values of each axis."""
    seconds: Floats
    """Median time, NaN where nothing was measured."""


def distinct(series: Sequence[Series]) -> list[Series]:
    """Leave out series whose rows copy an earlier one's: a copy is not a second measurement."""
    kept: list[Series] = []
    for candidate in series:
        rows = _sorted_rows(candidate)
        if not any(np.array_equal(rows, _sorted_rows(other)) for other in kept):
            kept.append(candidate)
    return kept


def merge(
    names: Sequence[str], series: Sequence[Series], *, quorum: float = 0.0, rising: Sequence[str] = (), far: float = 1.0
) -> Grid:
    """Put series on one grid and take the median without outliers.

    Parameters
    ----------
    names
        One per axis.
    series
        Measurements; rows at the same coordinates of one series count as their median.
    quorum
        Share of the series that must have measured a point: medians over different engines at neighbouring points
        would make steps that no engine has.
    rising, far
        Axes along which no time falls, and how far it may (`lowered`): each series is made so before the median is
        taken.
    """
    values = [np.unique(np.concatenate([s.points[:, axis] for s in series])) for axis in range(len(names))]
    layers = np.stack([np.log(dense(values, s)) for s in series])
    layers[outliers(layers)] = np.nan
    layers[:, np.isfinite(layers).sum(axis=0) < quorum * len(series)] = np.nan
    along = [names.index(name) for name in rising]
    median = np.exp(_median(np.log(lowered(np.exp(layers), [axis + 1 for axis in along], far))))
    # again: series that lack a point make steps in their median
    return Grid(axes=dict(zip(names, values, strict=True)), seconds=lowered(median, along, far))


def lowered(seconds: Floats, axes: Sequence[int], far: float) -> Floats:
    """Return times, lowered to their envelope where they are more than `far` times as long.

    Examples
    --------
    >>> lowered(np.array([2.0, 1.8, 5.0, 2.5]), [0], 1.3).tolist()
    [2.0, 1.8, 2.5, 2.5]
    """
    held = envelope(seconds, axes)
    return np.where(seconds > far * held, held, seconds)


def dense(values: Sequence[Floats], series: Series) -> Floats:
    """Return times of one series on the grid `values`: the median of repeated rows, NaN where it has none."""
    shape = tuple(len(v) for v in values)
    index = np.ravel_multi_index([np.searchsorted(v, series.points[:, i]) for i, v in enumerate(values)], shape)
    order = np.argsort(index, kind="stable")
    cells, starts = np.unique(index[order], return_index=True)
    times = series.seconds[order]
    if len(cells) < len(times):
        times = np.array([np.median(group) for group in np.split(times, starts[1:])])
    else:
        times = times[starts]
    flat = np.full(int(np.prod(shape)), np.nan)
    flat[cells] = times
    return flat.reshape(shape)


def rounded(seconds: Floats) -> Floats:
    """Return times as they are stored, rounded through text so that errors are those of the decimal number."""
    return np.char.mod(f"%.{DIGITS - 1}e", seconds).astype(np.float64)


def outliers(layers: Floats) -> NDArray[np.bool_]:
    """Find points that neither their neighbours nor the other series support.

    Parameters
    ----------
    layers
        Logarithms of times, shape (series, axis, ...), NaN where absent.

    Returns
    -------
    ndarray of bool
        True where a point differs by more than a factor of two from the median of the other series, and from
        everything between its two neighbours, along every axis that has both.
    """
    alone = np.zeros(layers.shape, dtype=np.bool_)
    for i in range(len(layers)):
        others = np.delete(layers, i, axis=0)
        if len(others):
            alone[i] = np.abs(layers[i] - _median(others)) > OUTLIER_LOG
    has_neighbours = np.zeros(layers.shape, dtype=np.bool_)
    far = np.ones(layers.shape, dtype=np.bool_)
    for axis in range(1, layers.ndim):
        if layers.shape[axis] < 3:
            continue
        before = np.take(layers, range(layers.shape[axis] - 2), axis)
        after = np.take(layers, range(2, layers.shape[axis]), axis)
        middle = [slice(None)] * layers.ndim
        middle[axis] = slice(1, -1)
        at = tuple(middle)
        # distance to what lies between the neighbours: a step or a steep rise is no outlier, a spike is
        step = np.abs(layers[at] - np.clip(layers[at], np.minimum(before, after), np.maximum(before, after)))
        known = np.isfinite(step)
        has_neighbours[at] |= known
        far[at] &= ~known | (step > OUTLIER_LOG)
    return alone & has_neighbours & far


def _sorted_rows(series: Series) -> Floats:
    rows = np.column_stack([series.points, series.seconds])
    return rows[np.lexsort(rows.T[::-1])]


def _median(layers: Floats) -> Floats:
    """Return the median over the first axis, NaNs left out."""
    ordered = np.sort(layers, axis=0)
    # NaNs sort to the end, so the median's places depend on how many are not
    count = np.isfinite(layers).sum(axis=0)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.maximum(count // 2, 0)[None].clip(max=len(layers) - 1), axis=0)[0]
    median: Floats = (low + high) / 2.0
    return median
