"""How much kernels slow down next to all-reduces and next to held SMs, and what contention follows from that."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.costs.contention import OverlapParameters, kernel_demand
from ladder_sim.costs.roofline import table_shape
from ladder_sim.des.shared import Demand, Device
from ladder_sim.graph.shapes import ElementwiseShape, Shape
from ladder_sim_calibration.fit.samples import BESIDE, HELD, TABLES, Sample

# points that a figure needs
MIN_POINTS = 3
# what is tried: shares of the SMs that a kernel can lose, SMs lost with each one held, and tokens up to which a GEMM is
# of one kind
SPARES, SCATTERS, ROWS = np.linspace(0.0, 1.0, 41), np.linspace(0.0, 2.0, 21), (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_DEFAULT = OverlapParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How many times as long one op takes while another runs."""

    pair: str
    """E.g. "all_reduce_beside_gemm"."""
    memory_bound: bool
    """Whether the kernel of the two only streams from memory."""
    ratios: tuple[float, ...]
    """One per point."""


class Loss(NamedTuple):
    """How many times as long a kernel takes while a part of the processor is held."""

    kernel: str
    """Kind of the kernel, with its tokens if it is a GEMM."""
    shape: Shape
    held: float
    """SMs of a GPU, threads of a CPU."""
    ratio: float

    def predicted(self, sms: int, parameters: OverlapParameters) -> float:
        """Return how many times as long the kernel takes by the simulator's rule, on a processor of `sms` SMs."""
        # only the SMs are shared: nothing else moves data
        demand = kernel_demand(self.shape, sms, parameters, 0.0)
        return 1.0 / float(Device(sms=sms).rate(demand, [Demand(held_sms=min(self.held, sms - 1))]))


def slowdowns(samples: Sequence[Sample]) -> list[Slowdown]:
    """Return the slowdowns by pair of ops, and by what bounds the kernel."""
    points: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for op, point, ratio in _ratios(samples):
        if HELD not in point:
            # decode attention has no m
            memory_bound = point.get("m", 1.0) <= _DEFAULT.stream_rows
            points[op, memory_bound].append(ratio)
    return [Slowdown(pair=pair, memory_bound=bound, ratios=tuple(ratios)) for (pair, bound), ratios in points.items()]


def losses(samples: Sequence[Sample]) -> list[Loss]:
    """Return the losses of every kernel next to held SMs."""
    return [
        Loss(_kernel_name(op, point), _shape(op, point), point[HELD], ratio)
        for op, point, ratio in _ratios(samples)
        if HELD in point
    ]


def _ratios(samples: Sequence[Sample]) -> Iterator[tuple[str, Mapping[str, float], float]]:
    """Return, for every op next to another one, its point and the median of how many times as long it takes."""
    ratios: dict[Any, list[float]] = defaultdict(list)
    points = {}
    for sample in samples:
        if sample.seconds is not None and sample.alone_s is not None:
            ratios[sample.key].append(sample.seconds / sample.alone_s)
            points[sample.key] = sample.op, sample.point
    for key, values in ratios.items():
        yield *points[key], float(np.median(values))


def _kernel_name(op: str, point: Mapping[str, float]) -> str:
    name = op.partition(BESIDE)[0]
    tokens = point.get("m", 0.0)
    return f"{name} of {tokens:g} token{'s' * (tokens > 1.0)}" if tokens else name


def _shape(op: str, point: Mapping[str, float]) -> Shape:
    name = op.partition(BESIDE)[0]
    return table_shape(*TABLES[name], point) if name in TABLES else ElementwiseShape(moved_bytes=point["bytes"])


def parameters(slowdowns: Sequence[Slowdown], losses: Sequence[Loss], sms: int) -> dict[str, float]:
    """Overlap parameters that the samples determine, for a processor of so many SMs."""
    ratios = [
        ratio
        for slowdown in slowdowns
        if slowdown.memory_bound and slowdown.pair.startswith(f"all_reduce{BESIDE}")
        for ratio in slowdown.ratios
    ]
    measured = {"collective_slowdown": max(0.0, float(np.median(ratios)) - 1.0)} if len(ratios) >= MIN_POINTS else {}
    return measured | _of_losses(losses, sms)


def _of_losses(losses: Sequence[Loss], sms: int) -> dict[str, float]:
    """Return what a kernel loses with its SMs: values are tried, because waves leave no slope to follow."""
    gemms = [loss for loss in losses if loss.kernel.startswith("gemm")]
    attention = [loss for loss in losses if loss.kernel.startswith("attention")]
    others = [loss for loss in losses if not loss.kernel.startswith(("gemm", "attention"))]
    best: dict[str, float] = {}
    if len(attention) >= MIN_POINTS:
        best |= _best(attention, sms, [{"grid_spare": spare} for spare in SPARES])[1]
    if len(gemms) < MIN_POINTS:
        if len(others) >= MIN_POINTS:
            best |= _best(others, sms, [{"memory_spare": spare} for spare in SPARES])[1]
        return best
    error = math.inf
    chosen: dict[str, float] = {}
    for gemv_rows in ROWS:
        # what a reduction can lose does not depend on the rest
        spare = _best([*gemms, *others], sms, [{"gemv_rows": gemv_rows, "memory_spare": spare} for spare in SPARES])[1]
        for stream_rows in ROWS[ROWS.index(gemv_rows) :]:
            tried = [{**spare, "stream_rows": stream_rows, "scatter": scatter} for scatter in SCATTERS]
            tried_error, tried_best = _best([*gemms, *others], sms, tried)
            if tried_error < error:
                error, chosen = tried_error, tried_best
    return best | chosen


def _best(losses: Sequence[Loss], sms: int, tried: Sequence[Mapping[str, float]]) -> tuple[float, dict[str, float]]:
    """Return the least mean square error, in logarithms, and the figures that have it."""
    errors = [error_of(losses, sms, figures) for figures in tried]
    least = int(np.argmin(errors))
    return errors[least], {name: float(value) for name, value in tried[least].items()}


def error_of(losses: Sequence[Loss], sms: int, figures: Mapping[str, float]) -> float:
    """Return the mean square of the logarithms of predicted over measured losses."""
    chosen = replace(_DEFAULT, **figures)
    return float(np.mean([math.log(loss.predicted(sms, chosen) / loss.ratio) ** 2 for loss in losses]))
