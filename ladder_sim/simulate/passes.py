"""Simulates one forward pass and sums it up.

Identical layers are not simulated over and over. A run of identical layers is cut to a few (`Wiring.condense`) and
simulated. If every task of one period is ready, starts and ends exactly one constant later than its twin a period
before, then what the next period meets (the same tasks, the same dependencies, everything it waits for shifted by that
constant) is the same too, and by induction so are all later ones: the run's time grows by that constant per period,
and the shortcut is exact up to rounding. Launches by the CPU only have to come no later: where they run ahead they hold
nothing back. If the periods are not yet equal, more of them are simulated, in the end all.

A pass in which nothing overlaps takes as long as its ops together, and is simulated only when its timeline is read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.estimate import CostModel, Number
from ladder_sim.des import engine, scan
from ladder_sim.des.program import Program
from ladder_sim.des.shared import any_true, maximum, minimum
from ladder_sim.des.timeline import Timeline
from ladder_sim.graph.build import PassInputs, build
from ladder_sim.graph.ops import Phase
from ladder_sim.graph.sizes import Sizes, one_token
from ladder_sim.graph.variants import Wiring, wiring
from ladder_sim.simulate.breakdown import Simulated, StepSummary
from ladder_sim.simulate.lower import Lead, Lowered, Schedule, lower, op_times, schedule
from ladder_sim.specs.scenario import Scenario

Engine = Literal["fast", "des"]
# one vectorised pass, or event by event on simpy: the same times
ENGINES: Mapping[Engine, Callable[[Program], Timeline]] = {"fast": scan.run, "des": engine.run}

# periods of a run simulated at first: a twin, the one that stands for the rest, and one after it
FIRST_PERIODS = 3
# relative difference under which two periods count as equal: rounding of sums, not a model error
STEADY = 1e-9
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Twins:
    """The ops of a period that stands for several, and of the period before it."""

    own: tuple[int, ...]
    """Positions in the schedule."""
    twin: tuple[int, ...]
    """Positions of their likes one period earlier."""
    left_out: int
    """Periods not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """What a forward pass runs in which order, with layers left out: the same for any hardware."""

    wiring: Wiring
    """Condensed."""
    schedule: Schedule
    """Its ops."""
    twins: tuple[_Twins, ...]
    """Where layers are left out."""
    spans: Mapping[tuple[int, Lead], int]
    """How often each of its distinct ops comes behind which lead, layers left out included."""
    keep: int
    """Periods of a run of identical layers that are there."""


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
    plan = planned(scenario, phase, kv_len)

    def run() -> tuple[Simulated, float]:
        return _run(scenario, phase, kv_len, costs, engine_name, plan.keep)

    if plan.schedule.serial and engine_name == "fast":
        return StepSummary(float(_serial_s(plan, costs)), scenario.cluster.gpu, lambda: run()[0])
    simulated, seconds = run()
    return StepSummary(seconds, scenario.cluster.gpu, lambda: simulated)


def simulate_many(scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel) -> Times:
    """Seconds of one forward pass in every configuration that `costs` prices.

    Returns
    -------
    ndarray, shape (configurations,)
    """
    plan = planned(scenario, phase, kv_len)
    if plan.schedule.serial:
        return np.broadcast_to(_serial_s(plan, costs), costs.hardware.configurations)
    for more, lowered in _lowered(scenario, phase, kv_len, costs, plan.keep):
        makespan_s, added_s, steady = _added(lowered, more.twins, scan.scan(lowered.program))
        if np.all(steady):
            break
    return np.broadcast_to(makespan_s + added_s, costs.hardware.configurations)


def _run(
    scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel, engine_name: Engine, keep: int
) -> tuple[Simulated, float]:
    """Simulate a pass task by task; returns it with its seconds."""
    for plan, lowered in _lowered(scenario, phase, kv_len, costs, keep):
        timeline = ENGINES[engine_name](lowered.program)
        times = timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist()
        makespan_s, added_s, steady = _added(lowered, plan.twins, times)
        if np.all(steady):
            break
    return Simulated(wiring=plan.wiring, lowered=lowered, timeline=timeline), float(makespan_s + added_s)


def _serial_s(plan: StepPlan, costs: CostModel) -> Number:
    """Seconds of a pass in which nothing overlaps: what its ops and their leads take together.

    Where the CPU launches op after op, the pass also lasts as long as any op's launch and everything from that op on.
    Over equal layers that sum is linear, so that it is largest in the first or the last of them, which are both there.
    """
    times = op_times(plan.schedule, costs.estimates(plan.schedule.distinct), costs.hardware)
    if not plan.schedule.eager:
        leads_s = sum((count * times.leads_s[lead] for (_, lead), count in plan.spans.items()), start=times.launch_s)
        return sum((count * times.durations_s[like] for (like, _), count in plan.spans.items()), start=leads_s)
    spans_s = {(like, lead): times.durations_s[like] + times.leads_s[lead] for like, lead in plan.spans}
    in_order = list(zip(plan.schedule.same_as, plan.schedule.leads, strict=True))
    # the sum can be larger than the one from the op before only where that op is shorter than a launch
    short = {span for span, seconds in spans_s.items() if any_true(seconds < times.launch_s)}
    left_out = {pair.own[-1]: pair for pair in plan.twins}
    launches = sum(plan.spans.values())
    left_s: Number = 0.0
    longest_s: Number = 0.0
    for number in reversed(range(len(in_order))):
        if number in left_out:
            pair = left_out[number]
            left_s = left_s + pair.left_out * sum(spans_s[in_order[own]] for own in pair.own)
            launches -= pair.left_out * len(pair.own)
        left_s = left_s + spans_s[in_order[number]]
        if number == 0 or in_order[number - 1] in short:
            longest_s = maximum(longest_s, left_s + launches * times.launch_s)
        launches -= 1
    return longest_s


def _lowered(
    scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel, keep: int
) -> Iterator[tuple[StepPlan, Lowered]]:
    """The step with `keep` of its periods, with more, and in the end with all, which is always steady."""
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


def planned(scenario: Scenario, phase: Phase, kv_len: int) -> StepPlan:
    """What a forward pass runs, with as few layers as may do."""
    return _planned(PassInputs.of(scenario), phase, kv_len, FIRST_PERIODS)


@lru_cache(maxsize=1024)
def _planned(inputs: PassInputs, phase: Phase, kv_len: int, keep: int) -> StepPlan:
    small = _planned_for_one_token(inputs._replace(workload=one_token(inputs.workload)), phase, keep)
    return replace(small, schedule=small.schedule.resized(Sizes.of(inputs, phase, kv_len)))


@lru_cache(maxsize=1024)
def _planned_for_one_token(inputs: PassInputs, phase: Phase, keep: int) -> StepPlan:
    model = inputs.model
    condensed = wiring(inputs.variant, model.layers, model.ladder_layers).condense(keep)
    ordered = schedule(build(inputs, phase, 1, layers=condensed), inputs.stack)
    ops_of: dict[int, list[int]] = defaultdict(list)
    for number, op in enumerate(ordered.ops):
        ops_of[op.layer].append(number)
    twins = []
    for fold in condensed.folds:
        own, twin = (
            tuple(number for layer in condensed.layers[at : at + fold.width] for number in ops_of[layer.index])
            for at in (fold.start, fold.start - fold.width)
        )
        twins.append(_Twins(own=own, twin=twin, left_out=fold.repeats - 1))
    repeats = {layer.index: layer.repeats for layer in condensed.layers}
    spans: dict[tuple[int, Lead], int] = defaultdict(int)
    for op, like, lead in zip(ordered.ops, ordered.same_as, ordered.leads, strict=True):
        spans[like, lead] += repeats.get(op.layer, 1)
    return StepPlan(wiring=condensed, schedule=ordered, twins=tuple(twins), spans=dict(spans), keep=keep)


def _added(
    lowered: Lowered, twins: Sequence[_Twins], times: tuple[Sequence[Number], Sequence[Number], Sequence[Number]]
) -> tuple[Number, Number, "bool | NDArray[np.bool_]"]:
    """How long the simulated layers take, how much those left out add, and whether the kept ones are in a period.

    Parameters
    ----------
    lowered
        The simulated tasks.
    twins
        Where layers are left out.
    times
        Ready, start and end of every task.
    """
    makespan_s = _makespan_s(lowered, times[2])
    added_s: Number = 0.0
    steady: bool | NDArray[np.bool_] = True
    launches = lowered.launches
    launched_s, ready_s = times[2][:launches], times[0][launches:]
    for pair in twins:
        twins_of = list(zip(pair.own, pair.twin, strict=True))
        low, high = _range(
            column[launches + late] - column[launches + early] for column in times for late, early in twins_of
        )
        steady = steady & (high - low <= STEADY * makespan_s)
        if lowered.schedule.eager and launches:
            # a thread that launches more slowly than this would fall behind in time
            _, most_s = _range(launched_s[late] - launched_s[early] for late, early in twins_of)
            behind_s = most_s - low
            steady = steady & (behind_s <= STEADY * makespan_s)
            # one that runs ahead is further ahead behind the layers left out: later ops must not depend on how far
            held_back: bool | NDArray[np.bool_] = False
            for number in range(max(pair.own) + 1, len(ready_s)):
                held_back = held_back | (launched_s[number] >= ready_s[number])
            steady = steady & ~(np.asarray(behind_s < -STEADY * makespan_s) & held_back)
        added_s = added_s + pair.left_out * 0.5 * (low + high)
    return makespan_s, added_s, steady


def _makespan_s(lowered: Lowered, end_s: Sequence[Number]) -> Number:
    """The end of the last task of any stream."""
    last = {task.stream: number for number, task in enumerate(lowered.program.tasks)}
    return reduce(maximum, (end_s[number] for number in last.values()))


def _range(values: Iterable[Number]) -> tuple[Number, Number]:
    """Smallest and largest, configuration by configuration."""
    low: Number = inf
    high: Number = -inf
    for value in values:
        low, high = minimum(low, value), maximum(high, value)
    return low, high
