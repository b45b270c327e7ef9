"""From samples to a profile: tables of medians, judged by points that were held out."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.fit.curves import FORMULAS, Fit, fit
from calibration.fit.holdout import judge
from calibration.fit.overheads import overheads
from calibration.fit.overlap import Slowdown, parameters, slowdowns
from calibration.fit.samples import Points, SampleStore, Series, medians
from calibration.fit.tables import COLLECTIVES, DTYPE, KINDS, curve_of, table_of
from ladder_sim.costs.lookup import Curve, ErrorStats, RatioTable
from ladder_sim.costs.profile import CalibrationProfile, ProfileSource, ReferenceGpu
from ladder_sim.errors import ProfileError
from ladder_sim.specs import catalog

# median error on held-out points beyond which a table or curve is refused
WORST_MEDIAN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedProfile:
    """A profile, and how far it is to be trusted."""

    profile: CalibrationProfile
    """Tables of every sample."""
    errors: Mapping[str, ErrorStats]
    """Of tables, curves and formulas without the held-out points on those points, by op and group."""
    unjudged: tuple[str, ...]
    """Those with too few points to hold any out."""
    fits: Mapping[str, Fit]
    """Parametric, by op and group."""
    slowdowns: tuple[Slowdown, ...]
    """Of kernels and all-reduces beside each other."""
    refused: tuple[str, ...]
    """Tables and curves whose fit is bad, and their median error."""
    warnings: tuple[str, ...]
    """What the samples do not fit."""


def make_profile(store: SampleStore, *, name: str, cluster: str, created: str) -> FittedProfile:
    """Fit samples of the GPUs and in-node links of a cluster.

    Parameters
    ----------
    store
        The samples.
    name
        Of the profile.
    cluster
        Catalog id, or path of a TOML file, whose GPU and in-node links were measured.
    created
        ISO date.

    Raises
    ------
    ProfileError
        There are no samples of GEMMs.
    """
    gpu = catalog.cluster(cluster).gpu
    reference = ReferenceGpu(**{field.name: getattr(gpu, field.name) for field in dataclasses.fields(ReferenceGpu)})
    points = medians(store.samples)
    if not any(series.op == "gemm" for series in points):
        raise ProfileError(f"samples '{store.path}' hold no GEMM", hint="`calibrate run` measures them")
    judged, fits, beside = judge(points, reference), _fits(points), tuple(slowdowns(store.samples))
    errors = {series: stats for series, stats in judged.items() if stats}
    tables, curves = _tables(points, reference, errors), _curves(points, errors)
    device = str(store.environment.get("gpu") or store.environment.get("cpu", ""))
    profile = CalibrationProfile(
        name=name,
        gpu=str(Path(cluster).resolve()) if cluster.endswith(".toml") else catalog.cluster(cluster).name,
        created=created,
        environment={"device": device, **{key: str(value) for key, value in store.environment.items()}},
        sources=(
            ProfileSource(what="all", version="", licence="", files=(store.path.name,), citation="calibrate run"),
        ),
        reference=reference,
        gemm=tables["gemm"],
        attention_prefill={"flash": tables["attention_prefill"]} if "attention_prefill" in tables else {},
        attention_decode={"flash": tables["attention_decode"]} if "attention_decode" in tables else {},
        collectives=curves,
        overlap=parameters(beside),
        overheads=overheads(points, store.samples, fits, reference),
    )
    refused = tuple(
        f"{series.label}: {stats.median:.0%}"
        for series, stats in errors.items()
        if series.op in (*KINDS, *COLLECTIVES) and stats.median > WORST_MEDIAN
    )
    elsewhere = f"measured on '{device}', while the GPU of '{cluster}' is {gpu.name}"
    warnings = () if profile.is_of(gpu.name) else (elsewhere,)
    return FittedProfile(
        profile=profile,
        errors={series.label: stats for series, stats in errors.items()},
        unjudged=tuple(series.label for series, stats in judged.items() if stats is None),
        fits=fits,
        slowdowns=beside,
        refused=refused,
        warnings=warnings,
    )


def _tables(
    points: Mapping[Series, Points], reference: ReferenceGpu, errors: Mapping[Series, ErrorStats]
) -> dict[str, dict[str, RatioTable]]:
    found = {series.op: series for series in points}
    return {
        kind: {
            DTYPE: dataclasses.replace(
                table_of(kind, points[found[kind]], reference), left_out=_left_out(found[kind], errors)
            )
        }
        for kind in KINDS
        if kind in found
    }


def _curves(
    points: Mapping[Series, Points], errors: Mapping[Series, ErrorStats]
) -> dict[str, dict[str, dict[int, Curve]]]:
    """Collectives in one node: a profile holds no others."""
    found: dict[str, dict[str, dict[int, Curve]]] = {}
    for series, at in points.items():
        if series.op in COLLECTIVES and series.nodes == 1:
            curve = dataclasses.replace(curve_of(at), left_out=_left_out(series, errors))
            found.setdefault(series.op, {}).setdefault("nccl", {})[series.ranks] = curve
    return found


def _left_out(series: Series, errors: Mapping[Series, ErrorStats]) -> dict[str, ErrorStats]:
    return {"held out": errors[series]} if series in errors else {}


def _fits(points: Mapping[Series, Points]) -> dict[str, Fit]:
    return {
        series.label: fit(series.op, series.columns(list(at)), np.array(list(at.values())))
        for series, at in points.items()
        if series.op in FORMULAS and len(at) > len(FORMULAS[series.op][1])
    }
