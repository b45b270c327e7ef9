"""Calibration profiles: what was measured on one machine, as costs read it.

A profile is a gzipped JSON file (plain JSON works too) whose form `ladder_sim.costs.profile_file` states. It is the
contract between whoever measures (an importer, a calibration run) and whoever predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.lookup import Curve, RatioTable

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


ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0}
# bytes per element of the dtypes that tables come in
JITTER_KEY = "jitter_sigma"
# in `CalibrationProfile.overheads`: spread of the logarithm of a kernel's time


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Where some of a profile's figures come from."""

    what: str
    # which figures
    version: str
    # of the package or program that measured or published them
    licence: str
    # SPDX id of the terms they are published under; empty: own measurements
    files: tuple[str, ...]
    # files of the source that were read
    citation: str
    # how to find it: a package name and version, a URL, a paper


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceGpu:
    """The figures of the measured GPU that the tables' rooflines are drawn with."""

    bf16_flops: float
    # dense peak, FLOP/s
    fp8_flops: float
    # dense peak, FLOP/s; equal to bf16 where the GPU has no fp8
    hbm_bandwidth_Bps: float
    # device memory bandwidth, bytes/s
    kernel_s: float
    # floor of one small kernel, seconds

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s of ``"bf16"`` or ``"fp8"``."""
        return self.fp8_flops if dtype == "fp8" else self.bf16_flops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibrationProfile:
    """Everything measured on one machine."""

    name: str
    # e.g. "h100-sxm"
    gpu: str
    # catalog cluster whose GPU and in-node fabric were measured
    created: str
    # ISO date
    environment: Mapping[str, str]
    # what it was measured under: device, drivers, versions
    sources: tuple[ProfileSource, ...]
    # where the figures come from
    reference: ReferenceGpu
    # the measured GPU's figures: a table's time on it is roofline(reference) * ratio
    gemm: Mapping[str, RatioTable]
    # dtype -> table over m, n, k
    attention_prefill: Mapping[str, Mapping[str, RatioTable]]
    # kernel -> dtype -> table over the coordinates of `costs.coordinates.prefill_point`
    attention_decode: Mapping[str, Mapping[str, RatioTable]]
    # kernel -> dtype -> table over the coordinates of `costs.coordinates.decode_point`
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]]
    # op ("all_reduce", "all_gather", "reduce_scatter") -> algorithm -> ranks of one node -> curve
    overlap: Mapping[str, float] = field(default_factory=dict)
    # fitted parameters of compute and communication sharing a GPU; empty: none fitted
    overheads: Mapping[str, float] = field(default_factory=dict)
    # measured launches, waits and floor of small kernels, which take the place of a stack's figures of the same name;
    # jitter; other names are for information; empty: none
    base: str = ""
    # shipped profile that the tables come from; empty: they are this profile's own
    transfer: Transfer | None = None
    # a stack's figures, fitted to end-to-end runs

    @property
    def tables_of(self) -> str:
        """Name of the profile that the tables were measured for."""
        return self.base or self.name

    def is_of(self, gpu: str) -> bool:
        """Whether it was measured on a GPU of this name, as far as its environment tells."""
        device = self.environment.get("device")
        return device is None or gpu.split()[0] in device
