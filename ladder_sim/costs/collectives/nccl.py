"""What NCCL's algorithms take across nodes and through host memory, and which of them NCCL chooses.

Each takes a latency floor plus wire time. Bandwidths are per GPU and direction; formulas broadcast over numpy arrays.

References
----------
NVIDIA NCCL 2.21.5, src/graph/tuning.cc, where no other file is named. Other figures: public nccl-tests logs.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from ladder_sim.costs.collectives.algorithms import LATENCY_EXPONENT, floor_growth, ring
from ladder_sim.des.shared import Floats, Number, minimum
from ladder_sim.specs.cluster import FULL_NODE, TREE_LL, TreeLatency

# bytes on the wire for one of the message (src/device/prims_ll.h, prims_ll128.h): the low-latency protocol (LL) sends a
# flag of 4 bytes with every 4, LL128 one of 8 with every 120
LL_BYTES, LL128_BYTES = 2.0, 128.0 / 120.0
# across nodes by LL, besides the wire: NCCL adds a channel for every 4 KB, and each adds its own steps across the
# network. Public logs of five fabrics leave their floors at 4 to 8 KB by 0.5 to 1.3 us per KB; with the wire of H100s
# on NDR this rate makes 1.75 GB/s
TREE_LL_Bps = 1.79e9
# NCCL of which the rate is known: half of the 39 GB/s of LL across nodes (llMaxBws), of which trees keep these shares
# for messages of so many bytes (treeCorrectionFactor); NCCL's table taken as steps would let a time fall at 1 MB, so it
# is a line between its points
KNOWN_NCCL = "2.21.5"
NCCL_LL_Bps = 19.5e9
NCCL_TREE_SHARES = {2.0**15: 0.7, 2.0**16: 0.6, 2.0**17: 0.5, 2.0**18: 0.4}
# of a port's rate, across nodes by LL128, besides the wire in the nodes: with that of H100s, 78 GB/s at 400 Gb/s a GPU.
# EFA has 60 GB/s from 256 KB to 1 MB, RoCE at 200 Gb/s 40 GB/s
TREE_LL128_SHARE = 2.3
# trees across nodes by other protocols; NVLS first reduces in the switch of every node
TREE_LL128, TREE_SIMPLE = TreeLatency(14.0, 1.25, 8.5), TreeLatency(0.0, 4.0, 14.0)
NVLS_TREE = TreeLatency(25.0, 0.0, 14.0)
# across nodes, messages below this pass their stages one after the other, larger ones in overlapping chunks: with it
# the two-node formula errs at most 8 % on H20 logs from 8 to 64 MB and 6 % on H100 logs above 256 MB
PIPELINE_CHUNK_BYTES = 32.0 * 2**20
# of a network port's line rate
INTER_EFFICIENCY = 0.95


class RingLatency(NamedTuple):
    """What NCCL states as the latency of its rings by one protocol, microseconds."""

    base_us: float
    node_step_us: float
    """Over PCIe, which NCCL takes for the way through host memory."""
    network_step_us: float

    def seconds(self, nodes: int, ranks_per_node: int) -> float:
        """Return the seconds of all steps of an all-reduce, one after another."""
        inside, across = ring_steps(nodes, ranks_per_node)
        return (self.base_us + inside * self.node_step_us + across * self.network_step_us) * 1e-6


RING_LL, RING_SIMPLE = RingLatency(6.6, 1.0, 2.7), RingLatency(8.4, 5.7, 14.0)
# trees by LL where GPUs of a node have no peer-to-peer access: PCIe in place of NVLink
HOST_TREE_LL = TREE_LL._replace(node_hop_us=1.0)
# how much longer NCCL takes steps of a ring by Simple to be once messages fill them ("plateau effect of ring")
RING_PLATEAU = 1.4
# rate that NCCL's search gives a ring through host memory: PCIe 5 counts 48 GB/s, through an Intel CPU 40, which two
# GPUs below one switch share. At TP 4 it makes NCCL leave LL for NVLS at 83 to 165 KB, as the authors' runs do between
# 64 and 128 KB if it is 16 to 31 GB/s
HOST_RING_Bps = 20e9
# of that rate, a tree's by LL: trees reach 0.92, LL 1 / 3.8, trees that cross the network at one GPU of a node 0.85;
# there is a way up and one down
HOST_TREE_LL_SHARE = 0.92 / 3.8 * 0.85 / 2.0
# of a channel's 512 threads 160 send down a tree (src/device/all_reduce.h, runTreeSplit): by LL each waits for 8 bytes
# at a time, so that this is the share of a ring's rate
TREE_DOWN_SHARE = 160.0 / 512.0
# bytes among which NCCL's choices are looked for
_CHOICE_BYTES = 2.0 ** np.arange(6.0, 30.0, 1.0 / 16.0)


def host_low_latency_share(of_two: Number, ranks: float) -> Number:
    """Return the share of host memory's rate that a ring by LL reaches, given that between two ranks.

    It grows with the ranks, as the number of channels does.
    """
    return minimum(1.0, of_two * ranks / 2.0)


def host_ring_s(
    message: Floats,
    ranks: float,
    allreduce_floor_s: Number,
    bandwidth_Bps: Number,
    low_latency_share: Number,
    kind: str = "all_reduce",
) -> Floats:
    """Return the seconds of NCCL's ring through host memory by the faster protocol; 2 (n - 1) steps pay latency.

    The floor is that of LL; `low_latency_share` is as in `host_low_latency_share`. Other kinds than an all-reduce take
    half the steps and half the traffic.
    """
    floor = allreduce_floor_s * (ranks - 1) / (FULL_NODE - 1)
    wire = 2.0 * (ranks - 1) / ranks * message / bandwidth_Bps
    simple_floor = RING_SIMPLE.node_step_us / RING_LL.node_step_us * floor
    share = host_low_latency_share(low_latency_share, ranks)
    fastest: Floats = np.minimum(floor + wire / share, simple_floor + wire)
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
    traffic: float | None = None,
    nvlink: bool = True,
    switch: bool = True,
    known_nccl: bool = False,
) -> dict[str, Floats]:
    """Return the seconds of NCCL's algorithms across nodes, by name; NCCL takes about the fastest.

    The fabric's floor is measured with small messages, that is with trees by LL. What another algorithm takes longer is
    added to it: 23 us for LL128 and 28 us for NVLSTree over two nodes of eight GPUs. Trees by LL and LL128 carry the
    whole message along one path, and each link adds what its wire takes; the large messages' algorithm is hierarchical:
    reduce-scatter in the node, the rest across nodes on one rail per GPU, all-gather.

    `node_wire_s` are the stages inside the node without their latency floor, `node_low_latency_s` what LL's bytes take
    from GPU to GPU there. `allreduce_floor_s` is over two full nodes; each doubling of nodes adds a tree level of the
    same cost. A node's ports carry `traffic` bytes for one of the message: by default those of an all-reduce. LL128
    needs `nvlink` between any two GPUs of a node, NVLS a `switch` that reduces; LL has the rate of `KNOWN_NCCL` or that
    of public logs.
    """
    floor_s = tree_floor_s(nodes, ranks_per_node, allreduce_floor_s)
    lowest_s = TREE_LL.seconds(nodes, ranks_per_node)
    name, latency = ("nvls-tree", NVLS_TREE) if nvls_in_nodes(ranks_per_node, switch) else ("nccl", TREE_SIMPLE)
    near = nearness(allreduce_floor_s)
    large_s = floor_s + near * max(0.0, latency.seconds(nodes, ranks_per_node) - lowest_s)
    carried = tree_traffic(nodes) if traffic is None else traffic
    rail_s = carried * message / (ranks_per_node * INTER_EFFICIENCY * bandwidth_Bps)
    wire_s = node_low_latency_s + LL_BYTES * rail_s
    steps_s = near * message / (NCCL_LL_Bps * tree_shares(message) if known_nccl else TREE_LL_Bps)
    if not nvlink:
        steps_s = np.maximum(steps_s, node_wire_s)
    ways = {"tree": floor_s + steps_s + wire_s}
    if nvlink:
        path_s = np.maximum(message / (TREE_LL128_SHARE * bandwidth_Bps), LL128_BYTES * rail_s)
        low128_s = floor_s + near * (TREE_LL128.seconds(nodes, ranks_per_node) - lowest_s)
        ways["tree-ll128"] = low128_s + path_s + LL128_BYTES / LL_BYTES * node_low_latency_s
    ways[name] = large_s + piped_s(message, node_wire_s, rail_s)
    return ways


def tree_floor_s(nodes: int, ranks_per_node: int, allreduce_floor_s: Number) -> Number:
    """Return the seconds of a small all-reduce by trees, given those over two full nodes."""
    return math.log2(nodes) * floor_growth(ranks_per_node, LATENCY_EXPONENT) * allreduce_floor_s


def nearness(allreduce_floor_s: Number) -> Number:
    """Return how much links nearer than any that NCCL states its steps for shorten those of every protocol."""
    return minimum(1.0, allreduce_floor_s / TREE_LL.seconds(2, FULL_NODE))


def tree_traffic(nodes: int) -> float:
    """Return the bytes that the busiest node sends for a byte of an all-reduce, along NCCL's two trees of nodes.

    Each tree carries half of the message up and down (src/graph/trees.cc). From four nodes on some node has two
    children and a parent in one of them, and a parent in the other.
    """
    return min(2.0, nodes / 2.0)


def ring_steps(nodes: int, ranks_per_node: int) -> tuple[int, int]:
    """Return the steps of a ring all-reduce one after another inside nodes, and across."""
    across = 2 * nodes
    return 2 * (nodes * ranks_per_node - 1) - across, across


def tree_shares(message: Floats) -> Floats:
    """Return the share of its rate that NCCL leaves a tree by LL (`NCCL_TREE_SHARES`)."""
    shares: Floats = np.interp(np.log(message), np.log(list(NCCL_TREE_SHARES)), list(NCCL_TREE_SHARES.values()))
    return shares


def nvls_in_nodes(ranks_per_node: int, switch: bool) -> bool:
    """Whether NCCL reduces in the switches of the nodes: with more than two GPUs (src/transport/nvls.cc)."""
    return switch and ranks_per_node > 2


def piped_s(message: Floats, node_wire_s: Floats, rail_s: Floats) -> Floats:
    """Return the seconds of stages in the nodes and across them, which overlap in chunks of large messages."""
    chunks = np.maximum(1.0, message / PIPELINE_CHUNK_BYTES)
    piped: Floats = (node_wire_s + rail_s) / chunks + (1.0 - 1.0 / chunks) * np.maximum(node_wire_s, rail_s)
    return piped


@cache
def first_bytes(nodes: int, ranks_per_node: int, nvls: bool) -> dict[str, float]:
    """Return the bytes from which on NCCL takes each algorithm for an all-reduce without peer-to-peer access.

    By NCCL's own estimates, with the latencies of PCIe and whatever links there are: a link's rate alone moves no
    message to another algorithm, so that a faster one is never slower.

    Examples
    --------
    >>> {name: round(first / 1024) for name, first in first_bytes(2, 4, True).items()}
    {'tree': 0, 'ring': 9, 'nvls-tree': 146}
    """
    sizes, layout = _CHOICE_BYTES, (nodes, ranks_per_node)
    ring_Bps = HOST_RING_Bps / ring(nodes * ranks_per_node)
    seconds = {
        "tree": HOST_TREE_LL.seconds(*layout) + sizes / (HOST_TREE_LL_SHARE * HOST_RING_Bps * tree_shares(sizes)),
        "ring": RING_LL.seconds(*layout) + LL_BYTES * sizes / ring_Bps,
    }
    if nvls:
        # its rate is that of all ports together
        seconds["nvls-tree"] = np.full_like(sizes, NVLS_TREE.seconds(nodes, 1))
    else:
        seconds["nccl-host"] = RING_PLATEAU * RING_SIMPLE.seconds(*layout) + sizes / ring_Bps
    fastest_of = np.array(list(seconds.values())).argmin(axis=0)
    firsts = {name: float(sizes[fastest_of == at].min()) for at, name in enumerate(seconds) if at in fastest_of}
    return {name: 0.0 if at == 0 else first for at, (name, first) in enumerate(firsts.items())}
