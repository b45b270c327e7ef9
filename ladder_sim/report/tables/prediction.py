"""Predictions as tables."""

from collections.abc import Mapping
from typing import get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_sim.costs.estimate import Source
from ladder_sim.graph.ops import AttentionShape, CollectiveShape, GemmShape, Op
from ladder_sim.prediction import Prediction
from ladder_sim.report.labels import hardware_label, kind_label, stack_label, workload_label
from ladder_sim.report.tables.console import FirstThatFits, table
from ladder_sim.simulate.breakdown import SimulatedOp
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes, format_rate, format_seconds

# of a request's time: less rounds to 0.0 %
SHOWN_SHARE = 5e-4


def prediction_report(
    scenario: Scenario, predictions: Mapping[str, Prediction], *, explain: bool = False
) -> RenderableType:
    """The scenario, its variants, where their time goes, and the sources of the numbers."""
    parts: list[RenderableType] = [
        Text.assemble((scenario.model.name, "bold"), f", {hardware_label(scenario)}"),
        Text(f"{workload_label(scenario)}, {stack_label(scenario)}\n"),
        _headline(predictions),
        Text(),
        *_unevenness(predictions),
        _breakdown(predictions),
        Text(),
        _sources(predictions),
    ]
    if explain:
        for prediction in predictions.values():
            parts += _explanation(prediction)
    return Group(*parts)


def _headline(predictions: Mapping[str, Prediction]) -> FirstThatFits:
    rows = []
    for name, prediction in predictions.items():
        breakdown, gain, limit = prediction.breakdown, prediction.speedup, prediction.limited_by
        rows.append(
            (
                name,
                format_seconds(prediction.ttft_s),
                format_seconds(prediction.tpot_s) if prediction.tpot_s is not None else "-",
                format_rate(prediction.tokens_per_s.value),
                f"{gain.value:.2f} ({gain.low:.2f}-{gain.high:.2f})" if name != "standard" else "1",
                format_seconds(breakdown.comm_s),
                f"{breakdown.hidden_share:.0%}",
                f"{kind_label(limit)} {prediction.limit_share(limit):.0%}",
            )
        )
    columns = ("variant", "TTFT", "TPOT", "tok/s", "speedup (90%)", "communication", "hidden", "limited by")
    # on a narrow screen the table below alone says what limits
    return FirstThatFits(table(columns, rows), table(columns[:-1], [row[:-1] for row in rows], wrapped=columns[4:5]))


def _unevenness(predictions: Mapping[str, Prediction]) -> list[RenderableType]:
    """Spread of the steps and waiting for other ranks, with jitter."""
    rows = []
    for name, prediction in predictions.items():
        uneven = prediction.unevenness
        if uneven is None:
            return []
        times = (uneven.ttft_p50_s, uneven.ttft_p95_s, uneven.tpot_p50_s, uneven.tpot_p95_s, uneven.waiting_s)
        rows.append((name, *("-" if seconds is None else format_seconds(seconds) for seconds in times)))
    columns = ("uneven ranks", "TTFT p50", "p95", "TPOT p50", "p95", "waiting for others, hidden or not")
    return [table(columns, rows), Text()]


def _breakdown(predictions: Mapping[str, Prediction]) -> Table:
    """Share of the request that each limit takes on the critical path."""
    limits = sorted(
        {
            limit
            for prediction in predictions.values()
            for limit in prediction.breakdown.limits_s
            if prediction.limit_share(limit) >= SHOWN_SHARE
        },
        key=lambda limit: -max(prediction.breakdown.limits_s.get(limit, 0.0) for prediction in predictions.values()),
    )
    rows = [
        (name, *(f"{prediction.limit_share(limit):.1%}" for limit in limits))
        for name, prediction in predictions.items()
    ]
    names = tuple(map(kind_label, limits))
    return table(("critical path", *names), rows, wrapped=[name for name in names if " " in name])


def _sources(predictions: Mapping[str, Prediction]) -> Group:
    """Where the first variant's times come from, by source and op kind."""
    prediction = next(iter(predictions.values()))
    shares: dict[str, list[tuple[float, str]]] = {}
    for (source, kind), seconds in prediction.breakdown.sources_s.items():
        shares.setdefault(source, []).append((seconds / prediction.request_s, kind_label(kind)))
    grid = Table.grid()
    for no_wrap in (True, True, False):
        grid.add_column(no_wrap=no_wrap)
    for source in get_args(Source):
        kinds = sorted(((share, kind) for share, kind in shares.get(source, []) if share >= SHOWN_SHARE), reverse=True)
        if kinds:
            parts = ", ".join(f"{kind} {share:.1%}" for share, kind in kinds)
            grid.add_row(f"  {source:<12}", f"{sum(share for share, _ in kinds):>6.1%}  ", parts)
    grid.add_row(f"  {'stack':<12}", f"{prediction.limit_share('waits'):>6.1%}  ", "waits and launches")
    confidence = prediction.confidence
    head = (
        f"{confidence.measured_fraction:.0%} of standard's time is measured (profile {confidence.profile}). "
        f"Sources of {prediction.variant}'s time:"
    )
    return Group(Text(head), grid)


def _explanation(prediction: Prediction) -> list[RenderableType]:
    parts: list[RenderableType] = []
    steps = [("prefill", prediction.request.prefill), ("one decode step", prediction.request.decode)]
    for name, step in steps:
        if step is not None:
            parts += [Text(), _op_table(f"{prediction.variant}: {name}, {format_seconds(float(step.seconds))}", step)]
    memory = prediction.memory
    parts.append(
        Text(
            f"memory per GPU: {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} (weights "
            f"{format_bytes(memory.weights_bytes)}, KV cache {format_bytes(memory.kv_cache_bytes)}, activations "
            f"{format_bytes(memory.activation_bytes)}, stack {format_bytes(memory.overhead_bytes)})"
        )
    )
    return parts


def _op_table(title: str, step: ForwardPass) -> FirstThatFits:
    """Equal ops of all layers on one row, in the order of the last layer, where every join has happened."""
    rows: dict[tuple[str, str, float], list[SimulatedOp]] = {}
    for member in reversed(step.ops):
        name = member.op.name.partition(".")[2] if member.op.layer >= 0 else member.op.name
        rows.setdefault((name, _shape_text(member.op), float(member.estimate.seconds)), []).append(member)
    body = []
    for (name, shape, each_s), members in reversed(rows.items()):
        count = sum(member.repeats for member in members)
        critical = sum(member.repeats for member in members if member.critical)
        all_s = sum(member.repeats * member.seconds for member in members)
        estimate = members[0].estimate
        body.append(
            (
                name,
                shape,
                estimate.source,
                str(count),
                format_seconds(each_s),
                format_seconds(all_s),
                f"{all_s / step.seconds:.1%}",
                f"{critical / count:.0%}",
            )
        )
    columns = ("op", "shape per GPU", "source", "count", "alone", "all", "of step", "critical")
    # a narrow screen has no room for the sum next to its share
    return FirstThatFits(
        table(columns, body, left=3, title=title),
        table(columns[:5] + columns[6:], [row[:5] + row[6:] for row in body], left=3, title=title),
    )


def _shape_text(op: Op) -> str:
    """An op's size in a few characters."""
    shape = op.shape
    if isinstance(shape, GemmShape):
        return f"{shape.m} x {shape.k} x {shape.n}"
    if isinstance(shape, AttentionShape):
        return f"{shape.kernel}, {shape.heads}/{shape.kv_heads} heads, {shape.q_len} on {shape.kv_len}"
    if isinstance(shape, CollectiveShape):
        return format_bytes(shape.message_bytes)
    return format_bytes(shape.moved_bytes)
