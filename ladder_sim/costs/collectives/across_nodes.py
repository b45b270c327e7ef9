"""Collectives across nodes, where everything is NCCL: custom kernels access peers of their own node only.

Every algorithm has a formula: a latency floor plus wire time; so has NCCL's ring through host memory. A measured curve
is read as the ratio measured / formula, so that it equals itself where it was made and carries over to another
bandwidth, latency or number of ranks. Bandwidths are per GPU and direction; formulas broadcast over numpy arrays.

References
----------
NVIDIA NCCL 2.21.5, src/graph/tuning.cc. Figures: public nccl-tests logs.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from typing import Literal

import numpy as np

from ladder_sim.costs.collectives.algorithms import (
    ALGORITHMS,
    LATENCY_EXPONENT,
    MeasuredCollective,
    bracketed,
    bridged,
    extended,
    floor_growth,
    ring,
)
from ladder_sim.costs.collectives.fabrics import FabricCurve, fabric_curve
from ladder_sim.costs.estimate import COLLECTIVE_ERROR, CollectiveTimes, fastest_way, of_each, unmeasured
from ladder_sim.costs.hardware import Hardware, Link
from ladder_sim.des.shared import Floats, Number, maximum, minimum
from ladder_sim.graph.ops import CollectiveKind
from ladder_sim.kernels import Group
from ladder_sim.specs.cluster import FULL_NODE, TREE_LL, TreeLatency
from ladder_sim.specs.scenario import Scenario

# a message that fills the links inside a node; every measured curve is at its full rate there
LARGE_BYTES = 2.0**30


class AcrossNodes:
    """NCCL's collectives of one group of a scenario's ranks, by formulas and the fabric's measured all-reduces.

    `measured` has the collectives inside a node, by kind and algorithm.
    """

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware,
        group: Group,
        measured: Mapping[tuple[str, str], MeasuredCollective],
    ) -> None:
        self._cluster, self._hardware, self._measured = scenario.cluster, hardware, measured
        self._nodes, self._ranks = scenario.layout(group)
        self._intra = hardware.intra.among(self._ranks)
        # a GPU alone in its node has no peer there
        self._p2p = scenario.p2p or self._ranks == 1
        self._fabric = fabric_curve(self._cluster.inter.fabric)
        self._nccl = scenario.stack.own_allreduce.nccl

        # what `_fabric_log_ratios` has made, by whether NCCL is of `KNOWN_NCCL`
        self._log_ratios: dict[bool, tuple[Floats, Floats]] = {}

    def times(self, kind: CollectiveKind, message: Floats) -> CollectiveTimes:
        times = self._times(kind, message, known_nccl=self._nccl == KNOWN_NCCL)
        if self._nccl:
            return times
        # an unknown version may be either
        apart = np.abs(self._fastest(kind, message, known_nccl=True).seconds / times.seconds - 1.0)
        return dataclasses.replace(times, beyond=np.maximum(times.beyond, apart)) if apart.any() else times

    def _fastest(self, kind: CollectiveKind, message: Floats, *, known_nccl: bool) -> CollectiveTimes:
        node_wire_s = self._node_wire_s(_stages(kind), message, self._intra, self._ranks)
        low_latency_s = self._low_latency_s(_stages(kind), message, self._intra, self._ranks)
        ways = self._ways(
            kind,
            message,
            node_wire_s,
            low_latency_s,
            nvlink=self._cluster.intra.full_nvlink,
            known_nccl=known_nccl,
        )
        firsts = None
        if not self._p2p:
            direct_s = fastest_way(ways).seconds
            if kind == "all_reduce":
                firsts = first_bytes(self._nodes, self._ranks, nvls_in_nodes(self._ranks, self._cluster.intra.switch))
                ways = self._by_range(message, firsts, known_nccl=known_nccl)
            else:
                ways = self._without_p2p(kind, message, known_nccl=known_nccl)
            ways = {name: np.maximum(direct_s, seconds) for name, seconds in ways.items()}
        if self._fabric is not None and kind == "all_reduce":
            log_sizes, log_ratios = self._fabric_log_ratios(known_nccl=known_nccl)
            ratio = np.exp(np.interp(np.log(message), log_sizes, log_ratios))
            ways = {name: seconds * ratio for name, seconds in ways.items()}
        ways = {name: np.maximum(ways[name], self._ports_s(kind, name, message)) for name in ways}
        if firsts is None:
            return fastest_way(ways)
        choice = np.searchsorted(list(firsts.values())[1:], message, side="right")
        return of_each([unmeasured(seconds, name) for name, seconds in ways.items()], choice)

    def _times(self, kind: CollectiveKind, message: Floats, *, known_nccl: bool) -> CollectiveTimes:
        times = self._fastest(kind, message, known_nccl=known_nccl)
        fabric = self._fabric if kind == "all_reduce" else None
        if fabric is None:
            return times
        times = dataclasses.replace(times, source="transferred", beyond=COLLECTIVE_ERROR["transferred"])
        if not self._p2p:
            # the fabric's sweep was made with it
            return times
        parts = [(fabric, np.ones(message.shape, bool))]
        if fabric.others is not None:
            inside = bracketed(fabric.curve, message)
            parts = [(fabric, inside), (fabric.others, ~inside)]
        in_range, fitted = (
            np.zeros(message.shape, bool),
            np.ones(np.broadcast_shapes(message.shape, times.choice.shape), bool),
        )
        for sweep, messages in parts:
            if not messages.any():
                continue
            here, same_layout = self._here(sweep), (sweep.nodes, sweep.ranks_per_node) == (self._nodes, self._ranks)
            in_range |= messages & bracketed(sweep.curve, message) & (here and same_layout)
            # a curve inside a node has gaps only where a dense sweep was thinned; here nothing was measured in between
            known = np.isin(times.algorithms, list(self._ideal(sweep, sweep.curve.size_bytes).names))[times.choice]
            fitted &= ~messages | (here & known & ~bridged(sweep.curve, message))
        if not fitted.any():
            return dataclasses.replace(times, in_range=in_range)
        beyond = np.where(fitted, COLLECTIVE_ERROR["fitted"], times.beyond)
        source = np.where(fitted, "fitted", "transferred")
        return dataclasses.replace(times, in_range=in_range, source=source, beyond=beyond)

    def _here(self, fabric: FabricCurve) -> bool:
        """Whether a sweep was measured on GPUs and tiers as these."""
        measured_on = fabric.cluster
        # the curve was looked up by the fabric's name, or by the path of its file
        own = dataclasses.replace(self._hardware.inter, fabric=measured_on.inter.fabric)
        return self._hardware.same_node(measured_on) and own.same_as(Link.of(measured_on.inter))

    def _fabric_log_ratios(self, *, known_nccl: bool) -> tuple[Floats, Floats]:
        if known_nccl not in self._log_ratios:
            self._log_ratios[known_nccl] = self._joined(known_nccl=known_nccl)
        return self._log_ratios[known_nccl]

    def _joined(self, *, known_nccl: bool) -> tuple[Floats, Floats]:
        fabric = self._fabric
        if fabric is None:
            raise ValueError("no sweep over this fabric")
        if fabric.others is None:
            return self._ratios(fabric)

        def log_ideal(log_sizes: Floats) -> Floats:
            seconds = self._ideal(fabric, np.exp(log_sizes), known_nccl=known_nccl).seconds
            logs: Floats = np.log(seconds)
            return logs

        # a user's own sweep is of the NCCL that runs
        return extended(self._ratios(fabric, known_nccl=known_nccl), self._ratios(fabric.others), log_ideal)

    def _ratios(self, fabric: FabricCurve, *, known_nccl: bool = False) -> tuple[Floats, Floats]:
        sizes = fabric.curve.size_bytes
        ideal_s = self._ideal(fabric, sizes, known_nccl=known_nccl).seconds
        return np.log(sizes), np.log(fabric.curve.seconds / ideal_s)

    def _ideal(self, fabric: FabricCurve, sizes: Floats, *, known_nccl: bool = False) -> CollectiveTimes:
        measured_on, ranks = fabric.cluster, fabric.ranks_per_node
        intra = Link.of(measured_on.intra).among(ranks)
        ways = across_nodes_s(
            sizes,
            self._node_wire_s("all_reduce", sizes, intra, ranks),
            self._low_latency_s("all_reduce", sizes, intra, ranks),
            nodes=fabric.nodes,
            ranks_per_node=ranks,
            allreduce_floor_s=measured_on.inter.allreduce_floor_s,
            bandwidth_Bps=measured_on.inter.bandwidth_Bps,
            nvlink=measured_on.intra.full_nvlink,
            switch=measured_on.intra.switch,
            known_nccl=known_nccl,
        )
        return fastest_way(ways)

    def _by_range(self, message: Floats, firsts: Mapping[str, float], *, known_nccl: bool) -> dict[str, Floats]:
        """Return the seconds of all-reduces without peer-to-peer access, given the first bytes of each algorithm.

        Only those of the algorithm that a message is large enough for are its time. NCCL chooses by estimates, so that
        a time could fall where another algorithm begins: none is shorter than the last of the algorithm before.
        """
        ways: dict[str, Floats] = {}
        least_s = np.zeros_like(message)
        for name, last in zip(firsts, [*list(firsts.values())[1:], math.inf], strict=True):
            seconds = self._without_p2p("all_reduce", np.minimum(message, last), known_nccl=known_nccl)[name]
            ways[name] = least_s = np.maximum(least_s, seconds)
        return ways

    def _without_p2p(self, kind: CollectiveKind, message: Floats, *, known_nccl: bool) -> dict[str, Floats]:
        """Return the seconds of each algorithm that works without peer-to-peer access.

        LL128 needs peer-to-peer access; trees and rings go through host memory in each node. NVLS stays, between two
        barriers through host memory as inside one node.
        """
        host_s, at_floor_s = self._host_stages_s(kind, message), self._host_stages_s(kind, np.zeros_like(message))
        # in place of the chain of GPUs in each node
        longer_s = np.maximum(0.0, at_floor_s - self._chain_s)
        none_s, hardware = np.zeros_like(message), self._hardware
        down_s = message / (TREE_DOWN_SHARE * self._host_low_latency_rate(self._ranks))
        ways = {
            "tree": longer_s + self._ways(kind, message, down_s, none_s, nvlink=False, known_nccl=known_nccl)["tree"]
        }
        port_Bps = INTER_EFFICIENCY * hardware.inter.bandwidth_Bps
        if kind == "all_reduce":
            ranks = self._nodes * self._ranks
            sent = ring(ranks) * message
            ways["ring"] = (
                ring_hops(self._nodes, self._ranks)[0] * hardware.host.allreduce_floor_s / (2 * (FULL_NODE - 1))
                + self.outside_s("ring")
                + sent / self._host_low_latency_rate(ranks)
                + LL_BYTES * sent / (self._ranks * port_Bps)
            )
        if nvls_in_nodes(self._ranks, self._cluster.intra.switch):
            # by trees of all nodes but three, of which one has two children, a port sends and receives more than others
            share = min(1.0, self._nodes / 4) if kind == "all_reduce" else (self._nodes - 1) / self._nodes
            rail_s = self._rail_traffic(kind) * share * message / (self._ranks * port_Bps)
            node_wire_s = self._node_wire_s(_stages(kind), message, self._intra, self._ranks)
            ways["nvls-tree"] = 2.0 * at_floor_s + self.outside_s("nvls-tree") + _piped_s(message, node_wire_s, rail_s)
        else:
            wire_s = host_s - at_floor_s
            through_host = self._ways(kind, message, wire_s, none_s, nvlink=False, known_nccl=known_nccl)
            ways["nccl-host"] = longer_s + through_host["nccl"]
        return ways

    @property
    def _chain_s(self) -> float:
        """Seconds of the chains of GPUs inside the nodes that the fabric's floor holds."""
        return TREE_LL.seconds(self._nodes, self._ranks) - TREE_LL.seconds(self._nodes, 1)

    def _host_low_latency_rate(self, ranks: int) -> Number:
        """Return the rate of NCCL's low-latency protocol through host memory, of a ring of so many ranks."""
        hardware = self._hardware
        return hardware.host.bandwidth_Bps * minimum(1.0, hardware.host_low_latency_share * ranks / 2.0)

    def outside_s(self, name: str) -> Number:
        """Return the seconds of a small all-reduce outside of the nodes, by an algorithm without peer-to-peer access.

        The fabric's floor holds those of a tree by LL, of which NCCL's own latencies make those of others.
        """
        floor_s = self._hardware.inter.allreduce_floor_s
        tree_s = maximum(0.0, _floor_s(self._nodes, self._ranks, floor_s) - self._chain_s)
        hops = 2.0 * math.log2(self._nodes)
        if name == "ring":
            across = ring_hops(self._nodes, self._ranks)[1]
            return tree_s * (across * RING_LL_NETWORK_US) / (hops * TREE_LL.network_hop_us)
        if name == "nvls-tree":
            longer_us = hops * (NVLS_TREE.network_hop_us - TREE_LL.network_hop_us)
            return tree_s + _near(floor_s) * longer_us * 1e-6
        return tree_s

    def _ports_s(self, kind: CollectiveKind, name: str, message: Floats) -> Floats:
        """Return the seconds that an algorithm keeps a GPU's ports busy at least: in the node, and in the network."""
        hardware, in_switch = self._hardware, self._cluster.intra.switch
        link = self._intra
        if not self._p2p and name != "nvls-tree":
            link, in_switch = hardware.host, False
        traffic = ALGORITHMS[_stages(kind), "nccl"].port_traffic(self._ranks, in_switch)
        if kind == "all_to_all":
            # the rest is for other nodes
            traffic /= self._nodes
        across = rail_bytes(message, self._nodes, self._ranks, self._rail_traffic(kind))
        ports_s: Floats = np.maximum(traffic * message / link.bandwidth_Bps, across / hardware.inter.bandwidth_Bps)
        return ports_s

    def _rail_traffic(self, kind: CollectiveKind) -> float:
        """Return the bytes that a node's ports carry for a byte of the message, for many nodes."""
        return {"all_reduce": 2.0, "all_to_all": float(self._ranks)}.get(kind, 1.0)

    def _ways(
        self,
        kind: CollectiveKind,
        message: Floats,
        node_wire_s: Floats,
        node_low_latency_s: Floats,
        *,
        nvlink: bool,
        known_nccl: bool = False,
    ) -> dict[str, Floats]:
        """Return the seconds of NCCL's algorithms by name, given the stages inside each node."""
        return across_nodes_s(
            message,
            node_wire_s,
            node_low_latency_s,
            nodes=self._nodes,
            ranks_per_node=self._ranks,
            allreduce_floor_s=self._hardware.inter.allreduce_floor_s,
            bandwidth_Bps=self._hardware.inter.bandwidth_Bps,
            traffic=self._rail_traffic(kind),
            nvlink=nvlink,
            switch=self._cluster.intra.switch,
            known_nccl=known_nccl,
        )

    def _node_wire_s(self, kind: str, message: Floats, tier: Link, ranks: int) -> Floats:
        """Return the seconds of a collective between GPUs of a node, without the latency floor but with its growth."""
        nothing = np.zeros_like(message)
        if ranks == 1:
            return nothing
        formula = ALGORITHMS[kind, "nccl"]
        floor_s, whole_s = (
            formula(size, ranks, tier.allreduce_floor_s, tier.bandwidth_Bps) for size in (nothing, message)
        )
        wire_s = whole_s - floor_s
        measured = self._measured.get((kind, "nccl"))
        if measured is None:
            return wire_s
        ratio, at_floor = measured.factor(message, ranks), measured.factor(nothing, ranks)
        return wire_s * ratio + floor_s * np.maximum(0.0, ratio - at_floor)

    def _low_latency_s(self, kind: str, message: Floats, tier: Link, ranks: int) -> Floats:
        """Return the seconds that a message in NCCL's low-latency protocol takes between the GPUs of a node.

        At their line rate, or the rate that NCCL reaches inside a node with the largest messages if that is lower.
        """
        line_s = ALGORITHMS[kind, "nccl"].port_traffic(ranks, False) * message / tier.bandwidth_Bps
        reached_s = self._node_wire_s(kind, np.array([LARGE_BYTES]), tier, ranks) / LARGE_BYTES * message
        wire_s: Floats = LL_BYTES * np.maximum(line_s, reached_s)
        return wire_s

    def _host_stages_s(self, kind: CollectiveKind, message: Floats) -> Floats:
        """Return the seconds of the stages inside a node through host memory, with their latency floor."""
        if self._ranks == 1:
            return np.zeros_like(message)
        tier, share = self._hardware.host, self._hardware.host_low_latency_share
        return host_ring_s(message, self._ranks, tier.allreduce_floor_s, tier.bandwidth_Bps, share, _stages(kind))


def _stages(kind: CollectiveKind) -> Literal["all_reduce", "all_gather"]:
    return "all_reduce" if kind == "all_reduce" else "all_gather"


# a ring step over PCIe costs 5.7 us by NCCL's Simple protocol where LL costs 1.0 (NCCL, src/graph/tuning.cc, hwLat)
HOST_SIMPLE_FLOOR_FACTOR = 5.7
# bytes on the wire for one of the message (NCCL, src/device/prims_ll.h, prims_ll128.h): the low-latency protocol (LL)
# sends a flag of 4 bytes with every 4, LL128 one of 8 with every 120
LL_BYTES, LL128_BYTES = 2.0, 128.0 / 120.0
# across nodes by LL, besides the wire: NCCL adds a channel for every 4 KB, and each adds its own steps across the
# network. Public logs of five fabrics leave their floors at 4 to 8 KB by 0.5 to 1.3 us per KB; with the wire of H100s
# on NDR this rate makes 1.75 GB/s
TREE_LL_Bps = 1.79e9
# NCCL of which the rate is known (src/graph/tuning.cc): half of the 39 GB/s of LL across nodes (llMaxBws), of which
# trees keep these shares of messages of so many bytes (treeCorrectionFactor); NCCL's table taken as steps would let a
# time fall at 1 MB, so it is a line between its points
KNOWN_NCCL = "2.21.5"
NCCL_LL_Bps = 19.5e9
NCCL_TREE_SHARES = {2.0**15: 0.7, 2.0**16: 0.6, 2.0**17: 0.5, 2.0**18: 0.4}
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


# where GPUs of a node have no peer-to-peer access NCCL estimates with the latencies of PCIe
HOST_TREE_LL = TreeLatency(6.8, 1.0, 5.0)
# a ring's step across the network by LL, microseconds (NCCL, tuning.cc, hwLat; 5.0 of a tree)
RING_LL_NETWORK_US = 2.7
# rate that NCCL's search gives a ring through host memory, and with its own factors trees by LL: PCIe 5 counts 48 GB/s,
# through an Intel CPU 40, which two GPUs below one switch share. At TP 4 it makes NCCL leave LL for NVLS at 83 to 165
# KB, as the authors' runs do between 64 and 128 KB if it is 16 to 31 GB/s
HOST_RING_Bps = 20e9
HOST_TREE_LL_Bps = HOST_RING_Bps * 0.92 / 3.8 * 0.85 / 2.0
# of a channel's 512 threads 160 send down a tree (NCCL, src/device/all_reduce.h, runTreeSplit): by LL each waits for 8
# bytes at a time, so that this is the share of a ring's rate
TREE_DOWN_SHARE = 160.0 / 512.0
TREE_LL128 = TreeLatency(14.0, 1.25, 8.5)
TREE_SIMPLE, NVLS_TREE = TreeLatency(0.0, 4.0, 14.0), TreeLatency(NVLS_NODE_S * 1e6, 0.0, 14.0)


def host_ring_s(
    message: Floats,
    ranks: float,
    allreduce_floor_s: Number,
    bandwidth_Bps: Number,
    low_latency_share: Number,
    kind: str = "all_reduce",
) -> Floats:
    """Return the seconds of NCCL's ring through host memory by the faster protocol; 2 (n - 1) steps pay latency.

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
    known_nccl: bool = False,
) -> dict[str, Floats]:
    """Return the seconds of NCCL's algorithms across nodes, by name; NCCL takes about the fastest.

    The fabric's floor is measured with small messages, that is with trees by the low-latency protocol (LL). What
    another algorithm takes longer is added to it: 23 us for LL128 and 28 us for NVLSTree over two nodes of eight GPUs.
    Trees by LL and LL128 carry the whole message along one path, and each link adds what its wire takes; the large
    messages' algorithm is hierarchical: reduce-scatter in the node, the rest across nodes on one rail per GPU,
    all-gather. Its stages follow each other for small messages and overlap in chunks for large ones.

    `node_wire_s` are the stages inside the node without their latency floor, `node_low_latency_s` what LL's bytes take
    from GPU to GPU there. `allreduce_floor_s` is over two full nodes; each doubling of nodes adds a tree level of the
    same cost. A rail carries its share of the message `traffic` times: 2 for an all-reduce, 1 for an all-gather. LL128
    needs `nvlink` between any two GPUs of a node, NVLS a `switch` that reduces; the rates of the low-latency protocol
    are those of `KNOWN_NCCL`.
    """
    floor_s = _floor_s(nodes, ranks_per_node, allreduce_floor_s)
    lowest_s = TREE_LL.seconds(nodes, ranks_per_node)
    name, latency = ("nvls-tree", NVLS_TREE) if nvls_in_nodes(ranks_per_node, switch) else ("nccl", TREE_SIMPLE)
    near = _near(allreduce_floor_s)
    large_s = floor_s + near * max(0.0, latency.seconds(nodes, ranks_per_node) - lowest_s)
    rail_s = rail_bytes(message, nodes, ranks_per_node, traffic) / (INTER_EFFICIENCY * bandwidth_Bps)
    wire_s = node_low_latency_s + LL_BYTES * rail_s
    steps_s = near * message / (known_tree_rate(message) if known_nccl else TREE_LL_Bps)
    if not nvlink:
        steps_s = np.maximum(steps_s, node_wire_s)
    ways = {"tree": floor_s + steps_s + wire_s}
    if nvlink:
        path_s = np.maximum(message / (TREE_LL128_SHARE * bandwidth_Bps), LL128_BYTES * rail_s)
        low128_s = floor_s + near * (TREE_LL128.seconds(nodes, ranks_per_node) - lowest_s)
        ways["tree-ll128"] = low128_s + path_s + LL128_BYTES / LL_BYTES * node_low_latency_s
    ways[name] = large_s + _piped_s(message, node_wire_s, rail_s)
    return ways


def _near(allreduce_floor_s: Number) -> Number:
    """Return how much links nearer than any that NCCL states its steps for shorten those of every protocol."""
    return minimum(1.0, allreduce_floor_s / TREE_LL.seconds(2, FULL_NODE))


def ring_hops(nodes: int, ranks_per_node: int) -> tuple[int, int]:
    """Return the steps of a ring all-reduce one after another inside nodes, and across (NCCL 2.21.5, tuning.cc)."""
    across = 2 * nodes
    return 2 * (nodes * ranks_per_node - 1) - across, across


@cache
def first_bytes(nodes: int, ranks_per_node: int, nvls: bool) -> dict[str, float]:
    """Return the bytes from which on NCCL takes each algorithm for an all-reduce without peer-to-peer access.

    By NCCL's own estimates (2.21.5, src/graph/tuning.cc) with the latencies of PCIe, whatever links there are: a link's
    rate alone moves no message to another algorithm, so that a faster one is never slower.

    Examples
    --------
    >>> {name: round(first / 1024) for name, first in first_bytes(2, 4, True).items()}
    {'tree': 0, 'ring': 9, 'nvls-tree': 146}
    """
    sizes = 2.0 ** np.arange(6.0, 30.0, 1.0 / 16.0)
    inside, across = ring_hops(nodes, ranks_per_node)
    ring_Bps = HOST_RING_Bps / ring(nodes * ranks_per_node)
    seconds = {
        "tree": HOST_TREE_LL.seconds(nodes, ranks_per_node) + sizes / (HOST_TREE_LL_Bps * tree_shares(sizes)),
        "ring": 1e-6 * (6.6 + inside + across * RING_LL_NETWORK_US) + sizes / (0.5 * ring_Bps),
    }
    if nvls:
        # its rate is that of all ports together
        seconds["nvls-tree"] = np.full_like(sizes, NVLS_TREE.seconds(nodes, 1))
    else:
        seconds["nccl-host"] = 1.4e-6 * (8.4 + 5.7 * inside + 14.0 * across) + sizes / ring_Bps
    fastest_of = np.array(list(seconds.values())).argmin(axis=0)
    firsts = {name: float(sizes[fastest_of == at].min()) for at, name in enumerate(seconds) if at in fastest_of}
    return {name: 0.0 if at == 0 else first for at, (name, first) in enumerate(firsts.items())}


def _floor_s(nodes: int, ranks_per_node: int, allreduce_floor_s: Number) -> Number:
    return math.log2(nodes) * floor_growth(ranks_per_node, LATENCY_EXPONENT) * allreduce_floor_s


def known_tree_rate(message: Floats) -> Floats:
    """Return the rate of NCCL's trees by the low-latency protocol, as version `KNOWN_NCCL` states it."""
    return NCCL_LL_Bps * tree_shares(message)


def tree_shares(message: Floats) -> Floats:
    """Return the share of its rate that NCCL leaves a tree by the low-latency protocol (`NCCL_TREE_SHARES`)."""
    shares: Floats = np.interp(np.log(message), np.log(list(NCCL_TREE_SHARES)), list(NCCL_TREE_SHARES.values()))
    return shares


def rail_bytes(message: Floats, nodes: int, ranks_per_node: int, traffic: float) -> Floats:
    """Return the bytes that a GPU's network port must send and receive: a node's ports share the message."""
    carried: Floats = traffic * (nodes - 1) / nodes * message / ranks_per_node
    return carried


def nvls_in_nodes(ranks_per_node: int, switch: bool) -> bool:
    """Whether NCCL reduces in the switches of the nodes: with more than two GPUs (2.21.5, src/transport/nvls.cc)."""
    return switch and ranks_per_node > 2


def _piped_s(message: Floats, node_wire_s: Floats, rail_s: Floats) -> Floats:
    chunks = np.maximum(1.0, message / PIPELINE_CHUNK_BYTES)
    piped: Floats = (node_wire_s + rail_s) / chunks + (1.0 - 1.0 / chunks) * np.maximum(node_wire_s, rail_s)
    return piped
