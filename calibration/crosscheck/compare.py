"""Predictions beside measurements, with intervals of the measured medians by bootstrap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.crosscheck.observations import Observations, Run
from calibration.crosscheck.predict import Calibration

# resamples of the rounds
DRAWS = 2000
# of the resampled medians: 95 %
INTERVAL = (0.025, 0.975)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Largest errors that pass."""

    latency: float
    """Of prefill and decode, every variant."""
    speedup: float
    """Of ladder's speedup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity of one run."""

    link: str
    """What it ran on."""
    variant: str
    """Residual wiring."""
    quantity: str
    """"prefill", "decode" or "request", seconds; "speedup" of the request over standard."""
    predicted: float
    """By the simulator."""
    measured: float
    """Median over the rounds."""
    low: float
    """95 % interval of that median."""
    high: float
    """Its upper end."""
    bound: float | None
    """Largest error that passes; None: not judged, or the calibration has seen it."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def beyond(self) -> bool:
        """Whether the error exceeds its bound for every value in the measured interval."""
        if self.bound is None:
            return False
        return not (self.predicted / self.high - 1.0 <= self.bound and self.predicted / self.low - 1.0 >= -self.bound)


def compare(found: Observations, calibration: Calibration, variants: Sequence[str], bounds: Bounds) -> list[Row]:
    """Every quantity of every run; a speedup is paired, round by round."""
    return [
        row
        for link in found.seen
        for variant in variants
        if Run(link, variant) in found.requests
        for row in _rows(Run(link, variant), found, calibration, bounds)
    ]


def _rows(run: Run, found: Observations, calibration: Calibration, bounds: Bounds) -> Iterator[Row]:
    measured, predicted = np.array(found.requests[run]), calibration.predict(run)
    samples = {"prefill": measured[:, 0], "decode": measured[:, 1], "request": measured.sum(axis=1)}
    values = {"prefill": predicted.prefill_s, "decode": predicted.decode_s, "request": sum(predicted)}
    seen = found.seen[run.link] and run.variant == "standard"
    judged = {} if seen else {"prefill": bounds.latency, "decode": bounds.latency}
    standard = Run(run.link, "standard")
    if standard in found.requests and run != standard:
        samples["speedup"] = np.array(found.requests[standard]).sum(axis=1) / samples["request"]
        values["speedup"] = sum(calibration.predict(standard)) / sum(predicted)
        if run.variant == "ladder":
            judged["speedup"] = bounds.speedup
    for quantity, sample in samples.items():
        if values[quantity] == 0.0:
            # of one new token there is no decode
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
    """95 % interval of a sample's median; the same for the same sample."""
    chosen = np.random.default_rng(0).integers(len(sample), size=(DRAWS, len(sample)))
    low, high = np.quantile(np.median(np.asarray(sample)[chosen], axis=1), INTERVAL)
    return float(low), float(high)
