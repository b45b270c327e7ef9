"""Collectives inside a node, one row for each algorithm: how long it takes, what it needs, where it was measured.

A measured curve is read as a ratio to the formula of its row, by which it carries over to other ranks and links.

All take a latency floor plus wire time; an algorithm that has several kernels takes the least of them. Rates are of a
link's bandwidth per GPU and direction; floors of NCCL's all-reduce on the 8 GPUs of a full node, by which they carry
over to other links.

References
----------
NCCL user guide (ring, tree, NVLS, symmetric memory); vLLM 0.32.0 and SGLang 0.5.23 (custom, symmetric-memory and
multicast kernels); TensorRT-LLM (MNNVL). Figures: H100 and GB300 tables of aiconfigurator-core 0.12.0; TokenWeave
artifact, figure_4.csv (MIT); vllm-project/vllm#24111; local-inference-lab/rtx6kpro.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.lookup import Curve
from ladder_sim.des.shared import Floats, Number
from ladder_sim.specs.cluster import FULL_NODE, LinkTier, mesh_share
from ladder_sim.specs.scenario import Scenario

# (message bytes, ranks, allreduce_floor_s of a full node, bandwidth_Bps) -> seconds
Formula = Callable[[Floats, float, Number, Number], Floats]

# NCCL's floor grows as ranks^0.67: 6.2, 9.5, 15.6 us at 2, 4, 8 H100s; across two nodes 15.7, 24.8, 40 us at 2, 4, 8
# GPUs per node (nccl-tests logs dgx_h100_2x2, 2x4, 2x8)
LATENCY_EXPONENT = 0.67
# us of NCCL's all-reduce on 8 H100s below 16 KB, GB/s of their links, and the floor on 8 GPUs that `gb200-nvl72` states
_H100_US, _H100_GBps, _GB200_US, _GB200_GBps = 15.6, 450.0, 27.0, 900.0
# GB/s of the links of an RTX PRO 6000, and its floor
_PCIE5_US, _PCIE5_GBps = 24.6, 63.0


@cache
def floor_growth(ranks: float, exponent: float) -> float:
    """Return the latency floor of a group as a multiple of that of a full node.

    Beyond a full node, every doubling adds as much as from 4 to 8.
    """
    if ranks > FULL_NODE:
        return 1.0 + math.log2(ranks / FULL_NODE) * float(1.0 - 0.5**exponent)
    return float((ranks / FULL_NODE) ** exponent)


# bytes that each GPU sends for a byte of the message, by ranks


def ring(ranks: float) -> float:
    """Return the bytes that each GPU sends for a byte in reduce-scatter and all-gather, as bus bandwidth has it."""
    return 2.0 * (ranks - 1) / ranks


def one_way(ranks: float) -> float:
    """Return the bytes that each GPU sends for a byte of the message in reduce-scatter or all-gather."""
    return (ranks - 1) / ranks


def to_all(ranks: float) -> float:
    """Return the bytes that each GPU sends for a byte of the message, where every peer gets all of it."""
    return ranks - 1.0


def multicast(ranks: float) -> float:
    """Return the bytes that each GPU sends for a byte of a message that the switch reads once and reduces."""
    return (ranks + 1) / ranks


def mnnvl_two_shot(ranks: float) -> float:
    """Return the bytes that each GPU sends for a byte: those of a ring up to 8 GPUs, 1.46 times as many on 16."""
    return max(ring(ranks), ring(8.0) * math.pow(ranks / 8.0, 0.55))


class Line(NamedTuple):
    """One kernel: a latency floor plus wire time."""

    floor: float
    """Share of the link's all-reduce floor."""
    rate: float
    """Share of the link's bandwidth."""
    traffic: Callable[[float], float]
    """Bytes that each GPU sends for a byte of the message, by ranks."""
    growth: float = 0.0
    """The floor grows with this power of the ranks."""

    def seconds(self, message: Floats, ranks: float, allreduce_floor_s: Number, bandwidth_Bps: Number) -> Floats:
        floor_s = self.floor * floor_growth(ranks, self.growth) * allreduce_floor_s
        return floor_s + self.traffic(ranks) * message / (self.rate * bandwidth_Bps)


class Need(NamedTuple):
    """What an algorithm does not work without."""

    what: str
    met: Callable[[Scenario], bool]
    """Whether a scenario has it; a named function, because predictions hold it and are pickled."""
    way: str
    """Out of it."""
    has: str = "; {cluster} has {fabric}"
    """What is there instead, for the error."""


def _on_pcie(scenario: Scenario) -> bool:
    return not scenario.cluster.intra.fully_connected


def _in_one_node(scenario: Scenario) -> bool:
    return scenario.layout("experts")[0] == 1


def _at_most(ranks: int, scenario: Scenario) -> bool:
    return scenario.ranks_per_node <= ranks


P2P = Need("peer-to-peer access between GPUs, and it is off", attrgetter("p2p"), "leave out --no-p2p", has="")
SWITCH = Need("an NVLink switch", attrgetter("cluster.intra.switch"), "--set intra.switch=true if the link has one")
NVLINK = Need(
    "NVLink between all GPUs", attrgetter("cluster.intra.full_nvlink"), "--set intra.full_nvlink=true if it joins them"
)
ONE_NODE = Need("ranks of one node", _in_one_node, "take deepep-auto", has="; {cluster} has {fabric} in a node")
PCIE = Need("GPUs that PCIe alone joins", _on_pcie, "a cluster on PCIe, e.g. --cluster rtx-pro-6000")
UP_TO_8, UP_TO_16 = (
    Need(f"{most} GPUs of a node or fewer", partial(_at_most, most), f"--tp {most} or less", has="; there are {ranks}")
    for most in (8, 16)
)

# what keeps SMs: NCCL's channels of a ring, a tree or NVLS, thread blocks of kernels in the switch or by bytes,
# DeepEP's
CollectiveKernel = Literal["ring", "tree", "nvls", "multimem", "blocks", "deepep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row."""

    lines: tuple[Line, ...]
    """Kernels of the algorithm, of which it takes the fastest."""
    needs: tuple[Need, ...] = ()
    """Needs of the algorithm, all of which a scenario must meet."""
    kernel: CollectiveKernel = "blocks"
    """Kind of kernel that runs it: decides the SMs that it keeps while others run (`ladder_sim.costs.estimate`)."""
    nearest: tuple[str, ...] = ()
    """What to take where it does not work, if that does; else NCCL's."""
    measured_on: str | None = None
    """Cluster of the catalog whose measurements its figures fit; empty: another one; None: a profile holds them."""
    inline: bool = False
    """Engines issue it among their kernels if nothing overlaps it."""
    symmetric: bool = False
    """It works on symmetric memory, into and out of which engines copy the message."""
    eager: float = 0.0
    """Share of the link's all-reduce floor: what its figures hold of a launch, which engines save in a CUDA graph."""
    for_small: bool = False
    """NCCL's all-reduce takes the messages for which that is faster."""
    across_roots: float = 1.0
    """Share of its rate where the GPUs lie below several PCIe roots."""
    may_multicast: bool = False
    """Where there is a switch, what runs under its name may be a kernel that reduces there."""

    def __call__(self, message: Floats, ranks: float, allreduce_floor_s: Number, bandwidth_Bps: Number) -> Floats:
        fastest = self.lines[0].seconds(message, ranks, allreduce_floor_s, bandwidth_Bps)
        for line in self.lines[1:]:
            fastest = np.minimum(fastest, line.seconds(message, ranks, allreduce_floor_s, bandwidth_Bps))
        return fastest

    def port_traffic(self, ranks: float, switch: bool) -> float:
        """Return the fewest bytes that a GPU's port sends or receives for a byte of the message, by any kernel."""
        traffic = min(line.traffic(ranks) for line in self.lines)
        return min(traffic, multicast(ranks)) if self.may_multicast and switch else traffic

    @property
    def holds_norm(self) -> bool:
        """Whether kernels can add and normalise what they reduced: every rank has all of it in its registers."""
        return self.inline and not self.symmetric

    def unmet(self, scenario: Scenario) -> Need | None:
        """Return the first need of the algorithm that a scenario does not meet; None if it works there."""
        return next((need for need in self.needs if not need.met(scenario)), None)


# busbw 364 to 370 of NVLink 4's 450 GB/s at 256 MB on 4 H100s; 6.2, 9.5, 15.6 us at 2, 4, 8 of them
_NCCL = Line(1.0, 0.82, ring, LATENCY_EXPONENT)
# 2.8 to 3.2 us by TensorRT-LLM on 2 to 8 H100s, 4.9 us by vLLM on 8; reads of peers' buffers run at 300 GB/s
_ONE_SHOT = Line(3.2 / _H100_US, 300 / _H100_GBps, to_all)
_TWO_SHOT = Line(4.9 / _H100_US, 300 / _H100_GBps, ring)
# 274 GB/s of message on 8 GPUs: 308 GB/s of traffic. vLLM's curve on 4 less its copies, 244 GB/s, has 305
_MULTICAST = multicast(8) * 274 / _H100_GBps

# 12.7 us + bytes / 274 GB/s on 8 H100s, hidden 8192, bf16, 64 to 32768 tokens (TokenWeave, eager). vLLM's curves in a
# CUDA graph on 4 and 8, less its copies, have 9.0 us
_MULTIMEM = Algorithm(
    lines=(Line(12.7 / _H100_US, _MULTICAST, multicast),),
    needs=(P2P, SWITCH, UP_TO_16),
    kernel="multimem",
    nearest=("mnnvl-two-shot", "two-shot"),
    measured_on="h100-sxm",
    inline=True,
    symmetric=True,
    eager=3.7 / _H100_US,
)

# name under which a profile holds the all-reduce that an engine takes by itself, whichever that is at each size
OWN = "engine"

ALL_REDUCE: Mapping[str, Algorithm] = {
    "nccl": Algorithm(lines=(_NCCL,), kernel="ring", may_multicast=True),
    # busbw 452 GB/s above 16 MB on 8 H100s: the switch reduces, so that busbw is not bound by the link rate
    "nvls": Algorithm(
        lines=(Line(1.0, 452 / _H100_GBps, ring, LATENCY_EXPONENT),),
        needs=(P2P, SWITCH),
        kernel="nvls",
        may_multicast=True,
    ),
    # by what vLLM says of H100 and GB200 (all_reduce_utils.py): on 8 GPUs 1.35 to 1.48 times as fast as its own kernels
    # up to 16 KB, slower at 32 and 64 KB, faster from 128 KB on. The rate is taken over from multimem
    "nccl-symmetric": Algorithm(
        lines=(Line(3.4 / _H100_US, 110 / _H100_GBps, to_all), Line(6.6 / _H100_US, _MULTICAST, multicast)),
        needs=(P2P, SWITCH),
        kernel="nvls",
        measured_on="",
        symmetric=True,
    ),
    # vLLM takes its own on up to 8 GPUs, SGLang on up to 16
    "one-shot": Algorithm(lines=(_ONE_SHOT,), needs=(P2P, UP_TO_16), nearest=("mnnvl-one-shot",), inline=True),
    "two-shot": Algorithm(lines=(_TWO_SHOT,), needs=(P2P, UP_TO_16), nearest=("mnnvl-two-shot",), inline=True),
    # one-shot by writes, without a barrier before the reads: SGLang's curve on H100, 2.6, 2.7, 3.3 us and 273 to 312
    # GB/s on 2, 4, 8 GPUs up to where its rule changes
    "push": Algorithm(
        lines=(Line(3.3 / _H100_US, 300 / _H100_GBps, to_all, 0.2),),
        needs=(P2P, UP_TO_16),
        nearest=("one-shot", "mnnvl-one-shot"),
        measured_on="h100-sxm",
        inline=True,
    ),
    "multimem": _MULTIMEM,
    # with add and norm: each rank normalises its share of the tokens and multicasts it. 13.8 us + bytes / 273 GB/s
    # (TokenWeave, figures 4 and 10)
    "fused-norm": replace(
        _MULTIMEM, lines=(Line(13.8 / _H100_US, _MULTICAST, multicast),), nearest=("multimem", *_MULTIMEM.nearest)
    ),
    # less the copies 311 to 332 GB/s on 2, 6 and 8 H100s, 8 to 14 us (vLLM's curve on 2, vllm#24111, vllm#42324)
    "symmetric-two-shot": Algorithm(
        lines=(Line(10.0 / _H100_US, 324 / _H100_GBps, ring),),
        needs=(P2P, NVLINK, UP_TO_16),
        nearest=("mnnvl-two-shot", "two-shot"),
        measured_on="h100-sxm",
        inline=True,
        symmetric=True,
    ),
    # TensorRT-LLM's kernels on 8 and 16 GB300s, across trays: 4.35 and 5.1 us; 5.0 and 5.2 us, 386 and 262 GB/s of
    # message. Wire time of small messages hides in the floor
    "mnnvl-one-shot": Algorithm(
        lines=(Line(4.35 / _GB200_US, 1500 / _GB200_GBps, to_all, 0.24),),
        needs=(P2P, SWITCH),
        nearest=("one-shot",),
        measured_on="",
        inline=True,
    ),
    "mnnvl-two-shot": Algorithm(
        lines=(Line(5.1 / _GB200_US, 675 / _GB200_GBps, mnnvl_two_shot),),
        needs=(P2P, SWITCH),
        nearest=("two-shot",),
        measured_on="",
        inline=True,
    ),
    # RTX PRO 6000: 6.1 us and 35 GB/s on 4 below one root, 7.3 us and 26.5 GB/s on 8 across two. vLLM and SGLang have
    # one for decode (flashinfer_pcie_ipc_all_reduce.py, pcie_ipc_ar.py) and must be asked to take it
    "pcie-one-shot": Algorithm(
        lines=(Line(7.3 / _PCIE5_US, 35 / _PCIE5_GBps, to_all, 0.27),),
        needs=(P2P, PCIE, UP_TO_8),
        nearest=("one-shot", "mnnvl-one-shot"),
        measured_on="rtx-pro-6000",
        inline=True,
        for_small=True,
        across_roots=26.5 / 35,
    ),
    # about what engines take without a rule that is known
    OWN: Algorithm(lines=(_ONE_SHOT, _TWO_SHOT, _NCCL), needs=(P2P,), inline=True, may_multicast=True),
}

# what engines issue among their kernels
INLINE = frozenset(name for name, algorithm in ALL_REDUCE.items() if algorithm.inline)

# tokens to their experts and back. Messages are a rank's own tokens in 16 bits, once for each of their experts. Rates
# are of these: above the link's where the kernel quantises them, or sends a token once for several experts. DeepEP:
# SGLang on 8 H100s; NVLink: TensorRT-LLM on 8 GB200s, of NVFP4, the exchange of counts included
DISPATCHES: Mapping[tuple[str, str], Algorithm] = {
    (op, kernel): Algorithm(
        lines=(Line(floor_us / of_us, rate_GBps / of_GBps, one_way),),
        needs=(P2P, NVLINK, *(() if kernel.startswith("deepep") else (ONE_NODE,))),
        kernel="deepep" if kernel.startswith("deepep") else "blocks",
        measured_on=cluster,
    )
    for kernel, cluster, of_us, of_GBps, lines in (
        ("deepep-ll", "h100-sxm", _H100_US, _H100_GBps, {"dispatch": (13, 471), "combine": (13.5, 213)}),
        ("deepep-ht", "h100-sxm", _H100_US, _H100_GBps, {"dispatch": (26, 824), "combine": (48, 424)}),
        ("nvlink-one-sided", "gb200-nvl72", _GB200_US, _GB200_GBps, {"dispatch": (18, 2290), "combine": (25, 631)}),
        ("nvlink-two-sided", "gb200-nvl72", _GB200_US, _GB200_GBps, {"dispatch": (25, 1467), "combine": (14, 506)}),
    )
    for op, (floor_us, rate_GBps) in lines.items()
}

# by kind and name; messages are the gathered result, and what is scattered. A broadcast takes no longer than a gather
ALGORITHMS: Mapping[tuple[str, str], Algorithm] = {
    **{("all_reduce", name): algorithm for name, algorithm in ALL_REDUCE.items()},
    # H100, 8 GPUs: 10.1 us and 10.3 us below 8 KB
    ("all_gather", "nccl"): Algorithm(lines=(Line(10.1 / _H100_US, 0.82, one_way, LATENCY_EXPONENT),)),
    # H100: 6.4, 6.8, 8.8 us and 302 GB/s on 2, 4, 8 GPUs
    ("all_to_all", "nccl"): Algorithm(lines=(Line(8.8 / _H100_US, 302 / _H100_GBps, one_way, 0.23),)),
    **DISPATCHES,
    ("reduce_scatter", "nccl"): Algorithm(lines=(Line(10.3 / _H100_US, 0.82, one_way, LATENCY_EXPONENT),)),
    # TokenWeave: 10.8 us + bytes / 376 GB/s, 13.0 us + bytes / 365 GB/s
    ("all_gather", "multimem"): Algorithm(
        lines=(Line(10.8 / _H100_US, one_way(8) * 376 / _H100_GBps, one_way),),
        needs=(P2P, SWITCH, UP_TO_16),
        measured_on="h100-sxm",
        symmetric=True,
    ),
    ("reduce_scatter", "multimem"): Algorithm(
        lines=(Line(13.0 / _H100_US, one_way(8) * 365 / _H100_GBps, one_way),),
        needs=(P2P, SWITCH, UP_TO_16),
        measured_on="h100-sxm",
        symmetric=True,
    ),
}


# two measured sizes further apart than this do not bracket what lies between: shipped curves are thinned to what
# interpolation needs, which leaves gaps of up to 64 where a latency floor is flat
MAX_GAP = 64.0
# octaves beyond the last size of joined curves within which a measured time may be more than what the other curve says
BEYOND = 6


def bracketed(curve: Curve, message: Floats) -> NDArray[np.bool_]:
    """Return a mask of the messages between two measured sizes at most a factor `MAX_GAP` apart."""
    sizes = curve.size_bytes
    right = np.minimum(np.maximum(np.searchsorted(sizes, message, side="left"), 1), len(sizes) - 1)
    inside = (message >= sizes[0]) & (message <= sizes[-1])
    bracket: NDArray[np.bool_] = inside & (sizes[right] <= MAX_GAP * sizes[right - 1])
    return bracket


def bridged(curve: Curve, message: Floats) -> NDArray[np.bool_]:
    """Return a mask of the messages between two measured sizes more than a factor `MAX_GAP` apart."""
    inside = (message >= curve.size_bytes[0]) & (message <= curve.size_bytes[-1])
    bridge: NDArray[np.bool_] = inside & ~bracketed(curve, message)
    return bridge


def extended(
    own: tuple[Floats, Floats], other: tuple[Floats, Floats], log_ideal: Callable[[Floats], Floats]
) -> tuple[Floats, Floats]:
    """Join two curves: the first where it was measured, the second below half and above twice its sizes.

    Both are logarithms of sizes and of times over the formula's, `log_ideal` of a size. In between one goes over into
    the other. Between sizes that are further apart than `MAX_GAP` the first was not measured either. No message takes
    less than a smaller one that the first curve has, nor more than a larger one.

    Examples
    --------
    >>> own, other = (np.log([8.0, 16.0]), np.ones(2)), (np.log([1.0, 12.0, 64.0]), np.zeros(3))
    >>> sizes, ratios = extended(own, other, lambda log_size: 0.5 * log_size)
    >>> np.exp(sizes).round(6).tolist()[:8], ratios.round(2).tolist()[:8]
    ([1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 32.0, 64.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.65, 0.31])
    """
    octave = math.log(2.0)
    gaps = np.flatnonzero(np.diff(own[0]) > math.log(MAX_GAP) + 1e-9)
    firsts, lasts = own[0][np.append(0, gaps + 1)] - octave, own[0][np.append(gaps, len(own[0]) - 1)] + octave
    # ratios stay as they are at the ends
    ends = min(own[0][0], other[0][0]) + octave, max(own[0][-1], other[0][-1]) + BEYOND * octave
    kept = np.unique(np.round(np.concatenate([other[0], np.arange(*ends, octave), firsts, lasts]), 9))
    part = np.searchsorted(firsts + octave, kept, side="right") - 1
    inside = (part >= 0) & (kept <= lasts[part] - octave)
    far = np.abs(kept[:, np.newaxis] - own[0]).min(axis=1) > np.where(inside, 2e-6, octave) - 1e-6
    kept, inside = kept[far], inside[far]
    kept_ratios = np.where(inside, np.interp(kept, *own), np.interp(kept, *other))
    own_log_s, kept_ideal = own[1] + log_ideal(own[0]), log_ideal(kept)
    next_own = np.searchsorted(own[0], kept)
    least = np.append(-np.inf, np.maximum.accumulate(own_log_s))[next_own]
    most = np.append(np.minimum.accumulate(own_log_s[::-1])[::-1], np.inf)[next_own]
    log_s = np.maximum(np.minimum(kept_ratios + kept_ideal, most), least)
    sizes, ratios = np.concatenate([own[0], kept]), np.concatenate([own[1], log_s - kept_ideal])
    order = np.argsort(sizes)
    return sizes[order], ratios[order]


# no slots: the logarithms are computed once and kept
@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredCollective:
    """One algorithm's curves over rank counts, read against its formula on the link that was measured."""

    formula: Formula
    """Formula of the algorithm's ideal time."""
    curves: Mapping[int, Curve]
    """Measured curves by number of ranks."""
    tier: LinkTier
    """The measured link."""

    def ratio(self, message: Floats, ranks: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the measured time over the formula's, and whether these ranks and this size were measured.

        Interpolated in log(size), and in log(ranks) between measured rank counts; held beyond the ends.
        """
        measured = ranks in self.curves
        in_range = bracketed(self.curves[ranks], message) if measured else np.zeros(message.shape, bool)
        return self.factor(message, ranks), in_range

    def factor(self, message: Floats, ranks: int) -> Floats:
        """Return the measured time over the formula's."""
        low = max((n for n in self.curves if n <= ranks), default=min(self.curves))
        high = min((n for n in self.curves if n >= ranks), default=max(self.curves))
        log_size = np.log(np.maximum(message, 1.0))
        log_ratio = np.interp(log_size, *self._log_ratios[low])
        if low != high:
            share = math.log(ranks / low) / math.log(high / low)
            log_ratio = (1.0 - share) * log_ratio + share * np.interp(log_size, *self._log_ratios[high])
        ratio: Floats = np.exp(log_ratio)
        return ratio

    @cached_property
    def _log_ratios(self) -> Mapping[int, tuple[Floats, Floats]]:
        return {
            ranks: (
                np.log(curve.size_bytes),
                np.log(
                    curve.seconds
                    / self.formula(
                        curve.size_bytes,
                        ranks,
                        self.tier.allreduce_floor_s,
                        mesh_share(self.tier.mesh_links, ranks) * self.tier.bandwidth_Bps,
                    )
                ),
            )
            for ranks, curve in self.curves.items()
        }


def measured_collectives(
    collectives: Mapping[str, Mapping[str, Mapping[int, Curve]]], tier: LinkTier
) -> dict[tuple[str, str], MeasuredCollective]:
    """Return the curves of `CalibrationProfile.collectives` by kind and algorithm, of those that have a formula."""
    curves = {
        (kind, algorithm): by_ranks
        for kind, algorithms in collectives.items()
        for algorithm, by_ranks in algorithms.items()
        if by_ranks
    }
    if ("all_reduce", "nccl") in curves:
        # on all GPUs of a switch NCCL itself takes NVLS for large messages
        by_ranks = curves["all_reduce", "nccl"]
        curves["all_reduce", "nvls"] = {max(by_ranks): by_ranks[max(by_ranks)]}
    return {
        key: MeasuredCollective(formula=formula, curves=curves[key], tier=tier)
        for key, formula in ALGORITHMS.items()
        if key in curves
    }
