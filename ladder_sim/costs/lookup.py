"""Measured times on a grid, looked up as a ratio to the roofline.

A kernel's time spans six orders of magnitude over its shapes; its ratio to the ideal time spans one, and is smooth.
So a table holds the logarithm of that ratio and interpolates it linearly in the logarithm of every axis. A lookup
times the roofline of any GPU is that GPU's time: exact on the grid of the GPU that was measured, continuous between,
and carried to another GPU by the ratio of the rooflines.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.des.shared import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStats:
    """How far lookups were from measurements that are not in the table."""

    rows: int
    """Measurements compared."""
    median: float
    """Median of |looked up / measured - 1|."""
    p90: float
    """Ninth decile of the errors, as a fraction, sign left out."""
    max: float
    """Largest of the same."""

    @classmethod
    def of(cls, predicted_s: ArrayLike, measured_s: ArrayLike) -> Self:
        """Compare looked-up with measured times, both in seconds and of one shape; no rows give zeros."""
        error = np.abs(np.asarray(predicted_s, np.float64) / np.asarray(measured_s, np.float64) - 1.0)
        if error.size == 0:
            return cls(rows=0, median=0.0, p90=0.0, max=0.0)
        median, p90, largest = (float(q) for q in np.quantile(error, [0.5, 0.9, 1.0]))
        return cls(rows=error.size, median=median, p90=p90, max=largest)


# no slots: its layout for lookups is computed once and kept
@dataclass(frozen=True, kw_only=True, eq=False)
class RatioTable:
    """Measured over ideal time on a rectangular grid."""

    names: tuple[str, ...]
    """One per axis, e.g. ("m", "n", "k")."""
    axes: tuple[Floats, ...]
    """Grid values of each axis, positive and increasing."""
    seconds: Floats
    """Measured times, shape (len(axis), ...); NaN where nothing was measured."""
    log_ratio: Floats
    """ln(measured / roofline), same shape; unmeasured points hold their estimate's, else that of their nearest measured
    neighbours."""
    estimates: Floats | None = None
    """Times at points that were not measured, seconds, same shape, made of other measurements; None: there are none."""
    left_out: Mapping[str, ErrorStats] = field(default_factory=dict)
    """Errors on measurements that are not grid points, by what they were compared with; "aggregated" comes first."""
    beyond: Literal["fitted", "transferred"] = "fitted"
    """What a lookup out of range is: its own measurements continued, or those of something else carried over."""

    @classmethod
    def from_seconds(
        cls,
        axes: Mapping[str, ArrayLike],
        seconds: ArrayLike,
        roofline_s: ArrayLike,
        left_out: Mapping[str, ErrorStats] | None = None,
        estimates: ArrayLike | None = None,
    ) -> Self:
        """Make a table of measured times.

        `axes` are names and increasing grid values, in the order of the dimensions of `seconds`, which has NaN where
        nothing was measured. `roofline_s` are ideal times at the same points on the GPU that was measured, `left_out`
        errors on measurements that are not grid points. `estimates`, seconds, stand where nothing was measured; a table
        of estimates alone is that of another GPU, carried over.
        """
        measured_s = np.asarray(seconds, np.float64)
        made_s = None if estimates is None else np.where(np.isnan(measured_s), estimates, np.nan)
        known_s = measured_s if made_s is None else np.where(np.isnan(measured_s), made_s, measured_s)
        log_ratio = fill_nearest(np.log(known_s / np.asarray(roofline_s, np.float64)))
        return cls(
            names=tuple(axes),
            axes=tuple(np.asarray(values, np.float64) for values in axes.values()),
            seconds=measured_s,
            log_ratio=log_ratio,
            estimates=made_s,
            left_out=left_out or {},
            beyond="transferred" if np.isnan(measured_s).all() else "fitted",
        )

    def ratio(self, **points: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the measured time over the ideal time at any points, and whether they are in the measured range.

        Points are one positive number or array per axis, by the axis's name; they broadcast. Points outside the grid
        take the value at its nearest edge. They are out of range, as is a value in which an unmeasured grid point has a
        share.

        Examples
        --------
        >>> table = RatioTable.from_seconds({"m": [1, 4], "n": [8, 32]}, [[1, 1], [4, 4]], [[1, 1], [1, 1]])
        >>> ratio, in_range = table.ratio(m=[2, 64], n=16)
        >>> ratio.round(6).tolist(), in_range.tolist()
        ([2.0, 4.0], [True, False])
        """
        columns, shape = self._columns(points)
        place = self._grid.place(columns)
        in_range = place.inside & (place.between(self._grid.measured) > 1.0 - 1e-9)
        return np.exp(place.between(self._grid.log_ratio)).reshape(shape), in_range.reshape(shape)

    def factor(self, **points: ArrayLike) -> Floats:
        """Return the ratio to the roofline without its source, in half the time of `ratio`."""
        columns, shape = self._columns(points)
        ratio: Floats = np.exp(self._grid.place(columns).between(self._grid.log_ratio)).reshape(shape)
        return ratio

    def rising(self, ideal_s: Floats, axes: Sequence[str], fall: float) -> Self:
        """Return the table with times of at most `fall` times those of any point further on along some axes.

        A problem can be padded to a larger one; `ideal_s` are the seconds that times are ratios to.
        """
        times_s = np.exp(self.log_ratio) * ideal_s
        most_s = fall * envelope(times_s, [self.names.index(name) for name in axes])
        return replace(self, log_ratio=np.log(np.minimum(times_s, most_s) / ideal_s))

    @cached_property
    def _grid(self) -> "_Grid":
        return _Grid(self)

    def _columns(self, points: Mapping[str, ArrayLike]) -> tuple[Floats, tuple[int, ...]]:
        if points.keys() != set(self.names):
            raise TypeError(f"this table is looked up by {', '.join(self.names)}, not {', '.join(points)}")
        columns = np.broadcast_arrays(*(np.asarray(points[name], np.float64) for name in self.names))
        return np.stack([column.ravel() for column in columns]), columns[0].shape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Time of one collective by message size, for one algorithm and number of ranks."""

    size_bytes: Floats
    """Message sizes, bytes, increasing; the whole vector for an all-reduce, the gathered (scattered) whole for others.
    """
    seconds: Floats
    """Measured times, seconds, same length."""
    left_out: Mapping[str, ErrorStats] = field(default_factory=dict)
    """As in RatioTable."""

    def seconds_at(self, size_bytes: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the seconds of messages of any positive size, and whether the sizes are in the measured range.

        Linear in log(time) over log(size) between measurements; below the smallest its latency, above the largest its
        bandwidth.

        Examples
        --------
        >>> curve = Curve(size_bytes=np.array([1e3, 1e5]), seconds=np.array([1e-6, 4e-6]))
        >>> seconds, in_range = curve.seconds_at([10, 1e4, 1e6])
        >>> (seconds * 1e6).round(6).tolist(), in_range.tolist()
        ([1.0, 2.0, 40.0], [False, True, False])
        """
        size = np.asarray(size_bytes, np.float64)
        clamped = np.clip(size, self.size_bytes[0], self.size_bytes[-1])
        seconds = np.exp(np.interp(np.log(clamped), np.log(self.size_bytes), np.log(self.seconds)))
        return np.where(size > clamped, seconds * size / clamped, seconds), clamped == size


def envelope(values: Floats, axes: Sequence[int]) -> Floats:
    """Return the largest values that are nowhere above `values` and never fall along `axes`; NaN stays.

    Examples
    --------
    >>> envelope(np.array([1.0, 5.0, np.nan, 2.0, 4.0]), [0]).tolist()
    [1.0, 2.0, nan, 2.0, 4.0]
    """
    held = np.where(np.isnan(values), np.inf, values)
    for axis in axes:
        held = np.flip(np.minimum.accumulate(np.flip(held, axis), axis), axis)
    return np.where(np.isnan(values), np.nan, held)


def fill_nearest(values: Floats) -> Floats:
    """Give every NaN the mean of its nearest finite neighbours, counted in grid steps.

    Written out, because importing scipy.ndimage for it would double the time to load a profile.

    Examples
    --------
    >>> fill_nearest(np.array([[1.0, 3.0, np.nan], [5.0, np.nan, np.nan]])).tolist()
    [[1.0, 3.0, 3.0], [5.0, 4.0, 3.5]]
    """
    filled = values.copy()
    missing = np.isnan(filled)
    while missing.any() and not missing.all():
        total = np.zeros_like(filled)
        count = np.zeros_like(filled)
        known = np.where(missing, 0.0, filled)
        for axis in range(filled.ndim):
            below: list[slice] = [slice(None)] * filled.ndim
            above = below.copy()
            below[axis], above[axis] = slice(None, -1), slice(1, None)
            for here, there in ((tuple(below), tuple(above)), (tuple(above), tuple(below))):
                total[here] += known[there]
                count[here] += ~missing[there]
        next_to_known = missing & (count > 0)
        filled[next_to_known] = total[next_to_known] / count[next_to_known]
        missing &= ~next_to_known
    return filled


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """Where points lie in a grid."""

    corners: NDArray[np.intp]
    """Corners of each point's cell: shape (corners, points), in the order of `_Grid.offsets`."""
    shares: Sequence[Floats | float]
    """Shares of the upper corners, axis by axis."""
    inside: NDArray[np.bool_]
    """Whether the point is within the grid."""

    def between(self, values: Floats) -> Floats:
        """Return values interpolated linearly on every axis between the grid's points."""
        left = values.take(self.corners)
        for share in self.shares:
            half = len(left) // 2
            left = left[:half] * (1.0 - share) + left[half:] * share
        value: Floats = left[0]
        return value


class _Grid:
    """A table's logarithms, laid out for looking up many points at once.

    Written out, because importing scipy.interpolate takes a tenth of a second, and one call of its interpolator as long
    as a simulated pass.
    """

    def __init__(self, table: RatioTable) -> None:
        lengths = [len(values) for values in table.axes]
        self.ends = np.array([(values[0], values[-1]) for values in table.axes]).T[:, :, np.newaxis]
        self.logs = [np.log(values) for values in table.axes]
        self.steps = np.cumprod([1, *lengths[:0:-1]])[::-1]
        # an axis of one value has nothing to interpolate between
        upward = [(0, step) for length, step in zip(lengths, self.steps, strict=True) if length > 1]
        # of a cell's corners from its lowest
        self.offsets = np.array([sum(corner) for corner in itertools.product(*upward)])[:, np.newaxis]
        self.log_ratio = table.log_ratio.ravel()
        # 1 at measured points
        self.measured = np.isfinite(table.seconds).astype(np.float64).ravel()

    def place(self, points: Floats) -> _Place:
        """Find the cells that hold points, one per column; those outside go to the nearest edge."""
        clamped = np.minimum(np.maximum(points, self.ends[0]), self.ends[1])
        cell = np.zeros(points.shape[1], np.intp)
        shares: list[Floats | float] = []
        for at, grid, step in zip(np.log(clamped), self.logs, self.steps, strict=True):
            if len(grid) == 1:
                continue
            below = np.minimum(grid.searchsorted(at, side="right") - 1, len(grid) - 2)
            shares.append((at - grid[below]) / (grid[below + 1] - grid[below]))
            cell += below * step
        return _Place(corners=cell + self.offsets, shares=shares, inside=(clamped == points).all(axis=0))
