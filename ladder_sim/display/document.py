"""An answer in plain values, JSON and CSV with SI units in keys, and its notes: the runs behind it, and warnings."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ladder_sim.confidence import Confidence
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import UNUSED, Caution
from ladder_sim.system.files import Schema

# 2: break-even values call `target` what was `bound`, `advise` names a plan by its degrees; and entries were added
SCHEMA = Schema(version=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An answer in plain values."""

    content: Mapping[str, Any]
    """What the JSON object holds."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Lines of the CSV, with the same keys each; empty: there is no CSV."""

    @classmethod
    def of_rows(cls, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Self:
        """Return a document whose JSON object holds the rows of its CSV as well."""
        return cls(content={**head, "rows": rows}, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the content as JSON can hold it, with the version of its keys."""
        plain: dict[str, Any] = _without_nan(SCHEMA.marked(**self.content))
        return plain

    def to_json(self) -> str:
        """Return the document as one JSON object."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_csv(self) -> str:
        """Return the rows as CSV: a header, and a line per row."""
        if not self.rows:
            return ""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_without_nan(self.rows))
        return text.getvalue()


def _without_nan(value: Any) -> Any:
    """Return a value without NaN, which JSON lacks: None instead, and an empty cell in CSV."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def scenario_fields(scenario: Scenario) -> dict[str, Any]:
    """Return the fields of the simulated scenario."""
    fields = {name: value for name, value in scenario.fields().items() if name != "allreduce"}
    return {**fields, "batching": scenario.workload.batching}


# names before a warning; the others are counted
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The end of every answer, and `validated` and `warnings` in its JSON."""

    confidences: Mapping[str, Confidence]
    """Confidence of each part of the answer, by the part's name."""
    about: tuple[str, ...] = ()
    """Warnings about the answer as a whole."""
    used: frozenset[str] = frozenset()
    """Settings that something else next to it depends on: no warning says that they change nothing."""

    @property
    def warnings(self) -> list[str]:
        """Each once, with the names of the parts that it is about, unless it is about all."""
        names: dict[str, list[str]] = {}
        for name, confidence in self.confidences.items():
            for text in filter(self._applies, confidence.warnings):
                if text not in self.about:
                    names.setdefault(text, []).append(name)
        everywhere = len(self.confidences)

        def of_parts(text: str, parts: list[str]) -> str:
            """Start a warning with the names of the parts that it is about, unless that is all or it names them."""
            if len(parts) == everywhere or (isinstance(text, Caution) and all(map(text.names, parts))):
                return text
            more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
            return Caution(f"{', '.join(parts[:_NAMED])}{more}: {text}", getattr(text, "kind", ""))

        return [*filter(self._applies, self.about), *(of_parts(text, each) for text, each in names.items())]

    def _applies(self, text: str) -> bool:
        """Whether a warning still holds next to what else depends on its setting."""
        return not (isinstance(text, Caution) and text.kind == UNUSED and text.name in self.used)

    def fields(self) -> dict[str, Any]:
        """Return the notes as in JSON; empty if an answer depends on nothing but measurements."""
        if not self.confidences and not self.about:
            return {}
        validated = {name: dict(confidence.validated) for name, confidence in self.confidences.items()}
        return {
            "validated": validated if len(validated) > 1 else next(iter(validated.values()), {}),
            "warnings": self.warnings,
        }
