"""What-if changes to a trace: faster kernels, another interconnect, no communication, no launch gaps.

Each function returns a graph with other durations or fewer ops. Simulate it to see when the ops would run.
"""

import fnmatch
from collections.abc import Callable
from dataclasses import replace

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import CollectiveShape, Op
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import HOST_KINDS, TraceGraph, TraceOp


def scale(graph: TraceGraph, what: str, factor: float) -> TraceGraph:
    """Let ops take `factor` times as long.

    Parameters
    ----------
    graph
        The run.
    what
        A kind, such as ``"gemm"``, or a pattern of names, such as ``"*flash*"``.
    factor
        0 or more.

    Raises
    ------
    UsageError
        The factor is not valid, or no op has this kind or name.
    """
    if not 0.0 <= factor < float("inf"):
        raise UsageError(f"scale {what}={factor}: the factor must be 0 or more", hint="for example gemm=0.5")

    def matches(op: TraceOp) -> bool:
        return op.kind == what or fnmatch.fnmatchcase(op.name, what)

    if not any(map(matches, graph.ops)):
        kinds = ", ".join(sorted({op.kind for op in graph.ops}))
        raise UsageError(
            f"scale {what}={factor}: no op has this kind or name",
            hint=f"kinds in this trace: {kinds}; names may contain * and ?",
        )
    return _with_durations(graph, lambda op: op.duration_s * factor if matches(op) else op.duration_s)


def with_all_reduce_times(graph: TraceGraph, seconds: Callable[[float], float]) -> TraceGraph:
    """Let every all-reduce take `seconds(message_bytes)`; `all_reduce_seconds` gives those of another interconnect.

    Raises
    ------
    UsageError
        The trace has no all-reduces, or not their sizes.
    """
    sizes = [op.collective.message_bytes for op in graph.ops if op.kind == "all_reduce" and op.collective is not None]
    if not sizes or not all(sizes):
        what = "message sizes of all-reduces" if sizes else "all-reduces"
        raise UsageError(f"the trace holds no {what}", hint="record with record_shapes=True, or use scale")
    return _with_durations(
        graph,
        lambda op: (
            seconds(op.collective.message_bytes)
            if op.kind == "all_reduce" and op.collective is not None
            else op.duration_s
        ),
    )


def all_reduce_seconds(scenario: Scenario) -> Callable[[float], float]:
    """Time of an all-reduce by its message's bytes over a scenario's ranks and links, measured if a profile has it."""
    profile = load_profile(scenario.cluster.profile) if scenario.cluster.profile else None
    costs = KernelCosts(scenario, profile)

    def seconds(message_bytes: float) -> float:
        op = Op(name="all_reduce", kind="all_reduce", shape=CollectiveShape(message_bytes=message_bytes))
        return float(costs.estimates([op])[0].seconds)

    return seconds


def without_communication(graph: TraceGraph) -> TraceGraph:
    """Remove every collective."""
    return graph.without({index for index, op in enumerate(graph.ops) if op.communicates})


def without_launch_gaps(graph: TraceGraph) -> TraceGraph:
    """Let CPUs launch in no time, as a CUDA graph does. Their waits stay."""
    return _with_durations(graph, lambda op: 0.0 if op.kind in HOST_KINDS else op.duration_s)


def _with_durations(graph: TraceGraph, duration_s: Callable[[TraceOp], float]) -> TraceGraph:
    return replace(graph, ops=tuple(replace(op, duration_s=duration_s(op)) for op in graph.ops))
