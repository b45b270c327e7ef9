"""Calibration profiles: what was measured on one machine, as costs read it.

A profile is a gzipped JSON file (plain JSON works too) whose form `ladder_sim.costs.profile_file` states. It is the
contract between whoever measures (an importer, a calibration run) and whoever predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.lookup import Curve, RatioTable

# a figure is identified where the runs leave at most this share of its prior's spread
IDENTIFIED = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFigure:
    """One hardware figure (`ladder_sim.costs.hardware.Hardware.figures`), as fitted."""

    value: float
    """SI units."""
    default: float
    """What the catalog stated, and the prior's median; a scenario that states or sets something else keeps its own."""
    prior_log_sd: float
    """Spread of the prior, standard deviation of the logarithm."""
    log_sd: float
    """What is left of it."""

    @property
    def identified(self) -> bool:
        """Whether the runs say more about it than the prior."""
        return self.log_sd <= IDENTIFIED * self.prior_log_sd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackFit:
    """A fit to end-to-end runs of one stack on the GPU of one profile."""

    stack: str
    """Catalog id of the stack that ran."""
    base: str
    """Profile whose tables the figures belong to."""
    runs: str
    """Data set of the runs."""
    protocol: str
    """Rule by which its rows were chosen for the fit; empty: all."""
    rows: int
    """Runs in the fit."""
    models: tuple[str, ...]
    """Catalog ids of the models in those runs."""
    tps: tuple[int, ...]
    """Their tensor-parallel degrees."""
    host_tps: tuple[int, ...]
    """The same for runs without peer-to-peer access."""
    cost: float
    """Of the fit: half the sum of its squared residuals, in their standard deviations, the priors' included."""
    figures: Mapping[str, FittedFigure]
    """By name."""
    draws: NDArray[np.float64]
    """Values of the figures that fit the runs about as well (bootstrap): shape (draws, figures)."""
    fitted_scale: "IntervalScale"
    """For the models and degrees of the fit, at batches that it may not have seen."""
    other_scale: "IntervalScale"
    """For other models and degrees."""

    def scale(self, model: str, tp: int) -> "IntervalScale":
        """The scale for intervals of a model at a tensor-parallel degree."""
        return self.fitted_scale if model in self.models and tp in self.tps else self.other_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalScale:
    """By how much nominal 90 % intervals were too narrow (above 1) or too wide for runs that a fit had not seen."""

    rate: float = 1.0
    """Of throughputs."""
    speedup: float = 1.0
    """Of speedups over standard."""


# bytes per element of the dtypes that tables come in
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0}
# in `CalibrationProfile.overheads`: spread of the logarithm of a kernel's time
JITTER_KEY = "jitter_sigma"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Where some of a profile's figures come from."""

    what: str
    """Which figures."""
    version: str
    """Of the package or program that measured or published them."""
    licence: str
    """SPDX id of the terms they are published under; empty: own measurements."""
    files: tuple[str, ...]
    """Files of the source that were read."""
    citation: str
    """How to find it: a package name and version, a URL, a paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceGpu:
    """The figures of the measured GPU that the tables' rooflines are drawn with."""

    bf16_flops: float
    """Dense peak, FLOP/s."""
    fp8_flops: float
    """Dense peak, FLOP/s; equal to bf16 where the GPU has no fp8."""
    hbm_bandwidth_Bps: float
    """Device memory bandwidth, bytes/s."""
    kernel_s: float
    """Floor of one small kernel, seconds."""

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s of ``"bf16"`` or ``"fp8"``."""
        return self.fp8_flops if dtype == "fp8" else self.bf16_flops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibrationProfile:
    """Everything measured on one machine."""

    name: str
    """E.g. "h100-sxm"."""
    gpu: str
    """Catalog cluster whose GPU and in-node fabric were measured."""
    created: str
    """ISO date."""
    environment: Mapping[str, str]
    """What it was measured under: device, drivers, versions."""
    sources: tuple[ProfileSource, ...]
    """Where the figures come from."""
    reference: ReferenceGpu
    """The measured GPU's figures: a table's time on it is roofline(reference) * ratio."""
    gemm: Mapping[str, RatioTable]
    """Dtype -> table over m, n, k."""
    attention_prefill: Mapping[str, Mapping[str, RatioTable]]
    """Kernel -> dtype -> table over the coordinates of `costs.coordinates.prefill_point`."""
    attention_decode: Mapping[str, Mapping[str, RatioTable]]
    """Kernel -> dtype -> table over the coordinates of `costs.coordinates.decode_point`."""
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]]
    """Op ("all_reduce", "all_gather", "reduce_scatter") -> algorithm -> ranks of one node -> curve."""
    overlap: Mapping[str, float] = field(default_factory=dict)
    """Fitted parameters of compute and communication sharing a GPU; empty: none fitted."""
    overheads: Mapping[str, float] = field(default_factory=dict)
    """Measured launches, waits and floor of small kernels, which take the place of a stack's figures of the same name;
    jitter; other names are for information; empty: none."""
    base: str = ""
    """Shipped profile that the tables come from; empty: they are this profile's own."""
    stack_fit: StackFit | None = None
    """A stack's figures, fitted to end-to-end runs."""

    @property
    def tables_of(self) -> str:
        """Name of the profile that the tables were measured for."""
        return self.base or self.name

    def is_of(self, gpu: str) -> bool:
        """Whether it was measured on a GPU of this name, as far as its environment tells."""
        device = self.environment.get("device")
        return device is None or gpu.split()[0] in device
