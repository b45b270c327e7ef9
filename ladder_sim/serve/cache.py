"""Step times on disk, in files named by what they were made from: the scenario, its profile, and the code.

A file can be deleted at any time, and one that cannot be read is made again.
"""

import dataclasses
import functools
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.serve.grids import Grids
from ladder_sim.serve.rest import Rest
from ladder_sim.system.files import replacing

# packages whose code the times depend on
_CODE = ("costs", "des", "graph", "serve", "simulate", "specs")


def cached(made_from: Sequence[object], make: Callable[[], Grids]) -> Grids:
    """What `make` returns, from the file of an earlier call if there is one."""
    path = folder() / f"{digest([*made_from, _code()])}.npz"
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        grids = make()
        _write(path, grids)
        return grids


def folder() -> Path:
    """Where the files are (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ladder-sim" / "step-times"


def digest(value: object) -> str:
    """A hash of a value's content: equal for equal values, in every process.

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


@functools.cache
def _code() -> str:
    """A hash of the source files."""
    package = Path(__file__).parents[1]
    return digest([path.read_bytes() for part in _CODE for path in sorted((package / part).rglob("*.py"))])


def _write(path: Path, grids: Grids) -> None:
    file = io.BytesIO()
    np.savez(file, **_arrays(grids))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as target:
            target.write(file.getvalue())
    except OSError:
        # a disk that is full, or not ours
        return


def _arrays(grids: Grids) -> dict[str, Any]:
    """By name; those of a `Rest` with a dot."""
    return {
        f"{name}.{column}" if column else name: values
        for name, part in grids._asdict().items()
        for column, values in (part._asdict() if isinstance(part, Rest) else {"": part}).items()
    }


def _read(path: Path) -> Grids:
    with np.load(path, allow_pickle=False) as file:
        parts: dict[str, Any] = {
            name: file[name] if name in file else Rest(*(file[f"{name}.{column}"] for column in Rest._fields))
            for name in Grids._fields
        }
    return Grids(**parts)
