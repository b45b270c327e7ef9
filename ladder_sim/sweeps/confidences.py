"""How sure the predictions of a sweep are."""

from collections.abc import Sequence
from typing import Any

from ladder_sim.confidence import Confidence
from ladder_sim.display.labels import field_label, field_text
from ladder_sim.display.notes import Notes
from ladder_sim.errors import LadderSimError
from ladder_sim.prediction import predict
from ladder_sim.sweeps.axes import Axis
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.grid import Grid, scenario_at
from ladder_sim.sweeps.price import PRICE_CAVEAT

# values of an axis that are looked at one by one; of more, and of numbers in ranges, the ends
_FEW = 16


def sweep_notes(grid: Grid, how: How) -> Notes:
    """Return what the reader of a sweep should know."""
    about = () if how.usd_per_gpu_hour is None else (PRICE_CAVEAT,)
    return Notes(confidences=confidences(grid, how), about=about)


def confidences(grid: Grid, how: How) -> dict[str, Confidence]:
    """Return the confidence at each value of each axis, with the others' last or first values; only what runs."""
    bases = [{each.name: each.values[end] for each in grid.axes} for end in (-1, 0)]
    points = {
        f"{field_label(each.name)} {field_text(each.name, getattr(value, 'name', value), each.unit)}": [
            {**base, each.name: value} for base in bases
        ]
        for each in grid.varied
        for value in _looked_at(each)
    }
    answers = {}
    for name, tried in (points or {"": bases[:1]}).items():
        for point in tried:
            try:
                scenario = scenario_at(point)
                answers[name] = predict(
                    scenario, grid.variants, profile=how.profile, ignore_memory=how.ignore_memory
                ).confidence
                break
            except LadderSimError:
                continue
    return answers


def _looked_at(each: Axis) -> Sequence[Any]:
    return each.values if len(each.values) <= _FEW else (each.values[0], each.values[-1])
