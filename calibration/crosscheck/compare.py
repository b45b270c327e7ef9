"""Compares predictions with requests on every link, and judges their errors by bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from calibration.passes.fit import on_link, times_of
from calibration.passes.observations import Observations, Run, steps
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.validation.runs import Compared, compare_requests

# what a result calls quantities
NAMES = {"ttft_s": "prefill", "tpot_s": "decode", "request_s": "request", "speedup": "speedup"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Largest errors allowed."""

    latency: float
    """Largest error of prefill and decode of every variant, as a share."""
    speedup: float
    """Largest error of the speedup of every variant but the upper bound, as a share."""

    def of(self, row: Compared) -> float | None:
        """The bound of a row; None: it is not judged."""
        if row.quantity == "request_s" or (row.quantity == "speedup" and row.variant == "upper-bound"):
            return None
        return self.speedup if row.quantity == "speedup" else self.latency


def compare(
    observed: Observations, profile: CalibrationProfile, variants: Sequence[str], bounds: Bounds
) -> Iterator[tuple[str, Compared, float | None]]:
    """Compare every quantity of every run: link, row, and its bound; None: it is not judged, or was fitted to.

    Decode is that of all steps together.
    """
    for link in observed.links:
        on = on_link(profile, observed.emulated.get(link))
        requests = {
            variant: observed.requests[Run(link, variant)]
            for variant in variants
            if Run(link, variant) in observed.requests
        }
        predicted = {variant: times_of(observed.scenario, variant, on) for variant in requests}
        for row in compare_requests(requests, predicted, min(1, len(steps(observed.scenario, "decode")))):
            fitted = link == observed.calibration_link and row.variant == "standard"
            yield link, row, None if fitted else bounds.of(row)
