"""The fit: solutions from many starting points, a bootstrap around the best, and runs left out of it."""

import datetime
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np

from calibration.stack_fit.problem import PRIORS, Array, Problem
from calibration.stack_fit.unseen import UnseenRun, nominal_widths, scale, unseen_runs
from ladder_sim.costs.profile import CalibrationProfile, FittedFigure, IntervalScale, StackFit
from ladder_sim.costs.profile_file import shipped_profiles
from ladder_sim.validation.dataset import Measurement

STARTS = 8
# of the starting points, in standard deviations of the priors
START_SPREAD = 0.8
DRAWS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a fit found, beside the profile."""

    profile: CalibrationProfile
    """The base, with the fitted figures."""
    left_out: tuple[str, ...]
    """Figures that no run depends on: not fitted."""
    log_errors: Array
    """Predicted over measured throughput, natural logarithm, by run."""
    near: tuple[UnseenRun, ...]
    """Every run, predicted by a fit that had not seen its TP degree and batch together."""
    beyond: tuple[UnseenRun, ...]
    """The same for its TP degree; empty where there is but one."""


def fit_stack(
    runs: Sequence[Measurement],
    base: CalibrationProfile,
    *,
    name: str,
    dataset: str,
    protocol: str = "",
    starts: int = STARTS,
    draws: int = DRAWS,
    seed: int = 0,
    workers: int | None = None,
    created: str | None = None,
) -> Fit:
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
        Where the runs come from, and the rule that chose them; kept in the profile.
    starts
        Points that the solver starts from.
    draws
        Bootstrap replicates.
    seed
        Of starting points and replicates.
    workers
        Processes; by default one per CPU.
    created
        ISO date; by default today.

    Raises
    ------
    UsageError
        The runs are too few or too mixed, or the base is of another GPU.
    """
    problem = Problem(tuple(runs), base)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        best = min(pool.map(problem.solve_from, _starting_points(problem, starts, seed)), key=lambda one: one.cost)
        seeds = np.random.SeedSequence(seed).spawn(draws)
        replicates = np.stack(list(pool.map(problem.replicate, [best.at] * draws, seeds)))
        near, beyond = (
            unseen_runs(problem, fold, pool.map(partial(problem.solve_without, best.at, fold), dict.fromkeys(fold)))
            for fold in (problem.groups, problem.degrees)
        )
    figures = problem.named(best.at)
    spread = np.log(problem.values(replicates)).std(axis=0, ddof=1)
    found = StackFit(
        stack=problem.scenario.stack.name,
        base=base.tables_of,
        runs=dataset,
        protocol=protocol,
        rows=len(runs),
        models=tuple(sorted({run.configuration.scenario().model.name for run in runs})),
        tps=_degrees(runs),
        host_tps=_degrees(run for run in runs if not run.configuration.p2p),
        cost=best.cost,
        figures={
            figure: FittedFigure(
                value=value, default=problem.defaults[figure], prior_log_sd=PRIORS[figure], log_sd=float(log_sd)
            )
            for (figure, value), log_sd in zip(figures.items(), spread, strict=True)
        },
        draws=problem.values(replicates),
        fitted_scale=IntervalScale(),
        other_scale=IntervalScale(),
    )
    shipped = base.tables_of in shipped_profiles()
    fitted = replace(
        base,
        name=name,
        base=base.tables_of if shipped else "",
        created=created or datetime.date.today().isoformat(),
        stack_fit=found,
    )
    nominal = nominal_widths(runs, fitted)
    scales = {"fitted_scale": scale(near, nominal), "other_scale": scale(beyond or near, nominal)}
    return Fit(
        profile=replace(fitted, stack_fit=replace(found, **scales)),
        left_out=problem.left_out,
        log_errors=problem.log_rates(best.at) - problem.measured,
        near=near,
        beyond=beyond,
    )


def _starting_points(problem: Problem, starts: int, seed: int) -> list[Array]:
    chance = np.random.default_rng(seed)
    size = len(problem.figures)
    return [np.zeros(size), *(START_SPREAD * chance.standard_normal(size) for _ in range(starts - 1))]


def _degrees(runs: Iterable[Measurement]) -> tuple[int, ...]:
    return tuple(sorted({run.configuration.tp for run in runs}))
