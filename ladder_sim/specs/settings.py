"""Settings: single figures of a scenario, changed by name, as in ``--set inter.bandwidth=100Gb/s``.

Fields of a stack have names of their engine's too, as in ``--set max-num-seqs=256``.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.cluster import ClusterSpec, GpuSpec, LinkTier
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.reading import find_field, read_value
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import Workload
from ladder_sim.units import base_unit, quoted, short_name, typed_unit, unit_of
from ladder_sim.values import Limits, field_kinds, limits_of, meanings, settable_fields

_ENGINES = ("vllm", "sglang", "trtllm")
# options of each engine, by field of a stack. vLLM 0.32.0, engine/arg_utils.py; SGLang 0.5.10, server_args.py;
# TensorRT-LLM's documentation, "LLM API Reference" (TorchLlmArgs, KvCacheConfig)
_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "step_requests": ("max-num-seqs", "max-running-requests", "max-batch-size"),
    "step_tokens": ("max-num-batched-tokens", "chunked-prefill-size", "max-num-tokens"),
    "memory_fraction": ("gpu-memory-utilization", "mem-fraction-static", "free-gpu-memory-fraction"),
    "max_context": ("max-model-len", "context-length", "max-seq-len"),
    "prefix_cache": ("enable-prefix-caching", "disable-radix-cache", "enable-block-reuse"),
}


class EngineOption(NamedTuple):
    """An option of one engine."""

    name: str
    """As its command line has it, without dashes before it."""
    engine: str
    field: str
    """Field of `StackSpec`."""

    @classmethod
    def find(cls, key: str) -> Self | None:
        """Return the option that a key names, with "-" or "_" between words; None if no engine has it.

        Examples
        --------
        >>> EngineOption.find("max_num_seqs")
        EngineOption(name='max-num-seqs', engine='vllm', field='step_requests')
        """
        name = key.strip().lower().replace("_", "-")
        fields = (field for field, names in _OPTIONS.items() if name in names)
        return next((cls(name, _ENGINES[_OPTIONS[field].index(name)], field) for field in fields), None)

    def check_stack(self, stack: StackSpec) -> None:
        """Require that the option is one of the stack's engine."""
        if stack.engine == self.engine:
            return
        own = names_by_engine(self.field).get(stack.engine, "")
        opposite = " (the opposite)" if _disables(own) != _disables(self.name) else ""
        raise UsageError(
            f"{self.name} is an option of {self.engine}, and the stack is '{stack.name}'",
            hint=f"{stack.engine} calls it {own}{opposite}" if own else f"leave it out, or take --stack {self.engine}",
        )


def _disables(name: str) -> bool:
    return name.startswith("disable-")


def option_names() -> list[str]:
    """Return the names of all options."""
    return [name for own in zip(*_OPTIONS.values(), strict=True) for name in own]


def option_name(stack: StackSpec, field: str) -> str:
    """Return what a stack's engine calls a field, or else its name for ``--set``."""
    return names_by_engine(field).get(stack.engine, f"stack.{field}")


def names_by_engine(field: str) -> dict[str, str]:
    """Return what engines call a field of a stack, by engine.

    Examples
    --------
    >>> names_by_engine("step_requests")
    {'vllm': 'max-num-seqs', 'sglang': 'max-running-requests', 'trtllm': 'max-batch-size'}
    """
    return dict(zip(_ENGINES, _OPTIONS.get(field, ()), strict=False))


_SECTIONS: Mapping[str, Any] = {
    "model": ModelSpec,
    "gpu": GpuSpec,
    "cluster": ClusterSpec,
    "intra": LinkTier,
    "inter": LinkTier,
    "host": LinkTier,
    "stack": StackSpec,
    "workload": Workload,
}

# values by ``section.field``
Overrides = Mapping[str, str | float]

# sections that are fields of ClusterSpec
IN_CLUSTER = ("gpu", "intra", "inter", "host")
# fields that say what a spec is, not how it behaves
_IDENTITY = ("name", "family", "engine", "weights_dtype", "origin", "source", "note")

_Spec = TypeVar("_Spec", ModelSpec, ClusterSpec, GpuSpec, LinkTier, StackSpec, Workload)


class Parts(NamedTuple):
    """What settings can change."""

    model: ModelSpec
    cluster: ClusterSpec
    stack: StackSpec
    workload: Workload


def settings(assignments: Sequence[str]) -> dict[str, str]:
    """Split ``KEY=VALUE`` arguments.

    Examples
    --------
    >>> settings(["inter.bandwidth=100Gb/s"])
    {'inter.bandwidth': '100Gb/s'}
    """
    values = {}
    for assignment in assignments:
        key, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"--set '{assignment}' is not KEY=VALUE", hint="for example --set inter.bandwidth=100Gb/s")
        if key in values:
            raise UsageError(f"--set {key} is given twice: must be given once", hint="leave one out")
        values[key] = value
    return values


def settable() -> list[str]:
    """Return every setting, ``section.field``, without units.

    Examples
    --------
    >>> [name for name in settable() if name.startswith("gpu.hbm")]
    ['gpu.hbm', 'gpu.hbm_bandwidth']
    """
    return sorted(f"{section}.{short_name(field)}" for section in _SECTIONS for field in _fields(section))


class Setting(NamedTuple):
    """A figure that can be set."""

    section: str
    field: str
    """Field of the section's spec, with its unit, ``bandwidth_Bps``."""
    kind: Any
    """Type of the value, or the function that looks up what text names."""

    @property
    def name(self) -> str:
        """Name with section and unit, e.g. ``inter.bandwidth_Bps``."""
        return f"{self.section}.{self.field}"

    @property
    def unit(self) -> str:
        """The SI unit of its values; empty: none."""
        return base_unit(unit_of(self.field))

    @property
    def limits(self) -> Limits | None:
        """What a number may be; None: it is no number."""
        return limits_of(field_kinds(_SECTIONS[self.section])[self.field])

    @property
    def meaning(self) -> str:
        """In words."""
        return meanings(_SECTIONS[self.section])[self.field]

    @property
    def options(self) -> Mapping[str, str]:
        """What engines call it, by engine."""
        return names_by_engine(self.field) if self.section == "stack" else {}


def described() -> dict[str, Setting]:
    """Return what each setting is, by the names that `settable` gives.

    Examples
    --------
    >>> described()["stack.allreduce"].meaning
    'Algorithm of the tensor-parallel all-reduce.'
    """
    return {
        f"{section}.{short_name(field)}": Setting(section, field, kind)
        for section in _SECTIONS
        for field, kind in _fields(section).items()
    }


def find_setting(key: str) -> Setting | None:
    """Return the setting that a key names, ``section.field`` with or without its unit, or an engine's option.

    None: there is no such setting.

    Examples
    --------
    >>> find_setting("inter.bandwidth")
    Setting(section='inter', field='bandwidth_Bps', kind=<class 'float'>)
    >>> find_setting("max-num-seqs")
    Setting(section='stack', field='step_requests', kind=<class 'int'>)
    """
    if option := EngineOption.find(key):
        return Setting("stack", option.field, _fields("stack")[option.field])
    section, _, name = key.strip().partition(".")
    fields = _fields(section) if section in _SECTIONS else {}
    field = find_field(name, fields, prefix=f"{section}.")
    return None if field is None else Setting(section, field, fields[field])


def settings_of(overrides: Overrides) -> dict[str, str]:
    """Return what overrides change, ``section.field`` with units, and the unit that each value was typed in.

    Examples
    --------
    >>> settings_of({"inter.bandwidth": "100Gb/s", "intra.allreduce_floor_s": 2e-5})
    {'inter.bandwidth_Bps': 'Gb/s', 'intra.allreduce_floor_s': ''}
    """
    keys: dict[str, str] = {}
    for key in overrides:
        name = _setting(key).name
        if name in keys:
            raise UsageError(f"{keys[name]} and {key} set the same figure", hint="leave one out")
        keys[name] = key
    return {name: typed_unit(overrides[key], unit_of(name)) for name, key in keys.items()}


def override_parts(parts: Parts, overrides: Overrides) -> Parts:
    """Return a scenario's parts with some figures changed; the changed spec's ``source`` says what was set.

    Overrides go by ``section.field``: text with its unit, e.g. ``{"inter.bandwidth": "100Gb/s"}``, or a number whose
    unit the name ends in, e.g. ``{"inter.bandwidth_Bps": 12.5e9}``; or by an option of the stack's engine, e.g.
    ``{"max-num-seqs": 256}``. Raises UnknownNameError if there is no such setting or choice; the nearest is named;
    UnitError, SpecError if a value cannot be read or breaks a rule.
    """
    changes: dict[str, dict[str, object]] = {}
    for key, text in overrides.items():
        section, field, kind = _setting(key)
        value = read_value(text, field, kind, name=key)
        if option := EngineOption.find(key):
            option.check_stack(parts.stack)
            value = not value if _disables(option.name) else value
        # all of one section at once: a spec is checked as a whole
        changes.setdefault(section, {})[field] = value
    cluster = parts.cluster
    for tier in (cluster.intra, cluster.inter, cluster.host):
        _check_floor(tier, changes.get(tier.name, {}))
    tiers = {s: _changed(getattr(cluster, s), changes[s]) for s in IN_CLUSTER if s in changes}
    return Parts(
        model=_changed(parts.model, changes.get("model", {})),
        cluster=_changed(dataclasses.replace(cluster, **tiers), changes.get("cluster", {})),
        stack=_changed(parts.stack, changes.get("stack", {})),
        workload=_changed(parts.workload, changes.get("workload", {})),
    )


def _check_floor(tier: LinkTier, changes: dict[str, object]) -> None:
    """Require that hops or the all-reduce floor are set, not both; a floor replaces the hops of the cluster's file."""
    if "allreduce_floor_s" not in changes:
        return
    if changes.get("hop_latency_s"):
        names = f"{tier.name}.hop_latency and {tier.name}.allreduce_floor"
        raise UsageError(f"{names} are both set: hops yield the floor", hint="leave one out")
    if tier.hop_latency_s:
        changes["hop_latency_s"] = 0.0


def _setting(key: str) -> Setting:
    if not isinstance(key, str):
        raise UsageError(f"setting {quoted(key)}: must be text", hint="name a setting, e.g. 'inter.bandwidth'")
    setting = find_setting(key)
    if setting is None:
        raise unknown_setting(key)
    return setting


def unknown_setting(key: str, also: Sequence[str] = (), commands: Sequence[str] = ()) -> UnknownNameError:
    """Return the error of an unknown setting: `also` may be meant, and `commands` have a setting of this name."""
    argument = ARGUMENTS.get(key.replace("-", "_"))
    answer = ""
    if argument is not None:
        answer = f"it is a flag: {argument.flag}" if argument.has_flag else "it is an argument"
    elif commands:
        answer = f"it is a setting of {', '.join(commands)}"
    more = "`ladder-sim list settings` shows all"
    if any(known == f"intra.{key}" for known in settable()):
        more = f"intra is within a node, inter between nodes, host without peer-to-peer; {more}"
    return UnknownNameError("setting", key, (*settable(), *option_names(), *also), more=more, answer=answer)


def _fields(section: str) -> dict[str, object]:
    kinds = {name: kind for name, kind in settable_fields(_SECTIONS[section]).items() if name not in _IDENTITY}
    return kinds | {"fabric": _fabric_of(section)} if "fabric" in kinds else kinds


def _fabric_of(tier: str) -> Callable[[str], str]:
    def fabric(text: str) -> str:
        name, names = text.strip(), catalog.fabric_names(tier)
        own = tier == "inter" and name.endswith(".toml")
        if not own and name not in names:
            measured = "a .toml of `calibrate import nccl-tests` is yours; " if tier == "inter" else ""
            more = f"{measured}only a cluster's file may name another"
            raise UnknownNameError(f"{tier}.fabric", text, names, more=more)
        return name

    return fabric


def _changed(spec: _Spec, changes: Mapping[str, Any]) -> _Spec:
    if not changes:
        return spec
    source = getattr(spec, "source", None)
    if source is not None:
        note = "set by hand: " + ", ".join(f"{name}={value}" for name, value in changes.items())
        changes = {**changes, "source": f"{source}; {note}" if source else note}
    return dataclasses.replace(spec, **changes)
