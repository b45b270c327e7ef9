"""Simulates the graph of a trace, and compares the result with the recording.

Ops that did not run at the same time in the recording may slow each other: on a GPU the thread blocks of a collective
take SMs from kernels, which delay its steps through the device memory (`ladder_sim.costs.estimate`); on CPUs gloo's
thread takes time of the core on which its rank computes.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from ladder_sim.costs.estimate import OverlapParameters, memory_steps, waiting_share
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des import engine, scan
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.shared import NOTHING, Demand, Device
from ladder_sim.des.timeline import Timeline
from ladder_sim.errors import UsageError
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import ALONE, EARLIER, HOST_KINDS, Collective, Lane, TraceGraph, TraceOp
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
    on_cores = any(lane.name.startswith((_GLOO, SHARED_MEMORY)) for lane in graph.lanes)
    return Contention(device=Device(sms=_PARTS)) if on_cores else None


# relative error of a replay beyond which other wirings are not predicted: sound recordings of `tests/data/traces` are
# replayed within 5 %, those that lacked a dependency were off by 34 to 98 %
MAX_ERROR = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """One step, recorded and replayed (`step_seconds`)."""

    name: str
    """Name of the step; "trace" if none is marked."""
    recorded_s: float
    replayed_s: float

    @property
    def error(self) -> float:
        """Relative to the recorded length."""
        return self.replayed_s / self.recorded_s - 1.0 if self.recorded_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnexplainedWait:
    """A device op that started later than its dependencies allow."""

    op: TraceOp
    seconds: float
    """Time from the end of its last dependency to its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A simulated trace."""

    graph: TraceGraph
    """The run as recorded."""
    simulated: TraceGraph
    """The run as simulated."""
    steps: tuple[StepError, ...]
    """Error of every iteration."""

    def unexplained(self) -> list[UnexplainedWait]:
        """Return waits of device ops that no dependency explains, longest first; the replay leaves them out."""
        ops, own_s = self.graph.ops, []
        # a collective starts with its last rank
        group_s: dict[int, float] = {}
        for op, awaited in zip(ops, self.graph.awaited(), strict=True):
            own_s.append(max((ops[before].end_s for before in awaited), default=0.0))
            if op.group != NO_GROUP:
                group_s[op.group] = max(own_s[-1], group_s.get(op.group, 0.0))
        waits = []
        for op, ready_s in zip(ops, own_s, strict=True):
            late_s = op.start_s - op.lead_s - group_s.get(op.group, ready_s)
            if late_s > 0.0 and self.graph.lanes[op.lane].device:
                waits.append(UnexplainedWait(op=op, seconds=late_s))
        return sorted(waits, key=lambda wait: -wait.seconds)


def to_program(graph: TraceGraph, contention: Contention | None = None) -> Program:
    """Return a program with a task for each op, in its position. Without contention the tasks share nothing."""
    demands = contention.demands(graph) if contention is not None else [NOTHING] * len(graph.ops)
    return Program(
        tasks=tuple(
            Task(op.name, op.lane, op.duration_s, op.after, op.lead_s, demand, op.group)
            for op, demand in zip(graph.ops, demands, strict=True)
        ),
        streams=tuple(Stream(name=lane.name, rank=lane.rank) for lane in graph.lanes),
        device=contention.device if contention is not None else None,
    )


def simulate(graph: TraceGraph, contention: Contention | None = None) -> Timeline:
    """Simulate when each op runs; an error if ops wait for each other."""
    program = to_program(graph, contention)
    # the other engine knows one stream that computes and one that communicates
    return scan.run(program) if contention is None else engine.run(program)


def to_timeline(graph: TraceGraph) -> Timeline:
    """Return the recorded times as a timeline."""
    start_s = np.array([op.start_s for op in graph.ops])
    end_s = np.array([op.end_s for op in graph.ops])
    return Timeline(program=to_program(graph), ready_s=start_s, start_s=start_s, end_s=end_s)


def with_times(graph: TraceGraph, timeline: Timeline) -> TraceGraph:
    """Return the graph with the simulated times of a timeline."""
    times = zip(graph.ops, timeline.start_s.tolist(), timeline.end_s.tolist(), strict=True)
    return dataclasses.replace(
        graph, ops=tuple(dataclasses.replace(op, start_s=start_s, end_s=end_s) for op, start_s, end_s in times)
    )


def from_timeline(
    timeline: Timeline, kinds: Sequence[str], collectives: Sequence[Collective | None] | None = None
) -> TraceGraph:
    """Return a simulated program as a trace.

    Each op takes its simulated time, slowed down by the ops it shared a GPU with.
    A trace has no wake-ups: the time until the end of another op was noticed blocks the lane before the op that waited.
    """
    program = timeline.program
    hosts = {task.stream for task, kind in zip(program.tasks, kinds, strict=True) if kind in HOST_KINDS}
    ready_s, start_s, end_s = timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist()
    before = {after: early for queue in program.queues() for early, after in pairwise(queue)}
    # the end of the last that each waits for
    over_s = [
        max((end_s[awaited] for awaited in (*task.after, before.get(index, -1)) if awaited >= 0), default=0.0)
        for index, task in enumerate(program.tasks)
    ]
    # without a group a lead includes the wait for free SMs; in a group it must not include the wait for peers
    led_s = [
        start_s[index] - ready_s[index] if task.group == NO_GROUP else float(task.lead_s)
        for index, task in enumerate(program.tasks)
    ]
    return TraceGraph(
        ops=tuple(
            TraceOp(
                name=task.name,
                kind=kinds[index],
                lane=task.stream,
                start_s=start_s[index],
                end_s=end_s[index],
                duration_s=end_s[index] - start_s[index],
                after=task.after,
                lead_s=led_s[index] + (ready_s[index] - over_s[index]),
                group=task.group,
                collective=collectives[index] if collectives is not None else None,
            )
            for index, task in enumerate(program.tasks)
        ),
        lanes=tuple(
            Lane(name=stream.name, rank=stream.rank, device=number not in hosts)
            for number, stream in enumerate(program.streams)
        ),
    )


def replay(graph: TraceGraph) -> Replay:
    """Simulate a trace and compare its steps with the recording; as one step if no step has an op.

    Raises UsageError if it has no op at all.
    """
    if not graph.ops:
        raise UsageError("the trace holds no op to replay", hint="give the trace of a run, not one without ops")
    if all(op.step == ALONE for op in graph.ops):
        graph = dataclasses.replace(graph, steps=())
    simulated = with_times(graph, simulate(graph))
    recorded_s, replayed_s = step_seconds(graph), step_seconds(simulated)
    return Replay(
        graph=graph,
        simulated=simulated,
        steps=tuple(
            StepError(name=name, recorded_s=recorded_s[step], replayed_s=replayed_s[step])
            for step, name in enumerate(graph.steps or ("trace",))
            if step in recorded_s
        ),
    )


def step_seconds(graph: TraceGraph) -> dict[int, float]:
    """Time of each step by its position; that of a trace without steps is 0.

    From its first launch to its last end on a device, or from the last end of what ran before, if the device was
    behind: steps do not overlap. On CPUs from first to last op. Of several ranks, the longest.
    """
    members: dict[tuple[int, int], list[TraceOp]] = defaultdict(list)

    # when a device was done with what is of no step, and ahead of a rank's step
    ahead_s: dict[tuple[int, int], float] = {}
    for queue, lane in zip(graph.queues(), graph.lanes, strict=True):
        begun, outside_s = set(), 0.0
        for op in (graph.ops[index] for index in queue):
            step = ALONE if op.kind == EARLIER else op.step if graph.steps else 0
            members[step, lane.rank].append(op)
            if step == ALONE:
                outside_s = op.end_s
            elif lane.device and step not in begun:
                begun.add(step)
                ahead_s[step, lane.rank] = max(outside_s, ahead_s.get((step, lane.rank), 0.0))
    seconds: dict[int, float] = {}

    # last end of each rank
    done_s: dict[int, float] = defaultdict(float)
    for (step, rank), ops in sorted(members.items()):
        if step != ALONE:
            on_device = [op for op in ops if graph.lanes[op.lane].device]
            begin = [op for op in ops if (op.kind == "launch" if on_device else op.kind != "host")] or ops
            start_s = max(min(op.start_s for op in begin), done_s[rank], ahead_s.get((step, rank), 0.0))
            done_s[rank] = max(op.end_s for op in on_device or ops)
            seconds[step] = max(seconds.get(step, 0.0), done_s[rank] - start_s)
    return seconds
