"""What ops take of a GPU: SMs, steps through the device memory, and what they delay such steps of others by.

How tasks with these demands slow each other is the simulator's business (`ladder_sim.des.shared`). The parameters were
measured on one H100 (tests/data/h100_beside) or are NCCL's own; a profile's ``overlap`` section replaces any of them.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from ladder_sim.costs.collectives.algorithms import ALL_REDUCE, DISPATCHES, Holder
from ladder_sim.des.shared import TINY, Demand, Number, maximum, minimum, where
from ladder_sim.errors import ProfileError
from ladder_sim.kernels import Shape

# up to so many tokens a GEMM is a reduction, compiled (gpt-fast compiles one row only) or a library's GEMV
GEMV_ROWS = 1
# SMs that a GEMM bound by arithmetic loses for each one held: its blocks start in clusters of two or four on SMs of one
# GPC (nvjet kernels "2x1", "4x1" in kernels_of_a_layer.csv), so that the neighbour of one that is held stays idle
CLUSTERED = 2.0
# what each algorithm keeps SMs for: also NCCL through host memory, a ring, and across nodes
HOLDERS: Mapping[str, Holder] = {
    **{name: algorithm.holder for name, algorithm in ALL_REDUCE.items()},
    **{name: algorithm.holder for (_, name), algorithm in DISPATCHES.items()},
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
    """Part of its share of the SMs that a kernel loses with those that a collective holds: ladder's steps beside 8, 16
    and 24 held blocks (steps_fixed.csv). By themselves GEMMs of a library lose 0.75 of it beside 16 held of 132 SMs,
    compiled GEMVs 0.4 (gemm_beside.csv)."""
    memory_step_s: Number = 0.8e-6
    """Time of a collective's step through device memory alone: a store with its flag, and the poll that sees it
    (latency_beside.csv)."""
    gemm_delay: Number = 3.5
    """How much longer such a step takes beside a GEMM of a library that fills the memory's bandwidth, in multiples of
    its time alone (latency_beside.csv: 1.5 to 3.3; steps_exchange.csv)."""
    kernel_delay: Number = 0.5
    """How much longer it takes beside any other kernel that fills the memory's bandwidth, in multiples of its time
    alone (steps_exchange.csv, batch 1 and behind attention)."""

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


PARAMETERS = {field.name for field in dataclasses.fields(OverlapParameters)}


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
    holder = HOLDERS[algorithm]
    if holder == "multimem":
        return MULTIMEM_BLOCKS
    if holder == "nvls":
        return parameters.nvls_channels
    if holder == "deepep":
        return DEEPEP_SMS
    maximum_sms: Number
    if holder == "blocks":
        bytes_each, maximum_sms = BLOCK_BYTES, MAX_BLOCKS
    elif holder == "tree":
        bytes_each, maximum_sms = TREE_CHANNEL_BYTES, parameters.nvls_channels
    else:
        bytes_each, maximum_sms = RING_CHANNEL_BYTES, parameters.max_channels
    return minimum(maximum_sms, maximum(1.0, np.ceil(message_bytes / bytes_each)))


def collective_traffic_bytes(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """Return the bytes of device memory traffic of a collective on each GPU."""
    if ("dispatch", algorithm) in DISPATCHES:
        return message_bytes * COPY_TRAFFIC
    in_switch = HOLDERS[algorithm] in ("nvls", "multimem")
    return message_bytes * (parameters.nvls_traffic if in_switch else parameters.ring_traffic)


def memory_steps(algorithm: str, kind: str, nodes: int, ranks: int) -> float:
    """Return the steps through device memory that a collective takes one after another, on `ranks` GPUs of each node.

    NCCL's rings and trees pass a message along the GPUs of a node and across nodes, an all-reduce there and back
    (2.21.5, src/device/all_reduce.h); NVLS hands it to the switch and back, each with a fence and a flag. Other kernels
    read each other's data between two barriers. These are the least steps; those across the network are counted once.
    """
    holder = HOLDERS[algorithm]
    ways = 2.0 if kind.startswith("all_reduce") else 1.0
    if holder in ("ring", "tree", "nvls"):
        inside = 2.0 * ways if holder == "nvls" else ways * (ranks - 1)
        return NCCL_ENDS + inside + ways * math.log2(nodes)
    return 1.0 + 2.0 * SHOTS.get(algorithm, 1)
