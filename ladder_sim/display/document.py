"""An answer in plain values: JSON and CSV, SI units in keys."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ladder_sim.specs.scenario import Scenario
from ladder_sim.system.schema import Schema

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
