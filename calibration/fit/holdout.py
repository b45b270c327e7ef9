"""How well ops are known: trials, each made without a fifth of their points, are asked for the times of those."""

from collections.abc import Callable, Mapping

import numpy as np

from calibration.fit.curves import FORMULAS, fit
from calibration.fit.samples import Floats, Points, Series
from calibration.fit.tables import COLLECTIVES, KINDS, curve_of, roofline_s, table_of
from ladder_sim.costs.lookup import ErrorStats
from ladder_sim.costs.profile import ReferenceGpu

# trials: every point is held out of one of them, drawn at random
FOLDS = 5
# coordinates by name -> seconds
_Lookup = Callable[[Mapping[str, Floats]], Floats]


def judge(medians: Mapping[Series, Points], reference: ReferenceGpu) -> dict[Series, ErrorStats | None]:
    """Errors of what becomes a table, curve or formula, over the same draws every time.

    Fewer points than trials tell nothing: None.
    """
    return {
        series: _errors(series, points, reference) if len(points) >= FOLDS else None
        for series, points in medians.items()
        if series.op in KINDS or series.op in FORMULAS
    }


def _errors(series: Series, points: Points, reference: ReferenceGpu) -> ErrorStats:
    """All points take part but the ends of a curve, which lie between no others."""
    every = sorted(points)
    drawn = np.random.default_rng(0).permutation(every if len(series.axes) > 1 else every[1:-1]).tolist()
    looked_up: list[float] = []
    measured: list[float] = []
    for fold in range(min(FOLDS, len(drawn))):
        test = [tuple(at) for at in drawn[fold::FOLDS]]
        kept = {at: took for at, took in points.items() if at not in set(test)}
        looked_up.extend(_lookup(series, kept, reference)(series.columns(test)))
        measured.extend(points[at] for at in test)
    return ErrorStats.of(looked_up, measured)


def _lookup(series: Series, points: Points, reference: ReferenceGpu) -> _Lookup:
    """What a prediction would take from the points: a table, a curve, a formula where it reads no more."""
    for kind in KINDS:
        if kind == series.op:
            table = table_of(kind, points, reference)
            return lambda columns: table.ratio(**columns)[0] * roofline_s(kind, columns, reference)
    if series.op in COLLECTIVES:
        curve = curve_of(points)
        return lambda columns: curve.seconds_at(columns["bytes"])[0]
    formula, _, _ = FORMULAS[series.op]
    found = fit(series.op, series.columns(list(points)), np.array(list(points.values())))
    return lambda columns: formula(found.values, columns)
