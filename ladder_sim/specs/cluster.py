"""GPUs, the links between them, and what a small all-reduce over these takes at least: the hops of NCCL's tree."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from ladder_sim.values import Limits, Rate, Seconds, check_fields, nonempty


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """Datasheet of one GPU."""

    name: str
    """E.g. "H100 SXM5 80GB"."""
    bf16_flops: Rate
    """Dense tensor-core peak, FLOP/s, bf16 and fp16 alike."""
    fp8_flops: Rate
    """Dense tensor-core peak, FLOP/s; equal to bf16 where the GPU has no fp8."""
    fp4_flops: Rate
    """Dense tensor-core peak, FLOP/s; equal to bf16 where the GPU has no fp4, as in a file that does not state it."""
    compute_capability: Annotated[float, Limits(0, 1000)] = 0.0
    """CUDA's, 9.0 for Hopper, by which engines choose their kernels; 0: not known."""
    hbm_bytes: Annotated[float, Limits(0, 1e15, above=True)]
    """Device memory, bytes."""
    # SDRAM of 1999 moves 1.07e9 bytes/s (JEDEC PC133): a tenth of it is no memory's, but a number in another unit
    hbm_bandwidth_Bps: Annotated[float, Limits(1e8, 1e18, hint='write bytes/s, as 3.35e12, or a unit, as "3350 GB/s"')]
    """Device memory bandwidth, bytes/s."""
    # a collective holds some and kernels keep one
    sms: Annotated[int, Limits(2, 100_000)]
    """Streaming multiprocessors."""
    l2_bytes: Annotated[float, Limits(0, 1e12)] = 0.0
    """L2 cache, bytes; 0: not known."""
    kernel_s: Seconds
    """Floor of one small kernel inside a CUDA graph: launch, ramp and drain, seconds."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        check_fields(self, f"gpu '{nonempty(self.name, 'gpu name')}'")

    def is_called(self, device: str) -> bool:
        """Whether a driver's name of a device, e.g. "NVIDIA H100 80GB HBM3", is of this GPU: of its model and form.

        The words before form factor and memory are the model: "H100" of "H100 SXM5 80GB". A driver may leave out SXM.
        """
        model = re.split(r"[ -](?=SXM|PCIe|\d+ ?GB)", self.name)[0]
        forms = [re.findall(r"\b(?:PCIE|NVL)\b", name.upper()) for name in (self.name, device)]
        return set(re.split("[ -]", model)) <= set(re.split("[ -]", device)) and forms[0] == forms[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """One level of the interconnect."""

    name: str
    """"intra" (in the node), "inter" (across nodes) or "host" (in the node, through host memory)."""
    fabric: str
    """Kind of link, e.g. "nvlink4-nvswitch", "ib-ndr400"; names the measured tables that apply."""
    bandwidth_Bps: Annotated[float, Limits(1e5, 1e18, hint='write bytes/s, as 450e9, or a unit, as "450 GB/s"')]
    """Per GPU and direction, bytes/s."""
    allreduce_floor_s: Seconds
    """Time of a small all-reduce over the full tier, seconds; not the latency of a link. Intra and host: eight GPUs of
    one node; inter: two such nodes."""
    hop_latency_s: Seconds = 0.0
    """Latency of one hop between two GPUs, seconds, that yields the all-reduce floor; 0: the floor is stated. NCCL's
    tree has seven hops up and seven down in a node (intra, host); inter adds one each way, and the nodes' stay."""
    switch: bool = False
    """The link's switch reduces messages and multicasts (NVLS)."""
    full_nvlink: bool = False
    """NVLink joins every two GPUs of a node. In a file the default is that of `switch`."""
    mesh_links: Annotated[int, Limits(0, 10_000)] = 0
    """Number of equal links of a GPU in a mesh, each to one other GPU of the node: a group of GPUs can use only the
    links inside it. 0: a GPU sends to any other at its whole bandwidth."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        where = f"link '{nonempty(self.name, 'link name')}'"
        nonempty(self.fabric, f"{where}: fabric")
        check_fields(self, where)
        if self.hop_latency_s:
            object.__setattr__(self, "allreduce_floor_s", floor_of_hops(self.name, self.hop_latency_s))

    @property
    def fully_connected(self) -> bool:
        """Whether NVLink or a mesh joins every two GPUs of a node."""
        return self.full_nvlink or self.mesh_links > 0


def mesh_share(mesh_links: int, ranks: float) -> float:
    """Return the share of a GPU's bandwidth that a group of ranks in one node can use.

    Examples
    --------
    >>> [round(mesh_share(7, ranks), 2) for ranks in (2, 4, 8)], mesh_share(0, 2)
    ([0.14, 0.43, 1.0], 1.0)
    """
    return min(1.0, max(1.0, ranks - 1.0) / mesh_links) if mesh_links else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Identical nodes of identical GPUs, joined by one tier inside and one across."""

    name: str
    """Catalog id."""
    gpu: GpuSpec
    """Every GPU."""
    intra: LinkTier
    """Between the GPUs of a node."""
    inter: LinkTier
    """Between nodes."""
    host: LinkTier
    """Between the GPUs of a node when peer-to-peer is off: through pinned host memory."""
    # far beyond the largest NVLink domain
    gpus_per_node: Annotated[int, Limits(1, 10_000)]
    """GPUs of one node."""
    rank_skew: Annotated[float, Limits(0, 1.0)] = 0.02
    """How much longer the slowest of eight GPUs computes than a typical one, as a fraction. 2 to 3 % were needed to
    explain the published 70B rows of arXiv 2501.06589 at TP 2 and 4."""
    host_low_latency_share: Annotated[float, Limits(0, 1.0, above=True)] = 0.125
    """Share of the host tier's bandwidth at the rate of NCCL's low-latency protocol (LL) between two ranks. LL sends a
    flag with every 4 bytes, which halves the rate, and its 8-byte stores keep a PCIe link a quarter busy: a default."""
    pcie_roots: Annotated[int, Limits(1, 1000)] = 1
    """CPU sockets below whose PCIe roots the GPUs of a node lie; all-reduce pcie-one-shot is slower across them."""
    p2p_island: Annotated[int, Limits(0, 10_000)] = 0
    """GPUs of a node that NCCL joins through host memory without peer-to-peer access, 0: all; over the network it joins
    islands of so many."""
    profile: str = ""
    """Shipped profile that was measured on this GPU; empty: none."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        check_fields(self, f"cluster '{nonempty(self.name, 'cluster name')}'")


# the machine that a profile of real passes was measured on
THIS_MACHINE = "this-machine"


def this_machine() -> ClusterSpec:
    """Return the cluster without a datasheet, which a profile of real passes alone prices.

    Its figures only shape the rooflines along which a GEMM is interpolated between measured ones: about those of a
    server CPU's core (AVX-512: 2 fused multiply-adds of 16 floats at 2 GHz; a share of its memory channels). The
    processor is divided into thousandths, of which messages take some from kernels. Memory is not checked.
    """
    source = "about a core of a server CPU; a profile's times replace it"
    gpu = GpuSpec(
        name="this machine",
        bf16_flops=128e9,
        fp8_flops=128e9,
        fp4_flops=128e9,
        hbm_bytes=1e15,
        hbm_bandwidth_Bps=16e9,
        sms=1000,
        kernel_s=1e-5,
        source=source,
    )
    link = LinkTier(name="intra", fabric="gloo", bandwidth_Bps=1e9, allreduce_floor_s=1e-4, source=source)
    return ClusterSpec(
        name=THIS_MACHINE,
        gpu=gpu,
        intra=link,
        inter=replace(link, name="inter"),
        host=replace(link, name="host"),
        # ranks share the cores of one machine
        gpus_per_node=1024,
        rank_skew=0.0,
        source=source,
    )


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
        """Return the seconds up the tree and down again, chains inside the nodes included."""
        hops_us = (ranks_per_node - 1) * self.node_hop_us + math.log2(nodes) * self.network_hop_us
        return (self.base_us + 2.0 * hops_us) * 1e-6


TREE_LL = TreeLatency(6.8, 0.6, 5.0)


def floor_of_hops(tier: str, hop_s: float) -> float:
    """Return the floor of a small all-reduce over a full tier, given the latency of one hop; seconds.

    A message goes up NCCL's tree and down again: along the chain of the eight GPUs of a node, seven hops of the tiers
    "intra" and "host", and in the tier "inter" one more hop, to the other node. A hop of 0 s: what the GPUs alone take.

    Examples
    --------
    >>> round(1e6 * floor_of_hops("inter", 5e-6), 1), round(1e6 * floor_of_hops("inter", 0.0), 1)
    (25.2, 15.2)
    """
    if tier == "inter":
        return TREE_LL._replace(network_hop_us=1e6 * hop_s).seconds(2, FULL_NODE)
    return TREE_LL._replace(node_hop_us=1e6 * hop_s).seconds(1, FULL_NODE)
