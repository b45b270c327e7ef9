"""`calibrate fit-stack`: solutions from many starting points, a bootstrap around the best, fits without some runs."""

import argparse
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.costs.profile import CalibrationProfile, FittedFigure, IntervalScale, StackFit, run_sizes
from ladder_sim.costs.profile_file import load_profile, save_profile, shipped_profiles
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.prediction import predict
from ladder_sim.report.console import show
from ladder_sim.system.files import check_folder
from ladder_sim.validation.dataset import PROTOCOLS, Configuration, Measurement, read_dataset
from ladder_sim.values import whole
from ladder_sim.wirings.names import NO_COMMUNICATION
from ladder_sim_calibration.options import add_created, profile_name
from ladder_sim_calibration.show import describe_stack_fit
from ladder_sim_calibration.stack_fit.problem import PRIORS, Groups, Problem, by_configuration

STARTS = 8
# of the starting points, in standard deviations of the priors
START_SPREAD = 0.8
DRAWS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The fitted profile, and how well it describes the runs."""

    profile: CalibrationProfile
    """The base, with the fitted figures."""
    left_out: tuple[str, ...]
    """Figures on which no run depends; they are not fitted."""
    log_errors: Floats
    """Predicted over measured, natural logarithm: of every run its decode step and prefill, or its throughput."""


def fit_stack(
    runs: Sequence[Measurement],
    base: CalibrationProfile,
    *,
    name: str,
    dataset: str,
    protocol: str = "",
    compared: Sequence[Measurement] = (),
    starts: int = STARTS,
    draws: int = DRAWS,
    seed: int = 0,
    workers: int | None = None,
    created: str,
) -> FitResult:
    """Fit `base`, measured tables of a cluster's GPU, to end-to-end runs of one stack there, as profile `name`.

    The profile stores the data set and the protocol, the rule by which its runs were chosen. `compared` are all runs of
    the data set, by default those of the fit: the profile says what they had, and those that the fit has not seen say
    how wide intervals must be outside of it. The solver has `starts` starting points, the bootstrap `draws` replicates,
    both drawn from `seed`; by default there is a worker per CPU. Raises UsageError if the runs are too few or too
    mixed, or the base is of another GPU.
    """
    if len(runs) < 2:
        raise UsageError(
            f"{len(runs)} runs: must be 2 or more", hint="start with standard and upper-bound at one batch"
        )
    problem = Problem(tuple(runs), base)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        generator, size = np.random.default_rng(seed), len(problem.figures)
        points = [np.zeros(size), *(START_SPREAD * generator.standard_normal(size) for _ in range(starts - 1))]
        solutions = pool.map(problem.solve_from, points)
        best = min(solutions, key=lambda solution: solution.cost)
        seeds = np.random.SeedSequence(seed).spawn(draws)
        replicates = np.stack(list(pool.map(problem.replicate, [best.at] * draws, seeds)))
        # every run, predicted by a fit without its TP degree and batch; the same without its TP degree
        other_batches, other_degrees = (
            unseen_runs(problem, groups, pool.map(partial(problem.solve_without, best.at, groups), set(groups)))
            if len(set(groups)) > 1
            else []
            for groups in (problem.groups, problem.degrees)
        )
    others = tuple(run for run in compared if run not in runs)
    if others:
        other_degrees = unseen_runs(Problem(others, base), [None] * len(others), [(None, best.at)])
    figures = problem.named(best.at)
    spread = np.log(problem.values(replicates)).std(axis=0, ddof=1)
    shipped = base.tables_of in shipped_profiles()
    resolved = {each: each.scenario() for each in {run.configuration for run in (*runs, *compared)}}
    every = list(resolved.values())
    sizes = list(map(run_sizes, every))
    unscaled = StackFit(
        stack=problem.scenario.stack.name,
        allreduce=problem.scenario.stack.allreduce,
        # a file with tables of its own is its own base
        base=base.tables_of if shipped else name,
        runs=dataset,
        protocol=protocol,
        rows=len(runs),
        models=tuple(sorted({resolved[run.configuration].model.name for run in runs})),
        tps=_degrees(runs),
        host_tps=_degrees(run for run in runs if not run.configuration.p2p),
        families=tuple(sorted({scenario.model.family for scenario in every})),
        nodes=tuple(sorted({scenario.group_nodes for scenario in every})),
        rewired_nodes=tuple(
            sorted(
                {
                    resolved[run.configuration].group_nodes
                    for run in (*runs, *compared)
                    if run.variant not in ("standard", NO_COMMUNICATION)
                }
            )
        ),
        dtypes=tuple(sorted({scenario.workload.dtype for scenario in every})),
        sizes={name: (min(each[name] for each in sizes), max(each[name] for each in sizes)) for name in sizes[0]},
        cost=best.cost,
        figures={
            figure: FittedFigure(
                value=value, default=problem.defaults[figure], prior_log_sd=PRIORS[figure], log_sd=float(log_sd)
            )
            for (figure, value), log_sd in zip(figures.items(), spread, strict=True)
        },
        draws=tuple(map(tuple, problem.values(replicates).tolist())),
        fitted_scale=IntervalScale(),
        other_scale=IntervalScale(),
    )
    fitted = replace(base, name=name, base=base.tables_of if shipped else "", created=created, stack_fit=unscaled)
    nominal = nominal_widths((*runs, *others), fitted)
    unseen = other_degrees or other_batches
    direct, through_host = ([each for each in unseen if each.run.configuration.p2p == p2p] for p2p in (True, False))
    scaled = replace(
        unscaled,
        fitted_scale=scale(other_batches, nominal),
        other_scale=scale(direct or unseen, nominal),
        # no surer than with peer-to-peer access
        host_scale=scale(direct, nominal).widest(scale(through_host, nominal)) if direct and through_host else None,
        left_out=mean_errors(unseen),
        left_out_models=tuple(sorted({each.run.configuration.model for each in unseen})),
    )
    return FitResult(
        profile=replace(fitted, stack_fit=scaled),
        left_out=problem.left_out,
        log_errors=problem.logs(best.at) - problem.measured,
    )


def _degrees(runs: Iterable[Measurement]) -> tuple[int, ...]:
    return tuple(sorted({run.configuration.tp for run in runs}))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRun:
    """One run, predicted by a fit without it."""

    run: Measurement
    """What was measured."""
    log_errors: Mapping[str, float]
    """Errors of its figures, in the logarithm, by the names of `IntervalScale`, as far as they were measured."""


def unseen_runs(problem: Problem, groups: Groups, without: Iterable[tuple[Hashable, Floats]]) -> list[UnseenRun]:
    """Return every run as predicted by the fit without its group."""
    runs = problem.runs
    errors: list[dict[str, float]] = [{} for _ in runs]
    for left_out, point in without:
        predicted = problem.predicted(point[np.newaxis])
        for row, run in enumerate(runs):
            if groups[row] != left_out:
                continue
            for name, figure in _FIGURES.items():
                measured = getattr(run, figure)
                if measured is not None:
                    errors[row][name] = float(np.log(predicted[figure][0, row] / measured))
    standard = {run.configuration: row for row, run in enumerate(runs) if run.variant == "standard"}
    for row, run in enumerate(runs):
        base = standard.get(run.configuration, row)
        if base != row:
            errors[row]["speedup"] = errors[row]["rate"] - errors[base]["rate"]
    return [UnseenRun(run=run, log_errors=each) for run, each in zip(runs, errors, strict=True)]


# by name of `IntervalScale`; speedups follow from rates
_FIGURES = {"rate": "tokens_per_s", "tpot": "tpot_s", "ttft": "ttft_s"}


def nominal_widths(
    runs: Sequence[Measurement], fitted: CalibrationProfile
) -> dict[tuple[Configuration, str], Mapping[str, float]]:
    """Return the half-widths of the runs' intervals before they are scaled, by the names of `IntervalScale`."""
    widths: dict[tuple[Configuration, str], Mapping[str, float]] = {}
    for configuration, rows in by_configuration(runs).items():
        variants = [runs[row].variant for row in rows]
        predictions = predict(configuration.scenario(), variants, profile=fitted, ignore_memory=True)
        for name, prediction in predictions.items():
            rate, speedup = prediction.tokens_per_s.log_width, prediction.speedup.log_width
            widths[configuration, name] = {"rate": rate, "speedup": speedup, "tpot": rate, "ttft": rate}
    return widths


def scale(
    unseen: Sequence[UnseenRun], nominal: Mapping[tuple[Configuration, str], Mapping[str, float]]
) -> IntervalScale:
    """Return the factor that makes intervals hold 90 % of the unseen runs (split conformal prediction)."""
    scores: dict[str, list[float]] = defaultdict(list)
    for prediction in unseen:
        widths = nominal[prediction.run.configuration, prediction.run.variant]
        for name, error in prediction.log_errors.items():
            scores[name].append(abs(error) / widths[name])
    return IntervalScale(**{name: conformal(each) for name, each in scores.items()})


def mean_errors(unseen: Sequence[UnseenRun]) -> dict[str, float]:
    """Return the mean absolute error of each figure, as a fraction, by the names of `IntervalScale`."""
    errors: dict[str, list[float]] = defaultdict(list)
    for prediction in unseen:
        for name, error in prediction.log_errors.items():
            errors[name].append(abs(math.expm1(error)))
    return {name: statistics.fmean(each) for name, each in errors.items()}


def conformal(scores: Sequence[float]) -> float:
    """Return the score that a further one stays below with a probability of 90 %; 1 if there are too few."""
    rank = int(np.ceil(0.9 * (len(scores) + 1)))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else 1.0


def add_to(commands: Any) -> None:
    """Add `fit-stack` to the command line."""
    fit = commands.add_parser("fit-stack", help="fit a stack's figures to a few of its end-to-end runs")
    fit.add_argument(
        "--runs", required=True, help="CSV file of runs, as `validate` reads it, or a shipped data set's name"
    )
    fit.add_argument("--base", required=True, help="measured profile of the GPU: a shipped one's name, or a file")
    fit.add_argument("--out", type=Path, required=True, help="profile to write")
    fit.add_argument("--protocol", choices=PROTOCOLS, help="rows that may be fitted; default: all")
    fit.add_argument("--draws", type=int, default=DRAWS, help="bootstrap replicates (default %(default)s)")
    fit.add_argument("--seed", type=int, default=0, help="of starting points and replicates (default %(default)s)")
    add_created(fit)
    fit.set_defaults(run=_fit_stack)


def _fit_stack(options: argparse.Namespace) -> None:
    check_folder("--out", options.out)
    data = read_dataset(options.runs)
    runs = data.measurements
    if options.protocol:
        runs = tuple(filter(PROTOCOLS[options.protocol].fits, runs))
    draws, seed = whole(options.draws, "--draws", 2, 100_000), whole(options.seed, "--seed", 0, 2**32 - 1)
    fit = fit_stack(
        runs,
        load_profile(options.base),
        name=profile_name(options.out),
        dataset=data.name,
        protocol=options.protocol or "",
        compared=data.measurements,
        draws=draws,
        seed=seed,
        created=options.created,
    )
    save_profile(fit.profile, options.out)
    if fit.profile.stack_fit:
        show(describe_stack_fit(fit.profile.stack_fit), sys.stderr)
    for name in fit.left_out:
        print(f"not fitted: {name}: none of these runs depends on it", file=sys.stderr)
    errors = np.expm1(fit.log_errors)
    mean, largest = np.abs(errors).mean(), np.abs(errors).max()
    print(f"error of the fitted runs' times: {mean:.1%} on average, {largest:.1%} at most", file=sys.stderr)
    print(options.out)
