"""Measures a cross-check: calibration and the runs to be predicted take turns, so that drift meets both alike."""

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from calibration.crosscheck.bed import Bed
from calibration.crosscheck.observations import PHASES, Observations, Run, all_reduces, message_bytes, ops_of
from calibration.crosscheck.timers import time_collective
from ladder_sim.costs.lookup import Curve
from ladder_sim.graph.ops import Phase
from ladder_sim.specs.scenario import Scenario
from runtime.comm.base import Communicator
from runtime.comm.emulate import EmulatedLink
from runtime.comm.table import LatencyTable

CALIBRATION_LINK = "calibration"
# of standard's time that messages take on the link that is calibrated on
CALIBRATION_SHARE = 0.35
REAL_LINK = "gloo"
# in each round, of the two requests that every prediction rests on
REPEATS = 4
# requests that say how long messages of a share have to be
_ESTIMATES = 3

# something to measure once in each round
Task = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    scenario: Scenario
    """Model, workload, stack and tensor-parallel degree."""
    variants: tuple[str, ...]
    """Wirings to predict and to run."""
    shares: tuple[float, ...]
    """Emulated links: parts of standard's time that messages take."""
    rounds: int
    """Requests of each variant on each link."""
    threads: int
    """CPU threads of each rank."""


def measure(plan: Plan, comm: Communicator, known: Mapping[str, Curve] | None = None) -> Observations:
    """Run every variant on every link, and what predictions are calibrated on, in turns.

    Parameters
    ----------
    plan
        What to measure.
    comm
        Real ranks; of one that is alone, links are emulated.
    known
        All-reduce of every link if all is calibrated, and only what is predicted has to run.
    """
    bed = Bed(plan.scenario, comm, plan.threads)
    emulated = comm.name != REAL_LINK
    tables = (known or _tables(bed, plan.shares)) if emulated else {}
    links: dict[str, Communicator] = {REAL_LINK: comm}
    if emulated:
        links = {name: EmulatedLink(comm.size, _emulation(curve)) for name, curve in tables.items()}
    found = Observations(
        scenario=plan.scenario,
        tables=tables,
        seen={name: name in (CALIBRATION_LINK, REAL_LINK) for name in links},
    )
    runs = [Run(link, variant) for link in links for variant in plan.variants if link != CALIBRATION_LINK]
    tasks: list[Task] = [partial(_request, found, bed, run, links[run.link]) for run in runs]
    if known is None:
        tasks += _calibrating(found, bed, links)
    for variant in plan.variants:
        bed.request(variant, next(iter(links.values())))
    shuffle = random.Random(0).shuffle
    for number in range(plan.rounds):
        # a request that follows one that mostly waited is slower than one that follows one that computed
        shuffle(tasks)
        for task in tasks:
            task()
        found.load.append(os.getloadavg()[0])
        if comm.rank == 0:
            print(f"\rround {number + 1} of {plan.rounds}", end="", file=sys.stderr, flush=True)
    if comm.rank == 0:
        print(file=sys.stderr)
    return found


def _calibrating(found: Observations, bed: Bed, links: Mapping[str, Communicator]) -> list[Task]:
    tasks: list[Task] = [*REPEATS * [partial(_alone, found, bed)], partial(_kernels, found, bed)]
    link = links.get(CALIBRATION_LINK)
    if link is None:
        return [*tasks, partial(_collectives, found, bed)]
    return [*tasks, *REPEATS * [partial(_request, found, bed, Run(CALIBRATION_LINK, "standard"), link)]]


def _request(found: Observations, bed: Bed, run: Run, comm: Communicator) -> None:
    found.requests[run].append(bed.request(run.variant, comm))


def _alone(found: Observations, bed: Bed) -> None:
    found.alone.append(bed.alone())


def _kernels(found: Observations, bed: Bed) -> None:
    for fused in (True, False):
        for phase, kernels in bed.kernels(fused=fused).items():
            for key, seconds in kernels:
                found.kernels[phase][key].append(seconds)
    for phase in PHASES:
        found.wide_gemm[phase].append(bed.wide_gemm(phase))


def _collectives(found: Observations, bed: Bed) -> None:
    messages = {
        (op.kind, message_bytes(op))
        for variant in ("standard", "upper-bound")
        for phase in PHASES
        for op in ops_of(found.scenario, variant, phase)
        if op.stream == "comm"
    }
    for kind, size_bytes in sorted(messages):
        found.collectives[kind, size_bytes].append(time_collective(bed.comm, kind, size_bytes))
    sizes = {phase: message_bytes(all_reduces(found.scenario, phase)[0]) for phase in PHASES}
    alone = {phase: (size, found.collectives["all_reduce", size][-1]) for phase, size in sizes.items()}
    for phase, took in bed.beside(alone).items():
        found.beside[phase].append(took)


def _tables(bed: Bed, shares: Sequence[float]) -> dict[str, Curve]:
    """Latencies at which messages take these shares of standard's time, in prefill and decode alike."""
    bed.alone()
    times = [bed.alone() for _ in range(_ESTIMATES)]
    work = bed.scenario.workload
    alone_s = [median(column) for column in zip(*times, strict=True)]
    pass_s: dict[Phase, float] = {"prefill": alone_s[0], "decode": alone_s[1] / max(1, work.gen - 1)}
    named = {CALIBRATION_LINK: CALIBRATION_SHARE, **{f"{share:.0%}": share for share in shares}}
    return {name: _table(bed, pass_s, share) for name, share in named.items()}


def _emulation(curve: Curve) -> LatencyTable:
    return LatencyTable(list(zip(curve.size_bytes.tolist(), curve.seconds.tolist(), strict=True)))


def _table(bed: Bed, pass_s: Mapping[Phase, float], share: float) -> Curve:
    latencies = {}
    for phase in PHASES:
        messages = all_reduces(bed.scenario, phase)
        latencies[message_bytes(messages[0])] = pass_s[phase] * share / (1.0 - share) / len(messages)
    sizes = sorted(latencies)
    return Curve(size_bytes=np.array(sizes), seconds=np.array([latencies[size] for size in sizes]))
