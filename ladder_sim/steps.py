"""Simulates one forward pass and sums it up.

Identical layers are not simulated over and over. A run of identical layers is cut to a few (`Wiring.condense`) and
simulated. If every task of one period is ready, starts and ends exactly one constant later than its twin a period
before, then what the next period meets (the same tasks, the same dependencies, everything it waits for shifted by that
constant) is the same too, and by induction so are all later ones: the run's time grows by that constant per period and
the shortcut is exact up to rounding. If the periods are not yet equal, more of them are simulated, in the end all.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ladder_sim.costs.base import CostModel, Estimate, annotate
from ladder_sim.des.engine import run
from ladder_sim.des.timeline import Timeline
from ladder_sim.graph.build import build
from ladder_sim.graph.ops import Op, Phase, StepGraph
from ladder_sim.graph.variants import Wiring, wiring
from ladder_sim.lower import COMM, COMPUTE, lower
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.scenario import Scenario

FIRST_PERIODS = 4
# periods of a run simulated at first: settle, twin, the one that stands for the rest, and one after it
STEADY = 1e-9
# relative difference under which two periods count as equal: rounding of sums, not a model error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One forward pass. Sums over ops count every layer, simulated or not; times in seconds."""

    seconds: float
    # start to end
    busy_s: Mapping[str, float]
    # time of all ops by kind, overlapped or not
    critical_s: Mapping[str, float]
    # share of each limit in `seconds`, along the critical path: sums to `seconds`
    error_s: Mapping[str, float]
    # error of the critical path by op kind, half-width of the 90 % interval
    comm_s: float
    # collectives, hidden or not
    hidden_s: float
    # collectives while compute runs
    sources_s: Mapping[tuple[str, str], float]
    # critical path by (source, op kind); "measured" here means in range too
    ops: tuple["OpSummary", ...]
    # every simulated op, in issue order
    timeline: Timeline
    # of the simulated layers

    @property
    def exposed_s(self) -> float:
        """Collectives while nothing computes."""
        return self.comm_s - self.hidden_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSummary:
    """One simulated op."""

    op: Op
    # what it is
    estimate: Estimate
    # its cost
    repeats: int
    # identical ops it stands for
    critical: bool
    # on the critical path


def simulate(scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel) -> StepSummary:
    """Simulate one forward pass of `scenario`.

    Parameters
    ----------
    scenario
        With the variant to run.
    phase, kv_len
        As in `ladder_sim.graph.build.build`.
    costs
        Times of its ops.
    """
    model = scenario.model
    full = wiring(scenario.variant, model.layers, model.ladder_layers)
    keep = FIRST_PERIODS
    while True:
        plan = full.condense(keep)
        graph = build(scenario, phase, kv_len, layers=plan)
        annotate(graph, costs)
        timeline = run(lower(graph, scenario.stack))
        added_s = _added_s(plan, graph, timeline)
        if added_s is not None:
            return _summary(scenario, plan, graph, timeline, added_s)
        keep *= 4


def _added_s(plan: Wiring, graph: StepGraph, timeline: Timeline) -> float | None:
    """Time that the layers left out add, or None if the kept ones have not settled into a period."""
    tasks_of: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops()):
        tasks_of[op.layer].append(index)
    times = np.stack([timeline.ready_s, timeline.start_s, timeline.end_s])
    added_s = 0.0
    for position, layer in enumerate(plan.layers):
        if layer.repeats == 1:
            continue
        twin = plan.layers[position - layer.twins_back]
        shifts = times[:, tasks_of[layer.index]] - times[:, tasks_of[twin.index]]
        if shifts.max() - shifts.min() > STEADY * timeline.makespan_s:
            return None
        # the layers of one period share its shift
        added_s += (layer.repeats - 1) * float(shifts.mean()) / layer.twins_back
    return added_s


def _summary(scenario: Scenario, plan: Wiring, graph: StepGraph, timeline: Timeline, added_s: float) -> StepSummary:
    repeats = {layer.index: layer.repeats for layer in plan.layers}
    critical = set(timeline.critical_path())
    compute = timeline.busy([COMPUTE])
    busy_s: dict[str, float] = defaultdict(float)
    critical_s: dict[str, float] = defaultdict(float)
    error_s: dict[str, float] = defaultdict(float)
    sources_s: dict[tuple[str, str], float] = defaultdict(float)
    comm_s = hidden_s = 0.0
    summaries = []
    for index, (op, task) in enumerate(zip(graph.ops(), timeline.program.tasks, strict=True)):
        estimate: Estimate = graph.nodes[op.name]["estimate"]
        times = repeats.get(op.layer, 1)
        span_s = float(timeline.end_s[index] - timeline.start_s[index])
        busy_s[op.kind] += times * span_s
        if task.stream == COMM:
            comm_s += times * span_s
            hidden_s += times * timeline.hidden_s(index, compute)
        if index in critical:
            critical_s[_limit(op, scenario.cluster.gpu)] += times * span_s
            critical_s["waits"] += times * float(timeline.start_s[index] - timeline.ready_s[index])
            error_s[op.kind] += times * (estimate.high_s - estimate.seconds)
            sources_s[estimate.source, op.kind] += times * span_s
        summaries.append(OpSummary(op=op, estimate=estimate, repeats=times, critical=index in critical))
    return StepSummary(
        seconds=timeline.makespan_s + added_s,
        busy_s=dict(busy_s),
        critical_s=dict(critical_s),
        error_s=dict(error_s),
        comm_s=comm_s,
        hidden_s=hidden_s,
        sources_s=dict(sources_s),
        ops=tuple(summaries),
        timeline=timeline,
    )


def _limit(op: Op, gpu: GpuSpec) -> str:
    """What bounds an op: a link, tensor cores, device memory, or the fixed cost of a small kernel."""
    if op.stream == "comm":
        return op.kind
    arithmetic_s = op.shape.flops / gpu.bf16_flops
    traffic_s = op.shape.moved_bytes / gpu.hbm_bandwidth_Bps
    if max(arithmetic_s, traffic_s) < gpu.kernel_s:
        return "small kernels"
    return "tensor cores" if arithmetic_s > traffic_s else "device memory"
