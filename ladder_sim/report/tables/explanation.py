"""What `predict --explain` adds: every op of each variant."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.labels import next_to_label
from ladder_sim.graph.ops import Op, Phase
from ladder_sim.graph.shapes import AttentionShape, BmmShape, CollectiveShape, GemmShape, MlaShape, MoeShape
from ladder_sim.prediction import Prediction
from ladder_sim.report.console import WholeTable, table
from ladder_sim.simulate.breakdown import SimulatedOp
from ladder_sim.simulate.collectives import Collective
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.workload import KV_BYTES
from ladder_sim.units import format_bytes, format_seconds

# titles of passes, by phase
_STEPS: Mapping[Phase, str] = {
    "prefill": "prefill",
    "decode": "one decode step",
    "mixed": "one step with prompts, which come without a pause",
}


def explanation(predictions: Iterable[Prediction]) -> RenderableType:
    """Return what times of requests in flight are made of, the ops of each kind of step, and a GPU's memory."""
    first, *others = predictions
    return Group(
        *_explanation(first, None), *(part for prediction in others for part in _explanation(prediction, first))
    )


def _explanation(prediction: Prediction, first: Prediction | None) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), Text(_load_text(prediction))] if prediction.load else []
    for phase in ("prefill", "decode"):
        step = getattr(prediction.request, phase)
        if step is not None:
            name = _STEPS[step.schedule.kernels.rank.phase]
            title = f"{prediction.variant}: {name}, {format_seconds(float(step.seconds))}"
            parts += [Text(), _op_table(title, step)]
            if step.collectives:
                parts += [Text(), _collectives_table(step.collectives)]
            if first is not None:
                parts += [Text(_difference_text(first.variant, step.differs_from(getattr(first.request, phase))))]
    memory = prediction.memory
    held = ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in memory.part_bytes.items())
    total = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}"
    parts.append(Text(f"memory per GPU: {total} ({held})"))
    return parts


def _difference_text(first: str, longer_s: Mapping[str, float]) -> str:
    """Return the ops that a wiring has more or less of than the first: what free links would leave."""
    if not longer_s:
        return f"ops as {first}'s"
    ordered = sorted(longer_s.items(), key=lambda item: -abs(item[1]))
    differences = (f"{kind} {'+' if seconds > 0.0 else '-'}{format_seconds(abs(seconds))}" for kind, seconds in ordered)
    return f"ops that differ from {first}'s, alone: {', '.join(differences)}"


def _load_text(prediction: Prediction) -> str:
    """Return what TPOT and TTFT of requests in flight are made of."""
    load, workload = prediction.load, prediction.confidence.scenario.workload
    in_flight = workload.concurrency
    if load is None or prediction.tpot_s is None or in_flight is None:
        return f"{prediction.variant}: TTFT waits for the prompts of all requests in flight"
    scenario = prediction.confidence.scenario
    host_s = scenario.stack.host_request_s * load.requests_decoding + scenario.stack.host_rank_s * scenario.plan.tp
    waiting_s = prediction.ttft_s - load.decode_step_s - load.prompt_s - load.front_end_s
    lines = [
        f"{prediction.variant}: TPOT {format_seconds(prediction.tpot_s)} is a step that decodes "
        f"{load.requests_decoding:.1f} of {in_flight} requests, {format_seconds(load.decode_step_s)} (of it "
        f"{format_seconds(host_s)} on the CPU), and prompts of the others, {format_seconds(load.prompts_per_token_s)}",
        f"each prompt adds {format_seconds(load.prompt_s)} to steps; {load.prompt_steps:.1%} of the steps hold one",
        f"TTFT {format_seconds(prediction.ttft_s)} is such a step, its own prompt, "
        f"{format_seconds(load.front_end_s)} in the server's front end, and "
        f"{format_seconds(max(waiting_s, 0.0))} of waiting for other prompts"
        + (f" and for one of {load.slots:.1f} slots" if scenario.plan.group_requests(in_flight) > load.slots else ""),
    ]
    return "\n".join(lines)


def _op_table(title: str, step: ForwardPass) -> WholeTable:
    """Return the equal ops of all layers on one row, in the order of the last layer, where every join has happened."""
    rows: dict[tuple[str, str, float], list[SimulatedOp]] = {}
    layout = step.simulated[0].layout
    apart = {like for others in layout.next_to.values() for like in others}
    for member, like in reversed(list(zip(step.ops, layout.same_as, strict=True))):
        name = member.op.name.partition(".")[2] if member.op.layer >= 0 else member.op.name
        stream = "stream of its own" if like in apart else ""
        shape = ", ".join(filter(None, (_shape_text(member.op), member.estimate.algorithm, stream)))
        rows.setdefault((name, shape, float(member.estimate.seconds)), []).append(member)
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


def _collectives_table(collectives: Sequence[Collective]) -> WholeTable:
    """Return a table of what each collective of a step waits for, can run next to, and lets continue."""
    rows = [
        (
            each.name,
            each.after,
            next_to_label(each),
            each.needed_by or "the next step",
            str(each.count),
            format_bytes(each.message_bytes),
            format_seconds(each.seconds),
            f"{each.hidden_s / each.seconds:.0%}",
        )
        for each in collectives
    ]
    return table(
        ("collective", "waits for", "can run next to", "needed by", "count", "message", "all", "hidden"),
        rows,
        left=4,
    )


def _shape_text(op: Op) -> str:
    """Return an op's size in a few characters."""
    shape = op.shape
    if isinstance(shape, GemmShape):
        return f"{_count_text(shape.m)} x {shape.k} x {shape.n}, {shape.format}"
    if isinstance(shape, AttentionShape):
        lengths = f"{_count_text(shape.q_len)} on {_count_text(shape.kv_len)}"
        cache = ", fp8 cache" if shape.kv_element_bytes == KV_BYTES["fp8"] else ""
        return f"{shape.kernel}, {shape.heads}/{shape.kv_heads} heads, {lengths}{cache}"
    if isinstance(shape, MoeShape):
        routed = f"{shape.top_k} of {shape.experts} x {shape.width}"
        split = f", EP {shape.ep}" if shape.ep > 1 else ""
        return f"{_count_text(shape.tokens)} x {shape.hidden}, {routed}{split}, {shape.format}"
    if isinstance(shape, BmmShape):
        return f"{shape.heads} heads, {_count_text(shape.m)} x {shape.k} x {shape.n}, {shape.format}"
    if isinstance(shape, MlaShape):
        lengths = f"{_count_text(shape.q_len)} on {_count_text(shape.kv_len)}"
        return f"latent {shape.latent} + {shape.rope}, {shape.heads} heads, {lengths}"
    if isinstance(shape, CollectiveShape):
        return format_bytes(shape.message_bytes)
    return format_bytes(shape.moved_bytes)


def _count_text(count: float) -> str:
    """Return a number of tokens as text: in a mixed step it may be a mean."""
    return f"{round(count, 1):.12g}"
