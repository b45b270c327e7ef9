"""What ops of a rewired run cost each other that the recorded run did not show: they did not run at the same time.

On a GPU the thread blocks of a collective take SMs from kernels, which delay its steps through the device memory
(`ladder_sim/costs/contention.py`, with the figures of a profile). On CPUs gloo's thread takes time of the core on which
its rank computes.
"""

from dataclasses import dataclass
from typing import Self

from ladder_sim.costs.contention import OverlapParameters, memory_steps, waiting_share
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import NOTHING, Demand, Device
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import TraceGraph, TraceOp
from ladder_sim.traces.kineto.cpu import SHARED_MEMORY

# what an all-reduce over TCP takes of a core that computes, its call aside, for 4 KB to 1 MB over a link of 1 Gbit/s:
# gloo's threads and the caches that they leave, torch 2.13 on two x86-64 cores (`benchmarks/gloo_cpu_time.py`, last in
# commit c98f50a, medians of five runs): 0.45 to 0.7 ms up to 256 KB, 2.1 ms for 1 MB
GLOO_MESSAGE_S = 480e-6
GLOO_BYTE_S = 1.3e-9
# name of its lanes
_GLOO = "gloo "
# parts into which a core is divided
_PARTS = 1000
# a thread of gloo leaves something to the others
_MOST = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How the ops of a rank share its processor."""

    device: Device
    """The GPU's SMs, or the parts of a core."""
    overlap: OverlapParameters | None = None
    """Figures of the GPU; None: for CPUs."""

    @classmethod
    def of_gpu(cls, cluster: str) -> Self:
        """Return the contention on the GPUs of a cluster of the catalog."""
        spec = Scenario(cluster=cluster).cluster
        measured = load_profile(spec.profile).overlap if spec.profile else {}
        return cls(device=Device(sms=spec.gpu.sms), overlap=OverlapParameters.of(measured))

    @classmethod
    def of_cores(cls) -> Self:
        """Return the contention of CPU ranks, each on a core of its own."""
        return cls(device=Device(sms=_PARTS))

    def demands(self, graph: TraceGraph) -> list[Demand]:
        """Return what each op of a graph takes of its processor."""
        return [self._on_gpu(op) if self.overlap is not None else self._on_core(graph, op) for op in graph.ops]

    def _on_gpu(self, op: TraceOp) -> Demand:
        """Return what an op takes of its GPU, from its number of thread blocks, which only kernels have."""
        if self.overlap is None or not op.blocks:
            return NOTHING
        overlap = self.overlap
        if op.communicates:
            ranks = op.collective.ranks if op.collective else 0
            steps = memory_steps("nccl", op.kind, 1, max(2, ranks))
            # kernels keep at least one
            held_sms = min(op.blocks, self.device.sms - 1)
            return Demand(held_sms=held_sms, waits=waiting_share(steps, op.duration_s, overlap))
        # a reduction that Inductor wrote is none of a library
        of_library = op.kind == "gemm" and not op.name.startswith("triton")
        return Demand(lost=overlap.lost, memory=1.0, delay=overlap.gemm_delay if of_library else overlap.kernel_delay)

    def _on_core(self, graph: TraceGraph, op: TraceOp) -> Demand:
        lane = graph.lanes[op.lane]
        if op.communicates and lane.name == SHARED_MEMORY:
            return Demand(held_sms=_MOST * _PARTS)
        if op.communicates and lane.name.startswith(_GLOO) and op.collective is not None and op.duration_s > 0.0:
            busy_s = GLOO_MESSAGE_S + GLOO_BYTE_S * op.collective.message_bytes
            return Demand(held_sms=min(_MOST, busy_s / op.duration_s) * _PARTS)
        works = not op.communicates and op.kind != "sync" and not lane.name.startswith(_GLOO)
        return Demand(lost=1.0) if works else NOTHING


def default_contention(graph: TraceGraph) -> Contention | None:
    """Return the contention of CPU cores where collectives run on them; None for GPUs, whose profile says it."""
    return Contention.of_cores() if any(lane.name.startswith((_GLOO, SHARED_MEMORY)) for lane in graph.lanes) else None
