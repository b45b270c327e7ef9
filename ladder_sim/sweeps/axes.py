"""What a sweep may vary: every argument of a scenario and every setting, by values and by ranges as they are typed.

A range is ``START:STOP[:xFACTOR|:+STEP][UNIT]``, or values separated by commas.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, get_type_hints

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS, ScenarioFields
from ladder_sim.specs.reading import read_value
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import find_setting, settable
from ladder_sim.units import missing_unit, typed_unit, unit_of
from ladder_sim.values import checked

# values of one range; more is a typing error
MAX_VALUES = 2_000_000
# far above any quantity
_LARGEST = Decimal("1e30")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER}):({_NUMBER})(?::([x+])({_NUMBER}))?\s*([^\d\s:.,+-][^:,]*)?", re.ASCII)
_PLAIN = re.compile(rf"\s*({_NUMBER})\s*([^\d\s:][^:]*)?", re.ASCII)
# ranges of other languages
_OTHER_FORM = re.compile(r"(\d+)\s*(?:\.\.+|-)\s*(\d+)\s*([A-Za-z]\S*)?", re.ASCII)
_FORM = "START:STOP:xFACTOR or START:STOP:+STEP, then a unit, e.g. 50:800:x2Gb/s"


def expand(text: str, *, name: str, factor: int | None = None) -> list[str]:
    """Return the values of a numeric range or list, each as text with its unit.

    Both ends of a range are among its values; values and ranges may be separated by commas. A unit behind the last of
    several bare numbers is the unit of all. `factor` is the step of a range without one; None: a range must have a
    step.

    Raises UsageError if the range is malformed, runs backwards, does not advance, or is far too long.

    Examples
    --------
    >>> expand("50:800:x2Gb/s", name="inter.bandwidth")
    ['50Gb/s', '100Gb/s', '200Gb/s', '400Gb/s', '800Gb/s']
    >>> expand("1:10:+4us", name="inter.hop_latency")
    ['1us', '5us', '9us', '10us']
    >>> expand("2:16", name="tp", factor=2)
    ['2', '4', '8', '16']
    >>> expand("100,400Gb/s", name="inter.bandwidth")
    ['100Gb/s', '400Gb/s']
    """
    pieces = split(text, name=name)
    unit = _shared_unit(pieces)
    values: list[str] = []
    for piece in pieces:
        other = _OTHER_FORM.fullmatch(piece)
        if other:
            start, stop, unit = other.groups("")
            raise UsageError(f"{name}: '{piece}' is not a range", hint=f"write {start}:{stop}:x2{unit}")
        if ":" in piece:
            values += _steps(piece, name, factor)
        else:
            values.append(piece + (unit if re.fullmatch(_NUMBER, piece) else ""))
    return list(dict.fromkeys(values))


def split(text: str, *, name: str) -> list[str]:
    """Return the pieces between commas, none of them empty."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(pieces):
        raise UsageError(f"{name}: '{text}' has an empty value", hint="separate values by single commas")
    return pieces


def _shared_unit(pieces: list[str]) -> str:
    """Return the unit of the last number, if no other number has a unit; empty otherwise."""
    number, steps = _PLAIN.fullmatch(pieces[-1]), _RANGE.fullmatch(pieces[-1])
    unit = number[2] if number else steps[5] if steps else None
    return unit or "" if all(re.fullmatch(_NUMBER, piece) for piece in pieces[:-1]) else ""


def _steps(piece: str, name: str, factor: int | None) -> list[str]:
    match = _RANGE.fullmatch(piece)
    if match is None:
        raise UsageError(f"{name}: '{piece}' is not a range", hint=_FORM)
    sign, unit = match[3] or "x", match[5] or ""
    if match[3] is None and factor is None:
        raise UsageError(
            f"{name}: '{piece}' has no step",
            hint=f"write {match[1]}:{match[2]}:x2{unit} or {match[1]}:{match[2]}:+1{unit}",
        )
    start, stop, step = (Decimal(number or 0) for number in (match[1], match[2], match[4] or factor))
    if stop > _LARGEST:
        raise UsageError(f"{name}: '{piece}' must end at 1e30 or below", hint=_FORM)
    if start > stop:
        raise UsageError(f"{name}: '{piece}' runs backwards", hint="put the smaller end first")
    if step <= (1 if sign == "x" else 0) or (sign == "x" and start <= 0):
        raise UsageError(
            f"{name}: '{piece}' does not advance", hint="a factor is above 1 and starts above 0; a step is above 0"
        )
    count = (stop - start) / step if sign == "+" else (stop / start).ln() / step.ln()
    if count > MAX_VALUES:
        raise UsageError(f"{name}: '{piece}' has {count:.2g} values", hint="take a larger step")
    values = []
    at = start
    while at < stop:
        values.append(at)
        at = at + step if sign == "+" else at * step
    return [f"{value.normalize():f}{unit}" for value in (*values, stop)]


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
    """Read the values of a field of the scenario or of a setting: a range or list as text, a value, or several.

    A range without a step takes `factor`; by default 2 for an argument that doubles, else a range must have a step.

    Raises UnknownNameError if there is no such field, or no such model, cluster, stack or choice; UsageError if the
    range is malformed, or a value breaks a rule; UnitError if a range or a value lacks its unit.

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
        raise UnknownNameError("field", key, (*ARGUMENTS, *settable()), more=more)
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
