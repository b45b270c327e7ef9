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
    spans = {
        "gpu_hours": cost.gpu_hours,
        **({} if usd_per_gpu_hour is None else {"usd": cost.dollars(usd_per_gpu_hour)}),
        "break_even_tokens": cost.break_even_tokens,
        "break_even_days": cost.days(tokens_per_s),
        "gain": cost.serving.speedup,
    }
    fields: dict[str, Any] = {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, span in spans.items()
        for end, value in (("", span.value), ("_low", span.low), ("_high", span.high))
    }
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
        "tokens_published_of": cost.published_tokens or None,
        **fields,
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
