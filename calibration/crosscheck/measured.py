"""Measures a cross-check: calibration and the runs to be predicted take turns, so that drift meets both alike."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from calibration.crosscheck.observations import PHASES, Observations, Run, message_bytes, ops_of
from calibration.measure.bed import Bed
from calibration.measure.links import time_collective
from ladder_sim.costs.table import Curve
from ladder_sim.graph.ops import Phase
from ladder_sim.specs.scenario import Scenario
from runtime.comm.base import Communicator
from runtime.comm.emulate import EmulatedLink
from runtime.comm.table import LatencyTable

CALIBRATION_LINK = "calibration"
CALIBRATION_SHARE = 0.35
# of standard's time that messages take on the link that is calibrated on
REAL_LINK = "gloo"
_ESTIMATES = 3
# requests that say how long messages of a share have to be

Points = list[tuple[float, float]]
# message bytes and seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    scenario: Scenario
    # model, workload, stack and tensor-parallel degree
    variants: tuple[str, ...]
    # wirings to predict and to run
    shares: tuple[float, ...]
    # emulated links: parts of standard's time that messages take
    rounds: int
    # requests of each variant on each link
    threads: int
    # CPU threads of each rank


def measure(plan: Plan, comm: Communicator) -> Observations:
    """Run every variant on every link, and what predictions are calibrated on, in turns.

    Parameters
    ----------
    plan
        What to measure.
    comm
        Real ranks; of one that is alone, links are emulated.
    """
    bed = Bed(plan.scenario, comm, plan.threads)
    emulated = comm.name != REAL_LINK
    tables = _tables(bed, plan.shares) if emulated else {}
    links: dict[str, Communicator] = {REAL_LINK: comm}
    if emulated:
        links = {name: EmulatedLink(comm.size, LatencyTable(points)) for name, points in tables.items()}
    found = Observations(
        scenario=plan.scenario,
        tables={name: Curve(size_bytes=np.array(p).T[0], seconds=np.array(p).T[1]) for name, p in tables.items()},
        seen={name: name in (CALIBRATION_LINK, REAL_LINK) for name in links},
    )
    runs = [Run(link, variant) for link in links for variant in plan.variants if link != CALIBRATION_LINK]
    tasks: list[Callable[[], None]] = [partial(_request, found, bed, run, links[run.link]) for run in runs]
    if emulated:
        tasks.append(partial(_request, found, bed, Run(CALIBRATION_LINK, "standard"), links[CALIBRATION_LINK]))
    tasks.append(partial(_calibrate, found, bed))
    if not emulated:
        tasks.append(partial(_collectives, found, comm))
    for variant in plan.variants:
        bed.request(variant, next(iter(links.values())))
    for number in range(plan.rounds):
        turn = number % len(tasks)
        for task in tasks[turn:] + tasks[:turn]:
            task()
        found.load.append(os.getloadavg()[0])
        if comm.rank == 0:
            print(f"\rround {number + 1} of {plan.rounds}", end="", file=sys.stderr, flush=True)
    if comm.rank == 0:
        print(file=sys.stderr)
    return found


def _request(found: Observations, bed: Bed, run: Run, comm: Communicator) -> None:
    found.requests[run].append(bed.request(run.variant, comm))


def _calibrate(found: Observations, bed: Bed) -> None:
    found.alone.append(bed.alone())
    for fused in (True, False):
        for phase, kernels in bed.kernels(fused=fused).items():
            for key, seconds in kernels:
                found.kernels[phase][key].append(seconds)
    for phase in PHASES:
        found.wide_gemm[phase].append(bed.wide_gemm(phase))


def _collectives(found: Observations, comm: Communicator) -> None:
    messages = {
        (op.kind, message_bytes(op))
        for variant in ("standard", "upper-bound")
        for phase in PHASES
        for op in ops_of(found.scenario, variant, phase)
        if op.stream == "comm"
    }
    for kind, size_bytes in sorted(messages):
        took = time_collective(comm, kind, size_bytes)
        found.collectives[kind, size_bytes].append(took.seconds)
        if kind == "all_reduce":
            found.core_share[size_bytes].append(took.core_share)


def _tables(bed: Bed, shares: Sequence[float]) -> dict[str, Points]:
    """Latencies at which messages take these shares of standard's time, in prefill and decode alike."""
    bed.alone()
    times = [bed.alone() for _ in range(_ESTIMATES)]
    work = bed.scenario.workload
    alone_s = [median(column) for column in zip(*times, strict=True)]
    pass_s: dict[Phase, float] = {"prefill": alone_s[0], "decode": alone_s[1] / max(1, work.gen - 1)}
    named = {CALIBRATION_LINK: CALIBRATION_SHARE, **{f"{share:.0%}": share for share in shares}}
    return {name: sorted(_points(bed, pass_s, share)) for name, share in named.items()}


def _points(bed: Bed, pass_s: Mapping[Phase, float], share: float) -> Iterator[tuple[float, float]]:
    for phase in PHASES:
        messages = [op for op in ops_of(bed.scenario, "standard", phase) if op.kind == "all_reduce"]
        yield message_bytes(messages[0]), pass_s[phase] * share / (1.0 - share) / len(messages)
