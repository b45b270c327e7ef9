"""The fit: solutions from many starting points, a bootstrap around the best one, and fits without some runs."""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np

from ladder_sim.confidence.errors import Widths
from ladder_sim.costs.profile import CalibrationProfile, FittedFigure, IntervalScale, StackFit, run_sizes
from ladder_sim.costs.profile_file import shipped_profiles
from ladder_sim.des.shared import Floats
from ladder_sim.prediction import predict
from ladder_sim.validation.dataset import Configuration, Measurement
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
    """Predicted over measured throughput, natural logarithm, by run."""


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
    """Fit `base` to end-to-end runs.

    Parameters
    ----------
    runs
        Of one stack on one cluster.
    base
        Measured tables of that cluster's GPU.
    name
        Of the new profile.
    dataset, protocol
        Where the runs come from, and the rule by which they were chosen; stored in the profile.
    compared
        All runs of the data set, whose sizes are stored; by default those of the fit.
    starts
        Starting points of the solver.
    draws
        Bootstrap replicates.
    seed
        Of starting points and replicates.
    workers
        Processes; by default one per CPU.
    created
        ISO date.

    Raises
    ------
    UsageError
        The runs are too few or too mixed, or the base is of another GPU.
    """
    problem = Problem(tuple(runs), base)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        solutions = pool.map(problem.solve_from, _starting_points(problem, starts, seed))
        best = min(solutions, key=lambda solution: solution.cost)
        seeds = np.random.SeedSequence(seed).spawn(draws)
        replicates = np.stack(list(pool.map(problem.replicate, [best.at] * draws, seeds)))
        # every run, predicted by a fit without its TP degree and batch; the same without its TP degree
        other_batches, other_degrees = (
            unseen_runs(problem, groups, pool.map(partial(problem.solve_without, best.at, groups), set(groups)))
            for groups in (problem.groups, problem.degrees)
        )
    figures = problem.named(best.at)
    spread = np.log(problem.values(replicates)).std(axis=0, ddof=1)
    shipped = base.tables_of in shipped_profiles()
    scenarios = [run.configuration.scenario() for run in runs]
    sizes = [run_sizes(configuration.scenario()) for configuration in {run.configuration for run in compared or runs}]
    unscaled = StackFit(
        stack=problem.scenario.stack.name,
        allreduce=problem.scenario.stack.allreduce,
        # a file with tables of its own is its own base
        base=base.tables_of if shipped else name,
        runs=dataset,
        protocol=protocol,
        rows=len(runs),
        models=tuple(sorted({scenario.model.name for scenario in scenarios})),
        tps=_degrees(runs),
        host_tps=_degrees(run for run in runs if not run.configuration.p2p),
        families=tuple(sorted({scenario.model.family for scenario in scenarios})),
        nodes=tuple(sorted({scenario.group_nodes for scenario in scenarios})),
        dtypes=tuple(sorted({scenario.workload.dtype for scenario in scenarios})),
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
    nominal = nominal_widths(runs, fitted)
    scaled = replace(
        unscaled, fitted_scale=scale(other_batches, nominal), other_scale=scale(other_degrees or other_batches, nominal)
    )
    return FitResult(
        profile=replace(fitted, stack_fit=scaled),
        left_out=problem.left_out,
        log_errors=problem.log_rates(best.at) - problem.measured,
    )


def _starting_points(problem: Problem, starts: int, seed: int) -> list[Floats]:
    generator = np.random.default_rng(seed)
    size = len(problem.figures)
    return [np.zeros(size), *(START_SPREAD * generator.standard_normal(size) for _ in range(starts - 1))]


def _degrees(runs: Iterable[Measurement]) -> tuple[int, ...]:
    return tuple(sorted({run.configuration.tp for run in runs}))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRun:
    """One run, predicted by a fit without it."""

    run: Measurement
    """What was measured."""
    rate_log_error: float
    """Error of the predicted throughput, in the logarithm."""
    speedup_log_error: float | None
    """Error of the speedup over standard, in the logarithm; None for standard, or if standard did not run."""


def unseen_runs(problem: Problem, groups: Groups, without: Iterable[tuple[Hashable, Floats]]) -> tuple[UnseenRun, ...]:
    """Return every run as predicted by the fit without its group; empty if there is only one group."""
    if len(set(groups)) == 1:
        return ()
    errors = np.empty(len(problem.runs))
    for left_out, point in without:
        rows = [row for row, group in enumerate(groups) if group == left_out]
        errors[rows] = (problem.log_rates(point) - problem.measured)[rows]
    standard = {
        run.configuration: error
        for run, error in zip(problem.runs, errors.tolist(), strict=True)
        if run.variant == "standard"
    }
    return tuple(
        UnseenRun(
            run=run,
            rate_log_error=error,
            speedup_log_error=error - standard[run.configuration]
            if run.variant != "standard" and run.configuration in standard
            else None,
        )
        for run, error in zip(problem.runs, errors.tolist(), strict=True)
    )


def nominal_widths(runs: Sequence[Measurement], fitted: CalibrationProfile) -> dict[tuple[Configuration, str], Widths]:
    """Return the half-widths of the runs' intervals before they are scaled."""
    widths = {}
    for configuration, rows in by_configuration(runs).items():
        variants = [runs[row].variant for row in rows]
        predictions = predict(configuration.scenario(), variants, profile=fitted, ignore_memory=True)
        for name, prediction in predictions.items():
            rate, speedup = prediction.tokens_per_s.log_width, prediction.speedup.log_width
            widths[configuration, name] = Widths(rate=rate, speedup=speedup, ttft=rate)
    return widths


def scale(unseen: Sequence[UnseenRun], nominal: Mapping[tuple[Configuration, str], Widths]) -> IntervalScale:
    """Return the factor that makes intervals hold 90 % of the unseen runs (split conformal prediction)."""
    rates, speedups = [], []
    for prediction in unseen:
        widths = nominal[prediction.run.configuration, prediction.run.variant]
        rates.append(abs(prediction.rate_log_error) / widths.rate)
        if prediction.speedup_log_error is not None:
            speedups.append(abs(prediction.speedup_log_error) / widths.speedup)
    return IntervalScale(rate=conformal(rates), speedup=conformal(speedups))


def conformal(scores: Sequence[float]) -> float:
    """Return the score that a further one stays below with a probability of 90 %; 1 if there are too few."""
    rank = int(np.ceil(0.9 * (len(scores) + 1)))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else 1.0
