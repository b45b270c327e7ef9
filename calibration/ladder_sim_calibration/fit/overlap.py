"""How much kernels slow down next to all-reduces and next to held SMs, and what contention follows from that."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.costs.estimate import GEMV_ROWS, OverlapParameters, memory_steps, waiting_share
from ladder_sim.costs.profile import HBM_EFFICIENCY
from ladder_sim.kernels import TABLE_KINDS, Gpu
from ladder_sim_calibration.fit.samples import BESIDE, HELD, TABLES, Sample

# points that a figure needs
MIN_POINTS = 3
# share of the memory's bandwidth that a kernel uses at least, to tell how it delays steps through the memory
MIN_SHARE = 0.5
# tokens up to which a GEMM is bound by the memory, so that it says what such kernels lose
MOST_ROWS = 64.0
# parameters that samples determine
MEASURED = ("lost", "gemm_delay", "kernel_delay")
_DEFAULT = OverlapParameters()
_ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How many times as long one op takes while another runs."""

    pair: str
    """E.g. "all_reduce_beside_gemm"."""
    several_rows: bool
    """Whether the kernel of the two is a GEMM of several rows, which is a library's."""
    ratios: tuple[float, ...]
    """One per point."""
    delays: tuple[float, ...] = ()
    """How much longer steps of an all-reduce through memory took beside kernels that use at least MIN_SHARE of its
    bandwidth, in multiples of their time alone."""


class Loss(NamedTuple):
    """How many times as long a kernel takes while a part of the processor is held."""

    kernel: str
    """Kind of the kernel, with its tokens if it is a GEMM."""
    held: float
    """SMs of a GPU, threads of a CPU."""
    ratio: float
    rows: float
    """Tokens of a GEMM; 0: of another kernel."""

    def lost(self, sms: int) -> float:
        """Return the part of the held share of `sms` SMs, or threads, that the kernel lost."""
        return (1.0 - 1.0 / self.ratio) * sms / min(self.held, sms - 1)


def slowdowns(samples: Sequence[Sample], gpu: Gpu) -> list[Slowdown]:
    """Return the slowdowns by pair of ops, and by the kernel of the two."""
    ratios: dict[tuple[str, bool], list[float]] = defaultdict(list)
    delays: dict[tuple[str, bool], list[float]] = defaultdict(list)
    beside = [each for each in _ratios(samples) if HELD not in each[1]]
    alone_s = {(op, *sorted(point.items())): seconds for op, point, _, seconds in beside}
    for op, point, ratio, seconds in beside:
        # decode attention has no m
        pair = op, point.get("m", 1.0) > GEMV_ROWS
        ratios[pair].append(ratio)
        kernel = op.removeprefix(_ALL_REDUCE + BESIDE)
        kernel_s = alone_s.get((kernel + BESIDE + _ALL_REDUCE, *sorted(point.items())))
        if kernel_s is None:
            continue
        kind, of = TABLES[kernel]
        share = TABLE_KINDS[kind].shape(of, point).moved_bytes / (HBM_EFFICIENCY * gpu.hbm_bandwidth_Bps * kernel_s)
        if share >= MIN_SHARE:
            steps = memory_steps("nccl", _ALL_REDUCE, int(point["nodes"]), int(point["ranks"] / point["nodes"]))
            waits = float(waiting_share(steps, seconds, _DEFAULT))
            delays[pair].append(max(0.0, ratio - 1.0) / (waits * min(1.0, float(share))))
    return [
        Slowdown(pair=op, several_rows=several, ratios=tuple(each), delays=tuple(delays[op, several]))
        for (op, several), each in ratios.items()
    ]


def losses(samples: Sequence[Sample]) -> list[Loss]:
    """Return the losses of every kernel next to held SMs."""
    return [
        Loss(_kernel_name(op, point), point[HELD], ratio, point.get("m", 0.0))
        for op, point, ratio, _ in _ratios(samples)
        if HELD in point
    ]


def _ratios(samples: Sequence[Sample]) -> Iterator[tuple[str, Mapping[str, float], float, float]]:
    """Yield every op next to another one, its point, how many times as long it takes, and its seconds alone."""
    timings: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    points = {}
    for sample in samples:
        if sample.seconds is not None and sample.alone_s is not None:
            timings[sample.key].append((sample.seconds / sample.alone_s, sample.alone_s))
            points[sample.key] = sample.op, sample.point
    for key, values in timings.items():
        ratio, alone_s = np.median(values, axis=0).tolist()
        yield *points[key], ratio, alone_s


def _kernel_name(op: str, point: Mapping[str, float]) -> str:
    name = op.partition(BESIDE)[0]
    tokens = point.get("m", 0.0)
    return f"{name} of {tokens:g} token{'s' * (tokens > 1.0)}" if tokens else name


def parameters(slowdowns: Sequence[Slowdown], losses: Sequence[Loss], sms: int) -> dict[str, float]:
    """Overlap parameters that the samples determine, for a processor of so many SMs."""
    measured = (
        [loss.lost(sms) for loss in losses if loss.rows <= MOST_ROWS],
        [delay for slowdown in slowdowns if slowdown.several_rows for delay in slowdown.delays],
        [delay for slowdown in slowdowns if not slowdown.several_rows for delay in slowdown.delays],
    )
    return {
        name: min(1.0, value) if name == "lost" else value
        for name, values in zip(MEASURED, measured, strict=True)
        if len(values) >= MIN_POINTS
        for value in [max(0.0, float(np.median(values)))]
    }
