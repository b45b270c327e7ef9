"""Compares predictions with measurements; intervals of the measured medians are by bootstrap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.crosscheck.observations import Observations, Run
from calibration.crosscheck.predict import Calibration
from ladder_sim.des.shared import Floats

# resamples of the rounds
DRAWS = 2000
# of the resampled medians: 95 %
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Largest errors allowed."""

    latency: float
    """Of prefill and decode of every variant."""
    speedup: float
    """Of the speedup of every variant but the upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity of one run."""

    link: str
    """Name of the interconnect."""
    variant: str
    """As `Run` names it."""
    quantity: str
    """"prefill", "decode" or "request", seconds; "speedup" of the request over standard."""
    predicted: float
    """By the simulator."""
    measured: float
    """Median over the rounds."""
    low: float
    """Lower end of the 95 % interval of that median."""
    high: float
    """Its upper end."""
    bound: float | None
    """Largest error allowed; None: not judged, or calibrated on."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def exceeds_bound(self) -> bool:
        """Whether the error exceeds its bound for every value in the measured interval."""
        if self.bound is None:
            return False
        return not (self.predicted / self.high - 1.0 <= self.bound and self.predicted / self.low - 1.0 >= -self.bound)


def compare(observed: Observations, calibration: Calibration, variants: Sequence[str], bounds: Bounds) -> list[Row]:
    """Compare every quantity of every run; speedups are over standard of the same round."""
    return [
        row
        for link in observed.links
        for variant in variants
        if Run(link, variant) in observed.requests
        for row in _rows(Run(link, variant), observed, calibration, bounds)
    ]


def _rows(run: Run, observed: Observations, calibration: Calibration, bounds: Bounds) -> Iterator[Row]:
    measured, predicted = np.array(observed.requests[run]), calibration.predict(run)
    samples = {"prefill": measured[:, 0], "decode": measured[:, 1], "request": measured.sum(axis=1)}
    values = {"prefill": predicted.prefill_s, "decode": predicted.decode_s, "request": sum(predicted)}
    standard = Run(run.link, "standard")
    calibrated_on = run == standard and run.link == observed.calibration_link
    judged = {} if calibrated_on else {"prefill": bounds.latency, "decode": bounds.latency}
    if standard in observed.requests and run != standard:
        samples["speedup"] = np.array(observed.requests[standard]).sum(axis=1) / samples["request"]
        values["speedup"] = sum(calibration.predict(standard)) / sum(predicted)
        if run.variant != "upper-bound":
            judged["speedup"] = bounds.speedup
    for quantity, sample in samples.items():
        if values[quantity] == 0.0:
            # a single new token has no decode
            continue
        low, high = bootstrap(sample)
        yield Row(
            link=run.link,
            variant=run.variant,
            quantity=quantity,
            predicted=values[quantity],
            measured=float(np.median(sample)),
            low=low,
            high=high,
            bound=judged.get(quantity),
        )


def bootstrap(sample: Floats) -> tuple[float, float]:
    """95 % interval of a sample's median; deterministic."""
    chosen = np.random.default_rng(0).integers(len(sample), size=(DRAWS, len(sample)))
    low, high = np.quantile(np.median(np.asarray(sample)[chosen], axis=1), INTERVAL)
    return float(low), float(high)
