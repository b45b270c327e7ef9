"""Settings as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from ladder_sim.display.document import Document

if TYPE_CHECKING:
    from ladder_sim.specs.scenario import Scenario
    from ladder_sim.specs.values import Limits


def settings_document(scenario: Scenario) -> Document:
    """Return every setting in SI units and words of JSON Schema, with the value that predictions use."""
    from ladder_sim.prediction import resolve_profile
    from ladder_sim.specs.settings import described
    from ladder_sim.sweeps.axes import used_value

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
