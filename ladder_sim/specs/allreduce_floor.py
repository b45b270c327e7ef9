"""What one hop takes, and what a small all-reduce takes at least: the sum of the hops of NCCL's tree.

References
----------
NVIDIA NCCL 2.21.5, src/graph/tuning.cc: baseLat and hwLat of the low-latency protocol (LL), latency of its trees.
"""

import math
from typing import NamedTuple

# ranks of a node for which a tier's all-reduce floor is stated
FULL_NODE = 8


class TreeLatency(NamedTuple):
    """What NCCL states as the latency of its trees across nodes by one protocol, microseconds.

    NCCL 2.21.5, src/graph/tuning.cc: baseLat, and hwLat of NVLink and of the network. It is a model by which NCCL
    chooses, not a measurement; between two protocols it agrees with public logs within a few microseconds.
    """

    base_us: float
    node_hop_us: float
    network_hop_us: float

    def seconds(self, nodes: int, ranks_per_node: int) -> float:
        """Up the tree and down again, chains inside the nodes included."""
        hops_us = (ranks_per_node - 1) * self.node_hop_us + math.log2(nodes) * self.network_hop_us
        return (self.base_us + 2.0 * hops_us) * 1e-6


TREE_LL = TreeLatency(6.8, 0.6, 5.0)


def floor_of_hops(tier: str, hop_s: float) -> float:
    """Return the floor of a small all-reduce over a full tier, given the latency of one hop; seconds.

    A message goes up NCCL's tree and down again: along the chain of the eight GPUs of a node, seven hops of the tiers
    "intra" and "host", and in the tier "inter" one more hop, to the other node.

    Parameters
    ----------
    tier
        Name of the tier, as `ladder_sim.specs.cluster.LinkTier.name`.
    hop_s
        Latency of one hop over this tier, seconds; 0: what the GPUs alone take.

    Examples
    --------
    >>> round(1e6 * floor_of_hops("inter", 5e-6), 1), round(1e6 * floor_of_hops("inter", 0.0), 1)
    (25.2, 15.2)
    """
    if tier == "inter":
        return TREE_LL._replace(network_hop_us=1e6 * hop_s).seconds(2, FULL_NODE)
    return TREE_LL._replace(node_hop_us=1e6 * hop_s).seconds(1, FULL_NODE)
