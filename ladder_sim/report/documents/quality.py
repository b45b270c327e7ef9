"""Published quality as JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ladder_sim.display.document import Document
from ladder_sim.quality.published import Measured

if TYPE_CHECKING:
    from ladder_sim.analysis.adaptation import Adaptation


def adaptation_fields(cost: Adaptation) -> dict[str, Any]:
    """Price of adapting a model; null where it never pays."""
    spans = {"gpu_hours": cost.gpu_hours, "break_even_tokens": cost.break_even_tokens, "gain": cost.serving.speedup}
    fields: dict[str, Any] = {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, span in spans.items()
        for end, value in (("", span.value), ("_low", span.low), ("_high", span.high))
    }
    return {
        "variant": cost.serving.variant,
        "tokens": cost.tokens,
        "tokens_published_of": cost.published_tokens or None,
        **fields,
    }


def quality_document(rows: Sequence[Measured], unknown: Sequence[str]) -> Document:
    """Return one row per figure; in CSV also one per wiring of which nothing is known, with its name alone."""
    figures = [asdict(row) | {"difference": row.difference} for row in rows]
    nothing: dict[str, Any] = dict.fromkeys([*(field.name for field in fields(Measured)), "difference"])
    return Document(
        content={"unknown": list(unknown), "rows": figures},
        rows=[*(nothing | {"wiring": name} for name in unknown), *figures],
    )
