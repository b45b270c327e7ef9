"""What `predict --explain` adds: every op of each variant."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.answer import Prediction
from ladder_sim.display.console import WholeTable, table
from ladder_sim.graph.ops import AttentionShape, CollectiveShape, GemmShape, Op
from ladder_sim.simulate.breakdown import SimulatedOp
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.units import format_bytes, format_seconds


def explanation(predictions: Iterable[Prediction]) -> RenderableType:
    """The ops of a prefill and of a decode step, their sources, and the memory of one GPU."""
    return Group(*(part for prediction in predictions for part in _explanation(prediction)))


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


def _op_table(title: str, step: ForwardPass) -> WholeTable:
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
    return table(columns, body, left=3, keys=2, title=title)


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
