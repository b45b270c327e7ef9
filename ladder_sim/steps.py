"""Simulates one forward pass and sums it up.

Identical layers are not simulated over and over. A run of identical layers is cut to a few (`Wiring.condense`) and
simulated. If every task of one period is ready, starts and ends exactly one constant later than its twin a period
before, then what the next period meets (the same tasks, the same dependencies, everything it waits for shifted by that
constant) is the same too, and by induction so are all later ones: the run's time grows by that constant per period,
and the shortcut is exact up to rounding. Launches by the CPU only have to come no later: where they run ahead they hold
nothing back. If the periods are not yet equal, more of them are simulated, in the end all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.base import CostModel, Estimate
from ladder_sim.des import engine, scan
from ladder_sim.des.program import Program
from ladder_sim.des.timeline import Timeline, overlap_s
from ladder_sim.graph.build import PassInputs, build
from ladder_sim.graph.ops import GemmShape, Op, Phase
from ladder_sim.graph.variants import Wiring, wiring
from ladder_sim.lower import COMM, COMPUTE, Lowered, Schedule, lower, schedule
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.scenario import Scenario

Engine = Literal["fast", "des"]
ENGINES: Mapping[Engine, Callable[[Program], Timeline]] = {"fast": scan.run, "des": engine.run}
# one vectorised pass, or event by event on simpy: the same times

FIRST_PERIODS = 3
# periods of a run simulated at first: a twin, the one that stands for the rest, and one after it
STEADY = 1e-9
# relative difference under which two periods count as equal: rounding of sums, not a model error
Times = NDArray[np.float64]


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
    slowed_s: float
    # what kernels lose to the collectives beside them
    sources_s: Mapping[tuple[str, str], float]
    # critical path by (source, op kind); "measured" here means in range too
    lowered: Lowered
    # the simulated layers
    timeline: Timeline
    # of their tasks
    repeats: Mapping[int, int]
    # layers that each of them stands for
    critical: frozenset[int]
    # tasks on the critical path

    @property
    def ops(self) -> list["OpSummary"]:
        """Every simulated op, in issue order."""
        span_s = (self.timeline.end_s - self.timeline.start_s).tolist()
        return [
            OpSummary(
                op=op,
                estimate=estimate,
                seconds=span_s[index],
                repeats=self.repeats.get(op.layer, 1),
                critical=index in self.critical,
            )
            for index, (op, estimate) in enumerate(
                zip(self.lowered.schedule.ops, self.lowered.estimates, strict=True), self.lowered.launches
            )
        ]

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
    # its cost alone
    seconds: float
    # start to end, as simulated
    repeats: int
    # identical ops it stands for
    critical: bool
    # on the critical path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Twins:
    """The ops of a period that stands for several, and of the period before it."""

    own: NDArray[np.int_]
    # positions in the schedule
    twin: NDArray[np.int_]
    # positions of their likes one period earlier
    left_out: int
    # periods not simulated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """What a forward pass runs in which order, with layers left out: the same for any hardware."""

    wiring: Wiring
    # condensed
    schedule: Schedule
    # its ops
    twins: tuple[_Twins, ...]
    # where layers are left out


def simulate(
    scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel, *, engine_name: Engine = "fast"
) -> StepSummary:
    """Simulate one forward pass of `scenario`.

    Parameters
    ----------
    scenario
        With the variant to run.
    phase, kv_len
        As in `ladder_sim.graph.build.build`.
    costs
        Times of its ops.
    engine_name
        ``"fast"`` or ``"des"``.
    """
    for plan, lowered in _lowered(scenario, phase, kv_len, costs):
        timeline = ENGINES[engine_name](lowered.program)
        times = np.stack([timeline.ready_s, timeline.start_s, timeline.end_s])[:, :, np.newaxis]
        added_s, steady = _added(lowered, plan.twins, times)
        if steady.all():
            break
    return _summary(scenario, plan.wiring, lowered, timeline, float(added_s[0]))


def simulate_many(scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel) -> Times:
    """Seconds of one forward pass in every configuration that `costs` prices.

    Returns
    -------
    ndarray, shape (configurations,)
    """
    for plan, lowered in _lowered(scenario, phase, kv_len, costs):
        times = scan.scan(lowered.program)
        added_s, steady = _added(lowered, plan.twins, times)
        if steady.all():
            break
    return np.broadcast_to(times[2].max(axis=0) + added_s, costs.hardware.configurations)


def _lowered(scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel) -> Iterator[tuple[StepPlan, Lowered]]:
    """The step with few of its layers, with more, and in the end with all, which is always steady."""
    keep = FIRST_PERIODS
    while True:
        yield lowered_step(scenario, phase, kv_len, costs, keep)
        keep *= 4


def lowered_step(
    scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel, keep: int
) -> tuple[StepPlan, Lowered]:
    """The tasks of one forward pass in which each run of identical layers is cut to `keep` periods."""
    plan = _planned(PassInputs.of(scenario), phase, kv_len, keep)
    prices = costs.estimates(plan.schedule.distinct)
    return plan, lower(plan.schedule, prices, costs.hardware, scenario.cluster.gpu.sms)


@lru_cache(maxsize=1024)
def _planned(inputs: PassInputs, phase: Phase, kv_len: int, keep: int) -> StepPlan:
    model = inputs.model
    condensed = wiring(inputs.variant, model.layers, model.ladder_layers).condense(keep)
    ordered = schedule(build(inputs, phase, kv_len, layers=condensed), inputs.stack)
    ops_of: dict[int, list[int]] = defaultdict(list)
    for number, op in enumerate(ordered.ops):
        ops_of[op.layer].append(number)
    twins = []
    for fold in condensed.folds:
        own, twin = (
            np.array([number for layer in condensed.layers[at : at + fold.width] for number in ops_of[layer.index]])
            for at in (fold.start, fold.start - fold.width)
        )
        twins.append(_Twins(own=own, twin=twin, left_out=fold.repeats - 1))
    return StepPlan(wiring=condensed, schedule=ordered, twins=tuple(twins))


def _added(lowered: Lowered, twins: Sequence[_Twins], times: Times) -> tuple[Times, NDArray[np.bool_]]:
    """Time that the layers left out add, and whether the kept ones have settled into a period, per configuration.

    Parameters
    ----------
    lowered
        The simulated tasks.
    twins
        Where layers are left out.
    times
        Ready, start and end of every task: shape (3, tasks, configurations).
    """
    makespan_s = times[2].max(axis=0)
    added_s = np.zeros_like(makespan_s)
    steady = np.ones(makespan_s.shape, dtype=np.bool_)
    launches_s, ops_s = times[2, : lowered.launches], times[:, lowered.launches :]
    for pair in twins:
        shifts = ops_s[:, pair.own] - ops_s[:, pair.twin]
        low, high = shifts.min(axis=(0, 1)), shifts.max(axis=(0, 1))
        steady &= high - low <= STEADY * makespan_s
        if lowered.schedule.eager and lowered.launches:
            # a thread that launches more slowly than this would fall behind in time
            behind_s = (launches_s[pair.own] - launches_s[pair.twin]).max(axis=0) - low
            steady &= behind_s <= STEADY * makespan_s
            # one that runs ahead is further ahead behind the layers left out: later ops must not depend on how far
            later = slice(int(pair.own.max()) + 1, None)
            runs_ahead = behind_s < -STEADY * makespan_s
            held_back = (launches_s[later] >= ops_s[0, later]).any(axis=0)
            steady &= ~(runs_ahead & held_back)
        added_s += pair.left_out * 0.5 * (low + high)
    return added_s, steady


def _summary(scenario: Scenario, plan: Wiring, lowered: Lowered, timeline: Timeline, added_s: float) -> StepSummary:
    repeats = {layer.index: layer.repeats for layer in plan.layers}
    critical = frozenset(timeline.critical_path())
    compute = timeline.busy([COMPUTE])
    limits = [_limit(op, scenario.cluster.gpu) for op in lowered.schedule.distinct]
    busy_s: dict[str, float] = defaultdict(float)
    critical_s: dict[str, float] = defaultdict(float)
    error_s: dict[str, float] = defaultdict(float)
    sources_s: dict[tuple[str, str], float] = defaultdict(float)
    comm_s = hidden_s = slowed_s = 0.0
    ready, start, end = timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist()
    for index, op in enumerate(lowered.schedule.ops[: lowered.launches]):
        if index in critical:
            critical_s["launches"] += repeats.get(op.layer, 1) * (end[index] - start[index])
    for index, (op, estimate, like) in enumerate(
        zip(lowered.schedule.ops, lowered.estimates, lowered.schedule.same_as, strict=True), lowered.launches
    ):
        times, span_s = repeats.get(op.layer, 1), end[index] - start[index]
        task = timeline.program.tasks[index]
        busy_s[op.kind] += times * span_s
        if task.stream == COMM:
            comm_s += times * span_s
            hidden_s += times * overlap_s((start[index], end[index]), compute)
        else:
            slowed_s += times * (span_s - float(task.duration_s))
        if index in critical:
            critical_s[limits[like]] += times * span_s
            critical_s["waits"] += times * (start[index] - ready[index])
            error_s[op.kind] += times * estimate.error * span_s
            sources_s[estimate.source, op.kind] += times * span_s
    return StepSummary(
        seconds=timeline.makespan_s + added_s,
        busy_s=dict(busy_s),
        critical_s=dict(critical_s),
        error_s=dict(error_s),
        comm_s=comm_s,
        hidden_s=hidden_s,
        slowed_s=slowed_s,
        sources_s=dict(sources_s),
        lowered=lowered,
        timeline=timeline,
        repeats=repeats,
        critical=critical,
    )


def _limit(op: Op, gpu: GpuSpec) -> str:
    """What bounds an op: a link, tensor cores, device memory, or the fixed cost of a small kernel."""
    if op.stream == "comm":
        return op.kind
    fp8 = isinstance(op.shape, GemmShape) and op.shape.weight_element_bytes == 1
    arithmetic_s = op.shape.flops / (gpu.fp8_flops if fp8 else gpu.bf16_flops)
    traffic_s = op.shape.moved_bytes / gpu.hbm_bandwidth_Bps
    if max(arithmetic_s, traffic_s) < gpu.kernel_s:
        return "small kernels"
    return "tensor cores" if arithmetic_s > traffic_s else "device memory"
