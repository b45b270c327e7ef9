"""Runs predicted by fits without them, and how wide intervals must be to hold them."""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ladder_sim.costs.profile import CalibrationProfile, IntervalScale
from ladder_sim.des.shared import Floats
from ladder_sim.prediction import predict
from ladder_sim.validation.dataset import Configuration, Measurement
from ladder_sim_calibration.stack_fit.problem import Groups, Problem, by_configuration


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
