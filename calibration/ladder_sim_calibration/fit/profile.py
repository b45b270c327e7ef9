"""From samples to a profile: tables and curves of medians, judged by held-out points."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ladder_sim.costs.hardware import skew_growth
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.costs.profile import ATTENTION, JITTER_KEY, RANK_SKEW, CalibrationProfile, ProfileSource
from ladder_sim.des.shared import Floats
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import TABLE_KINDS, Gpu, Kind
from ladder_sim.specs import catalog
from ladder_sim.values import whole
from ladder_sim_calibration.fit.overlap import Loss, Slowdown, losses, parameters, slowdowns
from ladder_sim_calibration.fit.samples import (
    CURVES,
    ELEMENTWISE,
    SUSTAINED,
    TABLES,
    MeasuredOp,
    Sample,
    SampleStore,
    SizedTimes,
    medians,
)
from ladder_sim_calibration.fit.tables import curve_of, table_of

LAUNCHES = ("eager_launch", "graph_launch", "graph_kernel")
# half the distance between a normal distribution's quartiles, in standard deviations
QUARTILE = 0.6745
# from a median absolute deviation to a normal distribution's standard deviation
MAD_TO_SD = 1.4826
# where the search for a floor and a bandwidth starts
START = (3e-6, 1e12)
# noise of a logarithm that the search assumes first, and the lowest it works with
FIRST_NOISE, MIN_NOISE = 0.05, 1e-6


def overheads(medians: Mapping[MeasuredOp, SizedTimes], samples: Sequence[Sample], reference: Gpu) -> dict[str, float]:
    """Return the figures that were measured, by name.

    Those of a stack's specs, the share of its cold rate that the GPU keeps up, the jitter, the lag of the slowest rank,
    and a tiny kernel's time in a CUDA graph.
    """
    points = {op.op: at for op, at in medians.items() if not op.ranks}
    figures = {f"{op}_s": points[op][()] for op in LAUNCHES if op in points}
    queued = points.get("queued_kernel", {})
    if len(queued) == 2:
        figures["stream_wait_s"] = max(0.0, queued[2.0,] - queued[1.0,])
    pairs = {streams: s for op, at in medians.items() if op.op == "queued_all_reduce" for (streams, _), s in at.items()}
    if len(pairs) == 2 and "stream_wait_s" in figures:
        # the pair waits twice, and a wait has its own figure
        figures["collective_launch_s"] = max(0.0, pairs[2.0] - pairs[1.0] - 2.0 * figures["stream_wait_s"])
    # two parameters need three points
    floors_s = [floor_s(points[op]) for op in ELEMENTWISE if len(points.get(op, ())) > 2]
    if floors_s:
        # a kernel that this runtime does not fuse takes several floors
        figures["small_kernel_factor"] = float(np.median(floors_s) / reference.kernel_s)
    if ratios := [gemm.ratio for gemm in sustained(medians, samples)]:
        figures["sustained_rate"] = 1.0 / min(ratios)
    spreads: dict[Any, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op in (*TABLES, *ELEMENTWISE) and sample.seconds is not None:
            spreads[sample.key].append(sample.spread)
    # the median of each point first: the least certain points have the most samples
    figures[JITTER_KEY] = float(np.median([np.median(each) for each in spreads.values()])) / QUARTILE
    relative = rank_factors(samples)
    if len(relative) > 1:
        figures[RANK_SKEW] = max(0.0, float(relative.max()) - 1.0) / skew_growth(len(relative))
    return figures


class Sustained(NamedTuple):
    """A GEMM under load for seconds."""

    m: float
    """Tokens."""
    ratio: float
    """How many times as long it takes as on a GPU that is just warm."""
    clock_MHz: float | None
    """Clock of the GPU at the end, MHz; None if it is not known."""


def sustained(medians: Mapping[MeasuredOp, SizedTimes], samples: Sequence[Sample]) -> Iterator[Sustained]:
    """Yield the GEMMs that were measured both ways."""
    points = {op.op: at for op, at in medians.items()}
    clocks = {sample.key: sample.clock_MHz for sample in samples if sample.op == SUSTAINED}
    for at, seconds in points.get(SUSTAINED, {}).items():
        cold_s = points["gemm"].get(at)
        if cold_s is not None:
            key = SUSTAINED, tuple(sorted(zip(("m", "n", "k"), at, strict=True)))
            yield Sustained(at[0], seconds / cold_s, clocks[key])


def rank_factors(samples: Sequence[Sample]) -> Floats:
    """Return how long each rank computes, over the median of ranks; empty for one rank.

    What lasts, and not that one rank or another is slower in each single sample.
    """
    rows = [sample.by_rank for sample in samples if sample.op in (*TABLES, *ELEMENTWISE) and sample.by_rank]
    if not rows:
        return np.zeros(0)
    seconds = np.array([row for row in rows if len(row) == len(rows[-1])])
    factors: Floats = np.median(seconds / np.median(seconds, axis=1, keepdims=True), axis=0)
    return factors


def floor_s(points: SizedTimes) -> float:
    """Time of an elementwise kernel that moves next to nothing.

    Fits a floor plus time in proportion to the bytes, by robust least squares on the logarithm of time.
    """
    size_bytes, seconds = np.array([size for (size,) in points]), np.array(list(points.values()))

    def residuals(log_parameters: Floats) -> Floats:
        floor, bandwidth_Bps = np.exp(log_parameters)
        return np.asarray(np.log(seconds / (floor + size_bytes / bandwidth_Bps)), np.float64)

    # a CPU's times and a GPU's differ by orders of magnitude: start at the samples' own level
    level = np.exp(np.median(residuals(np.log(np.array(START)))))
    log_parameters, noise = np.log([START[0] * level, START[1] / level]), FIRST_NOISE
    for _ in range(2):
        # the second time with the noise that the first one saw, so that an outlier pulls no more than other samples
        solved = least_squares(residuals, log_parameters, loss="cauchy", f_scale=2.0 * noise, max_nfev=2000)
        log_parameters = solved.x
        noise = max(MIN_NOISE, MAD_TO_SD * float(np.median(np.abs(residuals(log_parameters)))))
    return float(np.exp(log_parameters[0]))


# median error on held-out points above which a table or curve is refused
MAX_MEDIAN_ERROR = 0.25
# every point is held out of one trial, drawn at random
TRIALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedProfile:
    """A profile, and how far to trust it."""

    profile: CalibrationProfile
    """Tables of every sample."""
    errors: Mapping[str, ErrorStats]
    """Errors of tables and curves on points that were held out of them, by op and group."""
    unjudged: tuple[str, ...]
    """Tables and curves with too few points to hold any out."""
    slowdowns: tuple[Slowdown, ...]
    """Slowdowns of kernels and all-reduces that ran at the same time."""
    losses: tuple[Loss, ...]
    """Losses of kernels while a part of the processor was held."""
    sustained: tuple[Sustained, ...]
    """GEMMs under seconds of load."""
    refused: tuple[str, ...]
    """Tables and curves whose median error is too large, with that error."""
    warnings: tuple[str, ...]
    """What does not match the cluster."""


def make_profile(store: SampleStore, *, name: str, cluster: str, created: str) -> FittedProfile:
    """Fit samples of the GPU and the in-node links of `cluster`, a catalog id or the path of a TOML file.

    `created` is an ISO date. Raises ProfileError if there are no samples of GEMMs.
    """
    measured_on = catalog.cluster(cluster)
    gpu = measured_on.gpu
    reference = Gpu.of(gpu)
    points = medians(store.samples)
    if not any(op.op == "gemm" for op in points):
        raise ProfileError(f"samples '{store.path}' hold no GEMM", hint="`calibrate run` measures them")
    judged, overlaps = judge(points, reference), tuple(slowdowns(store.samples, reference))
    held = tuple(losses(store.samples))
    # of a CPU threads are held
    cores = store.environment.get("cpu_cores", gpu.sms)
    sms = gpu.sms if "gpu" in store.environment else whole(cores, f"samples '{store.path}': cpu_cores", 1, 1_000_000)
    errors = {op: stats for op, stats in judged.items() if stats}
    tables, curves = _tables(points, reference, errors), _curves(points, errors)
    device = str(store.environment.get("gpu") or store.environment.get("cpu", ""))
    profile = CalibrationProfile(
        name=name,
        cluster=measured_on,
        cluster_name=str(Path(cluster).resolve()) if cluster.endswith(".toml") else measured_on.name,
        created=created,
        environment={"device": device, **{key: str(value) for key, value in store.environment.items()}},
        sources=(
            ProfileSource(what="all", version="", licence="", files=(store.path.name,), citation="calibrate run"),
        ),
        reference=reference,
        gemm=tables["gemm"],
        attention_prefill=_attention("attention_prefill", tables),
        attention_decode=_attention("attention_decode", tables),
        collectives=curves,
        sampling=tables["sample"],
        experts=tables["moe"],
        overlap=parameters(overlaps, held, sms),
        overheads=overheads(points, store.samples, reference),
    )
    refused = tuple(
        f"{op.label}: {stats.median:.0%}" for op, stats in errors.items() if stats.median > MAX_MEDIAN_ERROR
    )
    elsewhere = f"measured on '{device}', while the GPU of '{cluster}' is {gpu.name}"
    bursts = sum(sample.burst for sample in store.samples)
    warned = {
        elsewhere: not profile.is_of(gpu),
        f"{bursts} samples were bursts: the GPU's clock fell while they were taken": bursts > 0,
    }
    return FittedProfile(
        profile=profile,
        errors={op.label: stats for op, stats in errors.items()},
        unjudged=tuple(op.label for op, stats in judged.items() if stats is None),
        slowdowns=overlaps,
        losses=held,
        sustained=tuple(sustained(points, store.samples)),
        refused=refused,
        warnings=tuple(warning for warning, there in warned.items() if there),
    )


def _tables(
    points: Mapping[MeasuredOp, SizedTimes], reference: Gpu, errors: Mapping[MeasuredOp, ErrorStats]
) -> dict[Kind, dict[Any, RatioTable]]:
    """Return the tables of ratios by kind of op, and by data type or layer of experts within a kind."""
    tables: dict[Kind, dict[Any, RatioTable]] = defaultdict(dict)
    for op, at in points.items():
        if op.table:
            kind, of = op.table
            table = table_of(kind, of, at, reference)
            tables[kind][of] = dataclasses.replace(table, left_out=_left_out(op, errors))
    return tables


def _attention(phase: str, tables: Mapping[Kind, dict[str, RatioTable]]) -> dict[str, dict[str, RatioTable]]:
    """Return the tables of attention in one phase, by kernel."""
    return {kernel: tables[kind] for kind, (of, kernel) in ATTENTION.items() if of == phase and kind in tables}


def _curves(
    points: Mapping[MeasuredOp, SizedTimes], errors: Mapping[MeasuredOp, ErrorStats]
) -> dict[str, dict[str, dict[int, Curve]]]:
    """Return the curves of collectives inside one node; a profile holds no others."""
    curves: dict[str, dict[str, dict[int, Curve]]] = {}
    for op, at in points.items():
        if op.op in CURVES and op.nodes == 1:
            kind, algorithm = CURVES[op.op]
            curve = dataclasses.replace(curve_of(at), left_out=_left_out(op, errors))
            curves.setdefault(kind, {}).setdefault(algorithm, {})[op.ranks] = curve
    return curves


def _left_out(op: MeasuredOp, errors: Mapping[MeasuredOp, ErrorStats]) -> dict[str, ErrorStats]:
    return {"held out": errors[op]} if op in errors else {}


def judge(medians: Mapping[MeasuredOp, SizedTimes], reference: Gpu) -> dict[MeasuredOp, ErrorStats | None]:
    """Return the errors of every op that becomes a table or a curve; every call draws the same points.

    None for an op with fewer points than trials.
    """
    return {
        op: _errors(op, points, reference) if len(points) >= TRIALS else None
        for op, points in medians.items()
        if op.table or op.op in CURVES
    }


def _errors(op: MeasuredOp, points: SizedTimes, reference: Gpu) -> ErrorStats:
    """Return the errors at all points but the ends of a curve, which lie between no others."""
    every = sorted(points)
    drawn = np.random.default_rng(0).permutation(every if len(op.axes) > 1 else every[1:-1]).tolist()
    looked_up: list[float] = []
    measured: list[float] = []
    for trial in range(min(TRIALS, len(drawn))):
        held_out = [tuple(at) for at in drawn[trial::TRIALS]]
        kept = {at: seconds for at, seconds in points.items() if at not in set(held_out)}
        looked_up.extend(_look_up(op, kept, reference, op.columns(held_out)))
        measured.extend(points[at] for at in held_out)
    return ErrorStats.of(looked_up, measured)


def _look_up(op: MeasuredOp, points: SizedTimes, reference: Gpu, columns: Mapping[str, Floats]) -> Floats:
    """Return the times, seconds, that a prediction would take from the points at `columns`."""
    if op.table:
        kind, of = op.table
        ratio, _ = table_of(kind, of, points, reference).ratio(**columns)
        return ratio * TABLE_KINDS[kind].shape(of, columns).roofline_s(reference)
    return curve_of(points).seconds_at(columns["bytes"])[0]
