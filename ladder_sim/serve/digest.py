"""A hash of what a value holds, equal for equal values in every process."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def digest(value: object) -> str:
    """A hash of a value's content.

    Examples
    --------
    >>> digest({"a": np.array([1.0, 2.0])}) == digest({"a": np.array([1.0, 2.0])})
    True
    >>> digest(["ab", "c"]) == digest(["a", "bc"])
    False
    """
    content = hashlib.sha256()
    _feed(content.update, value)
    return content.hexdigest()


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, np.ndarray):
        update(f"{value.dtype} {value.shape}".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            _feed(update, (each.name, getattr(value, each.name)))
    elif isinstance(value, Mapping):
        _feed(update, list(value.items()))
    elif isinstance(value, list | tuple):
        update(f"{len(value)} of".encode())
        for item in value:
            _feed(update, item)
    elif not callable(value):
        update(f"{value!r};".encode())
