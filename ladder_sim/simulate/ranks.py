"""Simulates every rank of the group: some always slower, all of them a little random, meeting at each collective.

A collective starts when its last rank arrives; the others wait, and the wait is counted apart from the transfer. Each
replicate draws its own times. Like `passes.py` it simulates a few of a run of identical layers; because no two layers
are equal now, those left out are drawn from the periods that were simulated, of all replicates together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from ladder_sim.des.engine import run
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.timeline import Timeline
from ladder_sim.simulate.lower import COMM, COMPUTE, STREAMS, Schedule
from ladder_sim.simulate.passes import ForwardPass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How uneven ranks are, beyond the cluster's persistent skew."""

    sigma: float
    """Standard deviation of the logarithm of each kernel's time, whose mean stays the same."""
    seed: int = 0
    """Seed of the random numbers."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unevenness:
    """Spread of step times, and what ranks wait for each other; seconds."""

    ttft_p50_s: float
    """Median prefill."""
    ttft_p95_s: float
    """95th percentile of prefill."""
    tpot_p50_s: float | None
    """Median decode step; None when only one token is asked for."""
    tpot_p95_s: float | None
    """95th percentile of a decode step; None when only one token is asked for."""
    waiting_s: float
    """In a request, at collectives for ranks that arrive later, mean over ranks; not part of any transfer time."""

    @classmethod
    def of(cls, ranked: Sequence[RankedStep], steps: int) -> Self:
        """Return the spread of a request: its prefill, and a decode step of the `steps` that it takes, if any."""
        prefill, *decode = ranked
        return cls(
            ttft_p50_s=prefill.p50_s,
            ttft_p95_s=prefill.p95_s,
            tpot_p50_s=decode[0].p50_s if decode else None,
            tpot_p95_s=decode[0].p95_s if decode else None,
            waiting_s=prefill.waiting_s + (steps * decode[0].waiting_s if decode else 0.0),
        )


def simulate_ranks(step: ForwardPass, ranks: int, jitter: Jitter) -> RankedStep:
    """Simulate a forward pass on all ranks of a tensor-parallel group, event by event.

    `step` is the pass on the rank that every collective waits for; without jitter it takes ``step.seconds``.
    """
    skew = float(np.max(step.hardware.slowest))
    typical = replace(step.hardware, rank_skew=0.0)
    schedule, program = step.lowered(PERIODS, typical)
    if not any(op.stream == "comm" and op.layer >= 0 for op in schedule.ops):
        # ranks that meet at the end only drift apart all along
        schedule, program = step.lowered(step.schedule.kernels.rank.model.layers, typical)
    lasted_s: list[list[float]] = [[] for _ in schedule.order.periods]
    ends_s, waits_s = [], []
    for replicate in range(REPLICATES if jitter.sigma else 1):
        random = np.random.default_rng([jitter.seed, replicate])
        timeline = run(_all_ranks(schedule, program, ranks, skew, jitter.sigma, random))
        paced = _PacedRun(schedule, timeline, ranks)
        ends_s.append(paced.end_s)
        waits_s.append(paced.waiting_s)
        for known, increments in zip(lasted_s, paced.increments(), strict=True):
            known += increments
    random = np.random.default_rng([jitter.seed, REPLICATES])
    totals = np.repeat(np.array(ends_s), DRAWS)
    for known, period in zip(lasted_s, schedule.order.periods, strict=True):
        totals += random.choice(known, size=(totals.size, period.left_out)).sum(axis=1)
    p50_s, p95_s = np.quantile(totals, [0.5, 0.95])
    return RankedStep(
        mean_s=float(totals.mean()), p50_s=float(p50_s), p95_s=float(p95_s), waiting_s=float(np.mean(waits_s))
    )


def replicate_of_every_layer(step: ForwardPass, ranks: int, jitter: Jitter) -> tuple[Schedule, Timeline]:
    """Return the schedule and first replicate of all layers on all ranks; tasks are in order of ranks."""
    typical = replace(step.hardware, rank_skew=0.0)
    schedule, program = step.lowered(step.schedule.kernels.rank.model.layers, typical)
    random = np.random.default_rng([jitter.seed, 0])
    skew = float(np.max(step.hardware.slowest))
    return schedule, run(_all_ranks(schedule, program, ranks, skew, jitter.sigma, random))


def _all_ranks(
    schedule: Schedule, program: Program, ranks: int, skew: float, sigma: float, random: np.random.Generator
) -> Program:
    """Return the program of every rank, its kernels slower by its skew and by chance, its collectives joined."""
    count = len(program.tasks)
    slower = 1.0 + skew * np.arange(ranks) / max(1, ranks - 1)
    # mean 1, so that jitter alone makes no kernel slower on average
    chance = np.exp(random.normal(-0.5 * sigma**2, sigma, size=(ranks, count))) if sigma else np.ones((ranks, count))
    kinds = ["launch"] * (count - len(schedule.ops)) + [op.kind for op in schedule.ops]
    tasks: list[Task] = []
    for rank in range(ranks):
        first_task, first_stream = rank * count, rank * len(STREAMS)
        for index, task in enumerate(program.tasks):
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
    return Program(tasks=tuple(tasks), streams=streams, device=program.device)


class _PacedRun:
    """One replicate, read along the ranks: what it took, what was waited for, how long each period lasted."""

    def __init__(self, schedule: Schedule, timeline: Timeline, ranks: int) -> None:
        self.schedule, self.timeline = schedule, timeline
        # where nothing makes the ranks meet, the one whose token counts is the first, a typical one
        self.ranks = ranks if schedule.order.synchronises else 1
        self.count = len(timeline.end_s) // ranks
        self.launches = self.count - len(schedule.ops)
        self.end = timeline.end_s.reshape(ranks, self.count)[: self.ranks]

    @property
    def end_s(self) -> float:
        return float(self.end.max())

    @property
    def waiting_s(self) -> float:
        """Mean over ranks of what they wait at collectives; the layers left out wait as the last periods do."""
        layers = self.schedule.layout.wiring.layers
        times = {layer.index: 1.0 for layer in layers}
        for period in self.schedule.order.periods:
            for back in range(LAST):
                for layer in layers[period.start - back * period.width :][: period.width]:
                    times[layer.index] += period.left_out / LAST
        weights = np.array([0.0] * self.launches + [times.get(op.layer, 1.0) for op in self.schedule.ops])
        meets = np.array([task.group != NO_GROUP for task in self.timeline.program.tasks[: self.count]])
        waits = (self.timeline.start_s - self.timeline.ready_s).reshape(-1, self.count)
        # the last rank to arrive waits for no one: what it spends is its launch, and SMs that were not free
        waits = (waits - waits.min(axis=0)) * meets
        return float((waits * weights).sum(axis=1).mean())

    def increments(self) -> list[list[float]]:
        """Return the seconds of each period of every run of equal layers, without the first ones and the last."""
        lasted_s = []
        for period in self.schedule.order.periods:
            # the one that stands for others is the second last of its run
            last_layers = [period.start + period.width - 1 - period.width * back for back in range(PERIODS - 1)]
            ends = [self._layer_end_s(position) for position in reversed(last_layers)]
            lasted_s.append([after - before for before, after in pairwise(ends[SETTLE - 1 :])])
        return lasted_s

    def _layer_end_s(self, position: int) -> float:
        index = self.schedule.layout.wiring.layers[position].index
        own = [
            self.launches + number
            for number, op in enumerate(self.schedule.ops)
            if op.layer == index and op.stream == "compute"
        ]
        return float(self.end[:, own].max())
