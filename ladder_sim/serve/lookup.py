"""Interpolation of single points, in a few microseconds: numpy takes as long for one point as for a thousand.

Everything is linear between the points of a grid, so that no value lies outside those next to it, and constant beyond.
"""

from bisect import bisect_right
from collections.abc import Sequence

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


class Line:
    """Values along one axis."""

    __slots__ = ("axis", "values")

    def __init__(self, axis: Axis, values: Floats) -> None:
        self.axis = axis
        self.values: Sequence[float] = values.tolist()

    def at(self, coordinate: float) -> float:
        """The value at a point."""
        cell, up = self.axis.place(coordinate)
        low = self.values[cell]
        return low + up * (self.values[cell + 1] - low)


class Lines:
    """Lines at the points of one more axis; each may have an axis of its own."""

    __slots__ = ("axis", "lines")

    def __init__(self, axis: Axis, lines: "Sequence[Line | Lines]") -> None:
        self.axis, self.lines = axis, lines

    def at(self, coordinate: float, *rest: float) -> float:
        """The value at a point; the first coordinate is that of the added axis."""
        cell, up = self.axis.place(coordinate)
        low = self.lines[cell].at(*rest)
        return low + up * (self.lines[cell + 1].at(*rest) - low) if up else low
