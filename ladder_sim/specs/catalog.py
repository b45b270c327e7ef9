"""The built-in models, clusters and stacks, by name, and stacks by version of the engine; and the same from files.

Data lies under ``data/``: one file per id, every figure with its source.
"""

import dataclasses
import functools
import json
import os
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from ladder_sim.errors import SpecError, UnknownNameError, UsageError
from ladder_sim.hf.fields import read_config
from ladder_sim.hf.quantization import PRECISION
from ladder_sim.hf.traced import layers_config
from ladder_sim.specs.checkpoint_ids import named
from ladder_sim.specs.cluster import THIS_MACHINE, ClusterSpec, GpuSpec, LinkTier, this_machine
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.reading import read_table
from ladder_sim.specs.stack import AllReduceRule, GpuLimits, OwnAllReduce, StackSpec
from ladder_sim.system.files import KEY, Schema, read_text, read_toml, shown_path
from ladder_sim.units import quoted
from ladder_sim.values import answer, same_size

# a release, as in "1.2.0rc6.post1": what follows the numbers changes no figure here
_RELEASE = re.compile(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})(?:[.+-]?[a-z][a-z0-9.+-]{0,30})?", re.ASCII | re.IGNORECASE)


def release(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version, without zeros at the end; None if it is not one.

    Examples
    --------
    >>> release("1.2.0rc6.post1"), release("newest")
    ((1, 2), None)
    """
    match = _RELEASE.fullmatch(version.strip())
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions that a stack's file covers."""

    oldest: str = ""
    newest: str = ""
    """Empty, as `oldest`: the stack has no versions."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields that were different before a version, by version."""

    def before(self, version: str, *, stack: str) -> dict[str, Any]:
        """Return the fields that differ in a version, from all changes that came after it.

        Raises UsageError if the file does not cover it; the nearest version is named.
        """
        if not self.newest:
            raise UsageError(f"stack '{stack}' has no versions", hint=f"write '{stack}'")
        asked = release(version)
        if asked is None:
            raise UsageError(
                f"version '{version}' of stack '{stack}': must be numbers with dots between them",
                hint=f"for example {stack}@{self.newest}",
            )
        newest = _release(self.newest)
        # 0.32.1 belongs to 0.32
        after_newest = asked[: len(newest)] > newest
        for nearest, outside in ((self.oldest, asked < _release(self.oldest)), (self.newest, after_newest)):
            if outside:
                raise UsageError(
                    f"version {version} of stack '{stack}' is not known: known are {self.oldest} to {self.newest}",
                    hint=f"nearest is {stack}@{nearest}; a stack .toml of your own can hold other figures",
                )
        fields: dict[str, Any] = {}

        # the earliest change that is still to come says how it was
        for changed in sorted(self.changes, key=_release, reverse=True):
            if asked < _release(changed):
                fields |= self.changes[changed]
        return fields

    @classmethod
    def read(cls, table: object, file: str) -> Self:
        """Return the versions of a file's table ``[versions]``."""
        where = f"{file}: [versions]"
        if not isinstance(table, dict) or set(table) - {"oldest", "newest", "before", "source"}:
            raise SpecError(f"{where} must hold oldest, newest and before", hint="vllm.toml shows the form")
        oldest, newest, changes = table.get("oldest", ""), table.get("newest", ""), table.get("before", {})
        if not isinstance(changes, dict) or not all(isinstance(fields, dict) for fields in changes.values()):
            raise SpecError(f"{where}: before must hold a table for each version", hint="vllm.toml shows the form")
        for version in (oldest, newest, *changes) if table else ():
            if not isinstance(version, str) or release(version) is None:
                raise SpecError(f"{where}: '{version}' is not a version", hint='write e.g. "0.22"')
        return cls(oldest=oldest, newest=newest, changes=changes)


def _release(version: str) -> tuple[int, ...]:
    return release(version) or ()


_FOLDERS = resources.files("ladder_sim.specs") / "data"

# short names of catalog models
MODEL_ALIASES = MappingProxyType(
    {
        "1b": "ladder-1b",
        "3b": "ladder-3b",
        "8b": "llama-3.1-8b",
        "34b": "codellama-34b",
        "70b": "llama-3.1-70b",
        "176b": "bloom-176b-gated",
        "qwen3-235b": "qwen3-235b-a22b",
        "405b": "llama-3.1-405b",
    }
)

# of files
CLUSTER_SCHEMA, STACK_SCHEMA = Schema(), Schema(version=2)
# ORGANISATION/MODEL; a path within this folder begins with a dot
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)

# names in files of what hops of a tier take, and of the floor that they yield
_HOP, _FLOOR = ("hop_latency_s", "hop_latency"), ("allreduce_floor_s", "allreduce_floor", "latency_s", "latency")
# tables of a cluster file
_TABLES: dict[str, type] = {"gpu": GpuSpec, "intra": LinkTier, "inter": LinkTier, "host": LinkTier}


def model(name_or_path: str) -> ModelSpec:
    """Return a model by alias, catalog id, Hugging Face id, or path of a config.json or its directory.

    Raises UnknownNameError if there is no such model; the nearest is named; SpecError if the file cannot be read or is
    not a decoder; MissingPackageError if its type has no built-in reader, and torch or transformers, which read it
    then, are not installed.

    Examples
    --------
    >>> model("405b").layers
    126
    """
    name = model_id(name_or_path)
    if name in model_names():
        spec: ModelSpec = _shipped("models", name)
        return spec
    # a path that is there is no id, and may have come since
    if not os.path.exists(name_or_path) and (taken := _by_its_name(name_or_path.strip())):
        return taken
    path = _model_path(name_or_path)
    # every download is called config.json: its directory says which model it is
    file = path.parent if path.name == "config.json" else path
    return _of_config(json.dumps(read_config(path)), _stem(file), str(path))


# as many as a sweep compares; another text is another model
@functools.lru_cache(maxsize=64)
def _of_config(text: str, name: str, source: str) -> ModelSpec:
    """Return the model of a config.json's text, which is read once: a traced one has a hundred blocks."""
    config = layers_config(json.loads(text), source=source)
    return ModelSpec.from_hf(config, name=name, source=shown_path(source))


@functools.cache
def _by_its_name(hub_id: str) -> ModelSpec | None:
    """Return a model that a Hugging Face id names in a format of its own, or in a later release; warn of it once."""
    if not _HUB_ID.fullmatch(hub_id) or hub_id.lower().endswith(".json"):
        return None
    said = named(hub_id, _hub_ids())
    if said is None:
        return None
    spec: ModelSpec = _shipped("models", said.model)

    # an fp8 of another kind than the model's is taken for the model's
    own = said.dtype == "fp8" and spec.weights_dtype.startswith("fp8")
    if said.quantization is not None and not own:
        config = {key: value for key, value in model_config(said.model).items() if key not in PRECISION}
        stored = {**config, "quantization_config": said.quantization}
        spec = ModelSpec.from_hf(stored, name=spec.name, source=spec.source)
    warnings.warn(
        f"'{hub_id}' is taken for {said.model} in {spec.weights_dtype}, as its name says; "
        "its config.json would say it exactly",
        stacklevel=3,
    )
    return dataclasses.replace(spec, source=f"{spec.source}; format: {hub_id}")


def model_id(name: str) -> str:
    """Return the catalog id that an alias or a Hugging Face id stands for; another name in lower case."""
    key = name.strip().lower()
    if "/" in key:
        return next((model for hub_id, model in _hub_ids().items() if hub_id.lower() == key), key)
    return MODEL_ALIASES.get(key, key)


def cluster(name_or_path: str) -> ClusterSpec:
    """Return a cluster by catalog id, or from the path of a TOML file in the catalog's form.

    "this-machine" has no datasheet: a profile of real passes prices it. Raises UnknownNameError if there is no such
    cluster, or the file has an unknown key; the nearest is named; SpecError, UnitError if the file cannot be read or a
    figure breaks a rule.

    Examples
    --------
    >>> cluster("h100-sxm").gpus_per_node, cluster("h200").name
    (8, 'h200-sxm')
    """
    if name_or_path.strip().lower() == THIS_MACHINE:
        return this_machine()
    spec: ClusterSpec = _find("cluster", name_or_path)
    return spec


def stack(name_or_path: str) -> StackSpec:
    """Return a stack by catalog id, maybe with a version (``vllm@0.19``), or from a TOML file; errors as `cluster`.

    Examples
    --------
    >>> stack("gpt-fast").attention
    'math'
    """
    name, at, version = name_or_path.strip().lower().partition("@")
    spec: StackSpec = (
        _stack_at(name, version.strip()) if at and name in _ids("stacks") else _find("stack", name_or_path)
    )
    return spec


def cluster_or_stack(file: str) -> ClusterSpec | StackSpec:
    """Return what a TOML file holds: a cluster has a table ``[gpu]``, a stack does not."""
    spec: ClusterSpec | StackSpec = _from_file(Path(file), "cluster or stack")
    return spec


def toml_text(name_or_path: str) -> str:
    """Return the TOML file of a cluster or stack: a built-in one, with the source of each figure, or that of a path.

    Examples
    --------
    >>> "cudaStreamWaitEvent" in toml_text("vllm")
    True
    """
    name = name_or_path.strip().lower()
    folder = next((folder for folder in ("clusters", "stacks") if name in _ids(folder)), None)
    if folder is None:
        return read_text(Path(name_or_path), what="the TOML file of a cluster or stack")
    schema = CLUSTER_SCHEMA if folder == "clusters" else STACK_SCHEMA
    return f"{KEY} = {schema.version}\n{_data(folder, name)}"


def model_names() -> tuple[str, ...]:
    """Return the ids of the built-in models, without aliases (`MODEL_ALIASES`)."""
    return _ids("models")


def cluster_names() -> tuple[str, ...]:
    """Return the ids of the built-in clusters."""
    return _ids("clusters")


def stack_names() -> tuple[str, ...]:
    """Return the ids of the built-in stacks."""
    return _ids("stacks")


@functools.cache
def fabric_names(tier: str) -> tuple[str, ...]:
    """Return the fabrics of the built-in clusters in one tier, ``"intra"``, ``"inter"`` or ``"host"``.

    Examples
    --------
    >>> fabric_names("host")
    ('nvlink-c2c-host', 'pcie4-host', 'pcie5-host', 'pcie6-host')
    """
    return tuple(sorted({getattr(cluster(name), tier).fabric for name in cluster_names()}))


@functools.lru_cache(maxsize=64)
def usual_links(cluster_spec: ClusterSpec) -> ClusterSpec:
    """Return a cluster whose links have the figures of the catalogue's, of the same GPUs if any have their fabrics.

    Links of other fabrics stay as they are.
    """
    names = cluster_names()
    shipped = [cluster(name) for name in ([cluster_spec.name] if cluster_spec.name in names else names)]
    shipped.sort(key=lambda each: each.gpu.name != cluster_spec.gpu.name)
    links = {}
    for tier in ("intra", "inter", "host"):
        link = getattr(cluster_spec, tier)
        for usual in (getattr(each, tier) for each in shipped if getattr(each, tier).fabric == link.fabric):
            figures = {name: getattr(usual, name) for name in ("bandwidth_Bps", "allreduce_floor_s", "hop_latency_s")}
            links[tier] = dataclasses.replace(link, **figures)
            break
    return dataclasses.replace(cluster_spec, **links)


def model_config(name_or_path: str) -> dict[str, Any]:
    """Return a model's config.json, which holds more than its spec: norms, rotary wavelengths, activation, sources."""
    name = model_id(name_or_path)
    if name in model_names():
        config: dict[str, Any] = json.loads(_data("models", name))
        return config
    return read_config(_model_path(name_or_path))


def _find(kind: str, name_or_path: str) -> Any:
    """Return a built-in cluster or stack, by its name or the part of it before a dash, or that of a file."""
    name, folder = name_or_path.strip().lower(), f"{kind}s"
    begun = [each for each in _ids(folder) if each.startswith(f"{name}-")]
    if name in _ids(folder) or (len(begun) == 1 and not os.path.exists(name_or_path)):
        return _shipped(folder, name if name in _ids(folder) else begun[0])
    return _from_file(_path(name_or_path, kind, ".toml", _ids(folder)), kind)


@functools.cache
def _shipped(folder: str, name: str) -> Any:
    text = _data(folder, name)
    if folder == "models":
        config = json.loads(text)
        return ModelSpec.from_hf(config, name=name, source="; ".join(dict.fromkeys(config["_sources"].values())))
    read = _read_cluster if folder == "clusters" else _read_stack
    return read(tomllib.loads(text), f"{name}.toml", name)


@functools.cache
def _ids(folder: str) -> tuple[str, ...]:
    files = (_FOLDERS / folder).iterdir()
    return tuple(sorted(file.name.rpartition(".")[0] for file in files if file.name.endswith((".json", ".toml"))))


@functools.cache
def _hub_ids() -> dict[str, str]:
    return {hub_id: name for name in model_names() for hub_id in json.loads(_data("models", name)).get("_ids", ())}


def _model_path(text: str) -> Path:
    path = _path(text, "model", ".json", (*MODEL_ALIASES, *model_names()))
    if _HUB_ID.fullmatch(text) and not text.lower().endswith(".json") and not os.path.exists(path):
        page = f"https://huggingface.co/{text}/blob/main/config.json"
        more = f"nothing is downloaded: save {page} and pass its path"
        raise UnknownNameError("model", text, _hub_ids(), more=more, answer=answer("model", text))
    return path


def _data(folder: str, name: str) -> str:
    return (_FOLDERS / folder / f"{name}.{'json' if folder == 'models' else 'toml'}").read_text("utf-8")


def _from_file(path: Path, kind: str) -> Any:
    file = shown_path(path)
    schema = CLUSTER_SCHEMA if kind == "cluster" else STACK_SCHEMA
    table = read_toml(path, schema, what=f"the TOML file of a {kind}")
    if kind == "stack" or (kind != "cluster" and "gpu" not in table):
        return _read_stack(table, file, _stem(path))
    spec = _read_cluster(table, file, _stem(path))
    if not spec.inter.fabric.endswith(".toml") or Path(spec.inter.fabric).is_absolute():
        return spec
    # a fabric that names the file of a measured curve is relative to the cluster's file
    fabric = str(path.parent / spec.inter.fabric)
    return dataclasses.replace(spec, inter=dataclasses.replace(spec.inter, fabric=fabric))


def _read_cluster(table: dict[str, Any], file: str, name: str) -> ClusterSpec:
    parts: dict[str, object] = {}
    for key, spec in _TABLES.items():
        inner = table.pop(key, None)
        if not isinstance(inner, dict):
            raise SpecError(f"{file}: [{key}] is missing", hint=f"add a table [{key}]; h100-sxm.toml shows the form")
        given = {} if spec is GpuSpec else {"name": key}
        # files made for earlier versions: a switch known by the fabric's name
        if spec is GpuSpec:
            bf16 = inner.get("bf16_flops", inner.get("bf16"))
            if bf16 is not None and "fp4" not in inner:
                inner.setdefault("fp4_flops", bf16)
        else:
            inner.setdefault("switch", "nvswitch" in str(inner.get("fabric")))
            inner.setdefault("full_nvlink", inner["switch"])
            _yield_floor(inner, f"{file}: [{key}]")
        parts[key] = read_table(spec, inner, where=f"{file}: [{key}]", **given)
    table.setdefault("name", name)
    return read_table(ClusterSpec, table, where=file, **parts)


def _yield_floor(tier: dict[str, Any], where: str) -> None:
    """Leave the all-reduce floor of a tier to the latency of its hops where that is given."""
    hop, floor = ([name for name in names if name in tier] for names in (_HOP, _FLOOR))
    if hop and floor:
        raise SpecError(f"{where} has {hop[0]} and {floor[0]}: hops yield the floor", hint="leave one out")
    if hop:
        tier[_FLOOR[0]] = 0.0


def _read_stack(table: dict[str, Any], file: str, name: str, version: str | None = None) -> StackSpec:
    """Return a stack of its newest version, or of another by the tables ``[versions.before."X"]``."""
    table.setdefault("name", name)
    versions = Versions.read(table.pop("versions", {}), file)
    if version is not None:
        table = _merged(table, versions.before(version, stack=name)) | {"name": f"{name}@{version}"}
    own, limits = table.pop("own_allreduce", {}), _list_of(table, "gpu_limits", file)
    if not isinstance(own, dict):
        raise SpecError(f"{file}: own_allreduce must be a table", hint="vllm.toml shows the form")
    rules = {key: _allreduce_rules(own, key, f"{file}: [own_allreduce]") for key in ("rules", "fused_norm_rules")}
    return read_table(
        StackSpec,
        table,
        where=file,
        own_allreduce=read_table(OwnAllReduce, own, where=f"{file}: [own_allreduce]", **rules),
        gpu_limits=tuple(_gpu_limits(each, f"{file}: gpu_limits[{at}]") for at, each in enumerate(limits)),
    )


def _gpu_limits(table: object, where: str) -> GpuLimits:
    if not isinstance(table, dict):
        raise SpecError(f"{where} is {quoted(table)}: must be a table", hint="vllm.toml shows the form")
    return read_table(GpuLimits, table, where=where)


def _merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inner = {key: table[key] | value for key, value in changes.items() if isinstance(value, dict) and key in table}
    return table | changes | inner


def _allreduce_rules(table: dict[str, Any], key: str, where: str) -> tuple[AllReduceRule, ...]:
    rules = _list_of(table, key, where)
    return tuple(AllReduceRule.read(rule, f"{where}: {key}[{at}]") for at, rule in enumerate(rules))


def _list_of(table: dict[str, Any], key: str, where: str) -> list[Any]:
    tables = table.pop(key, [])
    if not isinstance(tables, list):
        raise SpecError(f"{where}: {key} must be a list of tables", hint="vllm.toml shows the form")
    return tables


@functools.cache
def _stack_at(name: str, version: str) -> StackSpec:
    return _read_stack(tomllib.loads(_data("stacks", name)), f"{name}.toml", name, version)


def _path(text: str, kind: str, ending: str, names: tuple[str, ...]) -> Path:
    path = Path(text)
    if text.lower().endswith(ending) or len(path.parts) > 1 or path.is_absolute():
        return path
    # not by methods of Path, which fail for names that no file can have
    if text.strip() and (os.path.isfile(path) or (ending == ".json" and os.path.isdir(path))):
        return path
    raise _unknown(kind, text, names)


def _unknown(kind: str, name: str, names: tuple[str, ...]) -> UnknownNameError:
    more = f"`ladder-sim list {kind}s` shows all"
    if kind == "model":
        more = "; ".join(filter(None, (same_size(name, names), f"{more}, any other is given by its config.json")))
    return UnknownNameError(kind, name, names, more=more, answer=answer(kind, name))


def _stem(path: Path) -> str:
    return shown_path(path.stem if path.suffix in (".json", ".toml") else path.resolve().name or "config")
