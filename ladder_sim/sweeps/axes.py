"""What a sweep may vary: every argument of a scenario and every setting."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS, ScenarioFields
from ladder_sim.specs.former import instead_of
from ladder_sim.specs.reading import read_value
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import find_setting, settable
from ladder_sim.specs.values import checked
from ladder_sim.sweeps.ranges import expand, split
from ladder_sim.units import missing_unit, typed_unit, unit_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One field and the values it takes."""

    name: str
    """An argument of `Scenario`, or a setting with its unit, e.g. "inter.bandwidth_Bps"."""
    values: tuple[Any, ...]
    """Specs, numbers, flags or names; in SI units."""
    unit: str = ""
    """Unit in which all values were typed; empty for none, or several."""


def axis(key: str, given: Any, *, factor: int | None = None) -> Axis:
    """Read the values of one field.

    Parameters
    ----------
    key
        Field of the scenario or setting, e.g. ``"batch"`` or ``"inter.bandwidth"``.
    given
        Text of a range or list, one value, or a sequence of them.
    factor
        Step of a range without one; by default 2 for an argument that doubles, else a range must have a step.

    Raises
    ------
    UnknownNameError
        There is no such field, or no such model, cluster, stack or choice.
    UsageError
        The range is malformed, or a value breaks a rule.
    UnitError
        A range or a value lacks its unit.

    Examples
    --------
    >>> axis("inter.bandwidth", "50:200:x2Gb/s")
    Axis(name='inter.bandwidth_Bps', values=(6250000000.0, 12500000000.0, 25000000000.0), unit='Gb/s')
    """
    name, kind = resolve(key)
    unit = unit_of(name)
    if isinstance(given, str):
        if name in ARGUMENTS and ARGUMENTS[name].doubles:
            factor = 2
        numeric = kind in (int, float)
        raw: Sequence[Any] = expand(given, name=key, factor=factor) if numeric else split(given, name=key)
    else:
        raw = [
            each if isinstance(each, str) or name not in ARGUMENTS else checked(each, _types()[name], key)
            for each in (given if isinstance(given, Iterable) else [given])
        ]
    if not raw:
        raise UsageError(f"{key}: no values", hint="give it at least one")
    units = {typed_unit(item, unit) for item in raw}
    if isinstance(given, str) and ":" in given and unit != "count" and not any(units):
        raise missing_unit(given, unit, name=key)
    if name in ARGUMENTS:
        values = (ARGUMENTS[name].read(item, name=key) for item in raw)
    else:
        values = (read_value(item, name, kind, name=key) for item in raw)
    return Axis(name=name, values=tuple(dict.fromkeys(values)), unit=units.pop() if len(units) == 1 else "")


@cache
def _types() -> dict[str, Any]:
    """Return the types of the values of arguments."""
    return get_type_hints(ScenarioFields)


def resolve(key: str) -> tuple[str, Any]:
    """Return a field's name, with its unit if it is a setting, and its type or catalog."""
    key = key.strip()
    name = key.replace("-", "_")
    if name in ARGUMENTS:
        return name, ARGUMENTS[name].kind
    setting = find_setting(key)
    if setting is None:
        more = "`ladder-sim list settings` shows all settings"
        raise UnknownNameError("field", key, (*ARGUMENTS, *settable()), more=more, answer=instead_of(key))
    return setting.name, setting.kind


def figure_of(name: str) -> str:
    """Return the hardware figure (`Hardware.vary`) of a setting's name; empty if there is no such figure."""
    figure = name.removeprefix("cluster.")
    return figure if name not in ARGUMENTS and figure in Hardware.figures() else ""


def value_at(scenario: Scenario, name: str) -> Any:
    """Return a scenario's value for a field or setting, named as by `resolve`."""
    return scenario.fields()[name] if name in ARGUMENTS else scenario.setting(name)


def used_value(scenario: Scenario, name: str, profile: CalibrationProfile | None) -> Any:
    """Return a scenario's value of a field as predictions use it: a fit may replace what the specs state."""
    figure = figure_of(name)
    return Hardware.of(scenario, profile).figure(figure) if figure else value_at(scenario, name)
