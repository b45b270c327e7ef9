"""Measured curves of one collective, read as ratios to its formula."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.collectives.algorithms import ALGORITHMS
from ladder_sim.costs.collectives.formulas import Formula
from ladder_sim.costs.lookup import Curve
from ladder_sim.des.shared import Floats
from ladder_sim.specs.cluster import LinkTier

# two measured sizes further apart than this do not bracket what lies between: shipped curves are thinned to what
# interpolation needs, which leaves gaps of up to 64 where a latency floor is flat
MAX_GAP = 64.0


def bracketed(curve: Curve, message: Floats) -> NDArray[np.bool_]:
    """True where `message` lies between two measured sizes no further than `MAX_GAP` apart."""
    sizes = curve.size_bytes
    right = np.minimum(np.maximum(np.searchsorted(sizes, message, side="left"), 1), len(sizes) - 1)
    inside = (message >= sizes[0]) & (message <= sizes[-1])
    bracket: NDArray[np.bool_] = inside & (sizes[right] <= MAX_GAP * sizes[right - 1])
    return bracket


def bridged(curve: Curve, message: Floats) -> NDArray[np.bool_]:
    """True where `message` lies between two measured sizes further apart than that."""
    inside = (message >= curve.size_bytes[0]) & (message <= curve.size_bytes[-1])
    bridge: NDArray[np.bool_] = inside & ~bracketed(curve, message)
    return bridge


def extended(own: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Join two curves: the first where it was measured, the second below half and above twice its sizes.

    Both are logarithms of sizes and of times over the formula's; in between one goes over into the other. Between sizes
    that are further apart than `MAX_GAP` the first was not measured either.

    Examples
    --------
    >>> sizes, ratios = extended((np.log([8.0, 16.0]), np.ones(2)), (np.log([1.0, 12.0, 64.0]), np.zeros(3)))
    >>> np.exp(sizes).round(6).tolist(), ratios.tolist()
    ([1.0, 4.0, 8.0, 16.0, 32.0, 64.0], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    """
    octave = math.log(2.0)
    gaps = np.flatnonzero(np.diff(own[0]) > math.log(MAX_GAP) + 1e-9)
    firsts, lasts = own[0][np.append(0, gaps + 1)] - octave, own[0][np.append(gaps, len(own[0]) - 1)] + octave
    part = np.searchsorted(firsts, other[0], side="right") - 1
    outside = (part < 0) | (other[0] > lasts[part])
    kept = np.concatenate([other[0][outside], firsts, lasts])
    sizes, ratios = np.concatenate([own[0], kept]), np.concatenate([own[1], np.interp(kept, *other)])
    order = np.argsort(sizes)
    return sizes[order], ratios[order]


# no slots: the logarithms are computed once and kept
@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredCollective:
    """One algorithm's curves over rank counts, read against its formula on the link that was measured."""

    formula: Formula
    """Its ideal."""
    curves: Mapping[int, Curve]
    """By ranks."""
    tier: LinkTier
    """The measured link."""

    def ratio(self, message: Floats, ranks: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Measured over formula, and whether these ranks and this size were measured.

        Interpolated in log(size), and in log(ranks) between measured rank counts; held beyond the ends.
        """
        measured = ranks in self.curves
        in_range = bracketed(self.curves[ranks], message) if measured else np.zeros(message.shape, bool)
        return self.factor(message, ranks), in_range

    def factor(self, message: Floats, ranks: int) -> Floats:
        """Measured over formula alone."""
        low = max((n for n in self.curves if n <= ranks), default=min(self.curves))
        high = min((n for n in self.curves if n >= ranks), default=max(self.curves))
        log_size = np.log(np.maximum(message, 1.0))
        log_ratio = np.interp(log_size, *self._log_ratios[low])
        if low != high:
            share = math.log(ranks / low) / math.log(high / low)
            log_ratio = (1.0 - share) * log_ratio + share * np.interp(log_size, *self._log_ratios[high])
        ratio: Floats = np.exp(log_ratio)
        return ratio

    @cached_property
    def _log_ratios(self) -> Mapping[int, tuple[Floats, Floats]]:
        """Of each curve: logarithms of its sizes, and of its times over the formula's."""
        return {
            ranks: (
                np.log(curve.size_bytes),
                np.log(
                    curve.seconds
                    / self.formula(curve.size_bytes, ranks, self.tier.allreduce_floor_s, self.tier.bandwidth_Bps)
                ),
            )
            for ranks, curve in self.curves.items()
        }


def measured_collectives(
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]], tier: LinkTier
) -> dict[tuple[str, str], MeasuredCollective]:
    """Curves of a profile (`CalibrationProfile.collectives`) by kind and algorithm, of those that have a formula."""
    curves = {
        (kind, algorithm): by_ranks
        for kind, algorithms in collectives.items()
        for algorithm, by_ranks in algorithms.items()
        if by_ranks
    }
    if ("all_reduce", "nccl") in curves:
        # on all GPUs of a switch NCCL itself takes NVLS for large messages
        by_ranks = curves["all_reduce", "nccl"]
        curves["all_reduce", "nvls"] = {max(by_ranks): by_ranks[max(by_ranks)]}
    return {
        key: MeasuredCollective(formula=formula, curves=curves[key], tier=tier)
        for key, formula in ALGORITHMS.items()
        if key in curves
    }
