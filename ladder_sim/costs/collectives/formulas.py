"""How long collectives take, by algorithm, message, ranks and tier.

Every algorithm has a formula: a latency floor plus wire time. A measured curve is read as the ratio measured / formula,
so that it equals itself where it was made and carries over to another bandwidth, latency or rank count by its formula.

Bandwidths are per GPU and direction; ``busbw`` is the nccl-tests convention, ``2 (n - 1) / n * bytes / time``. All
formulas broadcast over numpy arrays.

References
----------
nccl-tests doc/PERFORMANCE.md (busbw); NVIDIA NCCL user guide (ring, tree, NVLS); TensorRT-LLM and vLLM custom
all-reduce (one-shot, two-shot). Figures: measured H100 tables of aiconfigurator-core 0.12.0, public nccl-tests logs.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from ladder_sim.des.shared import Floats, Number

# (message bytes, ranks, latency_s of a full node, bandwidth_Bps) -> seconds
Formula = Callable[[Floats, float, Number, Number], Floats]

# ranks for which a tier's latency floor is stated
FULL_NODE = 8
# NCCL's floor grows as ranks^0.67: 6.2, 9.5, 15.6 us at 2, 4, 8 H100s; across two nodes 15.7, 24.8, 40 us at 2, 4, 8
# GPUs per node (nccl-tests logs dgx_h100_2x2, 2x4, 2x8)
LATENCY_EXPONENT = 0.67
# busbw 364 to 370 of NVLink 4's 450 GB/s at 256 MB on 4 H100s
RING_EFFICIENCY = 0.82
# busbw 452 GB/s above 16 MB on 8 H100s: the switch reduces, so that busbw is not bound by the link rate
NVLS_EFFICIENCY = 452.0 / 450.0
# H100 TensorRT-LLM: 3.2 us at 8 ranks where NCCL takes 15.6; reads of all peers' buffers run at 300 GB/s
ONE_SHOT_FLOOR_FACTOR, ONE_SHOT_EFFICIENCY = 3.2 / 15.6, 300.0 / 450.0
# H100 vLLM at 8 ranks
TWO_SHOT_FLOOR_FACTOR = 4.9 / 15.6
# H100 NCCL all-gather and reduce-scatter at 8 ranks relative to its all-reduce
GATHER_FLOOR_FACTOR = 10.1 / 15.6
# a ring step over PCIe costs 5.7 us by NCCL's Simple protocol where LL costs 1.0 (NCCL, src/graph/tuning.cc, hwLat)
HOST_SIMPLE_FLOOR_FACTOR = 5.7
# across nodes the floor rises by a quarter at 16 KB, where NCCL leaves its low-latency protocol: 40 -> 49.8 us (NDR),
# 77 -> 97 (EFA), 122 -> 153 (TCPXO)
LARGE_PROTOCOL_FACTOR, LARGE_PROTOCOL_BYTES = 1.25, 16384.0
# across nodes, messages below this pass their stages one after the other, larger ones in overlapping chunks: with it
# the two-node formula errs at most 8 % on H20 logs from 8 to 64 MB and 6 % on H100 logs above 256 MB
PIPELINE_CHUNK_BYTES = 32.0 * 2**20
# of a network port's line rate
INTER_EFFICIENCY = 0.95


def _floor(ranks: float, latency_s: Number) -> Number:
    """Latency floor of a group, given a full node's; beyond, every doubling adds as much as from 4 to 8."""
    if ranks > FULL_NODE:
        growth = 1.0 + math.log2(ranks / FULL_NODE) * (1.0 - 0.5**LATENCY_EXPONENT)
    else:
        growth = (ranks / FULL_NODE) ** LATENCY_EXPONENT
    return latency_s * float(growth)


def _bus(ranks: float) -> float:
    """Bytes each GPU sends per message byte in a bandwidth-optimal all-reduce."""
    return 2.0 * (ranks - 1) / ranks


def nccl_s(message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number) -> Floats:
    """NCCL's ring or tree in one node."""
    return _floor(ranks, latency_s) + _bus(ranks) * message / (RING_EFFICIENCY * bandwidth_Bps)


def nvls_s(message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number) -> Floats:
    """Reduction in the NVLink switch."""
    return _floor(ranks, latency_s) + nvls_wire_s(message, ranks, bandwidth_Bps)


def nvls_wire_s(message: Floats, ranks: float, bandwidth_Bps: Number) -> Floats:
    """Reduction in the NVLink switch, without its latency floor."""
    return _bus(ranks) * message / (NVLS_EFFICIENCY * bandwidth_Bps)


def one_shot_s(message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number) -> Floats:
    """Every GPU reads every peer's whole message."""
    floor = ONE_SHOT_FLOOR_FACTOR * latency_s
    return floor + (ranks - 1) * message / (ONE_SHOT_EFFICIENCY * bandwidth_Bps)


def two_shot_s(message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number) -> Floats:
    """Reduce-scatter, then all-gather, by direct peer reads."""
    floor = TWO_SHOT_FLOOR_FACTOR * latency_s
    return floor + _bus(ranks) * message / (ONE_SHOT_EFFICIENCY * bandwidth_Bps)


def own_s(message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number) -> Floats:
    """Whichever an engine takes for the message: about the fastest of its own and NCCL's."""
    size = (message, ranks, latency_s, bandwidth_Bps)
    fastest: Floats = np.minimum(np.minimum(one_shot_s(*size), two_shot_s(*size)), nccl_s(*size))
    return fastest


def gather_s(message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number) -> Floats:
    """NCCL all-gather of `message` result bytes; a broadcast of `message` bytes takes no longer."""
    floor = GATHER_FLOOR_FACTOR * _floor(ranks, latency_s)
    return floor + (ranks - 1) / ranks * message / (RING_EFFICIENCY * bandwidth_Bps)


def host_ring_s(
    message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number, low_latency_share: Number
) -> Floats:
    """NCCL's ring through host memory, by the faster of two protocols; each of its 2 (n - 1) steps pays a latency.

    Small messages go by the low-latency protocol (LL), at a share of the link's bandwidth that grows with the ranks, as
    the number of channels does. `latency_s` and `low_latency_share` are those of LL, the latter between two ranks.
    """
    floor = latency_s * (ranks - 1) / (FULL_NODE - 1)
    wire = _bus(ranks) * message / bandwidth_Bps
    share = np.minimum(1.0, low_latency_share * ranks / 2.0)
    fastest: Floats = np.minimum(floor + wire / share, HOST_SIMPLE_FLOOR_FACTOR * floor + wire)
    return fastest


def host_gather_s(
    message: Floats, ranks: float, latency_s: Number, bandwidth_Bps: Number, low_latency_share: Number
) -> Floats:
    """NCCL's all-gather through host memory: half the steps and half the traffic of the all-reduce."""
    return 0.5 * host_ring_s(message, ranks, latency_s, bandwidth_Bps, low_latency_share)


# of NCCL inside a node, from GPU to GPU
IN_NODE: Mapping[str, Formula] = {"all_reduce": nccl_s, "all_gather": gather_s}

# name under which a profile holds the all-reduce that an engine takes by itself, whichever that is at each size
OWN = "engine"
# of all-reduces inside a node, by algorithm
FORMULAS: Mapping[str, Formula] = {
    "nccl": nccl_s,
    "one-shot": one_shot_s,
    "two-shot": two_shot_s,
    "nvls": nvls_s,
    OWN: own_s,
}


def across_nodes_s(
    message: Floats,
    node_wire_s: Floats,
    *,
    nodes: int,
    ranks_per_node: int,
    latency_s: Number,
    bandwidth_Bps: Number,
    traffic: float = 2.0,
) -> Floats:
    """Hierarchical collective: reduce-scatter in the node, the rest across nodes on one rail per GPU, all-gather.

    Stages follow each other for small messages and overlap in chunks for large ones.

    Parameters
    ----------
    message
        Bytes.
    node_wire_s
        The stages inside the node without their latency floor, seconds, shaped as `message`.
    nodes, ranks_per_node
        Group layout.
    latency_s
        Floor of a small all-reduce over two full nodes; each doubling of nodes adds a tree level of the same cost.
    bandwidth_Bps
        One port's rate.
    traffic
        Times a rail carries its share of the message: 2 for all-reduce, 1 for all-gather.
    """
    levels = math.log2(nodes)
    floor = levels * _floor(ranks_per_node, latency_s)
    switch = np.minimum(np.maximum(np.log2(np.maximum(message, 1.0) / LARGE_PROTOCOL_BYTES) + 1.0, 0.0), 1.0)
    floor = floor * (1.0 + (LARGE_PROTOCOL_FACTOR - 1.0) * switch)
    rail = traffic * (nodes - 1) / nodes * message / ranks_per_node / (INTER_EFFICIENCY * bandwidth_Bps)
    chunks = np.maximum(1.0, message / PIPELINE_CHUNK_BYTES)
    piped = (node_wire_s + rail) / chunks + (1.0 - 1.0 / chunks) * np.maximum(node_wire_s, rail)
    result: Floats = floor + piped
    return result
