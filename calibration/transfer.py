"""Fits the figures of an inference stack that microbenchmarks cannot see to a few of its end-to-end runs.

Robust least squares on the logarithm of the throughput. Runs of one TP degree and batch share an error, so that compute
misfit does not leak into the all-reduce; each figure has a prior from physics, with the catalog's value as its median.
The objective has several minima: it is solved from many points, and the solution of least cost is taken. A bootstrap
says how far each figure is known, and runs left out of the fit how far its intervals are to be trusted.
"""

import datetime
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import least_squares

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile, shipped_profiles
from ladder_sim.costs.transfer import FittedFigure, IntervalScale, Transfer
from ladder_sim.errors import UsageError
from ladder_sim.intervals import ROW_LOG_SD, SHARED_LOG_SD, Widths
from ladder_sim.prediction import predict
from ladder_sim.requests import simulate_requests
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.dataset import Configuration, Measurement

Array = NDArray[np.float64]

PRIORS: Mapping[str, float] = {
    "stack.gemv_factor": 0.1,
    "stack.gemm_factor": 0.05,
    "stack.prompt_factor": 0.15,
    "stack.attention_factor": 0.15,
    "stack.small_kernel_factor": 0.3,
    "stack.batched_attention_s": 1.0,
    "stack.collective_launch_s": 0.4,
    "stack.stream_wait_s": 0.5,
    "rank_skew": 0.4,
    "host.latency_s": 0.4,
    "host.bandwidth_Bps": 0.5,
    "host_low_latency_share": 0.7,
    "overlap.memory_spare": 0.7,
    "overlap.collective_slowdown": 0.5,
}
# figures that are fitted, and the standard deviation of the logarithm that each prior has around the catalog's value.
# Independent tables of one GPU agree within 15 % (GEMM kernels: a compiled GEMV is another kernel than the table's, a
# library GEMM the same); launches, waits and skew are known within a factor of two; what goes through host memory hangs
# on the board; kernels that a stack adds around attention are a count, not a measurement
STARTS = 8
START_SPREAD = 0.8
# of the starting points, in standard deviations of the priors
DRAWS = 48
STEP = 0.05
# of finite differences, in standard deviations of the priors; large enough to see past the corners of a maximum
REACH = 2.0
# in the same unit: a figure that changes no run this far from its prior is not fitted
FELT = 1e-6
# relative change of a throughput that counts as one
TOLERANCE = 1e-4
# relative change of the cost, and of the figures, at which a solver stops: far below what runs say about them
MOST_EVALUATIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a fit found, beside the profile."""

    profile: CalibrationProfile
    # the base, with the fitted figures
    left_out: tuple[str, ...]
    # figures that no run depends on: not fitted
    log_errors: Array
    # predicted over measured throughput, natural logarithm, by run
    near: tuple["UnseenRun", ...]
    # every run, predicted by a fit that had not seen its TP degree and batch together
    beyond: tuple["UnseenRun", ...]
    # the same for its TP degree; empty where there is but one


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRun:
    """One run, predicted without it."""

    run: Measurement
    # what was measured
    rate_log_error: float
    # of its throughput
    speedup_log_error: float | None
    # of its speedup over standard; None for standard, or without it


def transfer(
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
            problem.unseen(fold, pool.map(partial(problem.solve_without, best.at, fold), dict.fromkeys(fold)))
            for fold in (problem.groups, problem.degrees)
        )
    figures = problem.named(best.at)
    spread = np.log(problem.values(replicates)).std(axis=0, ddof=1)
    found = Transfer(
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
        near=IntervalScale(),
        beyond=IntervalScale(),
    )
    shipped = base.tables_of in shipped_profiles()
    fitted = replace(
        base,
        name=name,
        base=base.tables_of if shipped else "",
        created=created or datetime.date.today().isoformat(),
        transfer=found,
    )
    nominal = _nominal_widths(runs, fitted)
    scales = {"near": _scale(near, nominal), "beyond": _scale(beyond or near, nominal)}
    return Fit(
        profile=replace(fitted, transfer=replace(found, **scales)),
        left_out=problem.left_out,
        log_errors=problem.log_rates(best.at) - problem.measured,
        near=near,
        beyond=beyond,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Where a solver stopped."""

    at: Array
    # figures, in standard deviations of their priors from their medians
    cost: float
    # half the sum of squares


Fold = Sequence[Hashable]
# what each run belongs to: runs of one part are left out together


class Problem:
    """Runs, and the figures that they are to determine.

    A point is an array of one number per figure: how many standard deviations of its prior it lies above its median.
    """

    def __init__(self, runs: tuple[Measurement, ...], base: CalibrationProfile) -> None:
        # an earlier fit of the base must not show through
        self.runs, self.base = runs, replace(base, transfer=None)
        self.scenario = _common_scenario(runs, base)
        self.groups = [(run.configuration.tp, run.configuration.batch) for run in runs]
        self.degrees = [run.configuration.tp for run in runs]
        stated = Hardware.stated(self.scenario, self.base)
        self.defaults = {name: float(stated.figure(name)) for name in PRIORS}
        self.measured = np.log([run.tokens_per_s for run in runs])
        self.figures = tuple(name for name, value in self.defaults.items() if value > 0.0)
        felt = self._felt()
        self.left_out = tuple(name for name in PRIORS if name not in self.figures or not felt[name])
        self.fitted = np.array([felt[name] for name in self.figures])
        if not self.fitted.any():
            raise UsageError("no figure that can be fitted changes any of these runs", hint="add runs with TP above 1")

    @cached_property
    def _whitening(self) -> Array:
        """Lower triangle whose inverse makes errors of the runs independent, of unit variance."""
        shared = np.array([[one == other for other in self.groups] for one in self.groups])
        covariance = SHARED_LOG_SD**2 * shared + ROW_LOG_SD**2 * np.eye(len(self.groups))
        triangle: Array = np.linalg.cholesky(covariance)
        return triangle

    def _felt(self) -> dict[str, bool]:
        reach = REACH * np.eye(len(self.figures))
        points = np.vstack([np.zeros(len(self.figures)), reach, -reach])
        rates = self._log_rates(points)
        changed = np.abs(rates[1:] - rates[0]).max(axis=1) > FELT
        up, down = np.split(changed, 2)
        return dict(zip(self.figures, up | down, strict=True))

    def values(self, points: Array) -> Array:
        """Figures in SI units; points and result of shape (..., figures)."""
        median = np.array([self.defaults[name] for name in self.figures])
        spread = np.array([PRIORS[name] for name in self.figures])
        found: Array = median * np.exp(spread * points)
        return found

    def named(self, point: Array) -> dict[str, float]:
        """One point's figures by name."""
        return dict(zip(self.figures, self.values(point).tolist(), strict=True))

    def log_rates(self, point: Array) -> Array:
        """Logarithm of every run's throughput at one point."""
        found: Array = self._log_rates(point[np.newaxis])[0]
        return found

    def _log_rates(self, points: Array) -> Array:
        """The same at several points: shape (points, runs)."""
        # one configuration alone would be priced by numbers: two keep every array an array
        columns = np.vstack([points, points[-1:]])
        values = dict(zip(self.figures, self.values(columns).T, strict=True))
        found = np.empty((len(columns), len(self.runs)))
        for configuration, rows in _by_configuration(self.runs).items():
            variants = [self.runs[row].variant for row in rows]
            times = simulate_requests(configuration.scenario(), values, variants, self.base)
            tokens = configuration.batch * configuration.gen
            for row, variant in zip(rows, variants, strict=True):
                found[:, row] = np.log(tokens / times[variant].request_s)
        return found[: len(points)]

    # solving

    def solve_from(self, start: Array) -> Solution:
        """Solve from one starting point."""
        return self._solve(start, np.arange(len(self.runs)), self.measured, np.zeros(len(self.figures)))

    def solve_without(self, start: Array, fold: Fold, part: Hashable) -> tuple[Hashable, Array]:
        """A part of a fold, and the solution for the runs outside it."""
        kept = np.flatnonzero([own != part for own in fold])
        return part, self._solve(start, kept, self.measured, np.zeros(len(self.figures))).at

    def replicate(self, best: Array, seed: np.random.SeedSequence) -> Array:
        """Solve for runs and priors that are drawn anew around the solution: a draw of what the runs leave open."""
        chance = np.random.default_rng(seed)
        noise = self._whitening @ chance.standard_normal(len(self.runs))
        medians = chance.standard_normal(len(self.figures))
        found = self._solve(best, np.arange(len(self.runs)), self.log_rates(best) + noise, medians).at
        return np.where(self.fitted, found, medians)

    def _solve(self, start: Array, rows: NDArray[np.intp], measured: Array, medians: Array) -> Solution:
        free = np.flatnonzero(self.fitted)
        whitening = self._whitening[np.ix_(rows, rows)]

        def whole(point: Array) -> Array:
            full = np.zeros(point.shape[:-1] + self.fitted.shape)
            full[..., free] = point
            return full

        def residuals(points: Array) -> Array:
            errors = (self._log_rates(whole(points)) - measured)[:, rows]
            white = solve_triangular(whitening, errors.T, lower=True).T
            return np.hstack([white, points - medians[free]])

        def jacobian(point: Array) -> Array:
            steps = STEP * np.eye(len(free))
            both = residuals(np.vstack([point + steps, point - steps]))
            up, down = np.split(both, 2)
            return (up - down).T / (2.0 * STEP)

        solved = least_squares(
            lambda point: residuals(point[np.newaxis])[0],
            start[free],
            jac=jacobian,
            loss=_robust(len(rows)),
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            max_nfev=MOST_EVALUATIONS,
        )
        return Solution(at=whole(solved.x), cost=float(solved.cost))

    def unseen(self, fold: Fold, without: Iterable[tuple[Hashable, Array]]) -> tuple[UnseenRun, ...]:
        """Every run as predicted by the fit that had not seen its part; none where a fold has but one part."""
        if len(set(fold)) == 1:
            return ()
        errors = np.empty(len(self.runs))
        for part, point in without:
            rows = [row for row, own in enumerate(fold) if own == part]
            errors[rows] = (self.log_rates(point) - self.measured)[rows]
        standard = {
            run.configuration: error
            for run, error in zip(self.runs, errors.tolist(), strict=True)
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
            for run, error in zip(self.runs, errors.tolist(), strict=True)
        )


def _robust(rows: int) -> Callable[[Array], Array]:
    """soft_l1 for the runs, which may hold an outlier; plain squares for the priors."""

    def loss(squares: Array) -> Array:
        found = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1.0 + squares[:rows])
        found[:, :rows] = 2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3
        return found

    return loss


def _starting_points(problem: Problem, starts: int, seed: int) -> list[Array]:
    chance = np.random.default_rng(seed)
    size = len(problem.figures)
    return [np.zeros(size), *(START_SPREAD * chance.standard_normal(size) for _ in range(starts - 1))]


def _nominal_widths(runs: Sequence[Measurement], fitted: CalibrationProfile) -> dict[tuple[Configuration, str], Widths]:
    """Half-widths of the runs' intervals before they are scaled."""
    found = {}
    for configuration, rows in _by_configuration(runs).items():
        variants = [runs[row].variant for row in rows]
        for name, one in predict(configuration.scenario(), variants, profile=fitted, ignore_memory=True).items():
            found[configuration, name] = Widths(rate=one.tokens_per_s.log_width, speedup=one.speedup.log_width)
    return found


def _scale(unseen: Sequence[UnseenRun], nominal: Mapping[tuple[Configuration, str], Widths]) -> IntervalScale:
    """What makes nine tenths of the unseen runs lie inside their intervals (split conformal prediction)."""
    rates, speedups = [], []
    for one in unseen:
        widths = nominal[one.run.configuration, one.run.variant]
        rates.append(abs(one.rate_log_error) / widths.rate)
        if one.speedup_log_error is not None:
            speedups.append(abs(one.speedup_log_error) / widths.speedup)
    return IntervalScale(rate=conformal(rates), speedup=conformal(speedups))


def conformal(scores: Sequence[float]) -> float:
    """The score that a further one stays below with a probability of 90 %; 1 where there are too few to say."""
    rank = int(np.ceil(0.9 * (len(scores) + 1)))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else 1.0


def _by_configuration(runs: Sequence[Measurement]) -> dict[Configuration, list[int]]:
    found: dict[Configuration, list[int]] = {}
    for row, run in enumerate(runs):
        found.setdefault(run.configuration, []).append(row)
    return found


def _degrees(runs: Iterable[Measurement]) -> tuple[int, ...]:
    return tuple(sorted({run.configuration.tp for run in runs}))


def _common_scenario(runs: Sequence[Measurement], base: CalibrationProfile) -> Scenario:
    """What all runs have in common: their stack and their cluster."""
    if len(runs) < 2:
        raise UsageError(
            f"{len(runs)} runs: must be 2 or more", hint="standard and upper-bound at one batch are a start"
        )
    first = runs[0].configuration
    for run in runs:
        for field in ("stack", "cluster"):
            own, other = getattr(run.configuration, field), getattr(first, field)
            if own != other:
                raise UsageError(
                    f"line {run.line}: {field} '{own}' beside '{other}': must be one {field}",
                    hint=f"fit one {field} at a time",
                )
    scenario = first.scenario()
    if scenario.cluster.gpu != catalog.cluster(base.gpu).gpu:
        raise UsageError(
            f"base profile '{base.name}' was measured on another GPU than the runs' {scenario.cluster.gpu.name}",
            hint="`ladder-sim list profiles` shows those that are shipped",
        )
    return scenario
