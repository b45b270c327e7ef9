"""Runs a trace's graph through the simulator, and says how far that is from what was recorded."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ladder_sim.des import scan
from ladder_sim.des.program import NO_GROUP, Program, Stream, Task
from ladder_sim.des.timeline import Timeline
from ladder_sim.traces.graph import COLLECTIVES, HOST_KINDS, Collective, Lane, TraceGraph, TraceOp


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """One iteration, recorded and replayed: from its first launch to its last end on a device."""

    name: str
    """Of the iteration; "trace" where none is marked."""
    recorded_s: float
    """Length in the trace."""
    replayed_s: float
    """Length in the simulation."""

    @property
    def error(self) -> float:
        """Relative to the recorded time."""
        return self.replayed_s / self.recorded_s - 1.0 if self.recorded_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """An op that started later than everything that it waits for in the graph allows."""

    index: int
    """Position of the op."""
    seconds: float
    """Between the end of the last of these and its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A trace's graph, simulated."""

    graph: TraceGraph
    """What was recorded."""
    timeline: Timeline
    """What the simulator makes of it."""
    steps: tuple[StepError, ...]
    """Iteration by iteration."""

    def unexplained(self) -> list[Unexplained]:
        """Waits of device ops that the graph has no reason for, longest first: what the replay leaves out."""
        ops, before_on_lane = self.graph.ops, self.graph.before_on_lane()
        found = []
        for index, op in enumerate(ops):
            if not self.graph.lanes[op.lane].device:
                continue
            reasons = [*op.after, *([before_on_lane[index]] if index in before_on_lane else [])]
            ready_s = max((ops[before].end_s for before in reasons), default=0.0)
            if op.start_s - op.lead_s > ready_s:
                found.append(Unexplained(index=index, seconds=op.start_s - op.lead_s - ready_s))
        return sorted(found, key=lambda wait: -wait.seconds)


def to_program(graph: TraceGraph) -> Program:
    """The tasks of a trace, one for each op in its position; nothing is shared."""
    return Program(
        tasks=tuple(Task(op.name, op.lane, op.duration_s, op.after, op.lead_s, group=op.group) for op in graph.ops),
        streams=tuple(Stream(name=lane.name, rank=lane.rank) for lane in graph.lanes),
    )


def simulate(graph: TraceGraph) -> Timeline:
    """When each op of `graph` runs.

    Raises
    ------
    DeadlockError
        Ops wait for each other.
    """
    return scan.run(to_program(graph))


def to_timeline(graph: TraceGraph) -> Timeline:
    """The recorded times, as if simulated."""
    start_s = np.array([op.start_s for op in graph.ops])
    end_s = np.array([op.end_s for op in graph.ops])
    return Timeline(program=to_program(graph), ready_s=start_s, start_s=start_s, end_s=end_s)


def with_times(graph: TraceGraph, timeline: Timeline) -> TraceGraph:
    """The same ops at the times of a simulation."""
    times = zip(graph.ops, timeline.start_s.tolist(), timeline.end_s.tolist(), strict=True)
    return dataclasses.replace(
        graph, ops=tuple(dataclasses.replace(op, start_s=start_s, end_s=end_s) for op, start_s, end_s in times)
    )


def from_timeline(
    timeline: Timeline, kinds: Sequence[str], collectives: Sequence[Collective | None] | None = None
) -> TraceGraph:
    """A simulated program as a trace would hold it.

    What its tasks shared is gone, like in any trace: each op takes the time it took beside the others.

    Parameters
    ----------
    timeline
        Simulated times.
    kinds
        Of each task.
    collectives
        What is known of each task that is one.
    """
    program = timeline.program
    hosts = {task.stream for task, kind in zip(program.tasks, kinds, strict=True) if kind in HOST_KINDS}
    rows = zip(
        program.tasks,
        kinds,
        collectives or [Collective() if kind in COLLECTIVES else None for kind in kinds],
        timeline.ready_s.tolist(),
        timeline.start_s.tolist(),
        timeline.end_s.tolist(),
        strict=True,
    )
    return TraceGraph(
        ops=tuple(
            TraceOp(
                name=task.name,
                kind=kind,
                lane=task.stream,
                start_s=start_s,
                end_s=end_s,
                duration_s=end_s - start_s,
                after=task.after,
                # of a lone op also what it waited for room on its GPU; one of a group waits for its peers as well
                lead_s=start_s - ready_s if task.group == NO_GROUP else float(task.lead_s),
                group=task.group,
                collective=collective,
            )
            for task, kind, collective, ready_s, start_s, end_s in rows
        ),
        lanes=tuple(
            Lane(name=stream.name, rank=stream.rank, device=number not in hosts)
            for number, stream in enumerate(program.streams)
        ),
    )


def replay(graph: TraceGraph) -> Replay:
    """Simulate the whole trace and compare its iterations with the recording."""
    timeline = simulate(graph)
    simulated = with_times(graph, timeline)
    members: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        members.setdefault(op.step if graph.steps else 0, []).append(index)
    names = graph.steps or ("trace",)
    return Replay(
        graph=graph,
        timeline=timeline,
        steps=tuple(
            StepError(
                name=name,
                recorded_s=length_s(graph, members[step]),
                replayed_s=length_s(simulated, members[step]),
            )
            for step, name in enumerate(names)
            if step in members
        ),
    )


def length_s(graph: TraceGraph, members: Sequence[int]) -> float:
    """How long these ops take: from the first launch to the last end on a device, or all of the work of CPUs."""
    ops = [graph.ops[index] for index in members]
    on_device = [op for op in ops if graph.lanes[op.lane].device]
    launches = [op for op in ops if op.kind == "launch"] if on_device else [op for op in ops if op.kind != "host"]
    return max(op.end_s for op in on_device or ops) - min(op.start_s for op in launches or ops)
