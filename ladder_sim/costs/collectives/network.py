"""The collectives of one scenario: which algorithm runs, how long it takes, and which times are measured."""

import dataclasses
import sys
from functools import cached_property

import numpy as np

from ladder_sim.costs.collectives.across_nodes import AcrossNodes
from ladder_sim.costs.collectives.algorithms import ALGORITHMS, ALL_REDUCE, DISPATCHES, OWN, Algorithm, Formula
from ladder_sim.costs.collectives.nccl import INTER_EFFICIENCY, host_ring_s
from ladder_sim.costs.estimate import (
    COLLECTIVE_ERROR,
    COPY_TRAFFIC,
    HOST_ROUND_TRIP_S,
    KERNELS,
    ONLY,
    CollectiveTimes,
    Source,
    fastest,
    memory_steps,
    of_each,
    unmeasured,
)
from ladder_sim.costs.hardware import Hardware, Link
from ladder_sim.costs.profile import HBM_EFFICIENCY, CalibrationProfile
from ladder_sim.costs.profile_file import shipped_links
from ladder_sim.des.shared import Floats, Number
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import CollectiveKind
from ladder_sim.graph.techniques import QUANTIZED_BYTES
from ladder_sim.kernels import Group
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import AllReduceRule

# measured collectives that take longer than so many times what their links allow are odd: those of one L40S box, up to
# 22 times. All other machines' are within 3.9 times
ODD = 5.0

# engines' own kernels that they take by size where no rule of theirs is known: about the fastest
CUSTOM = ("one-shot", "two-shot")
# bytes of a quantised message over those of 16 bits: each 32 values have a scale of 16 bits (QuickReduce)
QUANTIZED = {"int8": 8.5 / 16.0, "fp8": 8.5 / 16.0, "int4": 4.5 / 16.0}
# routers that choose among groups of experts keep a token's on at most four nodes (DeepSeek-V3 report, 2.1.2), and so
# do DeepEP's measurements
GROUPED_NODES = 4
# what DeepEP's kernels take longer across nodes, as a share of the floor of an all-reduce over two: 9, 14 and 16 us on
# 2, 4 and 8 nodes of H100s
DISPATCH_HOP = 0.3
# bytes of an element that a dispatch sends for one of 16 bits: DeepEP quantises to fp8, TensorRT-LLM's kernels to
# NVFP4, whose 16 values of 4 bits have a scale of 8
DISPATCHED = {"deepep-ll": 0.5, "deepep-ht": 0.5, "nvlink-one-sided": 4.5 / 16.0, "nvlink-two-sided": 4.5 / 16.0}


class Network:
    """Collectives of one group of a scenario's ranks: those that share attention, or those that share experts."""

    techniques = frozenset({"fused-norm", "quantized-allreduce"})
    """Techniques that change them."""

    def __init__(
        self, scenario: Scenario, profile: CalibrationProfile | None, hardware: Hardware, group: Group = "tensor"
    ) -> None:
        self._scenario = scenario
        self._cluster = scenario.cluster
        self._hardware = hardware
        self._nodes, self._ranks = scenario.layout(group)
        self._intra = hardware.intra.among(self._ranks)
        # a GPU alone in its node has no peer there
        self._p2p = scenario.p2p or self._ranks == 1
        self._choice = scenario.stack.allreduce
        self._custom = scenario.custom_allreduce
        self._without_p2p = _without_p2p_source(scenario, profile)
        if profile is not None and profile.cluster.intra.fabric != hardware.intra.fabric:
            # how far a link stays behind its formula says nothing about another kind of link
            profile = shipped_links(hardware.intra.fabric)
        # what was measured on links as these; None: the formulas alone
        self.profile = profile
        self._measured = profile.measured_collectives if profile else {}
        self._across_nodes = AcrossNodes(scenario, hardware, group, self._measured) if self._nodes > 1 else None
        self._fuses_norm = "fused-norm" in scenario.techniques and group == "tensor"
        if self._choice != "auto":
            self._require("all_reduce", self._choice)
        if "quantized-allreduce" in scenario.techniques and group == "tensor":
            self._require("all_reduce", "two-shot")
        if self._fuses_norm and not (self._holds_norm or self._multicasts_norm):
            self._require("all_reduce", "fused-norm")

    @cached_property
    def _measured_here(self) -> bool:
        """Whether the profile's collectives inside a node were measured on GPUs and links as these."""
        return self.profile is not None and self._hardware.same_node(self.profile.cluster)

    def times(self, kind: CollectiveKind, message_bytes: Floats, *, kernel: str = "") -> CollectiveTimes:
        """Time collectives of one kind by the bytes of their messages.

        A broadcast is counted as an all-gather or an all-reduce of its message, neither of which takes less. An
        all-reduce with a norm is that kernel if it is the stack's choice, else the all-reduce that the stack fuses,
        without what the norm adds. Messages are of the gathered result for an all-gather, of all that is scattered, of
        all that a rank sends for the others. `kernel` is that of a dispatch or combine, the bits of a quantised
        all-reduce, or the algorithm of one that is not the stack's.
        """
        if kind in ("dispatch", "combine"):
            return self._dispatch(kind, kernel, message_bytes)
        if self._across_nodes is not None:
            # no kernel fuses a norm there
            return self._across_nodes.times("all_reduce" if kind == "all_reduce_norm" else kind, message_bytes)
        if kind == "broadcast":
            return fastest([self.times("all_gather", message_bytes), self.times("all_reduce", message_bytes)])
        if kind not in ("all_reduce", "all_reduce_norm"):
            return self.alone(kind, "nccl", message_bytes)
        if kernel in ALL_REDUCE:
            return self.alone(kind, kernel, message_bytes)
        if kernel:
            # a wiring may reduce part of the channels only: others of the pass are large enough
            small = message_bytes < QUANTIZED_BYTES
            ways = [self.times(kind, message_bytes)] if small.any() else []
            ways += [] if small.all() else [self._quantized(kernel, message_bytes)]
            return ways[0] if len(ways) == 1 else of_each(ways, (~small).astype(int))
        if self._choice != "auto":
            plain = kind == "all_reduce" and self._choice == "fused-norm"
            return self.alone("all_reduce", "multimem" if plain else self._choice, message_bytes)
        own = self._scenario.stack.own_allreduce
        return self._auto(own.rules if kind == "all_reduce" else own.fused_norm_rules, message_bytes)

    def memory_steps(self, kind: str, times: CollectiveTimes) -> Number:
        """Return the steps through device memory that collectives take one after another."""
        if self._p2p:
            return times.choose([memory_steps(name, kind, self._nodes, self._ranks) for name in times.algorithms])
        return times.choose([self._steps_without_p2p(name, times.seconds) for name in times.algorithms])

    def _steps_without_p2p(self, name: str, seconds: Floats) -> Number:
        """Return the steps through device memory of collectives without peer-to-peer access, by how long they take.

        Flags of NVLS lie in device memory (NCCL 2.21.5, src/transport/nvls.cc), so that all of it are such steps. What
        goes through host memory waits for it; trees and rings across the network, meanwhile, for the network.
        """
        if KERNELS[name] == "nvls":
            return seconds / self._hardware.overlap.memory_step_s
        outside_s = self._across_nodes.outside_s(name) if self._across_nodes and name in ("tree", "ring") else 0.0
        return np.maximum(0.0, seconds - outside_s) / HOST_ROUND_TRIP_S

    @property
    def _holds_norm(self) -> bool:
        """Whether the stack's all-reduce has kernels that can add and normalise: not NCCL's."""
        return self._custom if self._choice == "auto" else ALL_REDUCE[self._choice].holds_norm

    @cached_property
    def _multicasts_norm(self) -> bool:
        return ALL_REDUCE["fused-norm"].unmet(self._scenario) is None

    def with_norm(self, message: Floats, fused_s: Number, apart_s: Number) -> CollectiveTimes:
        """Time all-reduces with the norms that read their sums.

        A norm takes `apart_s` by itself, and adds `fused_s` to an all-reduce after which every rank normalises every
        token.
        """
        if not self._fuses_norm:
            times = self.times("all_reduce_norm", message)
            added = [0.0 if name == "fused-norm" else fused_s for name in times.algorithms]
            return dataclasses.replace(times, seconds=times.seconds + times.choose(added))
        plain = self.times("all_reduce", message)
        added = [fused_s if ALL_REDUCE[name].holds_norm else apart_s for name in plain.algorithms]
        ways = [dataclasses.replace(plain, seconds=plain.seconds + plain.choose(added))]
        if self._multicasts_norm:
            ways.append(self._in_engine("fused-norm", message))
        return fastest(ways)

    def alone(self, kind: str, name: str, message: Floats) -> CollectiveTimes:
        """Time collectives of one kind inside a node by one algorithm, whichever the stack takes, if it works here."""
        algorithm = ALGORITHMS[kind, name]
        self._require(kind, name)
        if name == "nccl":
            return self._nccl(kind, message)
        times = self._in_node(kind, name, message)
        return fastest([times, self._nccl(kind, message)]) if algorithm.for_small else times

    def _require(self, kind: str, name: str) -> None:
        """Refuse an algorithm that does not work here; name the nearest that does."""
        need = ALGORITHMS[kind, name].unmet(self._scenario)
        if need is None:
            return
        others = (other for other in ALGORITHMS[kind, name].nearest if not ALL_REDUCE[other].unmet(self._scenario))
        has = need.has.format(cluster=self._cluster.name, fabric=self._cluster.intra.fabric, ranks=self._ranks)
        what, way = kind.replace("_", "-"), f"use --allreduce {next(others, 'nccl')}, or {need.way}"
        if (kind, name) in DISPATCHES:
            way = need.way
        elif name in self._scenario.techniques:
            what, way = "technique", f"leave it out, or {need.way}"
        raise UsageError(f"{what} '{name}' needs {need.what}{has}", hint=way)

    def _quantized(self, bits: str, message: Floats) -> CollectiveTimes:
        """Return the times of two shots of fewer bits; what was read and is written whole takes memory traffic.

        They send what NCCL's ring sends, and are no slower than it where its curve is above the formula of two shots.
        """
        sent = QUANTIZED[bits] * message
        times = fastest([self.alone("all_reduce", name, sent) for name in ("two-shot", "nccl")])
        quantized_s = COPY_TRAFFIC * message / (HBM_EFFICIENCY * self._hardware.gpu.hbm_bandwidth_Bps)
        return dataclasses.replace(
            times,
            seconds=times.seconds + quantized_s,
            in_range=np.zeros_like(times.in_range),
            source="transferred",
            beyond=COLLECTIVE_ERROR["transferred"],
        )

    def _auto(self, rules: tuple[AllReduceRule, ...], message: Floats) -> CollectiveTimes:
        """Return the all-reduce times of the engine: as measured, else by its rule or about the fastest."""
        if not self._custom:
            return self._nccl("all_reduce", message)
        if rules:
            chosen = self._by_rule(rules, message)
        else:
            chosen = fastest([self.alone("all_reduce", name, message) for name in ("nccl", *CUSTOM)])
        own = self._measured.get(("all_reduce", OWN))
        if own is None or self._ranks not in own.curves:
            return chosen
        # its curve does not say which algorithm ran
        times = self._in_node("all_reduce", OWN, message)
        return dataclasses.replace(times, algorithms=chosen.algorithms, choice=chosen.choice)

    def _by_rule(self, rules: tuple[AllReduceRule, ...], message: Floats) -> CollectiveTimes:
        rule = self._scenario.allreduce_rule(rules)
        works = [pair for pair in (rule.up_to if rule else ()) if ALL_REDUCE[pair[0]].unmet(self._scenario) is None]
        names, limits = (*(name for name, _ in works), "nccl"), [limit for _, limit in works]
        taken, choice = np.unique(np.searchsorted(limits, message), return_inverse=True)
        times = [self._in_engine(names[number], message) for number in taken]
        return times[0] if len(times) == 1 else of_each(times, choice)

    def _in_engine(self, name: str, message: Floats) -> CollectiveTimes:
        """Return the times of an algorithm in a CUDA graph, with the copies that the engine makes for it."""
        times = self.alone("all_reduce", name, message)
        copied_s = self.copied_bytes(name, message) / (HBM_EFFICIENCY * self._hardware.gpu.hbm_bandwidth_Bps)
        saved_s = ALL_REDUCE[name].eager * self._hardware.intra.allreduce_floor_s
        return dataclasses.replace(times, seconds=times.seconds + copied_s - saved_s)

    def over_links(self, kind: str, times: CollectiveTimes, message: Floats) -> Floats:
        """Return how many times as long collectives take as NCCL's formula says of the links inside a node."""
        if self._nodes > 1 or (kind, "nccl") not in ALGORITHMS:
            return np.ones(1)
        return times.seconds / _at_tier(ALGORITHMS[kind, "nccl"], message, self._ranks, self._intra)

    def copied_bytes(self, name: str, message: Number) -> Number:
        """Return the bytes of device memory traffic of the engine's copies into symmetric memory and out of it."""
        if self._choice != "auto" or name not in ALL_REDUCE or not ALL_REDUCE[name].symmetric:
            return 0.0
        return self._scenario.stack.own_allreduce.symmetric_copies * COPY_TRAFFIC * message

    def _nccl(self, kind: str, message: Floats) -> CollectiveTimes:
        """Return the times of NCCL in one node, by the paths that it has there."""
        peer = self._in_node(kind, "nccl", message)
        if self._p2p:
            return peer
        # what goes through host memory or the switch is no faster than what goes directly
        host_s = np.maximum(peer.seconds, self._through_host_s(kind, message))
        host = unmeasured(host_s, "nccl-host", self._without_p2p)
        if kind != "all_reduce" or self._ranks == 2 or not self._cluster.intra.switch:
            return host
        # above two ranks NCCL still multicasts through the switch, between two barriers through host memory: a barrier
        # there takes as long as the smallest all-reduce
        barrier_s = self._through_host_s(kind, np.zeros_like(message))
        switch_s = 2.0 * barrier_s + ALL_REDUCE["nvls"](message, self._ranks, 0.0, self._intra.bandwidth_Bps)
        return fastest([host, unmeasured(np.maximum(peer.seconds, switch_s), "nvls", self._without_p2p)])

    def _in_node(self, kind: str, name: str, message: Floats, ranks: int = 0) -> CollectiveTimes:
        algorithm, tier, ranks = ALGORITHMS[kind, name], self._intra, ranks or self._ranks
        if algorithm.across_roots < 1.0 and ranks * self._cluster.pcie_roots > self._cluster.gpus_per_node:
            tier = dataclasses.replace(tier, bandwidth_Bps=algorithm.across_roots * tier.bandwidth_Bps)
        seconds = _at_tier(algorithm, message, ranks, tier)
        if (kind, name) in DISPATCHES:
            port_s = np.maximum(*self._dispatch_ports_s(kind, name, message, most_nodes=GROUPED_NODES))
        else:
            traffic = algorithm.port_traffic(ranks, self._cluster.intra.switch)
            port_s = traffic * message / self._intra.bandwidth_Bps
        # what dense models do not need is in a file of its own
        measured_s = self.profile.measured_dispatches if self.profile and (kind, name) in DISPATCHES else self._measured
        measured = measured_s.get((kind, name))
        if measured is None:
            return unmeasured(seconds, name, self._source(algorithm)).at_least(port_s)
        ratio, in_range = measured.ratio(message, ranks)
        here = self._measured_here
        # NCCL does not say from which size on its curve is NVLS, so no point of it is a measurement of NVLS
        source: Source = "fitted" if here else "transferred"
        return CollectiveTimes(
            seconds=seconds * ratio,
            in_range=in_range & (here and name != "nvls"),
            source=source,
            beyond=COLLECTIVE_ERROR[source],
            algorithms=(name,),
            choice=ONLY,
        ).at_least(port_s)

    def _source(self, algorithm: Algorithm) -> Source:
        if algorithm.measured_on is None:
            return "roofline"
        here = algorithm.measured_on and self._hardware.same_node(catalog.cluster(algorithm.measured_on))
        return "fitted" if here else "transferred"

    def _dispatch(self, kind: str, kernel: str, message: Floats) -> CollectiveTimes:
        if self._nodes == 1:
            return self.alone(kind, kernel, message)
        self._require(kind, kernel)
        algorithm, hardware, ranks = ALGORITHMS[kind, kernel], self._hardware, self._nodes * self._ranks
        measured = self.profile.measured_dispatches.get((kind, kernel)) if self.profile else None
        network = self.profile and Link.of(self.profile.cluster.inter).same_as(hardware.inter)
        if measured and network and self._measured_here and ranks in measured.curves:
            return self._in_node(kind, kernel, message, ranks)
        node_s, network_s = self._dispatch_ports_s(kind, kernel, message)
        floor_s = _at_tier(algorithm, np.zeros_like(message), self._ranks, self._intra)
        seconds = floor_s + DISPATCH_HOP * hardware.inter.allreduce_floor_s + network_s / INTER_EFFICIENCY
        return unmeasured(seconds, kernel, "transferred").at_least(node_s)

    def _dispatch_ports_s(
        self, kind: str, kernel: str, message: Floats, *, most_nodes: int = sys.maxsize
    ) -> tuple[Floats, Floats]:
        """Return the seconds that a GPU's ports are busy with a dispatch or combine: in the node, and in the network.

        DeepEP's low-latency kernels send a token once for each expert on another GPU. The others send it once for each
        such GPU, and across nodes once for each node, which passes it on. `most_nodes` have a token's experts.
        """
        nodes, ranks, top_k = self._nodes, self._ranks, self._scenario.model.experts_per_token
        near = min(nodes, most_nodes)

        def reached(places: int) -> float:
            """Return the number of places that have an expert of a token, for each of the token's experts."""
            return places * (1.0 - (1.0 - 1.0 / places) ** top_k) / top_k

        in_node, across = (1.0 / nodes, 1.0) if kernel == "deepep-ll" else (reached(near * ranks), reached(near))
        sent = (DISPATCHED[kernel] if kind == "dispatch" else 1.0) * message
        node_s = (ranks - 1) / ranks * in_node * sent / self._intra.bandwidth_Bps
        return node_s, (nodes - 1) / nodes * across * sent / self._hardware.inter.bandwidth_Bps

    def _through_host_s(self, kind: str, message: Floats) -> Floats:
        tier, share = self._hardware.host, self._hardware.host_low_latency_share
        return host_ring_s(message, self._ranks, tier.allreduce_floor_s, tier.bandwidth_Bps, share, kind)


def _without_p2p_source(scenario: Scenario, profile: CalibrationProfile | None) -> Source:
    """Return the source of collectives without peer-to-peer access: a fit for as many ranks, or the formula."""
    stack_fit = profile.fit_of(scenario.stack.name) if profile else None
    return "fitted" if stack_fit and scenario.plan.tp in stack_fit.host_tps else "roofline"


def _at_tier(formula: Formula, message: Floats, ranks: int, tier: Link) -> Floats:
    return formula(message, ranks, tier.allreduce_floor_s, tier.bandwidth_Bps)
