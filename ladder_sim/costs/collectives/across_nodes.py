"""Collectives across nodes, where everything is NCCL: custom kernels access peers of their own node only.

A fabric's measured curve is read as the ratio measured / formula (`nccl.py`), so that it equals itself where it was
made and carries over to another bandwidth, latency or number of ranks.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from ladder_sim.costs.collectives.algorithms import ALGORITHMS, MeasuredCollective, bracketed, bridged, extended, ring
from ladder_sim.costs.collectives.fabrics import FabricCurve, fabric_curve
from ladder_sim.costs.collectives.nccl import (
    INTER_EFFICIENCY,
    KNOWN_NCCL,
    LL_BYTES,
    NVLS_TREE,
    RING_LL,
    TREE_DOWN_SHARE,
    across_nodes_s,
    first_bytes,
    host_low_latency_share,
    host_ring_s,
    nearness,
    nvls_in_nodes,
    piped_s,
    ring_steps,
    tree_floor_s,
    tree_traffic,
)
from ladder_sim.costs.estimate import COLLECTIVE_ERROR, CollectiveTimes, fastest_way, of_each, unmeasured
from ladder_sim.costs.hardware import Hardware, Link
from ladder_sim.des.shared import Floats, Number, maximum
from ladder_sim.graph.ops import CollectiveKind
from ladder_sim.kernels import Group
from ladder_sim.specs.cluster import FULL_NODE, TREE_LL
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
        nvlink = self._cluster.intra.full_nvlink
        ways = self._ways(kind, message, node_wire_s, low_latency_s, nvlink=nvlink, known_nccl=known_nccl)
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
        in_range = np.zeros(message.shape, bool)
        fitted = np.ones(np.broadcast_shapes(message.shape, times.choice.shape), bool)
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
                ring_steps(self._nodes, self._ranks)[0] * hardware.host.allreduce_floor_s / (2 * (FULL_NODE - 1))
                + self.outside_s("ring")
                + sent / self._host_low_latency_rate(ranks)
                + LL_BYTES * sent / (self._ranks * port_Bps)
            )
        if nvls_in_nodes(self._ranks, self._cluster.intra.switch):
            rail_s = self._traffic(kind) * message / (self._ranks * port_Bps)
            node_wire_s = self._node_wire_s(_stages(kind), message, self._intra, self._ranks)
            ways["nvls-tree"] = 2.0 * at_floor_s + self.outside_s("nvls-tree") + piped_s(message, node_wire_s, rail_s)
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
        return hardware.host.bandwidth_Bps * host_low_latency_share(hardware.host_low_latency_share, ranks)

    def outside_s(self, name: str) -> Number:
        """Return the seconds of a small all-reduce outside of the nodes, by an algorithm without peer-to-peer access.

        The fabric's floor holds those of a tree by LL, of which NCCL's own latencies make those of others.
        """
        floor_s = self._hardware.inter.allreduce_floor_s
        tree_s = maximum(0.0, tree_floor_s(self._nodes, self._ranks, floor_s) - self._chain_s)
        hops = 2.0 * math.log2(self._nodes)
        if name == "ring":
            across = ring_steps(self._nodes, self._ranks)[1]
            return tree_s * (across * RING_LL.network_step_us) / (hops * TREE_LL.network_hop_us)
        if name == "nvls-tree":
            longer_us = hops * (NVLS_TREE.network_hop_us - TREE_LL.network_hop_us)
            return tree_s + nearness(floor_s) * longer_us * 1e-6
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
        across = self._least_traffic(kind) / self._ranks
        ports_s: Floats = message * np.maximum(traffic / link.bandwidth_Bps, across / hardware.inter.bandwidth_Bps)
        return ports_s

    def _least_traffic(self, kind: CollectiveKind) -> float:
        """Return the fewest bytes that a node's ports carry for a byte of the message."""
        of_many = {"all_reduce": 2.0, "all_to_all": float(self._ranks)}.get(kind, 1.0)
        return of_many * (self._nodes - 1) / self._nodes

    def _traffic(self, kind: CollectiveKind) -> float:
        """Return the bytes that a node's ports carry for a byte of the message by NCCL's algorithms."""
        return tree_traffic(self._nodes) if kind == "all_reduce" else self._least_traffic(kind)

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
            traffic=self._traffic(kind),
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
