"""Everything that an answer reads, as one hash: values, the files that they name, and the package's code and data.

What one call leaves for the next is kept under this hash: step times, an interrupted sweep, an interrupted search.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.costs.profile_file import MAX_DOCUMENT_BYTES, moe_file
from ladder_sim.system.files import stamp

_PACKAGE = Path(__file__).parents[1]


def fingerprint(*values: object) -> str:
    """Return the hash of values, of files that texts in them name, and of the code and data of ladder_sim.

    Equal in every process for equal values; a file that is named otherwise is another value.

    Examples
    --------
    >>> fingerprint({"a": np.array([1.0, 2.0])}) == fingerprint({"a": np.array([1.0, 2.0])})
    True
    >>> fingerprint(["ab", "c"]) == fingerprint(["a", "bc"])
    False
    """
    content = hashlib.sha256()
    _feed(content.update, (values, _code(), _data(tuple(_files(code=False)))))
    return content.hexdigest()


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, np.ndarray):
        update(f"{value.dtype} {value.shape}".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        # in which equal values may differ, is no part of them
        for each in (each for each in dataclasses.fields(value) if each.compare):
            update(f"{each.name}=".encode())
            _feed(update, getattr(value, each.name))
    elif isinstance(value, Mapping):
        _feed(update, list(value.items()))
    elif isinstance(value, list | tuple):
        update(f"{len(value)} of".encode())
        for item in value:
            _feed(update, item)
    elif isinstance(value, functools.partial):
        # it is yet to read what its arguments name
        _feed(update, value.args)
    elif not callable(value):
        update(f"{value!r};".encode())
        if isinstance(value, str) and os.path.isfile(value):
            update(_content(value))
            # of a profile, the tables of experts lie next to it
            update(_content(moe_file(value)))


def _content(path: str) -> bytes:
    """Return the hash of a file's content, or of nothing if it is missing or too large to be read as an input."""
    with contextlib.suppress(OSError):
        if os.path.getsize(path) <= MAX_DOCUMENT_BYTES:
            return hashlib.sha256(Path(path).read_bytes()).digest()
    return b""


@functools.cache
def _code() -> str:
    return _hash(path for path, _ in _files(code=True))


@functools.lru_cache(maxsize=1)
def _data(files: tuple[tuple[Path, tuple[int, ...]], ...]) -> str:
    """Return the hash of the package's data, which a running process reads again where it was changed."""
    return _hash(path for path, _ in files)


def _files(*, code: bool) -> Iterator[tuple[Path, tuple[int, ...]]]:
    for folder, folders, names in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py") == code):
            yield path, stamp(path)


def _hash(paths: Iterator[Path]) -> str:
    content = hashlib.sha256()
    for path in paths:
        content.update(f"{path.relative_to(_PACKAGE)} {path.stat().st_size} ".encode())
        content.update(path.read_bytes())
    return content.hexdigest()
