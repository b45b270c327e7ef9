"""Predictions as tables for people."""

from collections.abc import Mapping
from typing import get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.costs.estimate import Source
from ladder_sim.graph.ops import AttentionShape, CollectiveShape, GemmShape
from ladder_sim.prediction import Prediction
from ladder_sim.report.tables.console import FirstThatFits, table
from ladder_sim.simulate.breakdown import SimulatedOp
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes, format_seconds

# of a request's time: less rounds to 0.0 %
SHOWN_SHARE = 5e-4


def prediction_report(
    scenario: Scenario, predictions: Mapping[str, Prediction], *, explain: bool = False
) -> RenderableType:
    """The whole answer: what was asked, the variants, where their time goes, and what it rests on."""
    parts: list[RenderableType] = [
        _title(scenario),
        _headline(predictions),
        Text(),
        *_unevenness(predictions),
        _breakdown(predictions),
        Text(),
        _evidence(predictions),
    ]
    if explain:
        for prediction in predictions.values():
            parts += _explanation(prediction)
    return Group(*parts)


def _title(scenario: Scenario) -> Text:
    workload, cluster = scenario.workload, scenario.cluster
    where = f"{scenario.nodes} x {cluster.gpus_per_node} {cluster.gpu.name}"
    links = f"{cluster.intra.fabric}{' (P2P off)' if not scenario.p2p else ''}"
    if scenario.nodes_used > 1:
        links += f" + {cluster.inter.fabric}"
    tokens = f"{workload.gen} new token{'s' if workload.gen > 1 else ''}"
    asked = f"batch {workload.batch}, prompt {workload.prompt}, {tokens}, {workload.dtype}"
    return Text.assemble(
        (scenario.model.name, "bold"),
        f", TP {scenario.tp} on {where}, {links}\n",
        f"{asked}, stack {scenario.stack.name}, all-reduce {scenario.stack.allreduce}\n",
    )


def _headline(predictions: Mapping[str, Prediction]) -> FirstThatFits:
    rows = []
    for name, found in predictions.items():
        hidden = 1.0 - found.breakdown.exposed_comm_s / found.breakdown.comm_s if found.breakdown.comm_s else 0.0
        rows.append(
            (
                name,
                format_seconds(found.ttft_s),
                format_seconds(found.tpot_s) if found.tpot_s is not None else "-",
                _rate(found.tokens_per_s.value),
                _factor(found.speedup) if name != "standard" else "1",
                format_seconds(found.breakdown.comm_s),
                f"{hidden:.0%}",
                f"{_spoken(found.limited_by)} {found.breakdown.limits_s[found.limited_by] / found.request_s:.0%}",
            )
        )
    columns = ("variant", "TTFT", "TPOT", "tok/s", "speedup (90%)", "communication", "hidden", "limited by")
    # on a narrow screen the breakdown alone says what limits
    return FirstThatFits(table(columns, rows), table(columns[:-1], [row[:-1] for row in rows], wrapped=columns[4:5]))


def _rate(per_s: float) -> str:
    """Four digits, never an exponent."""
    return f"{per_s:#.4g}".rstrip(".") if per_s < 1e4 else f"{per_s:.0f}"


def _factor(interval: Interval) -> str:
    return f"{interval.value:.2f} ({interval.low:.2f}-{interval.high:.2f})"


def _unevenness(predictions: Mapping[str, Prediction]) -> list[RenderableType]:
    """Spread of the steps and waiting for other ranks, where jitter was asked for."""
    rows = []
    for name, found in predictions.items():
        uneven = found.unevenness
        if uneven is None:
            return []
        decode = [uneven.tpot_p50_s, uneven.tpot_p95_s]
        rows.append(
            (
                name,
                format_seconds(uneven.ttft_p50_s),
                format_seconds(uneven.ttft_p95_s),
                *("-" if seconds is None else format_seconds(seconds) for seconds in decode),
                format_seconds(uneven.waiting_s),
            )
        )
    columns = ("uneven ranks", "TTFT p50", "p95", "TPOT p50", "p95", "waiting for others, hidden or not")
    return [table(columns, rows), Text()]


def _breakdown(predictions: Mapping[str, Prediction]) -> Table:
    """Share of the request that each limit takes on the critical path."""
    limits = sorted(
        {
            name
            for found in predictions.values()
            for name, seconds in found.breakdown.limits_s.items()
            if seconds >= SHOWN_SHARE * found.request_s
        },
        key=lambda name: -max(found.breakdown.limits_s.get(name, 0.0) for found in predictions.values()),
    )
    rows = [
        (name, *(f"{found.breakdown.limits_s.get(limit, 0.0) / found.request_s:.1%}" for limit in limits))
        for name, found in predictions.items()
    ]
    names = tuple(map(_spoken, limits))
    return table(("critical path", *names), rows, wrapped=[name for name in names if " " in name])


def _spoken(kind: str) -> str:
    return kind.replace("_", "-")


def _evidence(predictions: Mapping[str, Prediction]) -> Group:
    """What the predicted times rest on, by source and op kind."""
    found = next(iter(predictions.values()))
    shares: dict[str, list[tuple[float, str]]] = {}
    for (source, kind), seconds in found.breakdown.sources_s.items():
        shares.setdefault(source, []).append((seconds / found.request_s, _spoken(kind)))
    grid = Table.grid()
    for no_wrap in (True, True, False):
        grid.add_column(no_wrap=no_wrap)
    for source in get_args(Source):
        kinds = sorted(((share, kind) for share, kind in shares.get(source, []) if share >= SHOWN_SHARE), reverse=True)
        if kinds:
            parts = ", ".join(f"{kind} {share:.1%}" for share, kind in kinds)
            grid.add_row(f"  {source:<12}", f"{sum(share for share, _ in kinds):>6.1%}  ", parts)
    waits = found.breakdown.limits_s.get("waits", 0.0) / found.request_s
    grid.add_row(f"  {'stack':<12}", f"{waits:>6.1%}  ", "waits and launches")
    provenance = found.confidence
    head = (
        f"measured share {provenance.measured_fraction:.0%} (of standard's time, profile {provenance.profile}); "
        f"{found.variant} rests on"
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
    for found in reversed(step.ops):
        name = found.op.name.partition(".")[2] if found.op.layer >= 0 else found.op.name
        rows.setdefault((name, shape_text(found), float(found.estimate.seconds)), []).append(found)
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
    # on a narrow screen the share of the step has to do for the sum
    return FirstThatFits(
        table(columns, body, left=3, title=title),
        table(columns[:5] + columns[6:], [row[:5] + row[6:] for row in body], left=3, title=title),
    )


def shape_text(found: SimulatedOp) -> str:
    """An op's size in a few characters."""
    shape = found.op.shape
    if isinstance(shape, GemmShape):
        return f"{shape.m} x {shape.k} x {shape.n}"
    if isinstance(shape, AttentionShape):
        return f"{shape.kernel}, {shape.heads}/{shape.kv_heads} heads, {shape.q_len} on {shape.kv_len}"
    if isinstance(shape, CollectiveShape):
        return format_bytes(shape.message_bytes)
    return format_bytes(shape.moved_bytes)
