"""The fields that a page can draw along, and the values that it scans."""

import numpy as np

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.display.labels import field_title
from ladder_sim.errors import UsageError
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.axes import used_value, value_at

# a figure goes from the scenario's value divided by this to that multiplied by it
REACH = 16.0
CURVE_VALUES, MAP_VALUES = 41, 40
# first and last of whole numbers that double
_DOUBLED = {
    "nodes": (1, 16),
    "batch": (1, 256),
    "concurrency": (1, 512),
    "prompt": (128, 32_768),
    "gen": (16, 4096),
}


def busiest_link(scenario: Scenario) -> str:
    """Return the tier that the all-reduce waits for: "inter" if there are several nodes, else "intra"."""
    return "inter" if scenario.crosses_nodes else "intra"


def current(scenario: Scenario, name: str, profile: CalibrationProfile | None) -> float:
    """Return a field's value; raise UsageError if it is not given."""
    value = used_value(scenario, name, profile)
    if value is None:
        raise UsageError(f"{field_title(name)} is empty here", hint="enter a number first, or choose another field")
    return float(value)


def values(scenario: Scenario, name: str, profile: CalibrationProfile | None, count: int) -> list[float] | list[int]:
    """Return the values of a field to scan, ascending; raise UsageError if the field is 0: 0 has no multiples."""
    if name == "tp":
        return list(scenario.tp_degrees())
    if name in _DOUBLED:
        low, high = _DOUBLED[name]
        here = int(current(scenario, name, profile))
        doubled = [low]
        # beyond the scenario's own value
        while doubled[-1] < max(high, here):
            doubled.append(doubled[-1] * 2)
        return doubled
    middle = current(scenario, name, profile)
    if middle <= 0.0:
        raise UsageError(f"{field_title(name)} is 0 here", hint="choose another field, or set it to a number above 0")
    if isinstance(value_at(scenario, name), int):
        spread = np.geomspace(max(middle / REACH, 1.0), middle * REACH, 9)
        return [int(value) for value in np.unique(np.round(spread))]
    reals: list[float] = np.geomspace(middle / REACH, middle * REACH, count).tolist()
    return reals
