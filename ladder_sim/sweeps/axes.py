"""What a sweep may vary: every field of a scenario and every setting."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ladder_sim.costs.hardware import Hardware
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario, setting_value
from ladder_sim.specs.settings import find_setting, settable
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.values import read_value
from ladder_sim.specs.workload import DType
from ladder_sim.sweeps.ranges import expand, split

# what `Scenario.of` takes, with the type or the catalog of each
FIELDS: dict[str, Any] = {
    "model": catalog.model,
    "cluster": catalog.cluster,
    "nodes": int,
    "gpus_per_node": int,
    "tp": int,
    "batch": int,
    "prompt": int,
    "gen": int,
    "dtype": DType,
    "stack": catalog.stack,
    "allreduce": AllReduce,
    "p2p": bool,
}
# ranges of these double where they name no step
DOUBLING = ("tp", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One field and the values it takes."""

    name: str
    """A key of `FIELDS`, or a setting with its unit, e.g. "inter.bandwidth_Bps"."""
    values: tuple[Any, ...]
    """Specs, numbers, flags or names; in SI units."""

    @property
    def setting(self) -> bool:
        """Whether it is a figure inside a spec."""
        return self.name not in FIELDS

    @property
    def figure(self) -> str:
        """The hardware figure that it is (`Hardware.vary`); empty if it is none."""
        name = self.name.removeprefix("cluster.")
        return name if self.setting and name in Hardware.figures() else ""


def axis(key: str, given: Any) -> Axis:
    """Read the values of one field.

    Parameters
    ----------
    key
        Field of the scenario or setting, e.g. ``"batch"`` or ``"inter.bandwidth"``.
    given
        Text of a range or list, one value, or a sequence of them.

    Raises
    ------
    UnknownNameError
        There is no such field, or no such model, cluster, stack or choice.
    UsageError
        The range is malformed, or a value cannot be.

    Examples
    --------
    >>> axis("inter.bandwidth", "50:200:x2Gb/s")
    Axis(name='inter.bandwidth_Bps', values=(6250000000.0, 12500000000.0, 25000000000.0))
    """
    name, kind = resolve(key)
    if isinstance(given, str):
        numeric = kind in (int, float)
        raw: Sequence[Any] = (
            expand(given, name=key, factor=2 if name in DOUBLING else None) if numeric else split(given, name=key)
        )
    else:
        raw = list(given) if isinstance(given, Iterable) else [given]
    if not raw:
        raise UsageError(f"{key}: no values", hint="give it at least one")
    values = tuple(dict.fromkeys(_value(item, name, kind, key) for item in raw))
    return Axis(name=name, values=values)


def resolve(key: str) -> tuple[str, Any]:
    """A field's name, with its unit if it is a setting, and its type or catalog.

    Raises
    ------
    UnknownNameError
        There is no such field.
    """
    key = key.strip()
    name = key.replace("-", "_")
    if name in FIELDS:
        return name, FIELDS[name]
    found = find_setting(key)
    if found is None:
        more = "`ladder-sim list settings` shows all settings"
        raise UnknownNameError("field", key, (*FIELDS, *settable()), more=more)
    return found


def value_at(scenario: Scenario, name: str) -> Any:
    """What a scenario has for a field or setting, named as by `resolve`."""
    return scenario.fields()[name] if name in FIELDS else setting_value(scenario, name)


def _value(raw: Any, name: str, kind: Any, key: str) -> Any:
    if name in ("model", "cluster", "stack"):
        return kind(raw) if isinstance(raw, str) else raw
    value = read_value(raw, name.rpartition(".")[2], kind, name=key)
    if name in FIELDS and kind is int and not value:
        raise UsageError(f"{key}: 0 is none", hint="start at 1")
    return value
