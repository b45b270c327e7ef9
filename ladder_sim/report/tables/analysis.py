"""The answers of `ladder_sim.analysis` as tables for people."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.advise import Advice, Option
from ladder_sim.analysis.breakeven import BreakEven
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import SEEN, Sensitivity
from ladder_sim.report.labels import field_label, field_text
from ladder_sim.report.tables.console import table
from ladder_sim.units import format_bytes, format_seconds


def breakeven_report(found: BreakEven) -> RenderableType:
    """Where the speedup passes the bound, and what it is at the ends of the range."""
    name, (low, high) = field_label(found.field), found.ends
    asked = f"{found.variant} over {found.over}, speedup {found.bound:.4g}, along {name}"
    rows = [(field_text(found.field, low[0]), f"{low[1]:.4f}", "lowest value that can run")]
    for crossing in found.crossings:
        direction = "rises above" if crossing.rising else "falls below"
        rows.append((field_text(found.field, crossing.value), f"{found.bound:.4f}", f"{direction} the bound"))
    rows.append((field_text(found.field, high[0]), f"{high[1]:.4f}", "highest value that can run"))
    parts: list[RenderableType] = [Text(asked, "bold"), table((name, "speedup", ""), rows, wrapped=())]
    if not found.crossings:
        side = "above" if low[1] > found.bound else "at or below"
        parts.append(Text(f"no crossing: {side} the bound at every value looked at ({len(found.values)})"))
    return Group(*parts)


def sensitivity_report(found: Sequence[Sensitivity], step: float) -> RenderableType:
    """Elasticities of every variant's time and speedup, heaviest first; figures that change nothing are counted."""
    variants = list(found[0].responses)
    seen = [one for one in found if max(map(one.widest, variants)) >= SEEN]
    gains = [name for name in variants if name != "standard"]
    columns = ("figure", "value", *(f"{name} time" for name in variants), *(f"{name} speedup" for name in gains))
    rows = [
        (
            field_label(one.figure),
            field_text(one.figure, one.value),
            *(f"{one.responses[name].request_elasticity:+.3f}" for name in variants),
            *(f"{one.responses[name].speedup_elasticity:+.3f}" for name in gains),
        )
        for one in seen
    ]
    head = f"elasticity: change of a request's time and of the speedup per change of the figure, each by {step:.0%}"
    return Group(
        Text(head, "bold"),
        table(columns, rows, wrapped=columns[2:]),
        Text(f"{len(found) - len(seen)} more figures change the request's time by less than {SEEN:.2%}"),
    )


def advice_report(found: Advice) -> RenderableType:
    """The best of each variant, and the Pareto front."""
    best = found.best
    head = f"best by {found.objective}: {best.variant}, TP {best.tp}, batch {best.batch}"
    left = f"left out: {found.unfit} pairs of TP and batch that do not fit, {found.beyond} options beyond a bound"
    return Group(
        Text(head, "bold"),
        _options("best of each variant", list(found.best_by_variant.values())),
        Text(),
        _options("Pareto front of TPOT and tok/s per GPU", found.front),
        Text(),
        Text(left),
    )


def _options(title: str, options: Sequence[Option]) -> RenderableType:
    priced = options[0].usd_per_Mtoken is not None
    columns = ("variant", "TP", "batch", "TTFT", "TPOT", "tok/s", "tok/s per GPU", "memory", "$/Mtoken")
    rows = [
        (
            one.variant,
            str(one.tp),
            str(one.batch),
            format_seconds(one.ttft_s),
            format_seconds(one.tpot_s),
            f"{one.tokens_per_s:.4g}",
            f"{one.tokens_per_gpu:.4g}",
            format_bytes(one.memory_bytes),
            "" if one.usd_per_Mtoken is None else f"{one.usd_per_Mtoken:.3g}",
        )
        for one in options
    ]
    kept = len(columns) if priced else -1
    return table(columns[:kept], [row[:kept] for row in rows], title=title)


def comparison_report(found: Sequence[Candidate]) -> RenderableType:
    """Every variant on every candidate, and how much faster it is than on the first."""
    first = found[0]
    priced = any(one.usd_per_gpu_hour is not None for one in found)
    columns = ("variant", "on", "TTFT", "TPOT", "tok/s (90%)", f"over {first.name}", "speedup", "$/Mtoken")
    rows = []
    for variant, base in first.predictions.items():
        for one in found:
            here = one.predictions[variant]
            rate, price = here.tokens_per_s, one.token_price(variant)
            rows.append(
                (
                    variant if one is first else "",
                    one.name,
                    format_seconds(here.ttft_s),
                    "-" if here.tpot_s is None else format_seconds(here.tpot_s),
                    f"{rate.value:.4g} ({rate.low:.4g}-{rate.high:.4g})",
                    f"{base.request_s / here.request_s:.2f}x",
                    f"{here.speedup.value:.2f}",
                    "" if price is None else f"{price:.3g}",
                )
            )
    kept = len(columns) if priced else -1
    where = "; ".join(f"{one.name}: TP {one.scenario.tp}, profile {_profile(one)}" for one in found)
    return Group(Text(where, "bold"), table(columns[:kept], [row[:kept] for row in rows], left=2, wrapped=()))


def _profile(one: Candidate) -> str:
    return next(iter(one.predictions.values())).confidence.profile
