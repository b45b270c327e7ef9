"""Tables and curves of measured points, as profiles hold them."""

from collections.abc import Iterator, Mapping

import numpy as np

from ladder_sim.costs.lookup import Curve, RatioTable
from ladder_sim.costs.profile import MOE_KINDS, CalibrationProfile
from ladder_sim.costs.table_parts import ideal_time_s
from ladder_sim.kernels import TABLE_KINDS, Experts, Gpu, Kind, TableOf
from ladder_sim_calibration.fit.samples import SizedTimes, layer_label


def table_of(kind: Kind, of: TableOf, points: SizedTimes, reference: Gpu) -> RatioTable:
    """Return the table of measured points as ratios to the roofline, NaN where nothing was measured."""
    axes = [np.unique(column) for column in zip(*points, strict=True)]
    seconds = np.full([len(axis) for axis in axes], np.nan)
    for at, measured_s in points.items():
        seconds[tuple(int(np.searchsorted(axis, value)) for axis, value in zip(axes, at, strict=True))] = measured_s
    named = dict(zip(TABLE_KINDS[kind].axes, axes, strict=True))
    return RatioTable.from_seconds(named, seconds, ideal_time_s(named, kind, of, reference))


def tables_in(profile: CalibrationProfile) -> Iterator[tuple[str, RatioTable]]:
    """Yield the name and table of every table of a profile."""
    for kind, about in TABLE_KINDS.items():
        if kind not in MOE_KINDS:
            for of, table in (profile.experts if kind == "moe" else profile.tables(kind)).items():
                yield f"{about.label} {f'{layer_label(of)} {of.format}' if isinstance(of, Experts) else of}", table


def curves_in(collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]]) -> Iterator[tuple[str, int, Curve]]:
    """Yield the operation with algorithm, ranks and curve of every collective of a profile."""
    for op, algorithms in collectives.items():
        for algorithm, curves in algorithms.items():
            for ranks, curve in curves.items():
                yield f"{op} {algorithm}", ranks, curve


def curve_of(points: SizedTimes) -> Curve:
    """Return the curve of times, seconds, by message size, bytes."""
    sizes, seconds = np.array(sorted((size, measured_s) for (size,), measured_s in points.items())).T
    return Curve(size_bytes=sizes, seconds=seconds)
