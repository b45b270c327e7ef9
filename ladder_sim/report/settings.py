"""Every figure that ``--set`` changes: what it means, its unit, its default and what it may be."""

import re
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import field_text
from ladder_sim.prediction import resolve_profile
from ladder_sim.report.console import table
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import Setting, described
from ladder_sim.sweeps.axes import used_value
from ladder_sim.values import Limits

COLUMNS = ("setting", "default", "range", "meaning")
# more would leave no room on a line; the help of the flag lists them
MANY_CHOICES = 8


def settings_rows(scenario: Scenario) -> list[tuple[str, str, str, str]]:
    """Return each setting's name, the value that predictions of this scenario use, its range and its meaning."""
    profile = resolve_profile(scenario, None)
    rows = []
    for name, setting in sorted(described().items()):
        value = used_value(scenario, setting.name, profile)
        shown = str(value).lower() if isinstance(value, bool) else field_text(setting.field, value)
        meaning = re.split(r"\.(?: (?=[A-Z0-9])|$)", setting.meaning)[0]
        # what engines call it
        options = ", ".join(f"{engine} {option}" for engine, option in setting.options.items())
        rows.append((name, shown or "-", _range_text(setting), f"{meaning} ({options})" if options else meaning))
    return rows


def settings_report(scenario: Scenario) -> RenderableType:
    """Return a table with a row per setting."""
    return Group(
        table(COLUMNS, settings_rows(scenario), left=len(COLUMNS), wrapped=COLUMNS[2:]),
        Text(
            f"\ndefaults of {scenario.model.name} on {scenario.cluster.name} under {scenario.stack.name} as predictions"
            " use them, fits included\na value takes any unit of its kind: 400Gb/s or 50GB/s"
        ),
    )


def _range_text(setting: Setting) -> str:
    limits, choices = setting.limits, get_args(setting.kind)
    if limits:
        largest = f"{limits.maximum:,}" if isinstance(limits.maximum, int) else f"{limits.maximum:g}"
        return f"{'above ' * limits.above}{limits.minimum:g} to {largest} {setting.unit}".rstrip()
    if setting.kind is bool:
        return "true or false"
    if len(choices) > MANY_CHOICES:
        flag = next(argument.flag for argument in ARGUMENTS.values() if argument.attribute == setting.name)
        return f"as {flag} takes"
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if choices else "text"


def settings_document(scenario: Scenario) -> Document:
    """Return every setting in SI units and words of JSON Schema, with the value that predictions use."""
    profile = resolve_profile(scenario, None)
    settings = {
        name: {
            **value_schema(setting.kind, setting.limits),
            "unit": setting.unit,
            "default": used_value(scenario, setting.name, profile),
            "description": setting.meaning,
        }
        for name, setting in sorted(described().items())
    }
    names = {part: getattr(scenario, part).name for part in ("model", "cluster", "stack")}
    return Document(content={**names, "settings": settings})


def value_schema(kind: Any, limits: Limits | None) -> dict[str, Any]:
    """Return the values that a setting of a type may have, in the words of JSON Schema."""
    choices = get_args(kind)
    if limits:
        return {
            "type": "integer" if kind is int else "number",
            "exclusiveMinimum" if limits.above else "minimum": limits.minimum,
            "maximum": kind(limits.maximum),
        }
    if kind is bool:
        return {"type": "boolean"}
    return {"type": "string", **({"enum": list(choices)} if choices else {})}
