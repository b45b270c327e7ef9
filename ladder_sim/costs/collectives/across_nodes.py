"""Collectives across nodes, where everything is NCCL: custom kernels access peers of their own node only."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np

from ladder_sim.costs.collectives.algorithms import ALGORITHMS
from ladder_sim.costs.collectives.fabrics import FabricCurve, fabric_curve
from ladder_sim.costs.collectives.formulas import (
    LL_BYTES,
    NVLS_NODE_S,
    across_nodes_s,
    host_ring_s,
    nvls_in_nodes,
    rail_bytes,
)
from ladder_sim.costs.collectives.measured import MeasuredCollective, bracketed, bridged, extended
from ladder_sim.costs.collectives.times import COLLECTIVE_ERROR, CollectiveTimes, fastest_way
from ladder_sim.costs.hardware import Hardware, Link
from ladder_sim.des.shared import Floats
from ladder_sim.graph.ops import CollectiveKind
from ladder_sim.graph.shapes import Group
from ladder_sim.specs.allreduce_floor import TREE_LL
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
        self._cluster, self._hardware, self._p2p, self._measured = scenario.cluster, hardware, scenario.p2p, measured
        self._nodes, self._ranks = scenario.layout(group)
        self._fabric = fabric_curve(self._cluster.inter.fabric)

    def times(self, kind: CollectiveKind, message: Floats) -> CollectiveTimes:
        node_wire_s = self._node_wire_s(_stages(kind), message, self._hardware.intra, self._ranks)
        low_latency_s = self._low_latency_s(_stages(kind), message, self._hardware.intra, self._ranks)
        ways = self._ways(kind, message, node_wire_s, low_latency_s, nvlink=self._cluster.intra.full_nvlink)
        if not self._p2p:
            ways = self._without_p2p(kind, message, node_wire_s, fastest_way(ways).seconds)
        fabric = self._fabric if kind == "all_reduce" else None
        if fabric is not None:
            log_sizes, log_ratios = self._fabric_log_ratios
            ratio = np.exp(np.interp(np.log(message), log_sizes, log_ratios))
            ways = {name: seconds * ratio for name, seconds in ways.items()}
        times = fastest_way({name: np.maximum(ways[name], self._ports_s(kind, name, message)) for name in ways})
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
            known = np.isin(times.algorithms, list(self._ratios(sweep)[2]))[times.choice]
            fitted &= ~messages | (here & known & ~bridged(sweep.curve, message))
        if not fitted.any():
            return dataclasses.replace(times, in_range=in_range)
        beyond = np.where(fitted, COLLECTIVE_ERROR["fitted"], times.beyond)
        return dataclasses.replace(
            times, in_range=in_range, source="fitted" if fitted.all() else "transferred", beyond=beyond
        )

    def _here(self, fabric: FabricCurve) -> bool:
        """Whether a sweep was measured on GPUs and tiers as these."""
        measured_on = fabric.cluster
        # the curve was looked up by the fabric's name, or by the path of its file
        own = dataclasses.replace(self._hardware.inter, fabric=measured_on.inter.fabric)
        return self._hardware.same_node(measured_on) and own.same_as(Link.of(measured_on.inter))

    @cached_property
    def _fabric_log_ratios(self) -> tuple[Floats, Floats]:
        """The fabric's measured all-reduces: logarithms of sizes and of times over the formula's."""
        if self._fabric is None:
            raise ValueError("no sweep over this fabric")
        own = self._ratios(self._fabric)[:2]
        others = self._fabric.others
        return own if others is None else extended(own, self._ratios(others)[:2])

    def _ratios(self, fabric: FabricCurve) -> tuple[Floats, Floats, frozenset[str]]:
        """The all-reduces of one sweep: logarithms of sizes and of times over the formula's; the algorithms."""
        measured_on, sizes, ranks = fabric.cluster, fabric.curve.size_bytes, fabric.ranks_per_node
        ideals_s = across_nodes_s(
            sizes,
            self._node_wire_s("all_reduce", sizes, Link.of(measured_on.intra), ranks),
            self._low_latency_s("all_reduce", sizes, Link.of(measured_on.intra), ranks),
            nodes=fabric.nodes,
            ranks_per_node=ranks,
            allreduce_floor_s=measured_on.inter.allreduce_floor_s,
            bandwidth_Bps=measured_on.inter.bandwidth_Bps,
            nvlink=measured_on.intra.full_nvlink,
            switch=measured_on.intra.switch,
        )
        ideal = fastest_way(ideals_s)
        return np.log(sizes), np.log(fabric.curve.seconds / ideal.seconds), ideal.names

    def _without_p2p(
        self, kind: CollectiveKind, message: Floats, node_wire_s: Floats, direct_s: Floats
    ) -> dict[str, Floats]:
        """What is left without peer-to-peer access: LL128 needs it; trees go through host memory in each node.

        NVLS stays, between two barriers through host memory as inside one node.
        """
        host_s, at_floor_s = self._host_stages_s(kind, message), self._host_stages_s(kind, np.zeros_like(message))
        # in place of the chain of GPUs in each node
        chain_s = TREE_LL.seconds(self._nodes, self._ranks) - TREE_LL.seconds(self._nodes, 1)
        longer_s = np.maximum(0.0, at_floor_s - chain_s)
        none_s = np.zeros_like(message)
        through_host = self._ways(kind, message, host_s - at_floor_s, none_s, nvlink=False)
        ways = {"tree": longer_s + through_host["tree"]}
        if nvls_in_nodes(self._ranks, self._cluster.intra.switch):
            through_switch = self._ways(kind, message, node_wire_s, none_s, nvlink=False)
            ways["nvls-tree"] = 2.0 * at_floor_s - NVLS_NODE_S + through_switch["nvls-tree"]
        else:
            ways["nccl-host"] = longer_s + through_host["nccl"]
        return {name: np.maximum(direct_s, seconds) for name, seconds in ways.items()}

    def _ports_s(self, kind: CollectiveKind, name: str, message: Floats) -> Floats:
        """Seconds that one algorithm keeps a GPU's ports busy at least, the one in the node and that of the network."""
        hardware, in_switch = self._hardware, self._cluster.intra.switch
        link = hardware.intra
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
        """What a rank sends to all goes through its own port, what all gather is shared by the node's."""
        return {"all_reduce": 2.0, "all_to_all": float(self._ranks)}.get(kind, 1.0)

    def _ways(
        self, kind: CollectiveKind, message: Floats, node_wire_s: Floats, node_low_latency_s: Floats, *, nvlink: bool
    ) -> dict[str, Floats]:
        """NCCL's algorithms, given the stages inside each node."""
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
        )

    def _node_wire_s(self, kind: str, message: Floats, tier: Link, ranks: int) -> Floats:
        """A collective from GPU to GPU inside the node without its latency floor, but with the floor's growth."""
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
        """What NCCL's low-latency protocol sends from GPU to GPU inside a node takes on their links, seconds.

        At their line rate, or the rate that NCCL reaches inside a node with the largest messages if that is lower.
        """
        line_s = ALGORITHMS[kind, "nccl"].port_traffic(ranks, False) * message / tier.bandwidth_Bps
        reached_s = self._node_wire_s(kind, np.array([LARGE_BYTES]), tier, ranks) / LARGE_BYTES * message
        wire_s: Floats = LL_BYTES * np.maximum(line_s, reached_s)
        return wire_s

    def _host_stages_s(self, kind: CollectiveKind, message: Floats) -> Floats:
        """The stages inside a node through host memory, with their floor."""
        if self._ranks == 1:
            return np.zeros_like(message)
        tier, share = self._hardware.host, self._hardware.host_low_latency_share
        return host_ring_s(message, self._ranks, tier.allreduce_floor_s, tier.bandwidth_Bps, share, _stages(kind))


def _stages(kind: CollectiveKind) -> Literal["all_reduce", "all_gather"]:
    """What a collective across nodes does inside each: a broadcast is counted as an all-gather."""
    return "all_reduce" if kind == "all_reduce" else "all_gather"
