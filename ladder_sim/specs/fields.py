"""The fields of a spec: their types, the numbers that they may hold, and what they mean."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ladder_sim.specs.values import choice, flag, real, whole


class Limits(NamedTuple):
    """What a number may be; annotates a field."""

    minimum: int
    maximum: float
    above: bool = False
    """The minimum itself is not allowed."""
    hint: str = ""
    """The way out of an error."""


# in SI units: a thousand times the rate of one device, the memory of one device, one operation
Rate = Annotated[float, Limits(0, 1e18, above=True)]
Bytes = Annotated[float, Limits(0, 1e15)]
Seconds = Annotated[float, Limits(0, 10.0)]


def check_fields(spec: Any, where: str = "") -> None:
    """Require of a spec that numbers are within their `Limits`, flags are flags and choices are choices."""
    for name, check in _checks(spec.__class__):
        check(getattr(spec, name), f"{where}: {name}" if where else name)


@functools.cache
def _checks(spec: type) -> Sequence[tuple[str, Callable[[Any, str], object]]]:
    """Fields with a rule, and the rule for their values."""
    return [(name, check) for name, kind in field_kinds(spec).items() if (check := _check_of(kind))]


def _check_of(kind: Any) -> Callable[[Any, str], object] | None:
    limits = limits_of(kind)
    if kind is bool:
        return flag
    if get_origin(kind) is Literal:
        return functools.partial(choice, names=get_args(kind))
    if limits is None:
        return None
    number = get_args(kind)[0]
    check = (
        functools.partial(whole, minimum=limits.minimum, maximum=int(limits.maximum), hint=limits.hint)
        if number in (int, int | None)
        else functools.partial(real, maximum=limits.maximum, zero=not limits.above, hint=limits.hint)
    )
    if NoneType not in get_args(number):
        return check
    return lambda value, what: None if value is None else check(value, what)


@functools.cache
def field_kinds(spec: type) -> Mapping[str, Any]:
    """Return the types of a spec's fields by name, `Limits` included."""
    hints = get_type_hints(spec, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(spec)}


def settable_fields(spec: type) -> dict[str, object]:
    """Return the types of the fields that one value can set, by name: numbers, flags, choices and text."""
    kinds = {name: get_args(kind)[0] if limits_of(kind) else kind for name, kind in field_kinds(spec).items()}
    return {n: kind for n, kind in kinds.items() if kind in (int, float, bool, str) or get_origin(kind) is Literal}


def limits_of(kind: Any) -> Limits | None:
    """Return what the numbers of a field may be, by its type; None if it holds no number."""
    limits: Limits | None = get_args(kind)[1] if get_origin(kind) is Annotated else None
    return limits


@functools.cache
def meanings(spec: type) -> Mapping[str, str]:
    """Return what the fields of a spec mean, by name: the docstrings under them, as plain text.

    Examples
    --------
    >>> from ladder_sim.specs.workload import Workload
    >>> meanings(Workload)["batch"]
    'Requests that start together, in a static batch.'
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(spec))).body
    texts = {}
    for field, text in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                texts[name] = " ".join(meaning.replace("`", "").split())
    return texts
