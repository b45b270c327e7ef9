"""Answers other than a prediction as JSON and CSV.

The answers' modules are imported for their types only: a command needs those of one answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, get_args

from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.specs.workload import STATIC
from ladder_sim.sweeps.price import token_price
from ladder_sim.units import format_bytes

if TYPE_CHECKING:
    from ladder_sim.analysis.advice import Advice, Option, Unfit
    from ladder_sim.analysis.breakeven import BreakEven
    from ladder_sim.analysis.compare import Candidate
    from ladder_sim.analysis.sensitivity import Sensitivity
    from ladder_sim.serve import Capacity, Outcome, Promise, Trace, Traffic
    from ladder_sim.specs.scenario import Scenario
    from ladder_sim.specs.settings import Setting
    from ladder_sim.traces.blocks import Cover
    from ladder_sim.traces.graph import TraceGraph
    from ladder_sim.traces.replay import Replay, StepError
    from ladder_sim.traces.summary import RankSummary, RunSummary
    from ladder_sim.traces.wirings import VariantTime
    from ladder_sim.validation.compare import Comparison, ComparisonsByLevel, ErrorStats, GroupSummary, Quantity
    from ladder_sim.validation.dataset import Dataset
    from ladder_sim.validation.serving import ErrorSummary, ServingComparison


def _rows_document(head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Document:
    """A document whose JSON object holds the rows of the CSV as well."""
    return Document(content={**head, "rows": rows}, rows=rows)


def breakeven_document(result: BreakEven) -> Document:
    """The crossings, and the scanned speedups as rows."""
    head = {
        "field": result.field,
        "variant": result.variant,
        "over": result.over,
        "target": result.target,
        "crossings": [asdict(crossing) for crossing in result.crossings],
    }
    scan = zip(result.values.tolist(), result.speedups.tolist(), strict=True)
    return _rows_document(head, [{result.field: value, "speedup": speedup} for value, speedup in scan])


def sensitivity_document(sensitivities: Sequence[Sensitivity], step: float) -> Document:
    """One row per figure and variant."""
    rows = [
        {"figure": figure.figure, "value": figure.value, "variant": variant, **asdict(response)}
        for figure in sensitivities
        for variant, response in figure.responses.items()
    ]
    return _rows_document({"step": step}, rows)


def advice_document(advice: Advice) -> Document:
    """One row per option, best first, then those that exceed a bound, then plans that cannot run."""
    rows = [
        *(_option_fields(advice, option) for option in (*advice.options, *advice.beyond)),
        *(
            _choice_fields(each.scenario, None, each.memory_bytes)
            | dict.fromkeys(_OPTION_FIGURES)
            | {"outcome": "infeasible" if each.problem else "memory", "reason": each.problem or _lacking(each)}
            for each in advice.unfit
        ),
    ]
    head = {
        "batching": advice.best.scenario.workload.batching,
        "objective": advice.objective,
        "max_gpus": advice.gpus,
        "plans": advice.plans,
        "unfit": len(advice.unfit),
        "beyond": len(advice.beyond),
    }
    return _rows_document(head, rows)


# of an option; a plan that cannot run has none
_OPTION_FIGURES = (
    "ttft_s",
    "tpot_s",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "tokens_per_s_per_gpu",
    "usd_per_Mtoken",
)


def _choice_fields(scenario: Scenario, variant: str | None, memory_bytes: float) -> dict[str, Any]:
    """A plan, its load and variant, as arguments of `predict`."""
    workload = scenario.workload
    return {
        "variant": variant,
        **asdict(scenario.plan),
        "gpus": scenario.plan.gpus,
        "nodes": scenario.nodes,
        "batch": workload.batch,
        "concurrency": workload.concurrency,
        "memory_bytes": memory_bytes,
    }


def _option_fields(advice: Advice, option: Option) -> dict[str, Any]:
    """Of an option; intervals of those that a table shows."""
    outcome, prediction = advice.outcome(option), advice.predictions.get(option)
    rate = prediction.tokens_per_s if prediction else None
    figures = (
        option.ttft_s,
        option.tpot_s,
        option.tokens_per_s,
        rate.low if rate else None,
        rate.high if rate else None,
        option.tokens_per_gpu,
        option.usd_per_Mtoken,
    )
    return {
        **_choice_fields(option.scenario, option.variant, option.memory_bytes),
        **dict(zip(_OPTION_FIGURES, figures, strict=True)),
        "outcome": outcome,
        "reason": f"no better than {advice.dominating(option)}" if outcome == "dominated" else "",
    }


def _lacking(unfit: Unfit) -> str:
    capacity_bytes = unfit.scenario.cluster.gpu.hbm_bytes
    return f"needs {format_bytes(unfit.memory_bytes)} of {format_bytes(capacity_bytes)} per GPU"


def comparison_document(candidates: Sequence[Candidate]) -> Document:
    """One row per candidate and variant."""
    rows = [
        {
            "name": candidate.name,
            **scenario_fields(candidate.scenario),
            "variant": variant,
            **prediction.fields(),
            "usd_per_Mtoken": candidate.token_price(variant),
        }
        for candidate in candidates
        for variant, prediction in candidate.predictions.items()
    ]
    head = {
        "batching": candidates[0].scenario.workload.batching,
        "compared": [candidate.name for candidate in candidates],
    }
    return _rows_document(head, rows)


def settings_document(scenario: Scenario) -> Document:
    """Every setting in SI units and the words of JSON Schema, with the value that predictions of a scenario use."""
    from ladder_sim.prediction import resolve_profile
    from ladder_sim.specs.settings import described
    from ladder_sim.sweeps.axes import used_value

    profile = resolve_profile(scenario, None)
    settings = {
        name: {
            **_schema(setting),
            "unit": setting.unit,
            "default": used_value(scenario, setting.name, profile),
            "description": setting.meaning,
        }
        for name, setting in sorted(described().items())
    }
    names = {part: getattr(scenario, part).name for part in ("model", "cluster", "stack")}
    return Document(content={**names, "settings": settings})


def _schema(setting: Setting) -> dict[str, Any]:
    limits, choices = setting.limits, get_args(setting.kind)
    if limits:
        return {
            "type": "integer" if setting.kind is int else "number",
            "exclusiveMinimum" if limits.above else "minimum": limits.minimum,
            "maximum": setting.kind(limits.maximum),
        }
    if setting.kind is bool:
        return {"type": "boolean"}
    return {"type": "string", **({"enum": list(choices)} if choices else {})}


def validation_document(data: Dataset, comparisons: ComparisonsByLevel) -> Document:
    """Every run and the summaries by level; errors, shares and half-widths are fractions."""
    from ladder_sim.validation.compare import evidence, summarize
    from ladder_sim.validation.splits import PROTOCOLS

    rows = {level: list(map(_comparison_fields, members)) for level, members in comparisons.items()}
    content = {
        "batching": STATIC,
        "dataset": data.name,
        "protocols": {
            name: {"fit_variants": protocol.variants, "fit_tp": protocol.tps} for name, protocol in PROTOCOLS.items()
        },
        "levels": {
            level: {
                "evidence": evidence(level),
                "rows": rows[level],
                "summary": list(map(_summary_fields, summarize(members))),
            }
            for level, members in comparisons.items()
        },
    }
    return Document(
        content=content, rows=[{"level": level, **row} for level, members in rows.items() for row in members]
    )


def _comparison_fields(comparison: Comparison) -> dict[str, Any]:
    run, configuration = comparison.measurement, comparison.measurement.configuration
    return {
        "line": run.line,
        "source": configuration.source,
        "model": configuration.model,
        "cluster": configuration.cluster,
        "nodes": configuration.nodes,
        "tp": configuration.tp,
        "p2p": configuration.p2p,
        "stack": configuration.stack,
        "dtype": configuration.dtype,
        "variant": run.variant,
        "batch": configuration.batch,
        "prompt": configuration.prompt,
        "gen": configuration.gen,
        "use": "fit" if comparison.seen else "test",
        **_quantity_fields("tokens_per_s", comparison.tokens_per_s),
        # measured, whether or not it can be predicted
        "tokens_per_s_measured": run.tokens_per_s,
        **_quantity_fields("speedup", comparison.speedup),
        "note": comparison.note,
    }


def servings_document(name: str, comparisons: Sequence[ServingComparison]) -> Document:
    """Every serving, and errors of all and by group; seconds, errors and shares as fractions."""
    from ladder_sim.validation.serving import summarize_servings, summary

    def errors(pair: tuple[ErrorSummary | None, ErrorSummary | None]) -> dict[str, Any]:
        return {time: asdict(each) if each else None for time, each in zip(("tpot", "ttft"), pair, strict=True)}

    groups = {
        by: {value: errors(pair) for value, pair in values.items()}
        for by, values in summarize_servings(comparisons).items()
    }
    missing = Counter(each.note for each in comparisons if each.ttft is None)
    head = {
        "batching": "continuous",
        "dataset": name,
        "summary": errors(summary(comparisons)),
        "by": groups,
        "not_predicted": dict(missing),
    }
    return _rows_document(head, list(map(_serving_fields, comparisons)))


def _serving_fields(comparison: ServingComparison) -> dict[str, Any]:
    row, setup = comparison.serving, comparison.serving.setup
    fields = asdict(setup)
    plan = fields.pop("plan")
    return {
        "line": row.line,
        "source": row.source,
        **fields,
        **plan,
        "concurrency": row.concurrency,
        "prompt": row.prompt,
        "gen": row.gen,
        **_quantity_fields("tpot_s", comparison.tpot),
        **_quantity_fields("ttft_s", comparison.ttft),
        # measured, whether or not they can be predicted
        "tpot_s_measured": row.tpot_s,
        "ttft_s_measured": row.ttft_s,
        "note": comparison.note,
    }


def _quantity_fields(name: str, quantity: Quantity | None) -> dict[str, Any]:
    keys = [f"{name}_{part}" for part in ("measured", "predicted", "low", "high", "error", "inside")]
    if quantity is None:
        return dict.fromkeys(keys)
    predicted = quantity.predicted
    values = (quantity.measured, predicted.value, predicted.low, predicted.high, quantity.error, quantity.inside)
    return dict(zip(keys, values, strict=True))


def _summary_fields(summary: GroupSummary) -> dict[str, Any]:
    return {
        "variant": summary.variant,
        "p2p": summary.p2p,
        "tp": summary.tps,
        "rows": summary.rows,
        "unseen": summary.unseen,
        **_spread_fields("speedup", summary.speedup),
        **_spread_fields("tokens_per_s", summary.tokens_per_s),
    }


def _spread_fields(name: str, spread: ErrorStats | None) -> dict[str, Any]:
    from ladder_sim.validation.compare import ErrorStats

    values = asdict(spread) if spread else {"rows": 0, **dict.fromkeys([f.name for f in fields(ErrorStats)][1:])}
    return {f"{name}_{part}": value for part, value in values.items()}


def info_document(graph: TraceGraph, summary: RunSummary) -> Document:
    """What a trace holds."""
    return _trace_document(
        graph,
        seconds=summary.seconds,
        steps=list(graph.steps),
        ops=[asdict(total) for total in summary.totals],
        ranks=[_communication(rank) for rank in summary.ranks],
        idle=[{**asdict(idle), "idle_s": idle.idle_s} for idle in summary.idle],
        modules=[module._asdict() for module in summary.modules],
        critical_path_s=summary.critical_s,
    )


def replay_document(replay: Replay, changed: Replay | None = None) -> Document:
    """Replay and recording, step by step, and the replay of a changed graph."""
    steps = [{**asdict(step), "error": step.error} for step in replay.steps]
    for row, step, after in zip(steps, replay.steps, changed.steps if changed is not None else (), strict=False):
        row |= {"changed_s": after.replayed_s, "change": after.replayed_s / step.replayed_s - 1.0}
    return _trace_document(
        replay.graph,
        steps=steps,
        unexplained=[{"op": wait.op.name, "seconds": wait.seconds} for wait in replay.unexplained()[:20]],
    )


def variants_document(
    recorded: TraceGraph, cover: Cover, replayed: StepError, times: Mapping[str, VariantTime]
) -> Document:
    """A recorded step in other wirings."""
    variants = {
        name: {"seconds": time.seconds, "speedup": time.speedup, **_communication(time.comm)}
        for name, time in times.items()
    }
    step = {**asdict(replayed), "error": replayed.error}
    return _trace_document(recorded, **asdict(cover), step=step, variants=variants)


def _communication(rank: RankSummary) -> dict[str, Any]:
    return {**asdict(rank), "hidden_s": rank.hidden_s}


def _trace_document(graph: TraceGraph, **content: Any) -> Document:
    return Document(content={**content, "notes": list(graph.notes)})


def serve_document(
    scenario: Scenario, requests: Traffic | Trace, outcomes: Mapping[str, Outcome], usd_per_gpu_hour: float | None
) -> Document:
    """One row per variant."""
    rows = [
        {"variant": name, **outcome.fields(), **_price(usd_per_gpu_hour, outcome.gpus, outcome.tokens_per_s)}
        for name, outcome in outcomes.items()
    ]
    return _load_document(scenario, requests, rows)


def capacity_document(
    scenario: Scenario,
    traffic: Traffic,
    promise: Promise,
    needs: Mapping[str, Capacity],
    usd_per_gpu_hour: float | None,
) -> Document:
    """One row per variant."""
    rows = [
        {
            "variant": name,
            "gpus": need.gpus or None,
            "replicas": need.replicas or None,
            "rate_limit": need.rate_limit,
            "breaks": ", ".join(need.breaks),
            "ttft_p95_s": need.outcome.seconds("ttft", 95),
            "tpot_p95_s": need.outcome.seconds("tpot", 95),
            **_price(usd_per_gpu_hour, need.gpus, need.outcome.tokens_per_s),
        }
        for name, need in needs.items()
    ]
    return _load_document(scenario, traffic, rows, promise=str(promise))


def _price(usd_per_gpu_hour: float | None, gpus: int, tokens_per_s: float) -> dict[str, Any]:
    if usd_per_gpu_hour is None:
        return {}
    return {"usd_per_Mtoken": token_price(usd_per_gpu_hour, gpus, tokens_per_s) if gpus else None}


def _load_document(
    scenario: Scenario, requests: Traffic | Trace, rows: Sequence[Mapping[str, Any]], **content: Any
) -> Document:
    load = {
        name: value if isinstance(value, int | float | None) else str(value) for name, value in asdict(requests).items()
    }
    for name in ("prompt", "gen"):
        if name in load:
            load[name] = str(getattr(requests, name))
    given = {
        name: value
        for name, value in scenario.fields().items()
        if name not in ("batch", "prompt", "gen", "concurrency")
    }
    return _rows_document({"scenario": given, "load": load, **content}, rows)
