"""Published quality as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from ladder_sim.display.document import Document
from ladder_sim.quality.published import Measured


def quality_document(rows: Sequence[Measured], unknown: Sequence[str]) -> Document:
    """One row per figure; in CSV also one per wiring of which nothing is known, with its name alone."""
    figures = [asdict(row) | {"difference": row.difference} for row in rows]
    nothing: dict[str, Any] = dict.fromkeys([*(field.name for field in fields(Measured)), "difference"])
    return Document(
        content={"unknown": list(unknown), "rows": figures},
        rows=[*(nothing | {"wiring": name} for name in unknown), *figures],
    )
