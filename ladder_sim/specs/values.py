"""Turn text or numbers into the fields of a spec, with the unit that each field's name ends in."""

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.units import parse_quantity, short_name, unit_of

_SHORT = reprlib.Repr()


_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def shown(value: object) -> str:
    """Write any value in one short line that every terminal can print."""
    try:
        return ascii(value) if isinstance(value, str) and len(value) <= 60 else _SHORT.repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"


def shown_path(path: str | Path) -> str:
    """Write a path in full, with escapes for what a terminal cannot print."""
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def whole(value: object, what: str, least: int, most: int, *, hint: str = "") -> int:
    """Require a whole number within bounds, both included; `what` names it."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError(
            f"{what} is {shown(value)}: must be a whole number from {least} to {most}",
            hint=hint or "give a whole number in that range",
        )
    return value


def real(value: object, what: str, most: float, *, zero: bool = False, hint: str = "") -> float:
    """Require a number above zero (or from zero, with `zero`) and up to `most`."""
    # NaN fails every comparison, infinity the last
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if 0 < number <= most or (zero and number == 0):
        return number
    floor = "from 0" if zero else "above 0"
    raise SpecError(
        f"{what} is {shown(value)}: must be a number {floor} and up to {most:g}",
        hint=hint or "give a number in that range, in SI base units",
    )


def flag(value: object, what: str) -> bool:
    """Require true or false."""
    if not isinstance(value, bool):
        raise SpecError(f"{what} is {shown(value)}: must be true or false", hint="write true or false")
    return value


def choice(value: object, what: str, known: Iterable[str]) -> str:
    """Require one of the known names; the nearest is suggested."""
    names = tuple(known)
    if not isinstance(value, str):
        raise SpecError(f"{what} is {shown(value)}: must be one of {', '.join(names)}", hint=f"write e.g. {names[0]}")
    if value not in names:
        raise UnknownNameError(what, value, names)
    return value


def label(value: object, what: str) -> str:
    """Require text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{what} is {shown(value)}: must be text, not empty", hint=f"give {what} a name")
    return value


def settable_fields(spec: type) -> dict[str, object]:
    """Return the types of the fields that one value can set, by name: numbers, flags, choices and text."""
    hints = get_type_hints(spec)
    names = (field.name for field in dataclasses.fields(spec))
    return {n: hints[n] for n in names if hints[n] in (int, float, bool, str) or get_origin(hints[n]) is Literal}


def find_field(key: str, names: Mapping[str, object]) -> str | None:
    """Return the field that `key` names, with or without its unit; None if there is none."""
    if key in names:
        return key
    return next((name for name in names if short_name(name) == key), None)


def read_value(raw: object, field: str, kind: object, *, name: str) -> object:
    """Read one field's value.

    Parameters
    ----------
    raw
        Text (with a unit or without) or a value that already has its type.
    field
        Field name; its ending decides the unit.
    kind
        Type of the field, from `settable_fields`.
    name
        What errors call it.

    Raises
    ------
    UnitError, SpecError, UnknownNameError
        If the value does not fit the field.
    """
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.strip().lower() in ("true", "false"):
            return raw.strip().lower() == "true"
        raise SpecError(f"{name} is {shown(raw)}: must be true or false", hint=f"write {name}=true or {name}=false")
    if get_origin(kind) is Literal:
        return choice(raw.strip() if isinstance(raw, str) else raw, name, get_args(kind))
    if kind is str:
        if not isinstance(raw, str):
            raise SpecError(f"{name} is {shown(raw)}: must be text", hint="put it in quotes")
        return raw.strip()
    if not isinstance(raw, (str, int, float)):
        raise SpecError(f"{name} is {shown(raw)}: must be a number, or text with a unit", hint=f"write {name}=NUMBER")
    value = parse_quantity(raw, unit_of(field), name=name)
    if kind is not int:
        return value
    if not value.is_integer():
        raise SpecError(f"{name} is {shown(raw)}: must be a whole number", hint=f"e.g. {name}={round(value)}")
    return int(value)


_Spec = TypeVar("_Spec")


def read_table(spec: type[_Spec], table: Mapping[str, object], *, where: str, **known: object) -> _Spec:
    """Make a spec from a table of a file.

    Parameters
    ----------
    spec
        Dataclass to make.
    table
        Its fields by name, with or without the unit; quantities may be text with a unit.
    where
        File and section; errors begin with it.
    **known
        Fields that the caller has already; the table may not hold them.

    Raises
    ------
    UnknownNameError
        If the table has a key that is no field.
    SpecError
        If a field is missing or impossible.
    """
    kinds = {name: kind for name, kind in settable_fields(spec).items() if name not in known}
    values: dict[str, object] = {}
    for key, raw in table.items():
        field = find_field(key, kinds)
        if field is None:
            raise UnknownNameError(f"{where} key", key, kinds)
        values[field] = read_value(raw, field, kinds[field], name=f"{where}: {key}")
    for needed in dataclasses.fields(spec):  # type: ignore[arg-type]
        if needed.default is dataclasses.MISSING and needed.name not in values and needed.name not in known:
            raise SpecError(f"{where}: {needed.name} is missing", hint=f"add {needed.name} = ... to the file")
    return spec(**known, **values)
