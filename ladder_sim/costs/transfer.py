"""What a fit to end-to-end runs of one inference stack found: figures that microbenchmarks cannot see."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IDENTIFIED = 0.7
# a figure is identified where the runs leave at most this share of its prior's spread


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFigure:
    """One hardware figure (`ladder_sim.costs.hardware.Hardware.figures`), as fitted."""

    value: float
    # SI units
    default: float
    # what the catalog stated, and the prior's median; a scenario that states or sets something else keeps its own
    prior_log_sd: float
    # spread of the prior, standard deviation of the logarithm
    log_sd: float
    # what is left of it

    @property
    def identified(self) -> bool:
        """Whether the runs say more about it than the prior."""
        return self.log_sd <= IDENTIFIED * self.prior_log_sd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """A fit to end-to-end runs of one stack on the GPU of one profile."""

    stack: str
    # catalog id of the stack that ran
    base: str
    # profile whose tables the figures belong to
    runs: str
    # data set of the runs
    protocol: str
    # rule by which its rows were chosen for the fit; empty: all
    rows: int
    # runs in the fit
    models: tuple[str, ...]
    # catalog ids of the models in those runs
    tps: tuple[int, ...]
    # their tensor-parallel degrees
    host_tps: tuple[int, ...]
    # the same for runs without peer-to-peer access
    cost: float
    # of the fit: half the sum of its squared residuals, in their standard deviations, the priors' included
    figures: Mapping[str, FittedFigure]
    # by name
    draws: NDArray[np.float64]
    # values of the figures that fit the runs about as well (bootstrap): shape (draws, figures)
    near: "IntervalScale"
    # for the models and degrees of the fit, at batches that it may not have seen
    beyond: "IntervalScale"
    # for other models and degrees

    def scale(self, model: str, tp: int) -> "IntervalScale":
        """The scale for intervals of a model at a tensor-parallel degree."""
        return self.near if model in self.models and tp in self.tps else self.beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalScale:
    """By how much nominal 90 % intervals were too narrow (above 1) or too wide for runs that a fit had not seen."""

    rate: float = 1.0
    # of throughputs
    speedup: float = 1.0
    # of speedups over standard
