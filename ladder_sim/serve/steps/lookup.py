"""Interpolation of single points, in a few microseconds: numpy takes as long for one point as for a thousand.

Everything is linear between the points of a grid, so that no value lies outside those next to it, and constant beyond.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ladder_sim.des.shared import Floats


class Axis:
    """Grid values of one coordinate: at least two, increasing."""

    __slots__ = ("last", "values")

    def __init__(self, values: Floats) -> None:
        self.values: Sequence[float] = values.tolist()

        # the highest cell
        self.last = len(self.values) - 2

    def place(self, value: float) -> tuple[int, float]:
        """The cell of a value, and how far it is on the way to the cell's upper end."""
        values = self.values
        cell = bisect_right(values, value) - 1
        if cell < 0:
            return 0, 0.0
        if cell > self.last:
            return self.last, 1.0
        low = values[cell]
        return cell, (value - low) / (values[cell + 1] - low)


class Grid:
    """Values at the points of some axes."""

    __slots__ = ("axes", "values")

    def __init__(self, axes: Sequence[Axis], values: NDArray[Any]) -> None:
        self.axes, self.values = axes, values.tolist()

    def at(self, *coordinates: float) -> float:
        """The value at a point; its coordinates are in the order of the axes."""
        value = 0.0
        for corner, weight in self.corners(*coordinates):
            value += weight * corner
        return value

    def corners(self, *coordinates: float) -> list[tuple[Any, float]]:
        """The values that the one at a point is between, and the weight of each."""
        corners = [(self.values, 1.0)]
        for axis, coordinate in zip(self.axes, coordinates, strict=True):
            cell, up = axis.place(coordinate)
            nearest = [(values[cell], weight * (1.0 - up)) for values, weight in corners]
            if up:
                nearest += [(values[cell + 1], weight * up) for values, weight in corners]
            corners = nearest
        return corners
