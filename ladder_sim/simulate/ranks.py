"""Simulates every rank of the group: some always slower, all of them a little random, meeting at each collective.

A collective starts when its last rank arrives; the others wait, and the wait is counted apart from the transfer. Each
replicate draws its own times. Like `steps.py` it simulates a few of a run of identical layers; because no two layers
are equal now, those left out are drawn from the periods that were simulated, of all replicates together.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.estimate import CostModel
from ladder_sim.des.engine import run
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.timeline import Timeline
from ladder_sim.graph.ops import Phase
from ladder_sim.simulate.lower import COMM, COMPUTE, STREAMS, Lowered
from ladder_sim.simulate.passes import StepPlan, lowered_step
from ladder_sim.specs.scenario import Scenario

# periods of a run that are simulated. Ranks of unlike speed drift apart until the faster are a whole block ahead: with
# 2 % skew that takes about 25 layers of ladder, and waiting is counted at the end of it
PERIODS = 32
# periods that are not drawn from
SETTLE = 2
# periods that say what the ones left out wait
LAST = 8
# runs of every step
REPLICATES = 4
# step times drawn from each replicate
DRAWS = 100
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How uneven ranks are, beyond the cluster's persistent skew."""

    sigma: float
    """Of the logarithm of each kernel's time, whose mean stays the same."""
    seed: int = 0
    """Of the random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedStep:
    """One forward pass on all ranks, over replicates."""

    mean_s: float
    """Start to end."""
    p50_s: float
    """Median."""
    p95_s: float
    """95th percentile."""
    waiting_s: float
    """For ranks that arrive later at a collective, mean over ranks and replicates."""


def simulate_ranks(scenario: Scenario, phase: Phase, kv_len: int, costs: CostModel, jitter: Jitter) -> RankedStep:
    """Simulate one forward pass of all ranks, event by event.

    Parameters
    ----------
    scenario
        With the variant to run.
    phase, kv_len
        As in `ladder_sim.graph.build.build`.
    costs
        Times of its ops on a typical rank.
    jitter
        Random spread. At 0 the result is that of `steps.simulate`.
    """
    skew = float(np.max(costs.hardware.rank_skew))
    typical = _Typical(costs)
    plan, lowered = lowered_step(scenario, phase, kv_len, typical, PERIODS)
    if not any(op.stream == "comm" and op.layer >= 0 for op in lowered.schedule.ops):
        # ranks that meet at the end only drift apart all along
        plan, lowered = lowered_step(scenario, phase, kv_len, typical, scenario.model.layers)
    added: list[list[float]] = [[] for _ in plan.wiring.folds]
    ends_s, waits_s = [], []
    for replicate in range(REPLICATES if jitter.sigma else 1):
        random = np.random.default_rng([jitter.seed, replicate])
        timeline = run(_all_ranks(lowered, scenario.tp, skew, jitter.sigma, random))
        paced = _PacedRun(plan, lowered, timeline, scenario.tp)
        ends_s.append(paced.end_s)
        waits_s.append(paced.waiting_s)
        for known, increments in zip(added, paced.increments(), strict=True):
            known += increments
    random = np.random.default_rng([jitter.seed, REPLICATES])
    totals = np.repeat(np.array(ends_s), DRAWS)
    for known, fold in zip(added, plan.wiring.folds, strict=True):
        totals += random.choice(known, size=(totals.size, fold.repeats - 1)).sum(axis=1)
    p50_s, p95_s = np.quantile(totals, [0.5, 0.95])
    return RankedStep(
        mean_s=float(totals.mean()), p50_s=float(p50_s), p95_s=float(p95_s), waiting_s=float(np.mean(waits_s))
    )


class _Typical:
    """Costs of a rank without skew: here each rank gets its own."""

    def __init__(self, costs: CostModel) -> None:
        self.hardware = replace(costs.hardware, rank_skew=0.0)
        self.estimates = costs.estimates


def _all_ranks(lowered: Lowered, ranks: int, skew: float, sigma: float, random: np.random.Generator) -> Program:
    """The program of every rank, its kernels slower by its skew and by chance, its collectives joined."""
    one = lowered.program
    count = len(one.tasks)
    slower = 1.0 + skew * np.arange(ranks) / max(1, ranks - 1)
    # mean 1, so that jitter alone makes no kernel slower on average
    chance = np.exp(random.normal(-0.5 * sigma**2, sigma, size=(ranks, count))) if sigma else np.ones((ranks, count))
    kinds = ["launch"] * lowered.launches + [op.kind for op in lowered.schedule.ops]
    tasks: list[Task] = []
    for rank in range(ranks):
        first_task, first_stream = rank * count, rank * len(STREAMS)
        for index, task in enumerate(one.tasks):
            computes = task.stream == COMPUTE
            # the root of a broadcast waits for no one
            meets = task.stream == COMM and kinds[index] != "broadcast"
            factor = float(slower[rank] * chance[rank, index]) if computes else 1.0
            tasks.append(
                task._replace(
                    stream=task.stream + first_stream,
                    after=tuple(before + first_task for before in task.after),
                    duration_s=task.duration_s * factor,
                    group=index if meets else NO_GROUP,
                )
            )
    streams = tuple(Stream(name=stream.name, rank=rank) for rank in range(ranks) for stream in STREAMS)
    return Program(tasks=tuple(tasks), streams=streams, device=one.device)


class _PacedRun:
    """One replicate, read along the ranks: what it took, what was waited for, how long each period lasted."""

    def __init__(self, plan: StepPlan, lowered: Lowered, timeline: Timeline, ranks: int) -> None:
        self.plan, self.lowered, self.timeline = plan, lowered, timeline
        # where nothing makes the ranks meet, the one whose token counts is the first, a typical one
        self.ranks = ranks if lowered.schedule.synchronises else 1
        self.count = len(lowered.program.tasks)
        self.end = timeline.end_s.reshape(ranks, self.count)[: self.ranks]

    @property
    def end_s(self) -> float:
        return float(self.end.max())

    @property
    def waiting_s(self) -> float:
        """Mean over ranks of what they wait at collectives; the layers left out wait as the last periods do."""
        layers = self.plan.wiring.layers
        times = {layer.index: 1.0 for layer in layers}
        for fold in self.plan.wiring.folds:
            for back in range(LAST):
                for layer in layers[fold.start - back * fold.width :][: fold.width]:
                    times[layer.index] += (fold.repeats - 1) / LAST
        ops = self.lowered.schedule.ops
        weights = np.array([0.0] * self.lowered.launches + [times.get(op.layer, 1.0) for op in ops])
        meets = np.array([task.group != NO_GROUP for task in self.timeline.program.tasks[: self.count]])
        waits = (self.timeline.start_s - self.timeline.ready_s).reshape(-1, self.count)
        # the last rank to arrive waits for no one: what it spends is its launch, and SMs that were not free
        waits = (waits - waits.min(axis=0)) * meets
        return float((waits * weights).sum(axis=1).mean())

    def increments(self) -> list[list[float]]:
        """How long the periods of every fold took, apart from the first ones and the last; seconds."""
        found = []
        for fold in self.plan.wiring.folds:
            # a fold's representative is the second last of its run
            last_layers = [fold.start + fold.width - 1 - fold.width * back for back in range(PERIODS - 1)]
            ends = [self._layer_end_s(position) for position in reversed(last_layers)]
            found.append([after - before for before, after in pairwise(ends[SETTLE - 1 :])])
        return found

    def _layer_end_s(self, position: int) -> float:
        """When the last kernel of a layer ends on the slowest rank, seconds."""
        index = self.plan.wiring.layers[position].index
        own = [
            self.lowered.launches + number
            for number, op in enumerate(self.lowered.schedule.ops)
            if op.layer == index and op.stream == "compute"
        ]
        return float(self.end[:, own].max())
