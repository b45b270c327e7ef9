"""Runs predicted by fits that had not seen them, and what they say about intervals."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.stack_fit.problem import Array, Fold, Problem, by_configuration
from ladder_sim.confidence import Widths
from ladder_sim.costs.profile import CalibrationProfile, IntervalScale
from ladder_sim.prediction import predict
from ladder_sim.validation.dataset import Configuration, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRun:
    """One run, predicted without it."""

    run: Measurement
    """What was measured."""
    rate_log_error: float
    """Of its throughput."""
    speedup_log_error: float | None
    """Of its speedup over standard; None for standard, or without it."""


def unseen_runs(problem: Problem, fold: Fold, without: Iterable[tuple[Hashable, Array]]) -> tuple[UnseenRun, ...]:
    """Every run as predicted by the fit that had not seen its part; none where a fold has but one part."""
    if len(set(fold)) == 1:
        return ()
    errors = np.empty(len(problem.runs))
    for part, point in without:
        rows = [row for row, own in enumerate(fold) if own == part]
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
    """Half-widths of the runs' intervals before they are scaled."""
    found = {}
    for configuration, rows in by_configuration(runs).items():
        variants = [runs[row].variant for row in rows]
        for name, one in predict(configuration.scenario(), variants, profile=fitted, ignore_memory=True).items():
            found[configuration, name] = Widths(rate=one.tokens_per_s.log_width, speedup=one.speedup.log_width)
    return found


def scale(unseen: Sequence[UnseenRun], nominal: Mapping[tuple[Configuration, str], Widths]) -> IntervalScale:
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
