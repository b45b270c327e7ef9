"""The built-in models, clusters and stacks, by name; and the same from files.

Data lies under ``data/``: one file per id, every figure with its source.
"""

import dataclasses
import functools
import json
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.specs.cluster import ClusterSpec, GpuSpec, LinkTier
from ladder_sim.specs.files import read_text
from ladder_sim.specs.hf_config import read_config
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.values import read_table, shown_path

_Folder = Literal["models", "clusters", "stacks"]

# short names of catalog models
MODEL_ALIASES = MappingProxyType(
    {
        "1b": "ladder-1b",
        "3b": "ladder-3b",
        "8b": "llama-3.1-8b",
        "34b": "codellama-34b",
        "70b": "llama-3.1-70b",
        "176b": "bloom-176b-gated",
        "405b": "llama-3.1-405b",
    }
)

# tables of a cluster file
_TABLES: dict[str, type[GpuSpec] | type[LinkTier]] = {
    "gpu": GpuSpec,
    "intra": LinkTier,
    "inter": LinkTier,
    "host": LinkTier,
}


def model(name_or_path: str) -> ModelSpec:
    """Return a model by alias, catalog id, or path of a config.json or its directory.

    Raises
    ------
    UnknownNameError
        If there is no such model; the nearest is named.
    SpecError
        If the file cannot be read or is no dense decoder.

    Examples
    --------
    >>> model("405b").layers
    126
    """
    key = name_or_path.strip().lower()
    known = MODEL_ALIASES.get(key, key)
    if known in model_names():
        return _shipped_model(known)
    path = _path(name_or_path, ".json", directory=True)
    if path is None:
        raise _unknown("model", name_or_path, (*MODEL_ALIASES, *model_names()))
    # every download is called config.json: its directory says which model it is
    file = path.parent if path.name == "config.json" else path
    return ModelSpec.from_hf(read_config(path), name=_stem(file), source=shown_path(path))


def cluster(name_or_path: str) -> ClusterSpec:
    """Return a cluster by catalog id, or from the path of a TOML file in the catalog's form.

    Raises
    ------
    UnknownNameError
        If there is no such cluster, or the file has an unknown key; the nearest is named.
    SpecError, UnitError
        If the file cannot be read or a figure cannot be.

    Examples
    --------
    >>> cluster("h100-sxm").gpus_per_node
    8
    """
    key = name_or_path.strip().lower()
    if key in cluster_names():
        return _shipped_cluster(key)
    path = _path(name_or_path, ".toml")
    if path is None:
        raise _unknown("cluster", name_or_path, cluster_names())
    return _beside(path, _read_cluster(read_text(path, what="a cluster's TOML file"), shown_path(path), _stem(path)))


def stack(name_or_path: str) -> StackSpec:
    """Return a stack by catalog id, or from the path of a TOML file in the catalog's form.

    Raises
    ------
    UnknownNameError
        If there is no such stack, or the file has an unknown key; the nearest is named.
    SpecError, UnitError
        If the file cannot be read or a figure cannot be.

    Examples
    --------
    >>> stack("gpt-fast").attention
    'math'
    """
    key = name_or_path.strip().lower()
    if key in stack_names():
        return _shipped_stack(key)
    path = _path(name_or_path, ".toml")
    if path is None:
        raise _unknown("stack", name_or_path, stack_names())
    return _read_stack(read_text(path, what="a stack's TOML file"), shown_path(path), _stem(path))


def cluster_or_stack(file: str) -> ClusterSpec | StackSpec:
    """Return what a TOML file holds: a cluster has a table ``[gpu]``, a stack has none.

    Raises
    ------
    UnknownNameError, SpecError, UnitError
        As `cluster` and `stack` do.
    """
    path = Path(file)
    text, name = read_text(path, what="a cluster's or stack's TOML file"), shown_path(path)
    if "gpu" in _parse_toml(text, name):
        return _beside(path, _read_cluster(text, name, _stem(path)))
    return _read_stack(text, name, _stem(path))


def model_names() -> tuple[str, ...]:
    """Return the ids of the built-in models, without aliases (`MODEL_ALIASES`)."""
    return _ids("models")


def cluster_names() -> tuple[str, ...]:
    """Return the ids of the built-in clusters."""
    return _ids("clusters")


def stack_names() -> tuple[str, ...]:
    """Return the ids of the built-in stacks."""
    return _ids("stacks")


def model_sources(name: str) -> dict[str, str]:
    """Return where each figure of a built-in model comes from, by config.json field."""
    key = name.strip().lower()
    found = MODEL_ALIASES.get(key, key)
    if found not in model_names():
        raise _unknown("model", name, (*MODEL_ALIASES, *model_names()))
    sources: dict[str, str] = json.loads(_data("models", found).read_text("utf-8"))["_sources"]
    return sources


@functools.cache
def _shipped_model(name: str) -> ModelSpec:
    config = json.loads(_data("models", name).read_text("utf-8"))
    source = "; ".join(dict.fromkeys(config["_sources"].values()))
    return ModelSpec.from_hf(config, name=name, source=source)


@functools.cache
def _shipped_cluster(name: str) -> ClusterSpec:
    return _read_cluster(_data("clusters", name).read_text("utf-8"), f"{name}.toml", name)


@functools.cache
def _shipped_stack(name: str) -> StackSpec:
    return _read_stack(_data("stacks", name).read_text("utf-8"), f"{name}.toml", name)


@functools.cache
def _ids(folder: _Folder) -> tuple[str, ...]:
    files = (resources.files("ladder_sim.specs") / "data" / folder).iterdir()
    return tuple(sorted(file.name.rpartition(".")[0] for file in files if file.name.endswith((".json", ".toml"))))


def _data(folder: _Folder, name: str) -> Traversable:
    ending = ".json" if folder == "models" else ".toml"
    return resources.files("ladder_sim.specs") / "data" / folder / f"{name}{ending}"


def _read_cluster(text: str, file: str, name: str) -> ClusterSpec:
    table = _parse_toml(text, file)
    parts: dict[str, object] = {}
    for key, spec in _TABLES.items():
        inner = table.pop(key, None)
        if not isinstance(inner, dict):
            raise SpecError(f"{file}: [{key}] is missing", hint=f"add a table [{key}]; h100-sxm.toml shows the form")
        given = {} if spec is GpuSpec else {"name": key}
        # files made for earlier versions: a cache size that nothing read, and a switch known by the fabric's name
        if spec is GpuSpec:
            inner.pop("l2_bytes", None)
        else:
            inner.setdefault("switch", "nvswitch" in str(inner.get("fabric")))
        parts[key] = read_table(spec, inner, where=f"{file}: [{key}]", **given)
    table.setdefault("name", name)
    return read_table(ClusterSpec, table, where=file, **parts)


def _beside(file: Path, spec: ClusterSpec) -> ClusterSpec:
    """Take a fabric that names a measured curve's file relative to the cluster's file, as links in files are read."""
    if not spec.inter.fabric.endswith(".toml") or Path(spec.inter.fabric).is_absolute():
        return spec
    fabric = str(file.parent / spec.inter.fabric)
    return dataclasses.replace(spec, inter=dataclasses.replace(spec.inter, fabric=fabric))


def _read_stack(text: str, file: str, name: str) -> StackSpec:
    table = _parse_toml(text, file)
    table.setdefault("name", name)
    return read_table(StackSpec, table, where=file)


def _parse_toml(text: str, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SpecError(f"{file}: TOML nested too deeply", hint="the catalog's files show the form") from None
    except ValueError as error:
        raise SpecError(
            f"{file}: not valid TOML ({error})", hint="correct the file; quantities with a unit are quoted"
        ) from None


def _path(text: str, ending: str, *, directory: bool = False) -> Path | None:
    """Return the path that `text` looks like; None if it looks like a name."""
    path = Path(text)
    if text.lower().endswith(ending) or len(path.parts) > 1 or path.is_absolute():
        return path
    try:
        return path if text.strip() and (path.is_file() or (directory and path.is_dir())) else None
    except (OSError, ValueError):
        return None


def _stem(path: Path) -> str:
    return shown_path(path.stem if path.suffix in (".json", ".toml") else path.resolve().name or "config")


def _unknown(kind: str, name: str, known: tuple[str, ...]) -> UnknownNameError:
    return UnknownNameError(kind, name, known, more=f"`ladder-sim list {kind}s` shows all")
