"""The runs of a stack and the figures to be fitted: the objective of the fit, and its solution."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import least_squares

from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence.runs import ROW_LOG_SD, SHARED_LOG_SD
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.dataset import PASSES, TIMES, Configuration, Measurement

# figures that are fitted, and the standard deviation of the logarithm that each prior has around the catalog's value.
# Independent tables of one GPU agree within 15 % (GEMM kernels: a compiled GEMV is another kernel than the table's);
# launches and skew are known within a factor of two; the path through host memory depends on the board; kernels that a
# stack adds around attention are a count, not a measurement. What was measured beside them is not fitted: GEMMs of
# several rows and small kernels (tests/data/h100_beside, kernels_of_a_layer.csv), waits and contention (steps_fixed.csv
# and steps_exchange.csv)
PRIORS: Mapping[str, float] = {
    "stack.gemv_factor": 0.1,
    "stack.prompt_factor": 0.15,
    "stack.batched_attention_s": 1.0,
    "stack.collective_launch_s": 0.4,
    "rank_skew": 0.4,
    "host.allreduce_floor_s": 0.4,
    "host.bandwidth_Bps": 0.5,
    "host_low_latency_share": 0.7,
}

# of finite differences, in standard deviations of the priors; large enough to see past the corners of a maximum
STEP = 0.05
# in the same unit: a figure that changes no run this far from its prior's median is not fitted
REACH = 2.0
# relative change of a time that counts as a change
MIN_CHANGE = 1e-6
# relative change of the cost, and of the figures, at which a solver stops: far below what the runs determine
TOLERANCE = 1e-4
MAX_EVALUATIONS = 40
# errors of a prefill over those of a decode step: campaigns of the same runs differ by 1.8 and 0.9 % (ladder-h100)
PREFILL_NOISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Where a solver stopped."""

    at: Floats
    """Figures, in standard deviations of their priors from their medians."""
    cost: float
    """Half the sum of squares."""


# the group of each run: runs of a group are left out together
Groups = Sequence[Hashable]


class Problem:
    """Runs, and the figures to be fitted to them.

    A point is an array of one number per figure: how many standard deviations of its prior it lies above its median.
    """

    def __init__(self, runs: tuple[Measurement, ...], base: CalibrationProfile) -> None:
        # an earlier fit of the base must have no effect
        self.runs, self.base = runs, replace(base, stack_fit=None)
        self.scenario = _common_scenario(runs, base)
        self.groups = [(run.configuration.tp, run.configuration.batch) for run in runs]
        self.degrees = [run.configuration.tp for run in runs]
        stated = Hardware.stated(self.scenario, self.base)
        self.defaults = {name: float(stated.figure(name)) for name in PRIORS}
        # every run's figures, one after the other: its decode step and its prefill if they were measured apart
        self.observed = [(row, name) for row, run in enumerate(runs) for name in figures_of(run)]
        self.measured = np.log([getattr(runs[row], name) for row, name in self.observed])
        self.figures = tuple(name for name, value in self.defaults.items() if value > 0.0)
        sensitive = self._affects_runs()
        self.left_out = tuple(name for name in PRIORS if name not in self.figures or not sensitive[name])
        self.fitted = np.array([sensitive[name] for name in self.figures])
        if not self.fitted.any():
            raise UsageError("these runs depend on no figure that can be fitted", hint="add runs with TP above 1")

    @cached_property
    def _covariance(self) -> Floats:
        """Covariance of the figures' errors, in logarithms, shape (figures, figures).

        A figure shares an error with those of its name of other variants. Kernels of prefills err by twice as much.
        """
        alike = [(self.groups[row], name) for row, name in self.observed]
        shared = np.array([[one == other for one in alike] for other in alike])
        scale = np.array([PREFILL_NOISE if name == "ttft_s" else 1.0 for _, name in self.observed])
        return np.outer(scale, scale) * (SHARED_LOG_SD**2 * shared + ROW_LOG_SD**2 * np.eye(len(alike)))

    def _affects_runs(self) -> dict[str, bool]:
        """Whether any run depends on a fitted figure."""
        reach = REACH * np.eye(len(self.figures))
        points = np.vstack([np.zeros(len(self.figures)), reach, -reach])
        logs = self._logs(points)
        changed = np.abs(logs[1:] - logs[0]).max(axis=1) > MIN_CHANGE
        up, down = np.split(changed, 2)
        return dict(zip(self.figures, up | down, strict=True))

    def values(self, points: Floats) -> Floats:
        """Return the figures in SI units; points and result of shape (..., figures)."""
        median = np.array([self.defaults[name] for name in self.figures])
        spread = np.array([PRIORS[name] for name in self.figures])
        return np.asarray(median * np.exp(spread * points))

    def named(self, point: Floats) -> dict[str, float]:
        """Return one point's figures by name."""
        return dict(zip(self.figures, self.values(point).tolist(), strict=True))

    def logs(self, point: Floats) -> Floats:
        """Return the logarithm of every figure that was measured at one point."""
        return np.asarray(self._logs(point[np.newaxis])[0])

    def _logs(self, points: Floats) -> Floats:
        """Return the logarithms of the measured figures at several points, shape (points, figures)."""
        predicted = self.predicted(points)
        return np.log(np.stack([predicted[name][:, row] for row, name in self.observed], axis=-1))

    def predicted(self, points: Floats) -> dict[str, Floats]:
        """Return every run's throughput, prefill and decode step at several points, shape (points, runs) each."""
        # a single configuration would be priced with plain numbers: two keep every array an array
        columns = np.vstack([points, points[-1:]])
        values = dict(zip(self.figures, self.values(columns).T, strict=True))
        predicted = {name: np.empty((len(columns), len(self.runs))) for name in (TIMES[0], *PASSES)}
        for configuration, rows in by_configuration(self.runs).items():
            variants = [self.runs[row].variant for row in rows]
            times = simulate_requests(configuration.scenario(), values, variants, self.base)
            tokens = configuration.batch * configuration.gen
            for row, variant in zip(rows, variants, strict=True):
                each = times[variant]
                predicted["tokens_per_s"][:, row] = tokens / each.request_s
                predicted["ttft_s"][:, row] = each.ttft_s
                predicted["tpot_s"][:, row] = each.decode_s / max(1, configuration.gen - 1)
        return {name: values[: len(points)] for name, values in predicted.items()}

    def solve_from(self, start: Floats) -> Solution:
        """Solve from one starting point."""
        return self._solve(start, np.arange(len(self.observed)), self.measured, np.zeros(len(self.figures)))

    def solve_without(self, start: Floats, groups: Groups, left_out: Hashable) -> tuple[Hashable, Floats]:
        """Return the group that was left out, and the solution for the runs outside it."""
        kept = np.flatnonzero([groups[row] != left_out for row, _ in self.observed])
        return left_out, self._solve(start, kept, self.measured, np.zeros(len(self.figures))).at

    def replicate(self, best: Floats, seed: np.random.SeedSequence) -> Floats:
        """Solve for runs and priors that are drawn around the solution: one draw of a parametric bootstrap."""
        generator = np.random.default_rng(seed)
        noise = np.linalg.cholesky(self._covariance) @ generator.standard_normal(len(self.observed))
        medians = generator.standard_normal(len(self.figures))
        solved = self._solve(best, np.arange(len(self.observed)), self.logs(best) + noise, medians).at
        return np.where(self.fitted, solved, medians)

    def _solve(self, start: Floats, rows: NDArray[np.intp], measured: Floats, medians: Floats) -> Solution:
        free = np.flatnonzero(self.fitted)
        # its inverse makes the errors independent, of unit variance
        whitening = np.linalg.cholesky(self._covariance[np.ix_(rows, rows)])

        def whole(point: Floats) -> Floats:
            full = np.zeros(point.shape[:-1] + self.fitted.shape)
            full[..., free] = point
            return full

        def residuals(point: Floats) -> Floats:
            return np.asarray(residuals_at(point[np.newaxis])[0])

        def residuals_at(points: Floats) -> Floats:
            errors = (self._logs(whole(points)) - measured)[:, rows]
            white = solve_triangular(whitening, errors.T, lower=True).T
            return np.hstack([white, points - medians[free]])

        def jacobian(point: Floats) -> Floats:
            steps = STEP * np.eye(len(free))
            both = residuals_at(np.vstack([point + steps, point - steps]))
            up, down = np.split(both, 2)
            return (up - down).T / (2.0 * STEP)

        solved = least_squares(
            residuals,
            start[free],
            jac=jacobian,
            loss=_robust_loss(len(rows)),
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            max_nfev=MAX_EVALUATIONS,
        )
        return Solution(at=whole(solved.x), cost=float(solved.cost))


def _robust_loss(rows: int) -> Callable[..., Floats]:
    """Return the soft_l1 loss for the runs, which may hold an outlier, and plain squares for the priors."""

    def loss(squares: Floats) -> Floats:
        # value, first and second derivative, as least_squares needs them
        rho = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1.0 + squares[:rows])
        rho[:, :rows] = 2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3
        return rho

    return loss


def figures_of(run: Measurement) -> tuple[str, ...]:
    """Return the names of the figures that a fit compares: of passes that were measured apart, else of the request."""
    return TIMES[:1] if run.ttft_s is None or run.tpot_s is None else PASSES


def by_configuration(runs: Sequence[Measurement]) -> dict[Configuration, list[int]]:
    """Return the positions of the runs of each configuration."""
    positions: dict[Configuration, list[int]] = {}
    for row, run in enumerate(runs):
        positions.setdefault(run.configuration, []).append(row)
    return positions


def _common_scenario(runs: Sequence[Measurement], base: CalibrationProfile) -> Scenario:
    """Return the scenario of the first run; raise UsageError unless all runs share its stack and cluster."""
    first = runs[0].configuration
    for run in runs:
        for field in ("stack", "cluster"):
            own, other = getattr(run.configuration, field), getattr(first, field)
            if own != other:
                raise UsageError(
                    f"line {run.line}: {field} '{own}', but '{other}' before: must be one {field}",
                    hint=f"fit one {field} at a time",
                )
    scenario = first.scenario()
    if scenario.cluster.gpu != base.cluster.gpu:
        raise UsageError(
            f"base profile '{base.name}' was measured on another GPU than the runs' {scenario.cluster.gpu.name}",
            hint="`ladder-sim list profiles` lists the shipped ones",
        )
    return scenario
