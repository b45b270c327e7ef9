"""GPUs and the links between them."""

import re
from dataclasses import dataclass

from ladder_sim.specs.values import flag, nonempty, real, whole

# FLOP/s and bytes/s; a thousand times the rate of one device
MAX_RATE = 1e18
# memory of one device
MAX_BYTES = 1e15
# latency of one operation
MAX_SECONDS = 10.0
# far beyond the largest NVLink domain
MAX_GPUS_PER_NODE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """Datasheet of one GPU."""

    name: str
    """E.g. "H100 SXM5 80GB"."""
    bf16_flops: float
    """Dense tensor-core peak, FLOP/s, bf16 and fp16 alike."""
    fp8_flops: float
    """Dense tensor-core peak, FLOP/s; equal to bf16 where the GPU has no fp8."""
    hbm_bytes: float
    """Device memory, bytes."""
    hbm_bandwidth_Bps: float
    """Device memory bandwidth, bytes/s."""
    sms: int
    """Streaming multiprocessors."""
    kernel_s: float
    """Floor of one small kernel inside a CUDA graph: launch, ramp and drain, seconds."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        where = f"gpu '{nonempty(self.name, 'gpu name')}'"
        real(self.bf16_flops, f"{where}: bf16_flops", MAX_RATE)
        real(self.fp8_flops, f"{where}: fp8_flops", MAX_RATE)
        real(self.hbm_bytes, f"{where}: hbm_bytes", MAX_BYTES)
        real(self.hbm_bandwidth_Bps, f"{where}: hbm_bandwidth_Bps", MAX_RATE)
        # a collective holds some and kernels keep one
        whole(self.sms, f"{where}: sms", 2, 100_000)
        real(self.kernel_s, f"{where}: kernel_s", MAX_SECONDS, zero=True)

    def is_called(self, device: str) -> bool:
        """Whether a driver's name of a device, e.g. "NVIDIA H100 80GB HBM3", holds every word of this GPU's model.

        The words before form factor and memory are the model: "H100" of "H100 SXM5 80GB".
        """
        model = re.split(r"[ -](?=SXM|PCIe|\d+ ?GB)", self.name)[0]
        return set(re.split("[ -]", model)) <= set(re.split("[ -]", device))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """One level of the interconnect."""

    name: str
    """"intra" (in the node), "inter" (across nodes) or "host" (in the node, through host memory)."""
    fabric: str
    """Kind of link, e.g. "nvlink4-nvswitch", "ib-ndr400"; names the measured tables that apply."""
    bandwidth_Bps: float
    """Per GPU and direction, bytes/s."""
    latency_s: float
    """Floor of a small all-reduce over this tier (intra, host: all GPUs of one node; inter: two full nodes), seconds.
    """
    switch: bool = False
    """Its switch reduces messages and multicasts (NVLS)."""
    full_nvlink: bool = False
    """NVLink joins every two GPUs of a node. In a file the default is that of `switch`."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        where = f"link '{nonempty(self.name, 'link name')}'"
        nonempty(self.fabric, f"{where}: fabric")
        real(self.bandwidth_Bps, f"{where}: bandwidth_Bps", MAX_RATE)
        real(self.latency_s, f"{where}: latency_s", MAX_SECONDS, zero=True)
        flag(self.switch, f"{where}: switch")
        flag(self.full_nvlink, f"{where}: full_nvlink")


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
    gpus_per_node: int
    rank_skew: float = 0.02
    """How much longer the slowest of the GPUs computes than a typical one, as a fraction. 2 to 3 % were needed to
    explain the published 70B rows of arXiv 2501.06589 at TP 2 and 4."""
    host_low_latency_share: float = 0.125
    """Of the host tier's bandwidth: the rate of NCCL's low-latency protocol (LL) between two ranks. LL sends a flag
    with every 4 bytes, which halves the rate, and its 8-byte stores keep a PCIe link a quarter busy: a default."""
    profile: str = ""
    """Shipped profile that was measured on this GPU; empty: none."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        where = f"cluster '{nonempty(self.name, 'cluster name')}'"
        whole(self.gpus_per_node, f"{where}: gpus_per_node", 1, MAX_GPUS_PER_NODE)
        real(self.rank_skew, f"{where}: rank_skew", 1.0, zero=True)
        real(self.host_low_latency_share, f"{where}: host_low_latency_share", 1.0)
