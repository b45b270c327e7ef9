"""Files of the package aiconfigurator-core: where they are, and what they hold.

Measurements are parquet files in a folder of each framework's version; a system's figures are in a yaml file.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ladder_sim.costs.profile import ProfileSource
from ladder_sim.errors import MissingDependencyError, MissingPackageError, UsageError
from ladder_sim.system.files import read_text

PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"

Columns = Mapping[str, NDArray[Any]]


def find_systems(source: Path | None) -> Path:
    """Return the folder ``systems`` of the package: below `source`, or of the installed package.

    Raises
    ------
    UsageError
        If `source` holds no such folder.
    MissingDependencyError
        If no `source` is given and the package is not installed.
    """
    if source is not None:
        for folder in (source, source / "systems", source / "aiconfigurator_core" / "systems"):
            if (folder / "data").is_dir():
                return folder
        raise UsageError(f"no folder 'systems/data' in '{source}'", hint="name the unpacked folder aiconfigurator_core")
    spec = importlib.util.find_spec("aiconfigurator_core")
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (Path(location) / "systems" / "data").is_dir():
            return Path(location) / "systems"
    raise MissingDependencyError(
        f"package {PACKAGE}, which holds the measurements, is not installed",
        hint=f"pip install {PACKAGE}=={VERSION}, or name an unpacked copy with --source DIR",
    )


def source_of(system: str, what: str, files: tuple[str, ...], notes: tuple[str, ...] = ()) -> ProfileSource:
    """Return where a profile's entries come from: files of the package, and what was left out or changed of them."""
    return ProfileSource(
        what=f"system {system}: {what}",
        version=VERSION,
        licence="Apache-2.0",
        files=files,
        citation=f"https://pypi.org/project/{PACKAGE}/{VERSION}/, (c) NVIDIA and affiliates",
        notes=notes,
    )


def read_gpu_figures(system_file: Path) -> dict[str, float]:
    """Return the figures of the ``gpu:`` section of a system's yaml file, by the file's own keys, SI units.

    The section is flat ``key: number  # comment`` lines, so no yaml package is needed.

    Raises
    ------
    UsageError
        The file cannot be read, or lacks a figure that is needed.
    """
    figures: dict[str, float] = {}
    section = ""
    for line in read_text(system_file, what="the package's file of a system", error=UsageError).splitlines():
        if match := re.match(r"(\w+):", line):
            section = match[1]
        elif section == "gpu" and (match := re.match(r"\s+(\w+):\s*(\d+(?:\.\d*)?(?:[eE]\+?\d{1,2})?)(?![\w.])", line)):
            figures[match[1]] = float(match[2])
    for name in ("bfloat16_tc_flops", "mem_bw"):
        if not figures.get(name):
            raise UsageError(f"{system_file}: gpu.{name} must be a number above 0", hint="install the package again")
    return figures


def read_gpus_per_node(system_file: Path) -> int:
    """Return the GPUs of one node, from the ``node:`` section of a system's yaml file."""
    text = read_text(system_file, what="the package's file of a system", error=UsageError)
    match = re.search(r"^\s+num_gpus_per_node:\s*(\d+)", text, re.MULTILINE)
    if not match:
        raise UsageError(f"{system_file}: node.num_gpus_per_node is missing", hint="install the package again")
    return int(match[1])


def read_columns(path: Path) -> Columns:
    """Return all columns of one parquet file.

    Raises
    ------
    MissingPackageError
        If pyarrow is not installed.
    UsageError
        If the file is not a parquet file.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError("reading parquet files needs pyarrow", extra="parquet") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"'{path}' is not a readable parquet file: {error}") from error
    return {name: table.column(name).to_numpy() for name in table.column_names}


def newest_files(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the file `name` of the newest version of each framework below `folder`, with a label."""
    for framework in sorted(entry for entry in folder.glob("*") if entry.is_dir()):
        versions = [version for version in framework.iterdir() if (version / name).is_file()]
        if versions:
            newest = max(versions, key=lambda version: version_key(version.name))
            yield f"{framework.name} {newest.name}", newest / name


def all_files(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the file `name` of every version of every framework below `folder`, with a label."""
    for path in sorted(folder.glob(f"*/*/{name}")):
        yield f"{path.parent.parent.name} {path.parent.name}", path


def version_key(version: str) -> list[int]:
    """Return the sortable form of a version: numbers in order; the "rc" of a candidate sorts before its release."""
    return [int(part) if part.isdigit() else -1 for part in [*re.findall(r"\d+|rc", version), "0"]]


class SystemFiles:
    """One system's files; raises as `find_systems` if there are none."""

    def __init__(self, system: str, source: Path | None) -> None:
        self.systems = find_systems(source)
        self.data, self.description = self.systems / "data" / system, self.systems / f"{system}.yaml"
        if not self.data.is_dir() or not self.description.is_file():
            raise UsageError(f"'{self.systems}' holds no measurements of system '{system}'")
        # the device as files name it; those that were read, from `systems` on; what was left out or changed, and why
        self.system, self.device = system, ""
        self.read: list[str] = []
        self.notes: list[str] = []

    def columns(self, path: Path) -> Columns:
        """Return all columns of one of the system's files."""
        columns = read_columns(path)
        self.read.append(path.relative_to(self.systems).as_posix())
        if len(columns.get("device", ())):
            self.device = str(columns["device"][0])
        return columns
