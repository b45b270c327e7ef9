"""`calibrate run`: measures ops on this machine into a samples file, on every rank under torchrun."""

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder_sim.errors import MissingPackageError, RankError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.system.files import check_folder
from ladder_sim.system.progress import StatusLine
from ladder_sim.values import whole
from ladder_sim_calibration.fit.samples import Sample, SampleStore
from ladder_sim_calibration.measure.plan import Plan
from ladder_sim_calibration.measure.points import ops_of
from ladder_sim_calibration.options import add_passes, passes_of, words
from ladder_sim_runtime.comm.launch import launch

if TYPE_CHECKING:
    from ladder_sim_calibration.measure.ranks import Ranks

# workload of passes that a CPU runs within seconds
PASSES = {"batch": 1, "prompt": 64, "gen": 8}
_SUFFIXES = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_to(commands: Any) -> None:
    """Add the command to the commands of a parser."""
    run = commands.add_parser("run", help="measure ops on this machine into a samples file, or passes into a profile")
    into = run.add_mutually_exclusive_group(required=True)
    into.add_argument("--samples", type=Path, help="file to write, or to continue")
    into.add_argument("--out", type=Path, help="profile to write, of real passes on a CPU: of --ranks, over gloo")
    run.add_argument("--model", action="append", required=True, help="model whose shards are measured; repeatable")
    run.add_argument("--tp", action="append", type=int, help="tensor-parallel degrees of the shards; repeatable")
    run.add_argument("--budget", default="10m", help="time to spend, e.g. 90s, 10m (default %(default)s)")
    run.add_argument("--ranks", type=int, help="ranks to start on this machine, unless torchrun does")
    run.add_argument(
        "--overlap", action="store_true", help="also measure kernels while SMs are held next to them; on CPUs threads"
    )
    passes = run.add_argument_group("passes, with --out")
    passes.add_argument(
        "--variant", action="extend", type=words, help="wirings that are timed (default standard,ladder)"
    )
    add_passes(passes, PASSES)
    run.add_argument("--most", type=float, default=math.inf, help="limit on tokens, context, and KB moved or sent")
    run.set_defaults(run=_run)


def budget_s(text: str) -> float:
    """Return the seconds of ``90s``, ``10m`` or ``1h``."""
    try:
        seconds = float(text[:-1]) * _SUFFIXES[text[-1:]]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0.0 < seconds < 1e6:
        raise UsageError(f"--budget '{text}': must be a time above 0", hint="for example 90s, 10m or 1h")
    return seconds


def require_torch() -> None:
    """Raise MissingPackageError without torch: the other commands do without."""
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError("measurements need torch")


def undivided(models: Sequence[ModelSpec], degrees: Sequence[int]) -> list[str]:
    """Say why degrees do not divide models, a line for each such pair.

    Raises UsageError if no degree divides any of the models, or a degree is below 1.
    """
    if min(degrees) < 1:
        raise UsageError(f"--tp {min(degrees)}: must be 1 or more", hint="for example --tp 8")
    problems = [
        f"{model.name}: {problem}" for model in models for tp in degrees if (problem := model.partition_problem(tp))
    ]
    if len(problems) == len(models) * len(degrees):
        dividing = ", ".join(map(str, models[0].tp_degrees(models[0].heads)))
        raise UsageError("; ".join(problems), hint=f"{models[0].name} takes --tp {dividing}")
    return problems


def _measure_passes(options: argparse.Namespace) -> int:
    """Write a profile of real passes."""
    # imported here: samples need no simulator
    from ladder_sim.costs.profile_file import save_profile
    from ladder_sim_calibration.passes.observe import measure

    check_folder("--out", options.out)
    if len(options.model) > 1:
        raise UsageError("--out: a profile of passes is of one --model", hint="write one for each model")
    scenario = passes_of(options, options.model[0], PASSES, "ranks")
    save_profile(measure(scenario, options.variant or ("standard", "ladder")), options.out)
    print(options.out)
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.out:
        return _measure_passes(options)
    spend_s = budget_s(options.budget)
    if not options.most > 0.0:
        raise UsageError(f"--most {options.most:g}: must be above 0", hint="for example --most 4096")
    models, degrees = [catalog.model(name) for name in options.model], options.tp or [1]
    skipped = undivided(models, degrees)
    require_torch()
    if options.ranks is not None and "RANK" not in os.environ and whole(options.ranks, "--ranks", 1, 1024) > 1:
        return launch(options.argv, options.ranks, "ladder_sim_calibration")
    # imported here: `fit`, `show` and the others need no torch
    import torch

    from ladder_sim_calibration.measure.ranks import Ranks
    from ladder_sim_runtime.environment import environment, gpu_links, gpu_states, variables

    cuda = torch.cuda.is_available()
    if not cuda:
        # ranks share the CPU's cores
        torch.set_num_threads(1)
    ranks = Ranks()
    ops = ops_of(models, degrees, ranks.world, cuda=cuda, overlap=options.overlap, most=options.most)
    machine = environment()
    ranks.check_alike(machine)
    store = None
    if ranks.rank == 0:
        store = SampleStore(options.samples, machine, {"variables": variables(), "links": gpu_links()})
        store.append_states("before", gpu_states())
    for line in skipped if store else ():
        print(f"not measured: {line}", file=sys.stderr)
    if store and store.dropped:
        print(f"dropped an incomplete last line of {store.dropped} bytes", file=sys.stderr)
    try:
        take_samples(ops, store, ranks, time.monotonic() + spend_s)
    except RuntimeError as error:
        if ranks.size == 1:
            raise
        raise RankError(f"rank {ranks.rank}: {error}", hint="start the same command again to continue") from error
    if store:
        # now: a GPU cools while the ranks leave
        store.append_states("after", gpu_states())
    ranks.close()
    if store:
        print(options.samples)
    return 0


def take_samples(ops: Sequence[Sample], store: SampleStore | None, ranks: "Ranks", end_s: float) -> None:
    """Measure until the time is over; rank 0, which has the store, chooses the ops and writes the samples.

    All ranks compute every op, so that the node is as warm as in use.
    """
    from ladder_sim_calibration.measure.ops import measure

    plan, done = Plan(ops, store.samples if store else ()), ""
    with StatusLine(wanted=store is not None) as line:
        while choice := ranks.share(plan.next(end_s - time.monotonic()) if store else None):
            try:
                samples = measure(*choice, ranks)
            except RuntimeError as error:
                if store:
                    # the process ends: the next one leaves this op out
                    store.append(replace(choice[0], cause=str(error).partition("\n")[0]))
                raise
            for sample in samples:
                if store:
                    store.append(sample)
                    plan.add(sample)
            if store:
                done = f"{len(ops) - plan.unmeasured} of {len(ops)} ops, {len(store.samples)} samples"
                line.show(f"{done}, {max(0.0, end_s - time.monotonic()):.0f} s left")
    if done:
        print(done, file=sys.stderr)
