"""Measured curves of one collective, read as ratios to its formula."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.collectives.formulas import FloatArray, Formula
from ladder_sim.costs.lookup import Curve

# two measured sizes further apart than this do not bracket what lies between: shipped curves are thinned to what
# interpolation needs, which leaves gaps of up to 64 where a latency floor is flat
MAX_GAP = 64.0


def bracketed(curve: Curve, message: FloatArray) -> NDArray[np.bool_]:
    """True where `message` lies between two measured sizes no further than `MAX_GAP` apart."""
    sizes = curve.size_bytes
    right = np.minimum(np.maximum(np.searchsorted(sizes, message, side="left"), 1), len(sizes) - 1)
    inside = (message >= sizes[0]) & (message <= sizes[-1])
    bracket: NDArray[np.bool_] = inside & (sizes[right] <= MAX_GAP * sizes[right - 1])
    return bracket


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """One algorithm's curves over rank counts, read against its formula on the hardware that was measured."""

    formula: Formula
    """Its ideal."""
    curves: Mapping[int, Curve]
    """By ranks."""
    latency_s: float
    """Of the measured tier."""
    bandwidth_Bps: float
    """Of the measured tier."""

    def ratio(self, message: FloatArray, ranks: int) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Measured over formula, and whether it rests on a measurement at these ranks and this size.

        Interpolated in log(size), and in log(ranks) between measured rank counts; held beyond the ends.
        """
        low, high = self._neighbours(ranks)
        if low == high:
            return self.factor(message, ranks), bracketed(self.curves[low], message) & (low == ranks)
        return self.factor(message, ranks), np.zeros(message.shape, bool)

    def factor(self, message: FloatArray, ranks: int) -> FloatArray:
        """Measured over formula alone."""
        low, high = self._neighbours(ranks)
        log_ratio = self._log_ratio(low, message)
        if low != high:
            share = math.log(ranks / low) / math.log(high / low)
            log_ratio = (1.0 - share) * log_ratio + share * self._log_ratio(high, message)
        found: FloatArray = np.exp(log_ratio)
        return found

    def _neighbours(self, ranks: int) -> tuple[int, int]:
        """Measured rank counts on either side."""
        low = max((n for n in self.curves if n <= ranks), default=min(self.curves))
        high = min((n for n in self.curves if n >= ranks), default=max(self.curves))
        return low, high

    def _log_ratio(self, ranks: int, message: FloatArray) -> FloatArray:
        log_sizes, log_ratios = _log_curve(self.curves[ranks], self.formula, ranks, self.latency_s, self.bandwidth_Bps)
        found: FloatArray = np.interp(np.log(np.maximum(message, 1.0)), log_sizes, log_ratios)
        return found


@lru_cache(maxsize=256)
def _log_curve(
    curve: Curve, formula: Formula, ranks: int, latency_s: float, bandwidth_Bps: float
) -> tuple[FloatArray, FloatArray]:
    """A measured curve as logarithms: its sizes, and its times over the formula's."""
    ideal_s = formula(curve.size_bytes, ranks, latency_s, bandwidth_Bps)
    return np.log(curve.size_bytes), np.log(curve.seconds / ideal_s)
