"""What an op takes: its time with an error and a source, of collectives by algorithm, and its demand on the GPU.

How tasks with these demands slow each other is the simulator's business (`ladder_sim.des.shared`). The parameters were
measured on one H100 (tests/data/h100_beside) or are NCCL's own; a profile's ``overlap`` section replaces any of them.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.collectives.algorithms import ALL_REDUCE, DISPATCHES, CollectiveKernel
from ladder_sim.des.shared import NOTHING, TINY, Demand, Floats, Number, any_true, maximum, minimum, where
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import Shape

# best first: interpolated within measurements of this GPU and this link; continued beyond them, or a formula fitted to
# them; measured elsewhere, or at sizes far from this one, and carried over by the ratio of the formulas; datasheet only
Source = Literal["measured", "fitted", "transferred", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """One op, alone on its GPU; numbers, or arrays of one value per configuration."""

    seconds: Number
    """Best estimate."""
    error: Number
    """90 % interval: a factor of 1 + error either way."""
    source: Source
    """Where the time comes from; of several configurations, the first one's."""
    slowed_s: Number = 0.0
    """Part of `seconds` that a GEMM takes longer because prompts keep the tensor cores busy (`GemmShape.duty`)."""
    algorithm: str = ""
    """What a collective runs, e.g. "multimem"; of most configurations."""
    inline: Number = 0.0
    """1 for a collective that engines issue among their kernels if nothing overlaps it."""
    demand: Demand = NOTHING
    """What the op takes of the GPU while it runs."""
    wake_s: Number = 0.0
    """Seconds from a collective's end until a kernel that has waited for it runs on."""

    def at_duty(self, duty: Number) -> "Estimate":
        """Return the estimate where tensor cores are busy for the share `duty` of the time."""
        if not any_true(self.slowed_s > 0.0):
            return self
        slowed_s = duty * self.slowed_s
        # written out: `replace` takes several times as long
        return Estimate(
            seconds=self.seconds - self.slowed_s + slowed_s,
            error=self.error,
            source=self.source,
            slowed_s=slowed_s,
            algorithm=self.algorithm,
            inline=self.inline,
            demand=self.demand,
            wake_s=self.wake_s,
        )


# up to so many tokens a GEMM is a reduction, compiled (gpt-fast compiles one row only) or a library's GEMV
GEMV_ROWS = 1
# SMs that a GEMM bound by arithmetic loses for each one held: its blocks start in clusters of two or four on SMs of one
# GPC (nvjet kernels "2x1", "4x1" in kernels_of_a_layer.csv), so that the neighbour of one that is held stays idle
CLUSTERED = 2.0
# the kind of kernel that runs each algorithm: also NCCL through host memory, a ring, and across nodes
KERNELS: Mapping[str, CollectiveKernel] = {
    **{name: algorithm.kernel for name, algorithm in ALL_REDUCE.items()},
    **{name: algorithm.kernel for (_, name), algorithm in DISPATCHES.items()},
    "nccl-host": "ring",
    "ring": "ring",
    "tree": "tree",
    "tree-ll128": "tree",
    "nvls-tree": "nvls",
}

# message for each channel of NCCL's ring, bytes: below 64 bytes for each of a channel's 512 threads NCCL drops channels
# (by the low-latency protocol below 8 for each thread and rank); of its trees across nodes, by either low-latency
# protocol: 8 bytes for each of 512 threads (NCCL 2.21.5, NCCL_LL_THREAD_THRESHOLD)
RING_CHANNEL_BYTES, TREE_CHANNEL_BYTES = 32768.0, 4096.0
# message for each thread block of one-shot and two-shot kernels, of 512 threads that move 16 bytes each, and the most
# blocks of vLLM's custom all-reduce
BLOCK_BYTES, MAX_BLOCKS = 8192.0, 36.0
# thread blocks of a multimem kernel: 8 are as fast as 32 (TokenWeave artifact, figure_7.csv)
MULTIMEM_BLOCKS = 8.0
# SMs of DeepEP's kernels by themselves (DeepEP, deep_ep/buffer.py, Buffer.num_sms)
DEEPEP_SMS = 20.0
# steps with which a kernel of NCCL starts and ends
NCCL_ENDS = 2.0
# rounds in which ranks read from each other, each between two barriers; others take one
SHOTS = {"two-shot": 2, "symmetric-two-shot": 2, "mnnvl-two-shot": 2}
# a write to pinned host memory that is read back, alone (latency_beside.csv). Without peer-to-peer access a collective
# is such round trips, one after another, and each passes through the device memory's queues once
HOST_ROUND_TRIP_S = 1.73e-6
# memory traffic of a copy for each byte, and of tokens on their way to experts: read once, written once
COPY_TRAFFIC = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapParameters:
    """How collectives and kernels share a GPU; numbers, or arrays of one value per configuration."""

    max_channels: Number = 24.0
    """Most channels, and so SMs, of NCCL's ring on NVLink; fitted channel counts of the published 70B rows run from 1
    to 24."""
    nvls_channels: Number = 16.0
    """Channels of NVLS at any message size, within a node and across, and the most that a tree across nodes takes (NCCL
    2.21.5, transport/nvls.cc, NVLS_NCHANNELS_SM90)."""
    ring_traffic: Number = 4.0
    """Device memory traffic of an all-reduce per message byte: sent and received about 1.75 times each, read and
    written."""
    nvls_traffic: Number = 2.0
    """Device memory traffic per message byte where the switch reduces: read once, written once."""
    lost: Number = 0.5
    """Part of its share of the SMs that a kernel loses with those that a collective holds: ladder's steps next to 8, 16
    and 24 held blocks (steps_fixed.csv). By themselves GEMMs of a library lose 0.75 of it next to 16 held of 132 SMs,
    compiled GEMVs 0.4 (gemm_beside.csv)."""
    memory_step_s: Number = 0.8e-6
    """Time of a collective's step through device memory alone: a store with its flag, and the poll that sees it
    (latency_beside.csv)."""
    gemm_delay: Number = 3.5
    """How much longer a collective's step takes next to a GEMM of a library that fills the memory's bandwidth, in
    multiples of its time alone (latency_beside.csv: 1.5 to 3.3; steps_exchange.csv)."""
    kernel_delay: Number = 0.5
    """How much longer a collective's step takes next to another kernel that fills the memory's bandwidth, in multiples
    of its time alone (steps_exchange.csv, batch 1 and behind attention)."""

    @classmethod
    def of(cls, overlap: Mapping[str, float]) -> Self:
        """Return the defaults, replaced by what a profile holds; raise ProfileError for an unknown parameter."""
        unknown = sorted(set(overlap) - PARAMETERS)
        if unknown:
            raise ProfileError(
                f"overlap parameter '{unknown[0]}' is unknown",
                hint=f"known: {', '.join(sorted(PARAMETERS))}; `calibrate fit` makes it again from its samples",
            )
        return cls(**overlap)


PARAMETERS = {field.name for field in fields(OverlapParameters)}


def kernel_demand(shape: Shape, parameters: OverlapParameters, memory: Number, arithmetic: Number) -> Demand:
    """Return what a kernel takes of a GPU, given its share of the memory's bandwidth and of its arithmetic's peak."""
    delay, lost = parameters.kernel_delay, parameters.lost
    if (rows := shape.rows) is not None:
        delay = where(rows > GEMV_ROWS, parameters.gemm_delay, delay)
        bound = minimum(1.0, arithmetic / maximum(memory, TINY))
        lost = lost + bound * (CLUSTERED - lost)
    return Demand(lost=lost, delay=delay * memory, memory=memory)


def waiting_share(steps: Number, seconds: Number, parameters: OverlapParameters) -> Number:
    """Return the share of its `seconds` alone in which a collective of so many memory steps waits for them."""
    return minimum(1.0, steps * parameters.memory_step_s / maximum(seconds, TINY))


def collective_sms(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """Return the number of SMs that a collective keeps for itself."""
    kernel = KERNELS[algorithm]
    if kernel == "multimem":
        return MULTIMEM_BLOCKS
    if kernel == "nvls":
        return parameters.nvls_channels
    if kernel == "deepep":
        return DEEPEP_SMS
    maximum_sms: Number
    if kernel == "blocks":
        bytes_each, maximum_sms = BLOCK_BYTES, MAX_BLOCKS
    elif kernel == "tree":
        bytes_each, maximum_sms = TREE_CHANNEL_BYTES, parameters.nvls_channels
    else:
        bytes_each, maximum_sms = RING_CHANNEL_BYTES, parameters.max_channels
    return minimum(maximum_sms, maximum(1.0, np.ceil(message_bytes / bytes_each)))


def collective_traffic_bytes(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """Return the bytes of device memory traffic of a collective on each GPU."""
    if ("dispatch", algorithm) in DISPATCHES:
        return message_bytes * COPY_TRAFFIC
    in_switch = KERNELS[algorithm] in ("nvls", "multimem")
    return message_bytes * (parameters.nvls_traffic if in_switch else parameters.ring_traffic)


def memory_steps(algorithm: str, kind: str, nodes: int, ranks: int) -> float:
    """Return the steps through device memory that a collective takes one after another, on `ranks` GPUs of each node.

    NCCL's rings and trees pass a message along the GPUs of a node and across nodes, an all-reduce there and back
    (2.21.5, src/device/all_reduce.h); NVLS hands it to the switch and back, each with a fence and a flag. Other kernels
    read each other's data between two barriers. These are the least steps; those across the network are counted once.
    """
    kernel = KERNELS[algorithm]
    ways = 2.0 if kind.startswith("all_reduce") else 1.0
    if kernel in ("ring", "tree", "nvls"):
        inside = 2.0 * ways if kernel == "nvls" else ways * (ranks - 1)
        return NCCL_ENDS + inside + ways * math.log2(nodes)
    return 1.0 + 2.0 * SHOTS.get(algorithm, 1)


# 90 % interval as a fraction either way. Measured: nine tenths of the H100 points left out of a curve lie within 8 % of
# it. Fitted: so do nine tenths of EFA, NDR and H20 nccl-tests rows within 20 % of the two-node formula. The other two
# are judgement: no measurement of that link stands behind them.
COLLECTIVE_ERROR: Mapping[Source, float] = {"measured": 0.08, "fitted": 0.2, "transferred": 0.3, "roofline": 0.4}

# the choice of a single algorithm
ONLY = np.zeros(1, np.int_)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTimes:
    """A collective, alone; arrays hold one value per message or per configuration."""

    seconds: Floats
    """Best estimates."""
    in_range: NDArray[np.bool_]
    """Between measurements of this algorithm, these ranks and this link."""
    source: Source | NDArray[np.str_]
    """Source of the times that are out of range, which messages may differ in."""
    beyond: Number
    """Error of the times that are out of range: that of their source, which configurations may differ in."""
    algorithms: tuple[str, ...]
    """What runs, e.g. "nccl"; several if configurations differ."""
    choice: NDArray[np.int_]
    """Index of what runs, by configuration; a single element if it is the same for all."""

    @property
    def names(self) -> frozenset[str]:
        """The algorithms that any configuration takes."""
        return frozenset(self.algorithms[number] for number in np.unique(self.choice))

    def origins(self) -> Iterator[tuple[Source, str]]:
        """Yield the source and the algorithm of each message."""
        columns = (listed(values, self.seconds.size) for values in (self.in_range, self.source, self.choice))
        for measured, source, number in zip(*columns, strict=True):
            yield "measured" if measured else source, self.algorithms[number]

    @property
    def most_common(self) -> str:
        """The algorithm of most configurations."""
        return self.algorithms[int(np.bincount(self.choice).argmax()) if len(self.algorithms) > 1 else 0]

    @property
    def error(self) -> Number:
        """90 % interval by configuration, as a fraction either way."""
        if self.in_range.all() or not self.in_range.any():
            return COLLECTIVE_ERROR["measured"] if self.in_range.all() else self.beyond
        return np.where(self.in_range, COLLECTIVE_ERROR["measured"], self.beyond)

    def at_least(self, wire_s: Floats) -> Self:
        """Return the collective no shorter than `wire_s`, what its bytes take through a port."""
        return replace(self, seconds=np.maximum(self.seconds, wire_s))

    def choose(self, of_each: Sequence[Number]) -> Number:
        """Return a value that depends on the algorithm, given that of each; a number if all configurations agree."""
        if len(of_each) == 1:
            return of_each[0]
        table = np.stack(np.broadcast_arrays(*(np.atleast_1d(value) for value in of_each)))
        chosen: Floats = table[tuple(np.broadcast_arrays(self.choice, np.arange(table.shape[1])))]
        return float(chosen[0]) if np.all(chosen == chosen[0]) else chosen


def listed(values: Any, count: int) -> list[Any]:
    """Return one value for each of so many messages, of an array or of what is the same for all."""
    each = values.tolist() if isinstance(values, np.ndarray) else [values]
    return each if len(each) == count else each * count


def unmeasured(seconds: Floats, algorithm: str, source: Source = "roofline") -> CollectiveTimes:
    """Return times of one algorithm by its formula; `seconds` holds one value per message or configuration."""
    nowhere = np.zeros(seconds.shape, bool)
    return CollectiveTimes(
        seconds=seconds,
        in_range=nowhere,
        source=source,
        beyond=COLLECTIVE_ERROR[source],
        algorithms=(algorithm,),
        choice=ONLY,
    )


def fastest(candidates: Sequence[CollectiveTimes]) -> CollectiveTimes:
    """Return the fastest times for each configuration."""
    if len(candidates) == 1:
        return candidates[0]
    return of_each(candidates, np.stack(np.broadcast_arrays(*(times.seconds for times in candidates))).argmin(axis=0))


def of_each(candidates: Sequence[CollectiveTimes], choice: NDArray[np.int_]) -> CollectiveTimes:
    """Return the chosen times for each configuration."""

    def taken(values: Sequence[Any]) -> Any:
        return values[0] if all(value is values[0] for value in values) else np.choose(choice, values)

    # a candidate may itself be several algorithms
    starts = itertools.accumulate((len(times.algorithms) for times in candidates), initial=0)
    return CollectiveTimes(
        seconds=taken([times.seconds for times in candidates]),
        in_range=taken([times.in_range for times in candidates]),
        source=taken([times.source for times in candidates]),
        beyond=taken([times.beyond for times in candidates]),
        algorithms=tuple(name for times in candidates for name in times.algorithms),
        choice=taken([start + times.choice for start, times in zip(starts, candidates, strict=False)]),
    )


def fastest_way(seconds: Mapping[str, Floats]) -> CollectiveTimes:
    """Return the times of the fastest of NCCL's algorithms for each message, by formulas."""
    return fastest([unmeasured(times_s, name) for name, times_s in seconds.items()])
