"""Observes passes: what a profile is fitted to and requests take turns, so that drift affects both equally."""

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import partial
from itertools import count
from statistics import fmean, median

import numpy as np
import torch

from ladder_sim.costs.in_place import OpKey
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.graph.pass_kernels import pass_ops
from ladder_sim.kernels import Phase
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import ResidualAdd
from ladder_sim.system.progress import Progress
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim.wirings.names import canonical_names
from ladder_sim_calibration.passes.fit import profile_of, times_of
from ladder_sim_calibration.passes.observations import (
    PHASES,
    Observations,
    OnLink,
    all_reduces,
    kernels_of,
    message_bytes,
    ops_of,
    scenario_of,
    steps,
)
from ladder_sim_calibration.passes.timers import OverlapTime, message, time_collective, time_kernels, time_overlap
from ladder_sim_runtime.assemble import assemble
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.comm.emulate import EmulatedLink, LatencyTable
from ladder_sim_runtime.comm.launch import on_ranks
from ladder_sim_runtime.comm.process_group import Degrees
from ladder_sim_runtime.comm.rendezvous import connect
from ladder_sim_runtime.config import CommConfig, EngineConfig, ModelConfig
from ladder_sim_runtime.environment import environment
from ladder_sim_runtime.runs import RequestTimes, facts, require_ranks

# what CPUs compute in
DTYPE = torch.float32
# of weights and prompts
SEED = 0
# from the issue of one message during a pass to the next, in multiples of its time alone
MESSAGE_DISTANCE = 1.5


class Testbed:
    """One rank's shard of a scenario's model, with its prompt and its cache; `comm` connects the ranks."""

    # not a test, whatever its name suggests to pytest
    __test__ = False

    def __init__(self, scenario: Scenario, comm: Communicator) -> None:
        self.scenario, self.comm = scenario, comm
        work = scenario.workload
        self._generator = assemble(
            ModelConfig.of(scenario.model),
            _engine(scenario),
            comm,
            device=torch.device("cpu"),
            dtype=DTYPE,
            batch=work.batch,
            prompt=work.prompt,
            gen=work.gen,
            seed=SEED,
        )

    def request(self, variant: str, comm: Communicator) -> RequestTimes:
        """Time one request over `comm`, on the slowest rank."""
        wiring = self._set_up(scenario_of(self.scenario, variant), comm)
        self.comm.barrier()
        start_s = time.perf_counter()
        self._generator.prefill(wiring)
        first_s = time.perf_counter()
        for step in range(1, self.scenario.workload.gen):
            self._generator.decode(wiring, step)
        own = torch.tensor([first_s - start_s, time.perf_counter() - first_s], dtype=torch.float64)
        return RequestTimes(*self.comm.slowest(own).tolist())

    def compute_only(self) -> RequestTimes:
        """Time one request without communication."""
        return self.request("upper-bound", Communicator(self.comm.size))

    def kernels(self, scenario: Scenario) -> Mapping[Phase, list[tuple[OpKey, float]]]:
        """Time every kernel of a request of a scenario without communication."""
        wiring = self._set_up(scenario, Communicator(self.comm.size))
        self.comm.barrier()
        return {
            phase: [
                kernel
                for step, run in enumerate(self._passes(wiring, phase), start=int(phase == "decode"))
                for kernel in time_kernels(run, pass_ops(scenario, phase, scenario.workload.prompt + step))
            ]
            for phase in PHASES
        }

    def overlap(self, phase: Phase, size_bytes: float, message_s: float) -> OverlapTime:
        """Time all-reduces and a pass without communication at the same time, on the slowest rank.

        The pass is of a `phase`; an all-reduce of `size_bytes` takes `message_s` alone.
        """
        phase_s = self.compute_only()[PHASES.index(phase)]
        scenario = scenario_of(self.scenario, "upper-bound")
        wiring = self._set_up(scenario, Communicator(self.comm.size))
        # decode steps go on from a prefill
        self._generator.prefill(wiring)
        passes = self._passes(wiring, phase)
        alone_s = phase_s / len(passes)
        kernels = sum(op.stream == "compute" for op in pass_ops(scenario, phase, scenario.workload.prompt))
        distance = math.ceil(MESSAGE_DISTANCE * message_s / (alone_s / kernels))
        due = range(0, max(1, kernels - distance + 1), distance)
        each = [time_overlap(run, alone_s, self.comm, message(size_bytes), due) for run in passes]
        own = torch.tensor([fmean(column) for column in zip(*each, strict=True)], dtype=torch.float64)
        return OverlapTime(*self.comm.slowest(own).tolist())

    def _set_up(self, scenario: Scenario, comm: Communicator) -> Wiring:
        """Take over a scenario's engine and a communicator; returns its wiring."""
        model, spec = self._generator.model, scenario.model
        model.engine, model.comm = _engine(scenario), comm
        return lay_out(scenario.variant, spec.layers, spec.ladder_layers)

    def _passes(self, wiring: Wiring, phase: Phase) -> list[Callable[[], None]]:
        """Return the forward passes of a request in one phase, to be called in order."""
        if phase == "prefill":
            return [partial(self._generator.prefill, wiring)]
        return [partial(self._generator.decode, wiring, step) for step in range(1, self.scenario.workload.gen)]


def _engine(scenario: Scenario) -> EngineConfig:
    stack = scenario.stack
    same = {field.name: getattr(stack, field.name) for field in fields(EngineConfig) if hasattr(stack, field.name)}
    split = {"sharded_lm_head": stack.vocab_parallel, "sharded_embedding": stack.vocab_parallel}
    return EngineConfig(**{**same, **split, "techniques": scenario.techniques.chosen})


# the emulated link whose requests of standard a profile is fitted to, and the part of standard's time that messages
# take on it
CALIBRATION_LINK, CALIBRATION_SHARE = "calibration", 0.35
REAL_LINK = "gloo"
# per round, of the two kinds of request that every prediction is based on
REPEATS = 4
# requests that determine how long messages of a share have to be
ESTIMATES = 3

# something to measure once per round
Task = Callable[[], None]
# kernels of requests
Kernels = Set[tuple[Phase, OpKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is observed."""

    scenario: Scenario
    """Model, workload, stack and tensor-parallel degree."""
    variants: tuple[str, ...]
    """Variants whose kernels and messages are timed, as `OnLink` names them."""
    runs: tuple[str, ...]
    """Variants whose requests run."""
    shares: tuple[float, ...] = ()
    """Emulated links: parts of standard's time that messages take."""
    rounds: int
    """Requests of each of `runs` on each link."""
    threads: int = 1
    """CPU threads of each rank."""
    links: CommConfig
    """Backend, "emulate" or "gloo"."""
    profile: CalibrationProfile | None = None
    """Measured before on this machine, instead of anew."""

    def __post_init__(self) -> None:
        if self.scenario.workload.prompt < 2:
            raise UsageError(
                f"prompt is {self.scenario.workload.prompt}: must be 2 or more",
                hint="prefill and decode are distinguished by their message sizes",
            )

    def environment(self) -> dict[str, str]:
        """Return the fields that times depend on: the machine, and what runs on it."""
        backend, machine = self.links.backend, environment()
        own = facts(self.scenario, machine, backend=backend, dtype="fp32", threads=self.threads)
        return own | {"variants": ",".join(self.variants)}


def observe(experiment: Experiment) -> Observations | None:
    """Run passes on ranks of this machine, and time them; None on all ranks but the first, where torchrun began them.

    Raises MissingPackageError, InfeasibleError, RankError as `ladder_sim_runtime.runs.bench`.
    """
    tp, links = experiment.scenario.plan.tp, experiment.links
    if links.backend == "emulate":
        return _observe(experiment, Communicator(tp))
    if "RANK" in os.environ:
        comm = connect(links, Degrees(tp))
        observed = _observe(experiment, comm)
        return observed if comm.rank == 0 else None
    require_ranks(tp)
    return on_ranks(tp, observe, experiment)


def _observe(experiment: Experiment, comm: Communicator) -> Observations:
    """Run every variant on every link, and what a profile is fitted to, in turns.

    Links are emulated for a single rank. With a profile, only the requests are measured.
    """
    torch.set_num_threads(experiment.threads)
    testbed = Testbed(experiment.scenario, comm)
    emulated: Mapping[str, Curve] = {}
    links: dict[str, Communicator] = {REAL_LINK: comm} if comm.name == REAL_LINK else {}
    if not links:
        emulated = _emulated_links(testbed, experiment)
        for name, curve in emulated.items():
            latencies = LatencyTable(list(zip(curve.size_bytes.tolist(), curve.seconds.tolist(), strict=True)))
            links[name] = EmulatedLink(comm.size, latencies)
    observed = Observations(
        scenario=experiment.scenario,
        links=tuple(links),
        calibration_link=CALIBRATION_LINK if emulated else REAL_LINK,
        emulated=emulated,
        environment=experiment.environment(),
    )
    runs = [OnLink(link, variant) for link in links for variant in experiment.runs if link != CALIBRATION_LINK]
    requests: list[Task] = [partial(_request, observed, testbed, run, links[run.link]) for run in runs]
    shuffle = random.Random(0).shuffle

    def in_turn() -> None:
        # one after the other, so that what else the machine does in a round changes their ratio little; in any order,
        # for a request is slower after one that mostly waited than after one that computed
        shuffle(requests)
        for request in requests:
            request()

    tasks = [in_turn]
    if experiment.profile is None:
        tasks += _calibration_tasks(observed, testbed, links, experiment.variants, runs)
    # warm up
    for variant in ("standard", *experiment.runs):
        testbed.request(variant, next(iter(links.values())))
    done = count(1)
    with Progress(experiment.rounds * len(tasks), "measurements", wanted=comm.rank == 0) as progress:
        for _ in range(experiment.rounds):
            shuffle(tasks)
            for task in tasks:
                task()
                progress(next(done))
            observed.load.append(os.getloadavg()[0])
    return observed


def _calibration_tasks(
    observed: Observations,
    testbed: Testbed,
    links: Mapping[str, Communicator],
    variants: Sequence[str],
    runs: Sequence[OnLink],
) -> list[Task]:
    def compute_only() -> None:
        observed.compute_only.append(testbed.compute_only())

    timed = list(_timed_alone(observed.scenario, variants))
    tasks: list[Task] = [*REPEATS * [compute_only], *(partial(_kernels, observed, testbed, *each) for each in timed)]
    if not observed.emulated:
        tasks.append(partial(_collectives, observed, testbed, variants))
    run = OnLink(observed.calibration_link, "standard")
    # requests of one wiring as many as of another: a speedup is of a round
    repeats = 0 if run in runs else REPEATS
    return [*tasks, *repeats * [partial(_request, observed, testbed, run, links[run.link])]]


def _request(observed: Observations, testbed: Testbed, run: OnLink, comm: Communicator) -> None:
    observed.requests[run].append(testbed.request(run.variant, comm))


def _timed_alone(scenario: Scenario, variants: Sequence[str]) -> "Iterator[tuple[Scenario, Kernels]]":
    """Yield requests without communication whose kernels are timed, and the kernels that no earlier one has.

    All of the upper bound's, with residual adds fused into norms and without: wirings differ in whether adds can be
    fused. Then those of variants that have kernels of their own.
    """
    bound, known = scenario_of(scenario, "upper-bound"), set[tuple[Phase, OpKey]]()
    adds: tuple[ResidualAdd, ...] = ("fused", "apart")
    for add in adds:
        each = bound.having(stack=replace(scenario.stack, residual_add=add))
        yield each, kernels_of(each)
        known |= kernels_of(each)
    for variant in variants:
        each = scenario_of(scenario, variant)
        if lacking := kernels_of(each) - known:
            yield each, lacking
            known |= lacking


def _kernels(observed: Observations, testbed: Testbed, scenario: Scenario, wanted: Kernels) -> None:
    for phase, kernels in testbed.kernels(scenario).items():
        for key, seconds in kernels:
            if (phase, key) in wanted:
                observed.kernels[phase][key].append(seconds)


def _collectives(observed: Observations, testbed: Testbed, variants: Sequence[str]) -> None:
    messages = {
        (op.kind, message_bytes(op), phase)
        for variant in ("standard", "upper-bound", *variants)
        for phase in PHASES
        if steps(observed.scenario, phase)
        for op in ops_of(observed.scenario, variant, phase)
        if op.stream == "comm"
    }
    for kind, size_bytes, phase in sorted(messages):
        seconds = time_collective(testbed.comm, kind, size_bytes)
        observed.collectives[kind, size_bytes].append(seconds)
        if kind == "all_reduce":
            observed.overlaps[size_bytes].append(testbed.overlap(phase, size_bytes, seconds))


def _emulated_links(testbed: Testbed, experiment: Experiment) -> dict[str, Curve]:
    """Return the links on which messages take given shares of standard's time, in prefill and decode alike."""
    named = {CALIBRATION_LINK: CALIBRATION_SHARE, **{f"{share:.0%}": share for share in experiment.shares}}
    if experiment.profile is None:
        # warm up
        testbed.compute_only()
        times = [testbed.compute_only() for _ in range(ESTIMATES)]
        prefill_s, decode_s = (median(column) for column in zip(*times, strict=True))
    else:
        del named[CALIBRATION_LINK]
        prefill_s, decode_s = times_of(experiment.scenario, "upper-bound", experiment.profile)
    pass_s: dict[Phase, float] = {"prefill": prefill_s, "decode": decode_s / max(1, testbed.scenario.workload.gen - 1)}
    return {name: _all_reduce(testbed.scenario, pass_s, share) for name, share in named.items()}


def _all_reduce(scenario: Scenario, pass_s: Mapping[Phase, float], share: float) -> Curve:
    latencies_s: dict[float, float] = {}
    for phase in PHASES:
        messages = all_reduces(scenario, phase)
        each_s = pass_s[phase] * share / (1.0 - share) / len(messages)
        latencies_s |= {message_bytes(op): each_s for op in messages}
    sizes = sorted(latencies_s)
    return Curve(size_bytes=np.array(sizes), seconds=np.array([latencies_s[size] for size in sizes]))


# rounds of measurements whose medians are taken
ROUNDS = 9


def measure(
    scenario: Scenario, variants: Sequence[str] = ("standard", "ladder"), *, rounds: int = ROUNDS, threads: int = 1
) -> CalibrationProfile:
    """Time passes of a scenario on ranks of this machine, over gloo, and fit a profile to them.

    Raises MissingPackageError if torch is not installed; InfeasibleError if there are fewer cores than ranks; RankError
    if a rank failed; it has printed why.

    Parameters
    ----------
    scenario
        Model, workload and stack; its tensor-parallel degree is the number of ranks.
    variants
        Wirings whose kernels and messages are timed. Requests of standard run too, which show what waiting costs.
    rounds
        Measurements of each kind, in turns.
    threads
        CPU threads of each rank.

    Returns
    -------
    CalibrationProfile
        For the cluster "this-machine"; `ladder_sim.costs.profile_file.save_profile` writes it.
    """
    if scenario.plan.tp < 2:
        raise UsageError("tp is 1: a single rank sends no messages", hint="measure tp 2 or more")
    require_ranks(scenario.plan.tp)
    experiment = Experiment(
        scenario=scenario,
        variants=canonical_names(variants),
        runs=(),
        rounds=rounds,
        threads=threads,
        links=CommConfig(backend="gloo"),
    )
    observed = observe(experiment)
    if observed is None:
        raise UsageError(
            "this process is one of several ranks", hint="measure starts ranks by itself: leave out torchrun"
        )
    return profile_of(observed, created=date.today().isoformat())
