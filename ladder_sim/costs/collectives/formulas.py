"""How long NCCL's collectives take through host memory and across nodes, by algorithm, message, ranks and tier.

Every algorithm has a formula: a latency floor plus wire time. A measured curve is read as the ratio measured / formula,
so that it equals itself where it was made and carries over to another bandwidth, latency or rank count by its formula.
Those inside a node are rows of `ladder_sim.costs.collectives.algorithms`.

Bandwidths are per GPU and direction. All formulas broadcast over numpy arrays.

References
----------
NVIDIA NCCL 2.21.5, src/graph/tuning.cc. Figures: public nccl-tests logs.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from ladder_sim.des.shared import Floats, Number
from ladder_sim.specs.cluster import FULL_NODE, TREE_LL, TreeLatency

# (message bytes, ranks, allreduce_floor_s of a full node, bandwidth_Bps) -> seconds
Formula = Callable[[Floats, float, Number, Number], Floats]

# NCCL's floor grows as ranks^0.67: 6.2, 9.5, 15.6 us at 2, 4, 8 H100s; across two nodes 15.7, 24.8, 40 us at 2, 4, 8
# GPUs per node (nccl-tests logs dgx_h100_2x2, 2x4, 2x8)
LATENCY_EXPONENT = 0.67
# a ring step over PCIe costs 5.7 us by NCCL's Simple protocol where LL costs 1.0 (NCCL, src/graph/tuning.cc, hwLat)
HOST_SIMPLE_FLOOR_FACTOR = 5.7
# bytes on the wire for one of the message (NCCL, src/device/prims_ll.h, prims_ll128.h): the low-latency protocol (LL)
# sends a flag of 4 bytes with every 4, LL128 one of 8 with every 120
LL_BYTES, LL128_BYTES = 2.0, 128.0 / 120.0
# across nodes by LL, besides the wire: NCCL adds a channel for every 4 KB, and each adds its own steps across the
# network. Public logs of five fabrics leave their floors at 4 to 8 KB by 0.5 to 1.3 us per KB; with the wire of H100s
# on NDR this rate makes 1.75 GB/s
TREE_LL_Bps = 1.79e9
# of a port's rate, across nodes by LL128, besides the wire in the nodes: with that of H100s, 78 GB/s at 400 Gb/s a GPU.
# EFA has 60 GB/s from 256 KB to 1 MB, RoCE at 200 Gb/s 40 GB/s
TREE_LL128_SHARE = 2.3
# a kernel that reduces in the switch of every node, as NCCL states it for its own choice (tuning.cc, hwLat): 25 us
NVLS_NODE_S = 25e-6
# across nodes, messages below this pass their stages one after the other, larger ones in overlapping chunks: with it
# the two-node formula errs at most 8 % on H20 logs from 8 to 64 MB and 6 % on H100 logs above 256 MB
PIPELINE_CHUNK_BYTES = 32.0 * 2**20
# of a network port's line rate
INTER_EFFICIENCY = 0.95


TREE_LL128 = TreeLatency(14.0, 1.25, 8.5)
TREE_SIMPLE, NVLS_TREE = TreeLatency(0.0, 4.0, 14.0), TreeLatency(NVLS_NODE_S * 1e6, 0.0, 14.0)


@functools.cache
def floor_growth(ranks: float, exponent: float) -> float:
    """Latency floor of a group as a multiple of a full node's.

    Beyond a full node, every doubling adds as much as from 4 to 8.
    """
    if ranks > FULL_NODE:
        return 1.0 + math.log2(ranks / FULL_NODE) * float(1.0 - 0.5**exponent)
    return float((ranks / FULL_NODE) ** exponent)


def host_ring_s(
    message: Floats,
    ranks: float,
    allreduce_floor_s: Number,
    bandwidth_Bps: Number,
    low_latency_share: Number,
    kind: str = "all_reduce",
) -> Floats:
    """NCCL's ring through host memory, by the faster of two protocols; each of its 2 (n - 1) steps pays a latency.

    Small messages go by the low-latency protocol (LL), at a share of the link's bandwidth that grows with the ranks, as
    the number of channels does. Floor and `low_latency_share` are those of LL, the latter between two ranks. Other
    kinds than an all-reduce take half the steps and half the traffic.
    """
    floor = allreduce_floor_s * (ranks - 1) / (FULL_NODE - 1)
    wire = 2.0 * (ranks - 1) / ranks * message / bandwidth_Bps
    share = np.minimum(1.0, low_latency_share * ranks / 2.0)
    fastest: Floats = np.minimum(floor + wire / share, HOST_SIMPLE_FLOOR_FACTOR * floor + wire)
    return fastest if kind == "all_reduce" else 0.5 * fastest


def across_nodes_s(
    message: Floats,
    node_wire_s: Floats,
    node_low_latency_s: Floats,
    *,
    nodes: int,
    ranks_per_node: int,
    allreduce_floor_s: Number,
    bandwidth_Bps: Number,
    traffic: float = 2.0,
    nvlink: bool = True,
    switch: bool = True,
) -> dict[str, Floats]:
    """Times of NCCL's algorithms across nodes, by name; it takes about the fastest.

    The fabric's floor is measured with small messages, that is with trees by the low-latency protocol (LL). What
    another algorithm takes longer is added to it: 23 us for LL128 and 28 us for NVLSTree over two nodes of eight GPUs.
    Trees by LL and LL128 carry the whole message along one path, and each link adds what its wire takes; the large
    messages' algorithm is hierarchical: reduce-scatter in the node, the rest across nodes on one rail per GPU,
    all-gather. Its stages follow each other for small messages and overlap in chunks for large ones.

    Parameters
    ----------
    message
        Bytes.
    node_wire_s
        The stages inside the node without their latency floor, seconds, shaped as `message`.
    node_low_latency_s
        What LL's bytes take on the links from GPU to GPU inside the node, seconds, shaped as `message`.
    nodes, ranks_per_node
        Group layout.
    allreduce_floor_s
        Floor of a small all-reduce over two full nodes; each doubling of nodes adds a tree level of the same cost.
    bandwidth_Bps
        One port's rate.
    traffic
        Times a rail carries its share of the message: 2 for all-reduce, 1 for all-gather.
    nvlink
        Whether messages inside a node go over NVLink between any two GPUs; LL128 needs it.
    switch
        Whether the nodes' switches reduce (NVLS).
    """
    floor_s = math.log2(nodes) * floor_growth(ranks_per_node, LATENCY_EXPONENT) * allreduce_floor_s
    lowest_s = TREE_LL.seconds(nodes, ranks_per_node)
    name, latency = ("nvls-tree", NVLS_TREE) if nvls_in_nodes(ranks_per_node, switch) else ("nccl", TREE_SIMPLE)
    large_s = floor_s + max(0.0, latency.seconds(nodes, ranks_per_node) - lowest_s)
    rail_s = rail_bytes(message, nodes, ranks_per_node, traffic) / (INTER_EFFICIENCY * bandwidth_Bps)
    steps_s = message / TREE_LL_Bps
    if not nvlink:
        steps_s = np.maximum(steps_s, node_wire_s)
    ways = {"tree": floor_s + steps_s + node_low_latency_s + LL_BYTES * rail_s}
    if nvlink:
        path_s = np.maximum(message / (TREE_LL128_SHARE * bandwidth_Bps), LL128_BYTES * rail_s)
        low128_s = floor_s + TREE_LL128.seconds(nodes, ranks_per_node) - lowest_s
        ways["tree-ll128"] = low128_s + path_s + LL128_BYTES / LL_BYTES * node_low_latency_s
    ways[name] = large_s + _piped_s(message, node_wire_s, rail_s)
    return ways


def rail_bytes(message: Floats, nodes: int, ranks_per_node: int, traffic: float) -> Floats:
    """Bytes that the network port of each GPU must send, and receive: the ports of a node share the message."""
    carried: Floats = traffic * (nodes - 1) / nodes * message / ranks_per_node
    return carried


def nvls_in_nodes(ranks_per_node: int, switch: bool) -> bool:
    """Whether NCCL reduces in the switches of the nodes: with more than two GPUs (2.21.5, src/transport/nvls.cc)."""
    return switch and ranks_per_node > 2


def _piped_s(message: Floats, node_wire_s: Floats, rail_s: Floats) -> Floats:
    chunks = np.maximum(1.0, message / PIPELINE_CHUNK_BYTES)
    piped: Floats = (node_wire_s + rail_s) / chunks + (1.0 - 1.0 / chunks) * np.maximum(node_wire_s, rail_s)
    return piped
