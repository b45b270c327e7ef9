"""Change single figures of a scenario: ``--set inter.bandwidth=100Gb/s``."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ladder_sim.errors import UnknownNameError
from ladder_sim.specs.cluster import ClusterSpec, GpuSpec, LinkTier
from ladder_sim.specs.fields import find_field, read_value, settable_fields, short_name
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import Workload

if TYPE_CHECKING:
    from ladder_sim.specs.scenario import Scenario

_SECTIONS: dict[str, type] = {
    "model": ModelSpec,
    "gpu": GpuSpec,
    "cluster": ClusterSpec,
    "intra": LinkTier,
    "inter": LinkTier,
    "host": LinkTier,
    "stack": StackSpec,
    "workload": Workload,
}
_IN_CLUSTER = ("gpu", "intra", "inter", "host")
# sections that are fields of ClusterSpec
_IDENTITY = ("name", "source")
# fields that say what a spec is, not how it behaves

_MORE = "`ladder-sim list settings` shows all"


class Parts(NamedTuple):
    """What settings can change."""

    model: ModelSpec
    cluster: ClusterSpec
    stack: StackSpec
    workload: Workload


def apply_overrides(scenario: "Scenario", overrides: Mapping[str, str]) -> "Scenario":
    """Return the scenario with some figures changed.

    Parameters
    ----------
    scenario
        Where to start from; it stays as it is.
    overrides
        Values by ``section.field``, e.g. ``{"inter.bandwidth": "100Gb/s"}``. A field may be named without its unit;
        a number without one is in SI base units. The changed spec's ``source`` says what was set.

    Raises
    ------
    UnknownNameError
        If there is no such setting or choice; the nearest is named.
    UnitError, SpecError
        If a value cannot be read or cannot be.

    Examples
    --------
    >>> from ladder_sim.specs.scenario import Scenario
    >>> slower = apply_overrides(Scenario.of(nodes=2), {"inter.bandwidth": "100Gb/s"})
    >>> slower.cluster.inter.bandwidth_Bps
    12500000000.0
    """
    parts = Parts(scenario.model, scenario.cluster, scenario.stack, scenario.workload)
    settings = scenario.settings | settings_of(overrides)
    return dataclasses.replace(scenario, **override_parts(parts, overrides)._asdict(), settings=settings)


def settings_of(overrides: Mapping[str, str]) -> frozenset[str]:
    """Return what overrides change, ``section.field`` with units."""
    return frozenset(_found(key)[0] for key in overrides)


def find_setting(key: str) -> tuple[str, object] | None:
    """Name of a setting, ``section.field`` with its unit, and its type; None if there is no such setting.

    Examples
    --------
    >>> find_setting("inter.bandwidth")
    ('inter.bandwidth_Bps', <class 'float'>)
    """
    section, _, name = key.strip().partition(".")
    fields = _fields(section) if section in _SECTIONS else {}
    field = find_field(name, fields)
    return None if field is None else (f"{section}.{field}", fields[field])


def setting_value(scenario: "Scenario", name: str) -> Any:
    """What a scenario has for a setting, named as by `find_setting`."""
    section, _, field = name.partition(".")
    holder = scenario.cluster if section in _IN_CLUSTER else scenario
    return getattr(getattr(holder, section), field)


def override_parts(parts: Parts, overrides: Mapping[str, str]) -> Parts:
    """Change figures of a scenario's parts; see `apply_overrides`."""
    changes: dict[str, dict[str, object]] = {}
    for key, text in overrides.items():
        name, kind = _found(key)
        section, _, field = name.partition(".")
        # all of one section at once: a spec is checked as a whole
        changes.setdefault(section, {})[field] = read_value(text, field, kind, name=key)
    cluster = parts.cluster
    tiers = {s: _changed(getattr(cluster, s), changes[s]) for s in _IN_CLUSTER if s in changes}
    return Parts(
        model=_changed(parts.model, changes.get("model", {})),
        cluster=_changed(dataclasses.replace(cluster, **tiers), changes.get("cluster", {})),
        stack=_changed(parts.stack, changes.get("stack", {})),
        workload=_changed(parts.workload, changes.get("workload", {})),
    )


def settable() -> list[str]:
    """Return every setting, ``section.field``, without units.

    Examples
    --------
    >>> [name for name in settable() if name.startswith("inter.")]
    ['inter.bandwidth', 'inter.fabric', 'inter.latency']
    """
    return sorted(f"{section}.{short_name(field)}" for section in _SECTIONS for field in _fields(section))


def _fields(section: str) -> dict[str, object]:
    return {name: kind for name, kind in settable_fields(_SECTIONS[section]).items() if name not in _IDENTITY}


def _found(key: str) -> tuple[str, object]:
    found = find_setting(key)
    if found is None:
        raise UnknownNameError("setting", key, settable(), more=_MORE)
    return found


_Spec = TypeVar("_Spec", ModelSpec, ClusterSpec, GpuSpec, LinkTier, StackSpec, Workload)


def _changed(spec: _Spec, changes: Mapping[str, Any]) -> _Spec:
    if not changes:
        return spec
    source = getattr(spec, "source", None)
    if source is not None:
        note = "set by hand: " + ", ".join(f"{name}={value}" for name, value in changes.items())
        changes = {**changes, "source": f"{source}; {note}" if source else note}
    return dataclasses.replace(spec, **changes)
