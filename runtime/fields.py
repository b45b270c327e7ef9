"""Read JSON objects from files, and typed fields from them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_text

_Value = TypeVar("_Value")


def read_object(file: Path, *, what: str) -> dict[str, object]:
    """The JSON object in a file, which should be `what`; raises UsageError."""
    try:
        value = json.loads(read_text(file, what=what, error=UsageError))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid JSON ({error})", hint=f"give {what}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{file}: not a JSON object", hint=f"give {what}")
    return value


def field(config: Mapping[str, object], key: str, kind: type[_Value], default: _Value) -> _Value:
    """One field; JSON null counts as missing."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{key} is {value!r}: must be {kind.__name__}")
    return value


def size(config: Mapping[str, object], key: str, default: int = 0) -> int:
    """A whole number above 0, which must be there if there is no default."""
    value = field(config, key, int, default)
    if value < 1:
        missing = config.get(key) is None
        raise UsageError(f"{key} is missing" if missing else f"{key} is {value}: must be 1 or more")
    return value


def number(config: Mapping[str, object], key: str, default: float) -> float:
    """A number above 0."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{key} is {value!r}: must be a number above 0")
    return float(value)


def choice(config: Mapping[str, object], key: str, default: str, known: tuple[str, ...]) -> str:
    """One of some words."""
    value = field(config, key, str, default)
    if value not in known:
        raise UsageError(
            f"{key} is {value!r}: only {', '.join(known)} {'is' if len(known) == 1 else 'are'} implemented"
        )
    return value


def layers(config: Mapping[str, object], key: str, count: int) -> tuple[int, ...]:
    """A list of layers by number, sorted."""
    value = field(config, key, list, [])
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < count for i in value):
        raise UsageError(f"{key} is {value!r}: must be a list of layers from 0 to {count - 1}")
    return tuple(sorted(set(value)))
