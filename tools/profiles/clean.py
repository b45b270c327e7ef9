"""What is done to measured times of GEMMs and attention before the engines' median is taken, and why.

Engines measure the same libraries, so that a time which only one of them has is the collection's, not the kernel's.
Measurements of something else are left out (`EXCLUSIONS`); TensorRT-LLM's fp8 times lose the quantisation of the
activations (`static`); none is faster than memory (`from_memory`); and no time may fall far as the problem grows
(`FALLS`, `tools.profiles.grids.lowered`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ladder_sim.costs.lookup import RatioTable
from ladder_sim.des.shared import Floats
from ladder_sim.kernels import TABLE_KINDS, Kind
from tools.profiles.grids import Series, dense, lowered

# kinds of kernels: axes along which a padded problem holds the smaller one, and how many times a larger one's time a
# time may be. All engines' GEMMs take up to 1.3 times as long where a library takes another kernel for the next size;
# lowering them further makes servings 0.4 points worse. Attention splits its work by sequences, heads and context; what
# takes longer at one size only (vLLM on A100: 36 us for one KV head, 12.5 for two) can be padded to the next
FALLS: Mapping[Kind, tuple[tuple[str, ...], float]] = {
    "gemm": (("m", "n"), 1.3),
    "attention_prefill": (TABLE_KINDS["attention_prefill"].axes, 1.04),
    "attention_decode": (TABLE_KINDS["attention_decode"].axes, 1.04),
    **{kind: (each.axes, 1.04) for kind, each in TABLE_KINDS.items() if kind.startswith(("state", "convolution"))},
}

# outliers that a note names
NAMED = 3
# weights of a static GEMM are read once, at most at this share of the memory's bandwidth, behind this launch
STREAM_SHARE, LAUNCH_S = 0.92, 2e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Measurements that are not of what they should be."""

    engine: str
    """Framework that measured."""
    format: str
    """Format of the operands."""
    reason: str
    """What they hold instead."""
    systems: tuple[str, ...] = ()
    """The package's names of the GPUs concerned; empty: all."""
    from_m: float = 1.0
    """Fewest rows concerned."""
    to_m: float = np.inf
    """Most rows concerned."""


EXCLUSIONS = (
    Exclusion(
        engine="vllm",
        format="fp8-block",
        reason="its times hold launches: no less than 55-80 us on Hopper and 170-280 us on Blackwell, others 5-10",
    ),
    Exclusion(
        engine="trtllm",
        format="nvfp4",
        reason="not tuned for few rows: 1.3-1.6 times the others",
        systems=("b200_sxm", "b300_sxm", "gb200"),
        to_m=512,
    ),
    Exclusion(
        engine="vllm",
        format="bf16",
        reason="1,020 TFLOP/s where the others reach 1,550",
        systems=("gb200",),
        from_m=8192,
    ),
    Exclusion(
        engine="sglang",
        format="fp8",
        reason="twice the others' time up to 128 rows",
        systems=("rtx_pro_6000_server",),
        to_m=128,
    ),
)


def without_excluded(series: Series, system: str, dtype: str) -> tuple[Series, list[str]]:
    """Return the rows that are used, and a note on each exclusion that took some."""
    rows = np.ones(len(series.seconds), dtype=np.bool_)
    notes = []
    for each in EXCLUSIONS:
        if (each.engine, each.format) != (series.engine, dtype) or (each.systems and system not in each.systems):
            continue
        concerned = (series.points[:, 0] >= each.from_m) & (series.points[:, 0] <= each.to_m)
        rows &= ~concerned
        if concerned.any():
            which = "".join(
                f" {way} m {m:g}" for way, m in (("from", each.from_m), ("up to", each.to_m)) if 1.0 < m < np.inf
            )
            notes.append(f"gemm {dtype} without {series.label}{which}: {each.reason}")
    return series.at(rows), notes


def static(series: Series, quantisation: Sequence[Series], *, bandwidth_Bps: float, flops: float) -> Series:
    """Return times of fp8 GEMMs whose activations come quantised, from times that hold their quantisation.

    Parameters
    ----------
    series
        Measured over (m, n, k).
    quantisation
        Kernels to subtract, each measured over (m, k).
    bandwidth_Bps, flops
        Of the GPU's memory and fp8 tensor cores: what is left is no faster.
    """
    m, n, k = series.points.T
    seconds = series.seconds.copy()
    for kernel in quantisation:
        axes = {name: np.unique(kernel.points[:, i]) for i, name in enumerate(("m", "k"))}
        measured_s = dense(list(axes.values()), kernel)
        table = RatioTable.from_seconds(axes, measured_s, np.ones_like(measured_s))
        seconds -= table.factor(m=m, k=k)
    fastest_s = np.maximum(LAUNCH_S + n * k / (STREAM_SHARE * bandwidth_Bps), 2.0 * m * n * k / flops)
    return replace(series, seconds=np.maximum(seconds, fastest_s))


def from_memory(series: Series, size_bytes: Floats, bandwidth_Bps: float, what: str) -> tuple[Series, list[str]]:
    """Return times raised to what reading `size_bytes` from memory takes, and a note if any was shorter.

    Calls that repeat find their operands in a large cache; a model's next layer does not.
    """
    fastest_s = size_bytes / bandwidth_Bps
    raised = int((series.seconds < fastest_s).sum())
    note = f"{what} of {series.label}: {raised} of {len(fastest_s)} times raised to what reading its operands takes"
    return replace(series, seconds=np.maximum(series.seconds, fastest_s)), [note] * bool(raised)


def outlier_note(kind: Kind, dtype: str, many: Sequence[Series]) -> str:
    """Return how many times of several series are lowered, and which by the most; empty if none is."""
    names, (rising, far) = TABLE_KINDS[kind].axes, FALLS[kind]
    cells: list[tuple[float, str]] = []
    rows = 0
    for series in many:
        values = [np.unique(series.points[:, axis]) for axis in range(len(names))]
        measured_s = dense(values, series)
        lowered_s: Floats = lowered(measured_s, [names.index(name) for name in rising], far)
        rows += int(np.isfinite(measured_s).sum())
        for at in np.argwhere(measured_s > lowered_s):
            point = " ".join(f"{name} {axis[i]:g}" for name, axis, i in zip(names, values, at, strict=True))
            was, now = (1e6 * float(times[tuple(at)]) for times in (measured_s, lowered_s))
            cells.append((was / now, f"{series.label} {point}, {was:.1f} to {now:.1f} us"))
    if not cells:
        return ""
    worst = "; ".join(text for _, text in sorted(cells, reverse=True)[:NAMED])
    return (
        f"{kind} {dtype}: {len(cells)} of {rows} times lowered to that of a larger {' or '.join(rising)}, of which "
        f"they were more than {far:g} times; the most: {worst}"
    )
