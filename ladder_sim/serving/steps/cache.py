"""Step times on disk, in files named by everything that they were made from (`costs/fingerprint.py`).

A file can be deleted at any time, and one that is damaged is made again: it begins with a hash of the rest. Where none
can be read or written, times are made in every process. Processes may share the folder: a file is whole, or not there.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.costs.fingerprint import fingerprint
from ladder_sim.serving.steps.grids import Grids
from ladder_sim.serving.steps.rest import Rest
from ladder_sim.system.files import replacing

# the oldest files beyond so many are deleted: half a gigabyte
MOST_FILES = 256
_HASH_BYTES = hashlib.sha256().digest_size


def cached(made_from: Sequence[object], make: Callable[[], Grids]) -> Grids:
    """Return what `make` returns, from the file of an earlier call if there is one."""
    path = folder() / f"{fingerprint(*made_from)}.npz"
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content[_HASH_BYTES:]).digest() == content[:_HASH_BYTES]:
            return _read(content[_HASH_BYTES:])
    grids = make()
    # a disk that is full, or not ours
    with contextlib.suppress(OSError):
        _write(path, grids)
    return grids


def folder() -> Path:
    """Return the folder of the files (XDG Base Directory Specification)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path(os.path.expanduser("~/.cache"))) / "ladder-sim" / "step-times"


def _write(path: Path, grids: Grids) -> None:
    file = io.BytesIO()
    np.savez(file, **_arrays(grids))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as target:
        target.write(hashlib.sha256(file.getbuffer()).digest())
        target.write(file.getbuffer())
    files = sorted(path.parent.glob("*.npz"), key=lambda each: each.stat().st_mtime)
    for oldest in files[:-MOST_FILES]:
        oldest.unlink(missing_ok=True)


def _arrays(grids: Grids) -> dict[str, Any]:
    """Return the arrays by name; those of a `Rest` have a dot in it."""
    return {
        f"{name}.{column}" if column else name: values
        for name, part in grids._asdict().items()
        for column, values in (part._asdict() if isinstance(part, Rest) else {"": part}).items()
    }


def _read(content: bytes) -> Grids:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        parts: dict[str, Any] = {
            name: file[name] if name in file else Rest(*(file[f"{name}.{column}"] for column in Rest._fields))
            for name in Grids._fields
        }
    return Grids(**parts)
