"""The latency of an all-reduce by message size, for an emulated interconnect."""

import csv
import itertools
import json
import math
from bisect import bisect_left
from pathlib import Path
from typing import Self

from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_text

_FORM = 'a CSV file with the columns bytes,seconds, or JSON [{"bytes": 1024, "seconds": 1e-5}, ...]'
# far outside anything measured, near enough that latencies between the points stay finite
_LOW, _HIGH = 1e-30, 1e30


class LatencyTable:
    """Latencies of an all-reduce, interpolated linearly in the logarithms of size and time.

    Smaller messages take as long as the smallest, larger ones have the bandwidth of the largest.

    Parameters
    ----------
    points
        Message bytes and seconds.

    Examples
    --------
    >>> table = LatencyTable([(1e4, 10e-6), (1e6, 1e-3)])
    >>> [f"{table.seconds(size):.6f}" for size in (1, 1e5, 2e6)]
    ['0.000010', '0.000100', '0.002000']
    """

    def __init__(self, points: list[tuple[float, float]]) -> None:
        ordered = sorted(points)
        if not ordered or not all(_LOW < value < _HIGH for point in ordered for value in point):
            raise UsageError(
                f"an all-reduce table needs points, with bytes and seconds above 0, between {_LOW:g} and {_HIGH:g}",
                hint=_FORM,
            )
        if any(a[0] == b[0] for a, b in itertools.pairwise(ordered)):
            raise UsageError("an all-reduce table has a message size twice", hint="keep one latency per size")
        self.points = ordered
        self._sizes = [size for size, _ in ordered]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a CSV or JSON file; lines of a CSV file that start with ``#`` are comments."""
        text = read_text(path, what=_FORM, error=UsageError)
        try:
            if path.suffix.lower() == ".json":
                rows = json.loads(text)
            else:
                rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
            return cls([(float(row["bytes"]), float(row["seconds"])) for row in rows])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error):
            raise UsageError(f"{path}: not a table of all-reduce latencies", hint=f"give {_FORM}") from None

    def seconds(self, size_bytes: float) -> float:
        """Return the latency of a message, in seconds."""
        at = bisect_left(self._sizes, size_bytes)
        if at == 0:
            return self.points[0][1]
        low_size, low_s = self.points[at - 1]
        if at == len(self.points):
            return low_s * size_bytes / low_size
        high_size, high_s = self.points[at]
        share = math.log(size_bytes / low_size) / math.log(high_size / low_size)
        return math.exp(math.log(low_s) + share * math.log(high_s / low_s))
