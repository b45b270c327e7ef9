"""Changes to a trace's graph: other kernels, another interconnect, no communication, no launch gaps.

Each returns a graph whose ops would take another time; simulate it to learn when they would run.
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
        0 and more.

    Raises
    ------
    UsageError
        No op is meant.
    """
    if not 0.0 <= factor < float("inf"):
        raise UsageError(f"scale {what}={factor}: not a factor", hint="give 0 or more, for example gemm=0.5")
    chosen = [op.kind == what or fnmatch.fnmatchcase(op.name, what) for op in graph.ops]
    if not any(chosen):
        kinds = ", ".join(sorted({op.kind for op in graph.ops}))
        raise UsageError(
            f"scale {what}={factor}: no op has this kind or name", hint=f"kinds here: {kinds}; names take * and ?"
        )
    return _timed(
        graph, [op.duration_s * factor if meant else op.duration_s for op, meant in zip(graph.ops, chosen, strict=True)]
    )


def price_all_reduces(graph: TraceGraph, seconds: Callable[[float], float]) -> TraceGraph:
    """Let every all-reduce take what `seconds` says of its message's bytes.

    Raises
    ------
    UsageError
        There are none, or their sizes were not recorded.
    """
    sizes = [op.collective.message_bytes for op in graph.ops if op.kind == "all_reduce" and op.collective is not None]
    if not sizes or not all(sizes):
        what = "message sizes of all-reduces" if sizes else "all-reduces"
        raise UsageError(f"the trace holds no {what}", hint="record with record_shapes=True, or use scale")

    def price(op: TraceOp) -> float:
        known = op.kind == "all_reduce" and op.collective is not None
        return seconds(op.collective.message_bytes) if known and op.collective is not None else op.duration_s

    return _timed(graph, [price(op) for op in graph.ops])


def without_communication(graph: TraceGraph) -> TraceGraph:
    """Take every collective out."""
    return graph.without({index for index, op in enumerate(graph.ops) if op.communicates})


def without_launch_gaps(graph: TraceGraph) -> TraceGraph:
    """Let CPUs launch at once, as a CUDA graph does; what they wait for stays."""
    return _timed(graph, [0.0 if op.kind in HOST_KINDS else op.duration_s for op in graph.ops])


def _timed(graph: TraceGraph, durations_s: list[float]) -> TraceGraph:
    return replace(
        graph,
        ops=tuple(
            op if op.duration_s == seconds else replace(op, duration_s=seconds)
            for op, seconds in zip(graph.ops, durations_s, strict=True)
        ),
    )


def all_reduce_price(scenario: Scenario) -> Callable[[float], float]:
    """Seconds of an all-reduce by its message's bytes, over a scenario's ranks and links, measured where they were."""
    measured = load_profile(scenario.cluster.profile) if scenario.cluster.profile else None
    costs = KernelCosts(scenario, measured)

    def seconds(message_bytes: float) -> float:
        op = Op(name="all_reduce", kind="all_reduce", shape=CollectiveShape(message_bytes=message_bytes))
        return float(costs.estimates([op])[0].seconds)

    return seconds
