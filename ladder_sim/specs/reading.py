"""Read one value from text or a file, and make a spec from a table of a file."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from inspect import isroutine
from numbers import Real
from typing import Literal, TypeVar, get_args, get_origin

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.units import parse_quantity, quoted, short_name, unit_of
from ladder_sim.values import choice, flag, settable_fields

_Spec = TypeVar("_Spec")

# fields by their names in earlier versions, and what a warning says of them
_RENAMED: Mapping[str, tuple[str, str]] = {
    "latency_s": (
        "allreduce_floor_s",
        "is called allreduce_floor now: it is the time of a small all-reduce over the full tier, not the latency of a "
        "link, which is hop_latency",
    )
}


def find_field(key: str, names: Mapping[str, object], *, prefix: str = "") -> str | None:
    """Return the field that `key` names, with or without its unit; None if there is no such field.

    A name of an earlier version is accepted, with a warning that puts `prefix` before the name, e.g. ``"inter."``.
    """
    if key in names:
        return key
    field = next((name for name in names if short_name(name) == key), None)
    if field is not None:
        return field
    for old, (new, about) in _RENAMED.items():
        if key in (old, short_name(old)) and new in names:
            warnings.warn(f"{prefix}{key} {about}", FutureWarning, stacklevel=2)
            return new
    return None


def read_value(raw: object, field: str, kind: object, *, name: str) -> object:
    """Read one field's value; raises UnitError, SpecError, UnknownNameError if the value does not fit the field.

    `raw` is text or a list of what its kind is made of, or a value that already has its type; `kind` is a type from
    `settable_fields`, or a function that looks up what text names. The ending of `field` decides the unit. Errors call
    the value `name`: text holds its unit (``"50GB/s"``), a number is in the SI unit that `name` ends in
    (``bandwidth_Bps``).
    """
    if isroutine(kind):
        return kind(raw) if isinstance(raw, Sequence) else raw
    if isinstance(raw, str):
        raw = raw.strip()
    if kind is bool:
        return flag({"true": True, "false": False}.get(raw.lower(), raw) if isinstance(raw, str) else raw, name)
    if get_origin(kind) is Literal:
        return choice(raw, name, get_args(kind))
    if kind is str:
        if not isinstance(raw, str):
            raise SpecError(f"{name} is {quoted(raw)}: must be text", hint="put it in quotes")
        return raw
    if not isinstance(raw, (str, int, float)) and isinstance(raw, Real):  # numpy's
        raw = float(raw)
    if not isinstance(raw, (str, int, float)):
        raise SpecError(f"{name} is {quoted(raw)}: must be a number, or text with a unit", hint="write a number")
    unit = unit_of(field)
    # as text, which lacks its unit
    bare = not isinstance(raw, str) and unit_of(name) != unit
    value = parse_quantity(str(raw) if bare else raw, unit, name=name)
    if kind is not int:
        return value
    if not value.is_integer():
        raise SpecError(f"{name} is {quoted(raw)}: must be a whole number", hint=f"e.g. {name}={round(value)}")
    return int(value)


def read_table(spec: type[_Spec], table: Mapping[str, object], *, where: str, **given: object) -> _Spec:
    """Make a spec, a dataclass, from a table of a file, and fields that the caller has already.

    The table has fields by name: with the unit, as in ``kernel_s = 5e-6``, or text with one, as in ``kernel = "5us"``.
    `where` is file and section, with which errors begin. Raises UnknownNameError if the table has a key that is not a
    field; SpecError if a field is missing or breaks a rule.
    """
    kinds = {name: kind for name, kind in settable_fields(spec).items() if name not in given}
    values: dict[str, object] = {}
    for key, raw in table.items():
        field = find_field(key, kinds, prefix=f"{where}: ")
        if field is None:
            raise UnknownNameError(f"{where} key", key, kinds)
        values[field] = read_value(raw, field, kinds[field], name=f"{where}: {key}")
    for needed in dataclasses.fields(spec):  # type: ignore[arg-type]
        if needed.default is dataclasses.MISSING and needed.name not in values and needed.name not in given:
            raise SpecError(f"{where}: {needed.name} is missing", hint=f"add {needed.name} = ... to the file")
    return spec(**given, **values)
