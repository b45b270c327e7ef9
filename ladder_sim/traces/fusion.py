"""All-reduces that an engine runs in one kernel with the norm behind them."""

from dataclasses import replace
from statistics import median

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import ALONE, TraceGraph, TraceOp
from ladder_sim.units import format_seconds


def split_norms(graph: TraceGraph) -> TraceGraph:
    """Let every norm in an all-reduce be a kernel of its own, as wirings need it that move the all-reduce.

    It takes as long as the trace's own norms; the rest of the fused kernel is the all-reduce.

    Raises
    ------
    UsageError
        The trace has no norm of its own.
    """
    fused = sum(op.kind == "all_reduce_norm" for op in graph.ops)
    if not fused:
        return graph
    norms_s = [op.duration_s for op in graph.ops if op.kind == "norm"]
    if not norms_s:
        raise UsageError(
            "the trace's all-reduces hold the norms, and no norm of its own says how long one takes",
            hint="record without the fusion, or export one of --stack vllm@0.16, which does not fuse them",
        )
    norm_s = median(norms_s)
    # those that compute with a norm's result
    readers = {before: op.lane for op in reversed(graph.ops) if not op.communicates for before in op.after}
    ops: list[TraceOp] = []

    # where each op of the trace ends up, its norm for a fused one
    position: list[int] = []
    for index, op in enumerate(graph.ops):
        moved = replace(op, after=tuple(position[before] for before in op.after))
        if op.kind == "all_reduce_norm":
            own_s = min(norm_s, op.duration_s)
            middle_s = op.end_s - own_s
            ops.append(replace(moved, kind="all_reduce", duration_s=op.duration_s - own_s, end_s=middle_s))
            moved = replace(
                op,
                name="norm",
                kind="norm",
                lane=readers.get(index, op.lane),
                start_s=middle_s,
                # without the all-reduce it takes its whole time
                duration_s=norm_s,
                after=(len(ops) - 1,),
                lead_s=0.0,
                group=ALONE,
                collective=None,
            )
        position.append(len(ops))
        ops.append(moved)
    alone = f"a kernel of {format_seconds(norm_s)}, as the trace's others"
    note = f"{fused} all-reduces hold a norm, which stays with the computation: {alone}"
    return replace(graph, ops=tuple(ops), notes=(*graph.notes, note))
