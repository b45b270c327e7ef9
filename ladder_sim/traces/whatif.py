"""What-if changes to a trace: faster kernels, another interconnect, no communication, launch gaps or none.

Each function returns a graph with other durations or fewer ops. Simulate it to see when the ops would run.
"""

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import CollectiveShape
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import HOST_KINDS, REDUCES, SCOPE_SEPARATOR, TraceGraph, TraceOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes to a recorded run."""

    scale: Mapping[str, float] = field(default_factory=dict)
    """Factor of the time of ops, by kind, name or module as in `scale`."""
    no_launch_gaps: bool = False
    """Whether CPUs launch in no time, as a CUDA graph does."""
    interconnect: str | None = None
    """Cluster of the catalog on which all-reduces are priced; None: they keep their times."""
    nodes: int = 1
    """Number of nodes of that cluster."""
    tp: int | None = None
    """Ranks on that cluster; None: all its GPUs."""
    allreduce: str | None = None
    """All-reduce algorithm there; None: the default one."""
    message_bytes: float = 0.0
    """Size of all-reduces that the trace does not know; 0: an error if there are any."""
    drop_gaps: bool = False
    """Whether gaps between kernels of one launch are left out."""

    def apply(self, graph: TraceGraph, recorded: TraceGraph) -> TraceGraph:
        """Return the graph with all changes; `recorded`, which is the graph with its gaps, if there are none."""
        graph = graph if self.drop_gaps else recorded
        for what, factor in self.scale.items():
            graph = scale(graph, what, factor)
        if self.interconnect is not None:
            scenario = Scenario(cluster=self.interconnect, nodes=self.nodes, tp=self.tp, allreduce=self.allreduce)
            graph = with_all_reduce_times(graph, all_reduce_seconds(scenario), self.message_bytes)
        return without_launch_gaps(graph) if self.no_launch_gaps else graph


UNCHANGED = Changes()


def scale(graph: TraceGraph, what: str, factor: float) -> TraceGraph:
    """Let ops take `factor` times as long.

    `what` is a kind, such as ``"gemm"``, a pattern of names, such as ``"*flash*"``, or of modules and ranges around the
    launch, such as ``"MLP_*"``.
    """
    if not 0.0 <= factor < float("inf"):
        raise UsageError(f"scale {what}={factor}: the factor must be 0 or more", hint="for example gemm=0.5")

    def matches(op: TraceOp) -> bool:
        if op.kind == what or fnmatch.fnmatchcase(op.name, what):
            return True
        return any(fnmatch.fnmatchcase(scope, what) for scope in op.scope.split(SCOPE_SEPARATOR) if scope)

    if not any(map(matches, graph.ops)):
        kinds = ", ".join(sorted({op.kind for op in graph.ops}))
        raise UsageError(
            f"scale {what}={factor}: no op has this kind, name or module",
            hint=f"kinds in this trace: {kinds}; names may contain * and ?; `trace info --json` lists modules",
        )
    return _with_durations(graph, lambda op: op.duration_s * factor if matches(op) else op.duration_s)


def with_all_reduce_times(
    graph: TraceGraph, seconds: Callable[[float], float], message_bytes: float = 0.0
) -> TraceGraph:
    """Let every all-reduce take `seconds(message_bytes)`; `all_reduce_seconds` gives those of another interconnect.

    `message_bytes` is the size of those whose size is not recorded.
    """
    sizes = {
        index: (op.collective.message_bytes if op.collective is not None else 0.0) or message_bytes
        for index, op in enumerate(graph.ops)
        if op.kind in REDUCES
    }
    if not sizes or not all(sizes.values()):
        what = "message sizes of all-reduces" if sizes else "all-reduces"
        raise UsageError(f"the trace holds no {what}", hint="record with record_shapes=True, or give --message-bytes")
    priced = {index: seconds(size) for index, size in sizes.items()}
    ops = (replace(op, duration_s=priced.get(index, op.duration_s)) for index, op in enumerate(graph.ops))
    return replace(graph, ops=tuple(ops))


def with_gaps(graph: TraceGraph) -> TraceGraph:
    """Keep the time between kernels of one launch (a CUDA graph): the device is not ready earlier."""
    ops = list(graph.ops)
    for index, before in graph.before_on_lane().items():
        op, ahead = graph.ops[index], graph.ops[before]
        if graph.lanes[op.lane].device and not set(graph.launches(op)).isdisjoint(ahead.after):
            ready_s = max([ahead.end_s, *(graph.ops[awaited].end_s for awaited in op.after)])
            gap_s = op.start_s - op.lead_s - ready_s
            ops[index] = replace(op, lead_s=op.lead_s + max(0.0, gap_s))
    return replace(graph, ops=tuple(ops))


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
