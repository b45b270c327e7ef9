"""What of a sweep's points was compared with end-to-end runs."""

from collections.abc import Mapping, Sequence

import numpy as np

from ladder_sim.confidence.runs import most_alike, parts_alike, turning_points
from ladder_sim.prediction import resolve_profile
from ladder_sim.sweeps.grid import SweepBlock, scenario_at

# by part of a scenario; None of a point that cannot run
Validated = Mapping[str, bool] | None


def validated(block: SweepBlock, variants: Sequence[str], profile: str | None) -> Sequence[Validated]:
    """`Confidence.validated` of each point; looked up once for all points between the ends of what runs had."""
    if block.scenario is None:
        return [None] * block.count
    measured = resolve_profile(block.scenario, profile)
    places = np.zeros(block.count, np.int64)
    for name, values in block.columns.items():
        ends = turning_points(name, block.scenario, measured)
        # below, at or above each
        place = np.searchsorted(ends, values) + np.searchsorted(ends, values, "right")
        places = places * (2 * len(ends) + 1) + place
    # a point of each place
    _, rows, which = np.unique(places, return_index=True, return_inverse=True)
    points = [{name: values[row].item() for name, values in block.columns.items()} for row in rows]
    scenarios = [scenario_at({**block.point, **point}) for point in points]
    answers = [parts_alike(each, measured, most_alike(each, measured), variants) for each in scenarios]
    return [answers[each] for each in which]
