"""Pieces of JSON Schemas: values by their names and types, and objects that are strict.

A strict object holds no other key than those named, and every key that is always there. The range of a number follows
from its name, which holds its unit.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from ladder_sim.confidence import Interval
from ladder_sim.report.columns import Column
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.values import meanings
from ladder_sim.wirings.names import FAMILIES, HYBRID

Schema = dict[str, Any]
_ENDS = ("", "_low", "_high")
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT}
COUNT: Schema = {"type": "integer", "minimum": 0}

WIRING = rf"({HYBRID})?({'|'.join(FAMILIES)})(:[0-9]+)*"
VARIANT = rf"^({WIRING}|.*\.toml)$"


def number(name: str) -> Schema:
    """Numbers of a name: shares are 0 to 1, ratios above 0, relative errors at least -1, all else at least 0."""
    figure = re.sub(r"_(low|high)$", "", name.rpartition(".")[2])
    if re.search(r"(elasticity|difference|saved|lost)$", figure):
        return {"type": "number"}
    if re.search(r"(^|_)(error|bias|change|lower|higher)$", figure) and not re.search(r"(mean|max|abs)_error$", figure):
        return {"type": "number", "minimum": -1}
    if re.search(r"(^|_)(share|fraction|inside|inside_90|steps_share|utilisation|kv_occupancy)$", figure):
        return {"type": "number", "minimum": 0, "maximum": 1}
    if re.search(r"(^|_)(speedup|gain)$|^gain_", figure):
        return {"type": "number", "exclusiveMinimum": 0}
    return {"type": "number", "minimum": 0}


def value(name: str, kind: Any = None) -> Schema:
    """Values of a name and a type; None: what the name alone says, as in `Column`."""
    if kind is None:
        return named(name)
    if kind in (float, Any):
        return number(name)
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return {"enum": list(parts)}
    if get_origin(kind) in (Union, UnionType):
        known = [value(name, part) for part in parts if part is not NoneType]
        if len(known) > 1:
            return {"enum": [each for part in known for each in part["enum"]]}
        return nullable(known[0]) if NoneType in parts else known[0]
    if get_origin(kind) in (tuple, list):
        return {"type": "array", "items": value(name, parts[0])}
    if dataclasses.is_dataclass(kind):
        return record(kind)  # type: ignore[arg-type]
    simple: dict[Any, Schema] = {bool: FLAG, int: COUNT, str: TEXT}
    return named(name) if kind is str and name in ("variant", "wiring") else simple[kind]


def named(name: str) -> Schema:
    """Values whose name alone says what they are: a wiring, an argument of `Scenario`, or a number."""
    if name in ("variant", "wiring"):
        return {"type": "string", "pattern": VARIANT}
    if (argument := ARGUMENTS.get(name)) is None:
        return number(name)
    if argument.kind is int:
        return {"type": "integer", "minimum": 1}
    if argument.kind is bool:
        return FLAG
    return value(name, argument.kind) if get_origin(argument.kind) is Literal else TEXT


def nullable(schema: Schema) -> Schema:
    """Allow null as well."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "type" in schema:
        return schema
    return {"enum": [*schema["enum"], None]} if "enum" in schema else {"anyOf": [{"type": "null"}, schema]}


def about(text: str, schema: Schema) -> Schema:
    """Say what a value is."""
    return {"description": text, **schema}


def strict(keys: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Objects with these keys, maybe with the optional ones, and with no others."""
    whole = {"type": "object", "properties": {**keys, **(optional or {})}, "additionalProperties": False}
    return {**whole, "required": list(keys)} if keys else whole


def ends_of(*names: str) -> dict[str, Schema]:
    """Figures with the ends of their intervals."""
    return {f"{name}{end}": number(name) for name in names for end in _ENDS}


def together(*names: str) -> Schema:
    """Optional keys that are all there, or none."""
    return each_together([names])


def each_together(groups: Iterable[Sequence[str]]) -> Schema:
    """Groups of optional keys, each of which is all there, or not at all."""
    # each asks for the next, the last for the first
    asked = {one: [other] for names in groups for one, other in zip(names, (*names[1:], *names[:1]), strict=True)}
    return {"dependentRequired": asked}


def mapped(schema: Schema, pattern: str = "") -> Schema:
    """Objects with keys of a pattern, or any."""
    names = {"propertyNames": {"pattern": pattern}} if pattern else {}
    return {"type": "object", **names, "additionalProperties": schema}


def listed(schema: Schema) -> Schema:
    """Lists."""
    return {"type": "array", "items": schema}


def keys_of(kind: Any, without: Collection[str] = ()) -> dict[str, Schema]:
    """The fields of a dataclass or NamedTuple, with what they mean."""
    texts = meanings(kind)
    return {
        name: about(texts[name], value(name, hint)) if texts.get(name) else value(name, hint)
        for name, hint in get_type_hints(kind).items()
        if get_origin(hint) is not ClassVar and name not in without
    }


def record(kind: type, **more: Schema) -> Schema:
    """Objects of a dataclass's fields, and further keys."""
    return strict({**keys_of(kind), **more})


def columns_of(columns: Iterable[Column[Any]]) -> dict[str, Schema]:
    """The fields of rows."""
    keys: dict[str, Schema] = {}
    for column in columns:
        if not column.name:
            continue
        named = ends_of(column.name) if column.kind is Interval else {column.name: value(column.name, column.kind)}
        keys |= {name: nullable(each) if column.null else each for name, each in named.items()}
    return keys
