"""The packages that ladder-sim installs."""

import tomllib
from pathlib import Path

from tests.conftest import REPO

_FOUND = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]["find"]
# where each lies
PACKAGES: dict[str, Path] = {
    path.parent.name: path.parent
    for where in _FOUND["where"]
    for path in (REPO / where).glob("ladder_sim*/__init__.py")
}
