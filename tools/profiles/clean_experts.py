"""What is done to measured times of experts before the engines' median is taken, and why.

Measurements of something else are left out (`EXCLUSIONS`), none is faster than memory (`weights_read_bytes`), none is
more than twice what other splits of the layer allow (`by_splits`), and no time falls as tokens are added (`rising`).
"""

from dataclasses import dataclass, replace

import numpy as np

from ladder_sim.costs.lookup import envelope
from ladder_sim.des.shared import Floats
from ladder_sim.kernels import GEMM_FORMATS, Experts
from tools.profiles.aiconfigurator import SYSTEMS
from tools.profiles.grids import OUTLIER_LOG, Series, dense

# largest splits of experts that tables have
MAX_EXPERT_TP, MAX_RANKS = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExclusion:
    """Times of experts that are not of what engines run; empty fields stand for all."""

    engine: str
    """Framework that measured."""
    reason: str
    """What they hold instead."""
    version: str = ""
    """Version of the engine."""
    systems: tuple[str, ...] = ()
    """The package's names of the GPUs concerned."""
    format: str = ""
    """Format of the operands."""
    imbalance: str = ""
    """How unevenly tokens chose experts."""
    from_ep: float = 1.0
    """Smallest expert-parallel degree concerned."""
    from_tokens: float = 1.0
    """Fewest tokens concerned."""


EXCLUSIONS = (
    ExpertExclusion(
        engine="sglang",
        imbalance="balanced",
        from_ep=2,
        reason="each rank computes every expert's share of all tokens: eight times the others' time with EP 8",
    ),
    *(
        ExpertExclusion(
            engine="sglang",
            systems=tuple(system for system in SYSTEMS if system != "rtx_pro_6000_server"),
            format=name,
            from_ep=2,
            from_tokens=1001,
            reason="up to three times TensorRT-LLM's time; with NVFP4, and with fewer tokens, the two agree",
        )
        for name in ("fp8-block", "bf16")
    ),
    ExpertExclusion(
        engine="sglang",
        version="0.5.10",
        format="w4a16",
        from_ep=2,
        reason="four times the time of the Marlin kernel that later versions have",
    ),
    ExpertExclusion(
        engine="vllm",
        version="0.19.0",
        format="w4a16",
        reason="four times the time of the Marlin kernel that later versions have",
    ),
    ExpertExclusion(
        engine="vllm",
        systems=("h100_sxm", "h200_sxm"),
        format="fp8",
        reason="a kernel that was not tuned: up to six times the time of its own fp8 blocks",
    ),
)


def without_excluded(series: Series, system: str, key: Experts) -> tuple[Series, set[str]]:
    """Return the rows that are used, in which more tokens never take less, and a note on each exclusion."""
    expert_tp, ep, tokens = series.points.T
    rows = (expert_tp <= MAX_EXPERT_TP) & (expert_tp * ep <= MAX_RANKS)
    version, notes = series.label.split()[1], set()
    for each in EXCLUSIONS:
        if each.engine != series.engine or system not in (each.systems or (system,)):
            continue
        stated = ((each.version, version), (each.format, key.format), (each.imbalance, key.imbalance))
        concerned = rows & (ep >= each.from_ep) & (tokens >= each.from_tokens)
        if all(wanted in ("", measured) for wanted, measured in stated) and concerned.any():
            rows &= ~concerned
            which = " ".join(filter(None, (each.format, each.imbalance, "with EP" if each.from_ep > 1 else "")))
            notes.add(f"experts {which} without {series.label}: {each.reason}")
    return rising(series.at(rows)), notes


def weights_read_bytes(key: Experts, series: Series) -> Floats:
    """Return the least bytes of weights that the slowest rank reads: its share of the experts any token takes.

    Calls that repeat find some of them in a large cache; a model's next layer does not.
    """
    expert_tp, ep, tokens = series.points.T
    power = 0.0 if key.imbalance == "balanced" else float(key.imbalance.rsplit("-", 1)[1])
    weight = np.arange(1.0, key.experts + 1.0) ** -power
    # of a token to take an expert, rarer ones slightly underestimated
    chance = np.minimum(1.0, key.top_k * weight / weight.sum())
    taken: Floats = (1.0 - (1.0 - chance[:, None]) ** tokens).sum(axis=0)
    weight_bytes: Floats = taken / ep * 3.0 * key.hidden * key.width / expert_tp * GEMM_FORMATS[key.format].weight_bytes
    return weight_bytes


def by_splits(series: Series, read_s: Floats) -> Series:
    """Return times capped at twice what a rank with fewer or more of the weights takes for as many tokens.

    A rank with half of them is no slower, and what twice as many ranks share one of them can run in two halves. A tuner
    that missed the kernel for one split breaks this: TensorRT-LLM takes 1,000 us for the experts of Llama 4 Scout on
    two H100s, and 123 us on four. `read_s`: what reading the weights takes, which repeated calls with a small part of
    them in a large cache do not show.
    """
    axes = [np.unique(column) for column in series.points.T]
    allowed = np.nan_to_num(dense(axes, series), nan=np.inf)
    # of ranks that share experts' widths, and of parts of the experts
    for axis in (0, 1):
        times, shares = np.moveaxis(allowed, axis, 0), axes[axis]
        for few in range(len(shares) - 1):
            times[few + 1] = np.minimum(times[few + 1], times[few])
        for few in reversed(range(len(shares) - 1)):
            times[few] = np.minimum(times[few], shares[few + 1] / shares[few] * times[few + 1])
    at = tuple(np.searchsorted(values, series.points[:, axis]) for axis, values in enumerate(axes))
    allowed_s = np.maximum(allowed[at], read_s)
    far = np.log(series.seconds / allowed_s) > OUTLIER_LOG
    return replace(series, seconds=np.where(far, allowed_s, series.seconds))


def rising(series: Series) -> Series:
    """Return times that never fall along the last axis."""
    if not len(series.seconds):
        return series
    axes = [np.unique(column) for column in series.points.T]
    held = envelope(dense(axes, series), [len(axes) - 1])
    at = np.isfinite(held)
    points = np.column_stack([values[index] for values, index in zip(axes, np.nonzero(at), strict=True)])
    return Series(label=series.label, points=points, seconds=held[at])
