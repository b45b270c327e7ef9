"""Measured times on a grid, looked up as a ratio to the roofline.

A kernel's time spans six orders of magnitude over its shapes; its ratio to the ideal time spans one, and is smooth.
So a table holds the logarithm of that ratio and interpolates it linearly in the logarithm of every axis. A lookup
times the roofline of any GPU is that GPU's time: exact on the grid of the GPU that was measured, continuous between,
and carried to another GPU by the ratio of the rooflines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStats:
    """How far lookups were from measurements that are not in the table."""

    rows: int
    # measurements compared
    median: float
    # of |looked up / measured - 1|
    p90: float
    # ninth decile of the same
    max: float
    # largest of the same

    @classmethod
    def of(cls, predicted_s: ArrayLike, measured_s: ArrayLike) -> Self:
        """Compare looked-up with measured times, both in seconds and of one shape; no rows give zeros."""
        error = np.abs(np.asarray(predicted_s, np.float64) / np.asarray(measured_s, np.float64) - 1.0)
        if error.size == 0:
            return cls(rows=0, median=0.0, p90=0.0, max=0.0)
        median, p90, largest = (float(q) for q in np.quantile(error, [0.5, 0.9, 1.0]))
        return cls(rows=error.size, median=median, p90=p90, max=largest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatioTable:
    """Measured over ideal time on a rectangular grid."""

    names: tuple[str, ...]
    # one per axis, e.g. ("m", "n", "k")
    axes: tuple[Floats, ...]
    # grid values of each axis, positive and increasing
    seconds: Floats
    # measured times, shape (len(axis), ...); NaN where nothing was measured
    log_ratio: Floats
    # ln(measured / roofline), same shape; unmeasured points hold their nearest measured neighbour's
    left_out: Mapping[str, ErrorStats] = field(default_factory=dict)
    # errors on measurements that are not grid points, by what they were compared with; "aggregated" comes first

    @classmethod
    def from_seconds(
        cls,
        axes: Mapping[str, ArrayLike],
        seconds: ArrayLike,
        roofline_s: ArrayLike,
        left_out: Mapping[str, ErrorStats] | None = None,
    ) -> Self:
        """Make a table of measured times.

        Parameters
        ----------
        axes
            Name and increasing grid values of each axis, in the order of `seconds`' dimensions.
        seconds
            Measured times, seconds; NaN where nothing was measured.
        roofline_s
            Ideal times at the same points on the GPU that was measured, seconds.
        left_out
            Errors on measurements that are not grid points.
        """
        measured_s = np.asarray(seconds, np.float64)
        log_ratio = fill_nearest(np.log(measured_s / np.asarray(roofline_s, np.float64)))
        grid = tuple(np.asarray(values, np.float64) for values in axes.values())
        return cls(names=tuple(axes), axes=grid, seconds=measured_s, log_ratio=log_ratio, left_out=left_out or {})

    def ratio(self, **points: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """Measured over ideal time at any points.

        Parameters
        ----------
        **points
            One positive number or array per axis, by the axis's name; they broadcast. Points outside the grid take
            the value at its nearest edge.

        Returns
        -------
        ratio : ndarray
            Measured over ideal time, in the broadcast shape.
        in_range : ndarray of bool
            False outside the grid, and where an unmeasured grid point has a share in the value.

        Examples
        --------
        >>> table = RatioTable.from_seconds({"m": [1, 4], "n": [8, 32]}, [[1, 1], [4, 4]], [[1, 1], [1, 1]])
        >>> ratio, in_range = table.ratio(m=[2, 64], n=16)
        >>> ratio.round(6).tolist(), in_range.tolist()
        ([2.0, 4.0], [True, False])
        """
        if points.keys() != set(self.names):
            raise TypeError(f"a lookup here takes {', '.join(self.names)}, not {', '.join(points)}")
        columns = np.broadcast_arrays(*(np.asarray(points[name], np.float64) for name in self.names))
        shape = columns[0].shape
        inside = np.ones(shape, dtype=np.bool_)
        coordinates = np.empty((columns[0].size, len(columns)))
        for axis, (values, column) in enumerate(zip(self.axes, columns, strict=True)):
            clamped = np.clip(column, values[0], values[-1])
            inside &= clamped == column
            coordinates[:, axis] = np.log(clamped).ravel()
        found = _interpolator(self)(coordinates)
        # the second channel is 1 where every grid point with a share in the value was measured
        measured = found[:, 1].reshape(shape) > 1.0 - 1e-9
        return np.exp(found[:, 0]).reshape(shape), inside & measured


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Time of one collective by message size, for one algorithm and number of ranks."""

    size_bytes: Floats
    # message sizes, bytes, increasing; the whole vector for an all-reduce, the gathered (scattered) whole for others
    seconds: Floats
    # measured times, seconds, same length
    left_out: Mapping[str, ErrorStats] = field(default_factory=dict)
    # as in RatioTable

    def seconds_at(self, size_bytes: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """Time of messages of any size.

        Parameters
        ----------
        size_bytes
            Message sizes, bytes, positive.

        Returns
        -------
        seconds : ndarray
            Linear in log(time) over log(size) between measurements; below the smallest its latency, above the
            largest its bandwidth.
        in_range : ndarray of bool
            False outside the measured sizes.

        Examples
        --------
        >>> curve = Curve(size_bytes=np.array([1e3, 1e5]), seconds=np.array([1e-6, 4e-6]))
        >>> seconds, in_range = curve.seconds_at([10, 1e4, 1e6])
        >>> (seconds * 1e6).round(6).tolist(), in_range.tolist()
        ([1.0, 2.0, 40.0], [False, True, False])
        """
        size = np.asarray(size_bytes, np.float64)
        clamped = np.clip(size, self.size_bytes[0], self.size_bytes[-1])
        inside = np.exp(np.interp(np.log(clamped), np.log(self.size_bytes), np.log(self.seconds)))
        return np.where(size > clamped, inside * size / clamped, inside), clamped == size


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
        reached = missing & (count > 0)
        filled[reached] = total[reached] / count[reached]
        missing &= ~reached
    return filled


@lru_cache(maxsize=256)
def _interpolator(table: RatioTable) -> Any:
    """Interpolator of (log ratio, was it measured) over the logarithms of the axes.

    An axis of one value is repeated a hair further on, because scipy wants an interval.
    """
    # imported here: scipy.interpolate takes a tenth of a second
    from scipy.interpolate import RegularGridInterpolator

    both = np.stack([table.log_ratio, np.isfinite(table.seconds).astype(np.float64)], axis=-1)
    logs = []
    for axis, values in enumerate(table.axes):
        if len(values) == 1:
            both = np.repeat(both, 2, axis=axis)
            values = np.array([values[0], values[0] * 2.0])
        logs.append(np.log(values))
    return RegularGridInterpolator(tuple(logs), both, method="linear", bounds_error=False, fill_value=None)
