"""Published quality as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.console import table
from ladder_sim.display.labels import gpus_label, load_label
from ladder_sim.quality.published import Measured
from ladder_sim.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from ladder_sim.analysis.adaptation import Adaptation
    from ladder_sim.confidence import Interval

_COLUMNS = ("model, parameters", "training", "metric", "value", "standard", "difference")


def quality_report(rows: Sequence[Measured], unknown: Sequence[str]) -> RenderableType:
    """The wirings of which nothing is known, and a table of each wiring and source, next to the standard model."""
    parts: list[RenderableType] = []
    if unknown:
        parts.append(Text(f"no published quality is known here of {', '.join(unknown)}", "bold"))
    for (wiring, citation), figures in groupby(rows, lambda row: (row.wiring, row.citation)):
        if parts:
            parts.append(Text())
        cells = list(_cells(list(figures)))
        parts.append(table(_COLUMNS, cells, left=3, wrapped=_COLUMNS[:3], title=f"{wiring}: {citation}"))
    return Group(*parts)


def adaptation_report(cost: Adaptation, usd_per_gpu_hour: float | None, tokens_per_s: float | None) -> RenderableType:
    """What adapting a model costs, when that has paid, and the training step behind it."""
    served, step, hours = cost.scenario, cost.step, cost.gpu_hours
    rate = tokens_per_s or cost.serving_standard.rate
    lines = [
        f"{served.model.name} to {step.variant}: {_tokens(cost)}",
        f"served on {gpus_label(served)}, {load_label(served.workload)}, {served.stack.name}: "
        f"{cost.serving.speedup.text} times as fast as standard",
    ]
    rows = [("GPU-hours", _span(hours, "{:,.0f}".format))]
    if usd_per_gpu_hour is not None:
        rows.append(("US dollars", _span(cost.dollars(usd_per_gpu_hour), "{:,.0f}".format)))
    rows.append(("has paid after, tokens served", _span(cost.break_even_tokens, format_count)))
    rows.append((f"in days, at {rate:,.0f} tokens/s", _span(cost.days(tokens_per_s), "{:,.1f}".format)))
    columns = ("training step", "time", "gain", "forward and backward", "activations", "memory")
    steps = [
        (
            each.variant,
            format_seconds(each.seconds),
            f"{cost.standard.seconds / each.seconds:.2f}",
            f"{each.micro_batches} x {format_seconds(each.pass_s)}",
            "recomputed" if each.recomputes else "kept",
            format_bytes(each.memory.total_bytes),
        )
        for each in (cost.standard, step)
    ]
    plan, sequence = cost.training.plan, cost.training.workload.prompt
    return Group(
        Text("\n".join(lines)),
        Text(),
        table(("cost of adapting", "(90%)"), rows),
        Text(),
        table(columns, steps),
        Text(
            f"of {format_count(step.tokens)} tokens on {plan}, sequences of {sequence}, bf16, NCCL.\n"
            "No training step was compared with a measured one: the interval of GPU-hours is judgement, "
            "for these tokens.\n"
        ),
    )


def adaptation_sentence(cost: Adaptation) -> str:
    """The same in a line."""
    hours, after = _span(cost.gpu_hours, "{:,.0f}".format), _span(cost.break_even_tokens, format_count)
    return (
        f"{_tokens(cost)}: {hours} GPU-hours, has paid after {after} tokens served "
        f"(more: ladder-sim quality {cost.step.variant} with the same flags)"
    )


def _tokens(cost: Adaptation) -> str:
    """To train on, and whose they are."""
    from_paper = f", as published of {cost.published_tokens}" if cost.published_tokens else ""
    return f"{format_count(cost.tokens)} tokens{from_paper}"


def _span(span: Interval, write: Callable[[float], str]) -> str:
    value, low, high = (write(end) if math.isfinite(end) else "never" for end in (span.value, span.low, span.high))
    return f"{value} ({low}-{high})"


def _cells(rows: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """A row for each figure; model and training stand only in the first row that has them."""
    before = None
    for row in rows:
        model = f"{row.model}, {row.parameters_text}", f"{row.tokens_text} tokens, {row.recipe}"
        value = f"{row.value:g}" + (f" +- {row.spread:g}" if row.spread is not None else "")
        standard = "-" if row.standard is None else f"{row.standard:g}"
        yield (*(("", "") if model == before else model), row.metric, value, standard, _difference(row))
        before = model


def _difference(row: Measured) -> str:
    if row.difference is None:
        return "-"
    return f"{row.difference:+g} {'worse' if row.is_worse else 'better'}" if row.difference else "0"
