"""Parametric fits of measured times, with covariance, residuals and domain, that say when they lie."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ladder_sim.errors import ProfileError

Floats = NDArray[np.float64]
# (parameters, points) -> seconds
Formula = Callable[[Floats, Mapping[str, Floats]], Floats]
# formula, parameters, where the search starts
_Entry = tuple[Formula, tuple[str, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Parameters of a formula, and how far they are known."""

    names: tuple[str, ...]
    """Of the parameters."""
    values: Floats
    """SI units."""
    covariance: Floats
    """Of their logarithms."""
    residuals: Floats
    """ln(measured / fitted), one per sample."""
    domain: Mapping[str, tuple[float, float]]
    """Smallest and largest of each coordinate."""

    @property
    def error(self) -> float:
        """Median relative error of the samples."""
        return float(np.median(np.abs(np.expm1(self.residuals))))

    def interval(self, name: str, deviations: float = 1.96) -> tuple[float, float]:
        """A parameter's interval, 95 % by default."""
        at = self.names.index(name)
        width = deviations * float(np.sqrt(self.covariance[at, at]))
        return float(self.values[at] * np.exp(-width)), float(self.values[at] * np.exp(width))


def all_reduce_s(parameters: Floats, points: Mapping[str, Floats]) -> Floats:
    """Latency, a part that grows by the root of the message, and wire time: ``a + c sqrt(b) + b / B``."""
    latency_s, root_s, bandwidth_Bps = parameters
    size = points["bytes"]
    found: Floats = latency_s + root_s * np.sqrt(size) + size / bandwidth_Bps
    return found


def gemm_s(parameters: Floats, points: Mapping[str, Floats]) -> Floats:
    """Floor, and the slower of arithmetic and memory traffic, with a soft corner."""
    kernel_s, flops_per_s, bandwidth_Bps = parameters
    m, n, k = points["m"], points["n"], points["k"]
    compute_s = 2.0 * m * n * k / flops_per_s
    memory_s = 2.0 * (n * k + m * (n + k)) / bandwidth_Bps
    found: Floats = kernel_s + (compute_s**4 + memory_s**4) ** 0.25
    return found


def straight_s(parameters: Floats, points: Mapping[str, Floats]) -> Floats:
    """Floor, and time in proportion to the bytes."""
    floor_s, bandwidth_Bps = parameters
    found: Floats = floor_s + points["bytes"] / bandwidth_Bps
    return found


_ALL_REDUCE: _Entry = (all_reduce_s, ("latency_s", "root_s", "bandwidth_Bps"), (1e-5, 1e-9, 1e10))
_ELEMENTWISE: _Entry = (straight_s, ("kernel_s", "bandwidth_Bps"), (3e-6, 1e12))
# by op
FORMULAS: Mapping[str, _Entry] = {
    "gemm": (gemm_s, ("kernel_s", "flops_per_s", "bandwidth_Bps"), (3e-6, 1e14, 1e12)),
    "add": _ELEMENTWISE,
    "norm": _ELEMENTWISE,
    "all_reduce": _ALL_REDUCE,
    "all_gather": _ALL_REDUCE,
    "reduce_scatter": _ALL_REDUCE,
    "send_recv": (straight_s, ("latency_s", "bandwidth_Bps"), (1e-5, 1e10)),
}


# noise of a logarithm that the search assumes at first, and the least it counts with
LEVEL, SMALLEST = 0.05, 1e-6


def fit(op: str, points: Mapping[str, Floats], seconds: Floats) -> Fit:
    """Fit an op's formula by robust least squares on the logarithm of time.

    Raises
    ------
    ProfileError
        Too few samples.
    """
    formula, names, start = FORMULAS[op]
    if len(seconds) <= len(names):
        raise ProfileError(f"{op}: {len(seconds)} samples for {len(names)} parameters", hint="measure longer: --budget")

    def residuals(log_parameters: Floats) -> Floats:
        return np.asarray(np.log(seconds / formula(np.exp(log_parameters), points)), np.float64)

    # a time of seconds and one of microseconds are one model with other parameters: start at the samples' own level
    level = np.exp(np.median(residuals(np.log(np.array(start)))))
    scaled = [
        value / level if name.endswith(("Bps", "per_s")) else value * level
        for name, value in zip(names, start, strict=True)
    ]
    at, deviation = np.log(scaled), LEVEL
    for _ in range(2):
        # a second time with the noise that the first has found, so that a wild sample pulls no more than others
        found = least_squares(residuals, at, loss="cauchy", f_scale=2.0 * deviation, max_nfev=2000)
        at, left = found.x, residuals(found.x)
        deviation = max(SMALLEST, 1.4826 * float(np.median(np.abs(left))))
    jacobian = np.asarray(found.jac)
    return Fit(
        names=names,
        values=np.exp(found.x),
        covariance=deviation**2 * np.linalg.pinv(jacobian.T @ jacobian) * len(left) / (len(left) - len(names)),
        residuals=left,
        domain={name: (float(values.min()), float(values.max())) for name, values in points.items()},
    )
