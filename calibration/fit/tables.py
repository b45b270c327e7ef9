"""Tables and curves of measured points, as profiles hold them."""

from collections.abc import Iterator, Mapping
from typing import get_args

import numpy as np

from calibration.fit.samples import Points
from ladder_sim.costs.lookup import Curve, RatioTable
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.roofline import AXES, Gpu, Kind, roofline_s, table_shape
from ladder_sim.des.shared import Floats

KINDS: tuple[Kind, ...] = get_args(Kind)
DTYPE = "bf16"


def table_of(kind: Kind, points: Points, reference: Gpu) -> RatioTable:
    """A table of the points, NaN where there is none."""
    axes = [np.unique(column) for column in zip(*points, strict=True)]
    seconds = np.full([len(axis) for axis in axes], np.nan)
    for at, measured_s in points.items():
        seconds[tuple(int(np.searchsorted(axis, value)) for axis, value in zip(axes, at, strict=True))] = measured_s
    named = dict(zip(AXES[kind], axes, strict=True))
    ideal_s = ideal_time_s(kind, dict(zip(named, np.ix_(*axes), strict=True)), reference)
    return RatioTable.from_seconds(named, seconds, ideal_s)


def tables_in(profile: CalibrationProfile) -> Iterator[tuple[Kind, str, str, RatioTable]]:
    """Kind, dtype, name and table of every table of a profile."""
    for dtype, table in profile.gemm.items():
        yield "gemm", dtype, f"gemm {dtype}", table
    for kernel, tables in profile.attention_prefill.items():
        for dtype, table in tables.items():
            yield "attention_prefill", dtype, f"prefill attention {kernel} {dtype}", table
    for kernel, tables in profile.attention_decode.items():
        for dtype, table in tables.items():
            yield "attention_decode", dtype, f"decode attention {kernel} {dtype}", table


def curve_of(points: Points) -> Curve:
    """A curve of times by message size."""
    sizes, seconds = np.array(sorted((size, measured_s) for (size,), measured_s in points.items())).T
    return Curve(size_bytes=sizes, seconds=seconds)


def ideal_time_s(kind: Kind, points: Mapping[str, Floats], reference: Gpu) -> Floats:
    """Ideal time of the measured GPU at a table's coordinates."""
    return roofline_s(table_shape(kind, DTYPE, points), reference)
