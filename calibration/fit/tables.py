"""Tables and curves of measured points, as profiles hold them."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from calibration.fit.samples import Floats, Points
from ladder_sim.costs.lookup import Curve, RatioTable
from ladder_sim.costs.profile import ELEMENT_BYTES, ReferenceGpu
from ladder_sim.costs.roofline import AXES, Kind, grid_roofline_s

KINDS: tuple[Kind, ...] = get_args(Kind)
# that a profile holds
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
DTYPE = "bf16"


def table_of(kind: Kind, points: Points, reference: ReferenceGpu) -> RatioTable:
    """A table of the points, NaN where there is none."""
    axes = [np.unique(column) for column in zip(*points, strict=True)]
    seconds = np.full([len(axis) for axis in axes], np.nan)
    for at, measured_s in points.items():
        seconds[tuple(int(np.searchsorted(axis, value)) for axis, value in zip(axes, at, strict=True))] = measured_s
    named = dict(zip(AXES[kind], axes, strict=True))
    ideal_s = roofline_s(kind, dict(zip(named, np.ix_(*axes), strict=True)), reference)
    return RatioTable.from_seconds(named, seconds, ideal_s)


def curve_of(points: Points) -> Curve:
    """A curve of times by message size."""
    sizes, seconds = np.array(sorted((size, measured_s) for (size,), measured_s in points.items())).T
    return Curve(size_bytes=sizes, seconds=seconds)


def roofline_s(kind: Kind, points: Mapping[str, Any], reference: ReferenceGpu) -> Floats:
    """Ideal time of the measured GPU at a table's coordinates."""
    return grid_roofline_s(
        kind,
        points,
        element_bytes=ELEMENT_BYTES[DTYPE],
        flops_per_s=reference.bf16_flops,
        bandwidth_Bps=reference.hbm_bandwidth_Bps,
        kernel_s=reference.kernel_s,
    )
