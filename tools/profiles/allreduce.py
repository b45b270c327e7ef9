"""Curves of collectives by algorithm, from what engines' own all-reduces measured.

An engine's all-reduce changes algorithm with the message size, and the rows do not say which one ran. It can be
inferred: the engines publish their switch points, and above the largest size they serve they call NCCL and take as
long as NCCL.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ladder_sim.costs.lookup import Curve, ErrorStats, envelope
from tools.profiles.grids import Series, distinct, merge, rounded
from tools.profiles.package import version_key
from tools.profiles.thin import thin_curve

# message bytes -> seconds
Points = dict[float, float]

# error of the worst left-out size: near the repeat noise of small messages
TARGET_ERROR = 0.03
# of the sizes that a curve keeps, so that some remain to judge it on
MAX_SHARE = 0.8
# an engine's time above this share of NCCL's is NCCL's: the two agree within 7 % where one calls the other
MEETS_NCCL = 0.93
# one-shot costs a + b * size, so its slope never falls; below this share of the slope before, another kernel ran
SLOPE_FLOOR = 0.7
# ... judged at sizes where the slope is more than noise
SLOPE_FROM_BYTES = 262144
# vLLM custom_all_reduce.cuh: two-shot from 512 KB up to 4 ranks and from 256 KB up to 8; never with 2
TWO_SHOT_FROM_BYTES = {4: 512 * 1024, 8: 256 * 1024}
# the H100 run of this version stays on its one-shot kernel past 32 MB, where the others call NCCL
EXCLUDED = {("vllm 0.24.0", 2, 64 * 2.0**20)}


def collective_curves(series: Mapping[tuple[str, int], list[Series]], op: str) -> dict[int, Curve]:
    """Return the thinned NCCL curve of `op` for each number of ranks."""
    return {ranks: _curve(many) for (name, ranks), many in series.items() if name == op and many}


def all_reduce_curves(
    nccl: Mapping[tuple[str, int], list[Series]], custom: Mapping[tuple[str, int], list[Series]]
) -> dict[str, dict[int, Curve]]:
    """Return the all-reduce curves by algorithm and ranks.

    ``nccl``; ``one-shot``, TensorRT-LLM's up to the size where it changes; ``two-shot``, vLLM's between its switch and
    NCCL.
    """
    curves: dict[str, dict[int, Curve]] = {"nccl": collective_curves(nccl, "all_reduce")}
    for ranks in sorted({ranks for _, ranks in custom}):
        baseline = _median_points(nccl.get(("all_reduce", ranks), []))
        one_shot = custom.get(("trtllm", ranks), [])
        two_shot = _without_excluded(custom.get(("vllm", ranks), []), ranks)
        if sizes := one_shot_sizes(_median_points(one_shot), baseline):
            curves.setdefault("one-shot", {})[ranks] = _curve(one_shot, sizes)
        if sizes := two_shot_sizes(_median_points(two_shot), baseline, ranks):
            curves.setdefault("two-shot", {})[ranks] = _curve(two_shot, sizes)
    return curves


def engine_curves(custom: Mapping[tuple[str, int], list[Series]], engine: str) -> tuple[str, dict[int, Curve]]:
    """Label and curves by ranks of the all-reduce that the newest version of an engine takes by itself.

    It changes algorithm with the size, and ends in NCCL.
    """
    own = {ranks: many for (name, ranks), many in custom.items() if name == engine}
    # some folders of one engine hold a copy of another's rows
    versions = {s.label.split()[1] for many in own.values() for s in many if s.engine == engine}
    if not versions:
        return "", {}
    label = f"{engine} {max(versions, key=version_key)}"
    curves = {}
    for ranks, many in sorted(own.items()):
        for series in many:
            if series.label == label:
                curves[ranks] = _curve([series])
    return label, curves


def one_shot_sizes(custom: Points, nccl: Points) -> list[float]:
    """Return the message sizes up to which an engine's all-reduce acts like one-shot; empty if fewer than three."""
    sizes: list[float] = []
    slope = 0.0
    for size, seconds in custom.items():
        if seconds > MEETS_NCCL * nccl.get(size, np.inf):
            break
        if sizes and size > SLOPE_FROM_BYTES:
            now = (seconds - custom[sizes[-1]]) / (size - sizes[-1])
            if now < SLOPE_FLOOR * slope:
                break
            slope = now
        sizes.append(size)
    return sizes if len(sizes) >= 3 else []


def two_shot_sizes(custom: Points, nccl: Points, ranks: int) -> list[float]:
    """Return the message sizes at which vLLM runs its two-shot kernel; empty if fewer than three."""
    start = next((size for maximum, size in TWO_SHOT_FROM_BYTES.items() if 2 < ranks <= maximum), np.inf)
    sizes: list[float] = []
    for size, seconds in custom.items():
        if size >= start:
            if seconds > MEETS_NCCL * nccl.get(size, np.inf):
                break
            sizes.append(size)
    return sizes if len(sizes) >= 3 else []


def _curve(series: Sequence[Series], sizes: Sequence[float] | None = None) -> Curve:
    """Return the thinned median of series at `sizes`, rising with size, with its errors at the sizes left out."""
    points = _median_points(series)
    chosen = np.array([size for size in points if sizes is None or size in sizes])
    seconds = rounded(envelope(np.array([points[size] for size in chosen]), [0]))
    curve = thin_curve(chosen, seconds, target=TARGET_ERROR, max_share=MAX_SHARE)
    left = ~np.isin(chosen, curve.size_bytes)
    errors = {"aggregated": ErrorStats.of(curve.seconds_at(chosen[left])[0], seconds[left])}
    for own in distinct(series):
        rows = np.isin(own.points[:, 0], chosen[left])
        if rows.any():
            errors[own.label] = ErrorStats.of(curve.seconds_at(own.points[rows, 0])[0], own.seconds[rows])
    return Curve(size_bytes=curve.size_bytes, seconds=curve.seconds, left_out=errors)


def _median_points(series: Sequence[Series]) -> Points:
    if not series:
        return {}
    grid = merge(("bytes",), distinct(series))
    known = np.isfinite(grid.seconds)
    return dict(zip(grid.axes["bytes"][known].tolist(), grid.seconds[known].tolist(), strict=True))


def _without_excluded(series: Sequence[Series], ranks: int) -> list[Series]:
    return [
        own.at(np.array([(own.label, ranks, size) not in EXCLUDED for size in own.points[:, 0]], dtype=np.bool_))
        for own in series
    ]
