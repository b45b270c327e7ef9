"""The packages that ladder-sim installs."""

import tomllib

from tests.conftest import REPO

_PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
PACKAGES = tuple(name.rstrip("*") for name in _PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
