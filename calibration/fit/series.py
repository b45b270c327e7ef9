"""Samples gathered by what they tell of: the median of every point, in series that one table or formula covers."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.fit.samples import BESIDE, COORDINATES, Sample

Floats = NDArray[np.float64]
Points = dict[tuple[float, ...], float]
# coordinates -> median seconds


class Series(NamedTuple):
    """One op, and for a collective its group."""

    op: str
    axes: tuple[str, ...] = ("bytes",)
    # names of its points' coordinates
    ranks: int = 0
    # of the group, in all; 0: no collective
    nodes: int = 1

    @property
    def label(self) -> str:
        """For a reader."""
        across = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.op}, {self.ranks} ranks{across}" if self.ranks else self.op

    def columns(self, points: Sequence[tuple[float, ...]]) -> dict[str, Floats]:
        """Points, by coordinate."""
        return dict(zip(self.axes, np.array(points).T, strict=True))


def medians(samples: Sequence[Sample]) -> dict[Series, Points]:
    """The median of each point's samples; what did not fit the memory, and what ran beside others, is left out."""
    found: dict[Series, dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.seconds is None or BESIDE in sample.op:
            continue
        axes = tuple(name for name in COORDINATES[sample.op] if name not in ("ranks", "nodes"))
        series = Series(sample.op, axes, int(sample.point.get("ranks", 0)), int(sample.point.get("nodes", 1)))
        found[series][tuple(sample.point[name] for name in axes)].append(sample.seconds)
    return {key: {at: float(np.median(took)) for at, took in points.items()} for key, points in found.items()}
