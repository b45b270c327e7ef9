"""The answers of `ladder_sim.analysis` as tables."""

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.breakeven import BreakEven
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import MIN_CHANGE, Sensitivity
from ladder_sim.display.labels import field_label, field_text, interval_text, workload_label
from ladder_sim.report.console import table
from ladder_sim.specs.settings import find_setting
from ladder_sim.units import format_rate, format_seconds


def breakeven_report(result: BreakEven) -> RenderableType:
    """Where the speedup crosses the target, and what it is at the ends of the range."""
    name, (low, high) = field_label(result.field), result.ends
    head = f"{result.variant} over {result.over}, speedup {result.target:.4g}, along {name}"
    from_start, to_end = result.whole_range
    rows = [
        (
            field_text(result.field, low[0], result.unit),
            low[1].text,
            "start of the range searched" if from_start else "smallest value tried that can run",
        )
    ]
    for crossing in result.crossings:
        direction = "rises above" if crossing.direction == "rising" else "falls below"
        rows.append(
            (
                field_text(result.field, crossing.value, result.unit),
                crossing.speedup.text,
                f"{direction} the target, {result.target:.4g}",
            )
        )
    rows.append(
        (
            field_text(result.field, high[0], result.unit),
            high[1].text,
            "end of the range searched" if to_end else "largest value tried that can run",
        )
    )
    parts: list[RenderableType] = [Text(head, "bold"), table((name, "speedup (90 %)", ""), rows, wrapped=())]
    if not result.crossings:
        side = "above" if low[1].value > result.target else "at or below"
        count = int(np.count_nonzero(~np.isnan(result.speedups)))
        tried = f"all {count} values tried" if count > 1 else "the only value tried"
        can_run = " that can run" if count < len(result.values) else ""
        parts.append(Text(f"no crossing: {side} the target at {tried}{can_run}"))
    ranges = " and ".join(
        " to ".join(field_text(result.field, end, result.unit) for end in each) for each in result.sure
    )
    parts.append(Text(f"lower end of the interval at {result.target:.4g} or above: {ranges or 'nowhere'}"))
    return Group(*parts)


def sensitivity_report(sensitivities: Sequence[Sensitivity], step: float) -> RenderableType:
    """Elasticities of every variant's time and speedup, heaviest first; figures that change nothing are counted."""
    variants = list(sensitivities[0].responses)
    visible = [figure for figure in sensitivities if max(map(figure.widest, variants)) >= MIN_CHANGE]
    hidden = len(sensitivities) - len(visible)
    gains = [name for name in variants if name != "standard"]
    columns = ("figure", "value", *(f"{name} time" for name in variants), *(f"{name} speedup" for name in gains))
    rows = [
        (
            _settable_label(figure.figure),
            field_text(figure.figure, figure.value, figure.unit),
            *(f"{figure.responses[name].request_elasticity:+.3f}" for name in variants),
            *(f"{figure.responses[name].speedup_elasticity:+.3f}" for name in gains),
        )
        for figure in visible
    ]
    verb = "changes" if hidden == 1 else "change"
    head = f"elasticity: change of a request's time and of the speedup per change of the figure, each by {step:.0%}"
    return Group(
        Text(head, "bold"),
        table(columns, rows, wrapped=columns[2:]),
        Text(f"{_counted(hidden, 'more figure')} {verb} the request's time by less than {MIN_CHANGE:.2%}"),
    )


def _settable_label(figure: str) -> str:
    """A figure's name as ``--set`` takes it, where it does."""
    name = next((name for name in (figure, f"cluster.{figure}") if find_setting(name)), "")
    return field_label(name) if name else f"{field_label(figure)} (not settable)"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _price(usd_per_Mtoken: float | None) -> str:
    return "" if usd_per_Mtoken is None else f"{usd_per_Mtoken:.3g}"


def comparison_report(candidates: Sequence[Candidate]) -> RenderableType:
    """Every variant on every candidate, and how much faster it is than on the first."""
    first = candidates[0]
    columns = ("variant", "on", "TTFT", "TPOT", "tok/s (90%)", f"over {first.name}", "speedup", "$/Mtoken")
    rows = []
    for variant, base in first.predictions.items():
        for candidate in candidates:
            prediction = candidate.predictions[variant]
            rows.append(
                (
                    variant if candidate is first else "",
                    candidate.name,
                    format_seconds(prediction.ttft_s),
                    "-" if prediction.tpot_s is None else format_seconds(prediction.tpot_s),
                    interval_text(prediction.tokens_per_s, format_rate),
                    f"{base.request_s / prediction.request_s:.2f}x",
                    prediction.speedup.text,
                    _price(candidate.token_price(variant)),
                )
            )
    kept = len(columns) if any(candidate.usd_per_gpu_hour is not None for candidate in candidates) else -1
    where = "; ".join(
        f"{candidate.name}: {candidate.scenario.plan}, profile {candidate.predictions.confidence.profile}"
        for candidate in candidates
    )
    return Group(
        Text(f"{first.scenario.model.name}, {workload_label(first.scenario)}"),
        Text(where, "bold"),
        table(columns[:kept], [row[:kept] for row in rows], left=2, keys=2, wrapped=()),
    )
