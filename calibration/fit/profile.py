"""From samples to a profile: tables of medians, judged by samples that were held out."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.fit.curves import FORMULAS, Fit, fit
from calibration.fit.samples import Sample, SampleStore
from ladder_sim.costs.coordinates import AXES, Kind, grid_roofline_s
from ladder_sim.costs.profile import CalibrationProfile, ProfileSource, ReferenceGpu
from ladder_sim.costs.table import Curve, ErrorStats, RatioTable
from ladder_sim.errors import ProfileError
from ladder_sim.specs import catalog

HELD_OUT = 5
# every so many points, drawn at random, are left out of the trial fit
WORST_MEDIAN = 0.25
# median error on them beyond which a fit is refused
DTYPE, BYTES = "bf16", 2.0
_KINDS: tuple[Kind, ...] = ("gemm", "attention_prefill", "attention_decode")
Floats = NDArray[np.float64]
Points = dict[tuple[float, ...], float]
# coordinates -> median seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedProfile:
    """A profile, and how far it is to be trusted."""

    profile: CalibrationProfile
    # tables of every sample
    errors: Mapping[str, ErrorStats]
    # of tables without the held-out points on those points, by op
    fits: Mapping[str, Fit]
    # parametric, by op
    refused: tuple[str, ...]
    # ops whose fit is bad, and why


def make_profile(store: SampleStore, *, name: str, cluster: str, created: str) -> FittedProfile:
    """Fit samples of the GPUs and in-node links of a catalog cluster.

    Raises
    ------
    ProfileError
        There are no samples of GEMMs.
    """
    gpu = catalog.cluster(cluster).gpu
    reference = ReferenceGpu(**{field.name: getattr(gpu, field.name) for field in dataclasses.fields(ReferenceGpu)})
    medians = _medians(store.samples)
    if not medians.get(("gemm", 0)):
        raise ProfileError(f"samples '{store.path}' hold no GEMM", hint="`calibrate run` measures them")
    errors: dict[str, ErrorStats] = {}
    tables: dict[str, Any] = {}
    for kind in _KINDS:
        points = medians.get((kind, 0), {})
        if points:
            errors[kind] = _held_out(kind, points, reference)
            tables[kind] = dataclasses.replace(_table(kind, points, reference), left_out={"held out": errors[kind]})
    collectives: dict[str, dict[str, dict[int, Curve]]] = {}
    for (op, ranks), points in medians.items():
        if ranks:
            sizes, seconds = np.array(sorted((at[0], took) for at, took in points.items())).T
            collectives.setdefault(op, {}).setdefault("nccl", {})[ranks] = Curve(size_bytes=sizes, seconds=seconds)
    profile = CalibrationProfile(
        name=name,
        gpu=catalog.cluster(cluster).name,
        created=created,
        environment={key: str(value) for key, value in store.environment.items()},
        sources=(
            ProfileSource(what="all", version="", licence="", files=(store.path.name,), citation="calibrate run"),
        ),
        reference=reference,
        gemm={DTYPE: tables["gemm"]},
        attention_prefill={"flash": {DTYPE: tables["attention_prefill"]}} if "attention_prefill" in tables else {},
        attention_decode={"flash": {DTYPE: tables["attention_decode"]}} if "attention_decode" in tables else {},
        collectives=collectives,
    )
    refused = tuple(
        f"{op}: {stats.median:.0%} median error on {stats.rows} points held out, at most {WORST_MEDIAN:.0%} passes"
        for op, stats in errors.items()
        if stats.median > WORST_MEDIAN
    )
    return FittedProfile(profile=profile, errors=errors, fits=_parametric(medians), refused=refused)


def _medians(samples: Sequence[Sample]) -> dict[tuple[str, int], Points]:
    """By op and ranks (0: one GPU), the median of each point's samples; what did not fit the memory is left out."""
    found: dict[tuple[str, int], dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.seconds is not None:
            names = AXES.get(sample.op, ("bytes",))  # type: ignore[call-overload]
            found[sample.op, int(sample.point.get("ranks", 0))][tuple(sample.point[name] for name in names)].append(
                sample.seconds
            )
    return {key: {at: float(np.median(took)) for at, took in points.items()} for key, points in found.items()}


def _table(kind: Kind, points: Points, reference: ReferenceGpu) -> RatioTable:
    axes = [np.unique(column) for column in zip(*points, strict=True)]
    seconds = np.full([len(axis) for axis in axes], np.nan)
    for at, took in points.items():
        seconds[tuple(int(np.searchsorted(axis, value)) for axis, value in zip(axes, at, strict=True))] = took
    named = dict(zip(AXES[kind], axes, strict=True))
    roofline_s = _roofline_s(kind, dict(zip(named, np.ix_(*axes), strict=True)), reference)
    return RatioTable.from_seconds(named, seconds, roofline_s)


def _held_out(kind: Kind, points: Points, reference: ReferenceGpu) -> ErrorStats:
    """Errors of a table made of four fifths of the points on the others; points are drawn, the same every time."""
    order = np.random.default_rng(0).permutation(len(points))
    every = list(points)
    test = [every[i] for i in order[: len(points) // HELD_OUT]]
    kept = {at: took for at, took in points.items() if at not in set(test)}
    if not test:
        return ErrorStats.of([], [])
    columns = dict(zip(AXES[kind], np.array(test).T, strict=True))
    ratio, _ = _table(kind, kept, reference).ratio(**columns)
    return ErrorStats.of(ratio * _roofline_s(kind, columns, reference), [points[at] for at in test])


def _roofline_s(kind: Kind, points: Mapping[str, Any], reference: ReferenceGpu) -> Floats:
    return grid_roofline_s(
        kind,
        points,
        element_bytes=BYTES,
        flops_per_s=reference.bf16_flops,
        bandwidth_Bps=reference.hbm_bandwidth_Bps,
        kernel_s=reference.kernel_s,
    )


def _parametric(medians: Mapping[tuple[str, int], Points]) -> dict[str, Fit]:
    found = {}
    for (op, ranks), points in medians.items():
        if op in FORMULAS and len(points) > len(FORMULAS[op][1]):
            names = AXES.get(op, ("bytes",))  # type: ignore[call-overload]
            columns = dict(zip(names, np.array(list(points)).T, strict=True))
            label = f"{op}, {ranks} ranks" if ranks else op
            found[label] = fit(op, columns, np.array(list(points.values())))
    return found
