"""What one simulated forward pass was made of."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ladder_sim.costs.estimate import Estimate
from ladder_sim.des.spans import overlap_s
from ladder_sim.des.timeline import Timeline
from ladder_sim.graph.ops import GemmShape, Op
from ladder_sim.graph.variants import Wiring
from ladder_sim.simulate.lower import COMM, COMPUTE, Lowered
from ladder_sim.specs.cluster import GpuSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSummary:
    """One simulated op."""

    op: Op
    """What it is."""
    estimate: Estimate
    """Its cost alone."""
    seconds: float
    """Start to end, as simulated."""
    repeats: int
    """Identical ops it stands for."""
    critical: bool
    """On the critical path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A pass with some of its identical layers left out, task by task."""

    wiring: Wiring
    """The layers that are there."""
    lowered: Lowered
    """Their tasks."""
    timeline: Timeline
    """When they ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Over the ops of every layer; seconds, and meant as in `StepSummary`."""

    busy_s: Mapping[str, float]
    critical_s: Mapping[str, float]
    error_s: Mapping[str, float]
    comm_s: float
    hidden_s: float
    slowed_s: float
    sources_s: Mapping[tuple[str, str], float]


class StepSummary:
    """One forward pass. Sums over ops count every layer, simulated or not; times in seconds.

    All but its length is worked out when it is first asked for.

    Parameters
    ----------
    seconds
        Start to end.
    gpu
        What its kernels run on.
    run
        Simulates it task by task.
    """

    def __init__(self, seconds: float, gpu: GpuSpec, run: Callable[[], Simulated]) -> None:
        self.seconds = seconds
        self._gpu, self._run = gpu, run

    @cached_property
    def _simulated(self) -> Simulated:
        return self._run()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: what was simulated, because what simulates it cannot go along."""
        return {"seconds": self.seconds, "_gpu": self._gpu, "_simulated": self._simulated}

    @property
    def lowered(self) -> Lowered:
        """The simulated layers."""
        return self._simulated.lowered

    @property
    def timeline(self) -> Timeline:
        """Of their tasks."""
        return self._simulated.timeline

    @cached_property
    def repeats(self) -> Mapping[int, int]:
        """Layers that each of them stands for."""
        return {layer.index: layer.repeats for layer in self._simulated.wiring.layers}

    @cached_property
    def critical(self) -> frozenset[int]:
        """Tasks on the critical path."""
        return frozenset(self.timeline.critical_path())

    @property
    def busy_s(self) -> Mapping[str, float]:
        """Time of all ops by kind, overlapped or not."""
        return self._sums.busy_s

    @property
    def critical_s(self) -> Mapping[str, float]:
        """Share of each limit in `seconds`, along the critical path: sums to `seconds`."""
        return self._sums.critical_s

    @property
    def error_s(self) -> Mapping[str, float]:
        """Error of the critical path by op kind, half-width of the 90 % interval."""
        return self._sums.error_s

    @property
    def comm_s(self) -> float:
        """Collectives, hidden or not."""
        return self._sums.comm_s

    @property
    def hidden_s(self) -> float:
        """Collectives while compute runs."""
        return self._sums.hidden_s

    @property
    def exposed_s(self) -> float:
        """Collectives while nothing computes."""
        return self.comm_s - self.hidden_s

    @property
    def slowed_s(self) -> float:
        """What kernels lose to the collectives beside them."""
        return self._sums.slowed_s

    @property
    def sources_s(self) -> Mapping[tuple[str, str], float]:
        """Critical path by (source, op kind); "measured" here means in range too."""
        return self._sums.sources_s

    @property
    def ops(self) -> list[OpSummary]:
        """Every simulated op, in issue order."""
        span_s = (self.timeline.end_s - self.timeline.start_s).tolist()
        return [
            OpSummary(
                op=op,
                estimate=estimate,
                seconds=span_s[index],
                repeats=self.repeats.get(op.layer, 1),
                critical=index in self.critical,
            )
            for index, (op, estimate) in enumerate(
                zip(self.lowered.schedule.ops, self.lowered.estimates, strict=True), self.lowered.launches
            )
        ]

    @cached_property
    def _sums(self) -> _Sums:
        lowered, timeline, repeats, critical = self.lowered, self.timeline, self.repeats, self.critical
        compute = timeline.busy([COMPUTE])
        limits = [_limit(op, self._gpu) for op in lowered.schedule.distinct]
        busy_s: dict[str, float] = defaultdict(float)
        critical_s: dict[str, float] = defaultdict(float)
        error_s: dict[str, float] = defaultdict(float)
        sources_s: dict[tuple[str, str], float] = defaultdict(float)
        comm_s = hidden_s = slowed_s = 0.0
        ready, start, end = timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist()
        for index, op in enumerate(lowered.schedule.ops[: lowered.launches]):
            if index in critical:
                critical_s["launches"] += repeats.get(op.layer, 1) * (end[index] - start[index])
        for index, (op, estimate, like) in enumerate(
            zip(lowered.schedule.ops, lowered.estimates, lowered.schedule.same_as, strict=True), lowered.launches
        ):
            times, span_s = repeats.get(op.layer, 1), end[index] - start[index]
            task = timeline.program.tasks[index]
            busy_s[op.kind] += times * span_s
            if task.stream == COMM:
                comm_s += times * span_s
                hidden_s += times * overlap_s((start[index], end[index]), compute)
            else:
                slowed_s += times * (span_s - float(task.duration_s))
            if index in critical:
                critical_s[limits[like]] += times * span_s
                critical_s["waits"] += times * (start[index] - ready[index])
                error_s[op.kind] += times * estimate.error * span_s
                sources_s[estimate.source, op.kind] += times * span_s
        return _Sums(
            busy_s=dict(busy_s),
            critical_s=dict(critical_s),
            error_s=dict(error_s),
            comm_s=comm_s,
            hidden_s=hidden_s,
            slowed_s=slowed_s,
            sources_s=dict(sources_s),
        )


def _limit(op: Op, gpu: GpuSpec) -> str:
    """What bounds an op: a link, tensor cores, device memory, or the fixed cost of a small kernel."""
    if op.stream == "comm":
        return op.kind
    fp8 = isinstance(op.shape, GemmShape) and op.shape.weight_element_bytes == 1
    arithmetic_s = op.shape.flops / (gpu.fp8_flops if fp8 else gpu.bf16_flops)
    traffic_s = op.shape.moved_bytes / gpu.hbm_bandwidth_Bps
    if max(arithmetic_s, traffic_s) < gpu.kernel_s:
        return "small kernels"
    return "tensor cores" if arithmetic_s > traffic_s else "device memory"
