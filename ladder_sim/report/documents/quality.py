"""Published quality as JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.quality.published import Measured

if TYPE_CHECKING:
    from ladder_sim.analysis.adaptation import Adaptation


def adaptation_fields(
    cost: Adaptation, usd_per_gpu_hour: float | None = None, tokens_per_s: float | None = None
) -> dict[str, Any]:
    """What adapting a model costs; null where it never pays."""
    hours, tokens, days = cost.gpu_hours, cost.break_even_tokens, cost.days(tokens_per_s)
    spans = {"gpu_hours": hours, "break_even_tokens": tokens, "break_even_days": days}
    fields: dict[str, Any] = {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, span in spans.items()
        for end, value in (("", span.value), ("_low", span.low), ("_high", span.high))
    }
    dollars = {} if usd_per_gpu_hour is None else {"usd": hours.value * usd_per_gpu_hour}
    steps = {
        name: {
            "step_s": step.seconds,
            "pass_s": step.pass_s,
            "micro_batches": step.micro_batches,
            "recomputes": step.recomputes,
            "memory_bytes": step.memory.total_bytes,
        }
        for name, step in (("standard", cost.standard), (cost.step.variant, cost.step))
    }
    return {
        "scenario": scenario_fields(cost.scenario),
        "tokens": cost.tokens,
        **fields,
        **dollars,
        "gain": cost.serving.speedup.value,
        "training_gain": cost.training_gain,
        "training_gpus": cost.step.gpus,
        "training_plan": str(cost.training.plan),
        "steps": steps,
    }


def quality_document(
    rows: Sequence[Measured],
    unknown: Sequence[str],
    cost: Adaptation | None = None,
    usd_per_gpu_hour: float | None = None,
    tokens_per_s: float | None = None,
) -> Document:
    """One row per figure; in CSV also one per wiring of which nothing is known, with its name alone."""
    figures = [asdict(row) | {"difference": row.difference} for row in rows]
    nothing: dict[str, Any] = dict.fromkeys([*(field.name for field in fields(Measured)), "difference"])
    return Document(
        content={
            **({"cost": adaptation_fields(cost, usd_per_gpu_hour, tokens_per_s)} if cost else {}),
            "unknown": list(unknown),
            "rows": figures,
        },
        rows=[*(nothing | {"wiring": name} for name in unknown), *figures],
    )
