"""Runs predicted by fits without them, and how wide intervals must be to hold them."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder_sim.confidence.errors import Widths
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
    rate_log_error: float
    """Error of the predicted throughput, in the logarithm."""
    ttft_log_error: float | None
    """Error of the predicted time to first token, in the logarithm; None if it was not measured apart."""
    speedup_log_error: float | None
    """Error of the speedup over standard, in the logarithm; None for standard, or if standard did not run."""


def unseen_runs(problem: Problem, groups: Groups, without: Iterable[tuple[Hashable, Floats]]) -> tuple[UnseenRun, ...]:
    """Return every run as predicted by the fit without its group; empty if there is only one group."""
    if len(set(groups)) == 1:
        return ()
    errors: dict[str, list[float | None]] = {name: [None] * len(problem.runs) for name in ("tokens_per_s", "ttft_s")}
    for left_out, point in without:
        predicted = problem.predicted(point[np.newaxis])
        for name, of_runs in errors.items():
            for row, run in enumerate(problem.runs):
                measured = getattr(run, name)
                if groups[row] == left_out and measured is not None:
                    of_runs[row] = float(np.log(predicted[name][0, row] / measured))
    rates: list[Any] = errors["tokens_per_s"]
    standard = {
        run.configuration: error for run, error in zip(problem.runs, rates, strict=True) if run.variant == "standard"
    }
    return tuple(
        UnseenRun(
            run=run,
            rate_log_error=rate,
            ttft_log_error=ttft,
            speedup_log_error=rate - standard[run.configuration]
            if run.variant != "standard" and run.configuration in standard
            else None,
        )
        for run, rate, ttft in zip(problem.runs, rates, errors["ttft_s"], strict=True)
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
    rates, speedups, firsts = [], [], []
    for prediction in unseen:
        widths = nominal[prediction.run.configuration, prediction.run.variant]
        rates.append(abs(prediction.rate_log_error) / widths.rate)
        if prediction.ttft_log_error is not None:
            firsts.append(abs(prediction.ttft_log_error) / widths.ttft)
        if prediction.speedup_log_error is not None:
            speedups.append(abs(prediction.speedup_log_error) / widths.speedup)
    return IntervalScale(rate=conformal(rates), speedup=conformal(speedups), ttft=conformal(firsts))


def conformal(scores: Sequence[float]) -> float:
    """Return the score that a further one stays below with a probability of 90 %; 1 if there are too few."""
    rank = int(np.ceil(0.9 * (len(scores) + 1)))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else 1.0
