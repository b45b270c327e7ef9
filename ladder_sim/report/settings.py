"""Every figure that ``--set`` changes: what it means, its unit, its default and what it may be."""

import re
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.costs.hardware import Hardware
from ladder_sim.display.console import table
from ladder_sim.display.document import Document
from ladder_sim.display.labels import field_text
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.fields import limits_of
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import Setting, described
from ladder_sim.sweeps.axes import figure_of
from ladder_sim.units import base_unit, unit_of

COLUMNS = ("setting", "default", "range", "meaning")


def settings_report(scenario: Scenario) -> RenderableType:
    """A row per setting, with the value that predictions of this scenario use."""
    defaults = _defaults(scenario)
    rows = [
        (name, _value_text(setting, defaults[name]), _range_text(setting), _first_sentence(setting))
        for name, setting in sorted(described().items())
    ]
    return Group(
        table(COLUMNS, rows, left=len(COLUMNS), wrapped=COLUMNS[2:]),
        Text(
            f"\ndefaults of {scenario.model.name} on {scenario.cluster.name} under {scenario.stack.name} as predictions"
            " use them, fits included\na value takes any unit of its kind: 400Gb/s or 50GB/s"
        ),
    )


def settings_document(scenario: Scenario) -> Document:
    """The same in SI units, each setting in the words of JSON Schema."""
    defaults = _defaults(scenario)
    settings = {
        name: {
            **_schema(setting.kind),
            "unit": _unit(setting),
            "default": defaults[name],
            "description": setting.meaning,
        }
        for name, setting in sorted(described().items())
    }
    names = {part: getattr(scenario, part).name for part in ("model", "cluster", "stack")}
    return Document(content={**names, "settings": settings})


def _defaults(scenario: Scenario) -> dict[str, Any]:
    """What predictions use: a fit may replace what the catalog states."""
    hardware = Hardware.of(scenario, resolve_profile(scenario, None))
    return {
        name: hardware.figure(figure) if (figure := figure_of(setting.field)) else scenario.setting(setting.field)
        for name, setting in described().items()
    }


def _unit(setting: Setting) -> str:
    return base_unit(unit_of(setting.field))


def _value_text(setting: Setting, value: Any) -> str:
    if value == "":
        return "-"
    # as --set takes it
    return str(value).lower() if isinstance(value, bool) else field_text(setting.field, value)


def _range_text(setting: Setting) -> str:
    limits, choices = limits_of(setting.kind), get_args(setting.kind)
    if limits:
        largest = f"{limits.maximum:,}" if isinstance(limits.maximum, int) else f"{limits.maximum:g}"
        return f"{'above ' * limits.above}{limits.minimum} to {largest} {_unit(setting)}".rstrip()
    if setting.kind is bool:
        return "true or false"
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if choices else "text"


def _first_sentence(setting: Setting) -> str:
    return re.split(r"\.(?: (?=[A-Z0-9])|$)", setting.meaning)[0]


def _schema(kind: Any) -> dict[str, Any]:
    limits, choices = limits_of(kind), get_args(kind)
    if limits:
        number = "integer" if choices[0] is int else "number"
        return {
            "type": number,
            "exclusiveMinimum" if limits.above else "minimum": limits.minimum,
            "maximum": choices[0](limits.maximum),
        }
    if kind is bool:
        return {"type": "boolean"}
    return {"type": "string", **({"enum": list(choices)} if choices else {})}
