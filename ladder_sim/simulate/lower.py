"""Turns a StepGraph and the costs of its ops into a des.Program: what the stack adds becomes waits and launches.

One rank stands for all: ranks that do the same work at the same speed reach every collective together. A persistently
slower rank is the one that is simulated, because every collective waits for it; `ranks.py` simulates them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Self

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware, Number
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.des.shared import Demand, Device
from ladder_sim.graph.ops import COLLECTIVE_KINDS, Op, Shape, StepGraph
from ladder_sim.graph.sizes import Sizes
from ladder_sim.specs.stack import StackSpec

COMPUTE, COMM, LAUNCH = range(3)
STREAMS = (Stream(name="compute"), Stream(name="comm"), Stream(name="launch"))


class Lead(NamedTuple):
    """What holds a stream before an op, as far as no cost is needed."""

    stream: int
    """The op's."""
    waits: bool
    """For an op of the other stream."""
    collective: int
    """Position in `distinct` of the collective whose result is needed at once, for itself and for the op that needs it;
    else -1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """A graph's ops in issue order, as far as no cost is needed; made once for many costs."""

    ops: tuple[Op, ...]
    """In issue order."""
    streams: tuple[int, ...]
    """Of each op."""
    after: tuple[tuple[int, ...], ...]
    """Positions of the ops that each op needs."""
    after_launch: tuple[tuple[int, ...], ...]
    """The same as positions of tasks, with the launch tasks before the ops and each op after its own launch."""
    leads: tuple[Lead, ...]
    """Of each op."""
    eager: bool
    """Launched one by one instead of as a CUDA graph."""
    launch_names: tuple[str, ...]
    """Of the launch tasks."""
    synchronises: bool
    """Holds an all-reduce or all-gather, at which every rank waits for the slowest."""
    serial: bool
    """Every op starts after the one issued before it has ended."""
    distinct: tuple[Op, ...]
    """One op of each kind and shape."""
    same_as: tuple[int, ...]
    """Position in `distinct` of each op's like."""

    def resized(self, sizes: Sizes) -> Self:
        """The same ops of other sizes, given those of one token."""
        shapes = [_one_object(sizes.shape(op)) for op in self.distinct]
        return replace(
            self,
            ops=tuple(replace(op, shape=shapes[like]) for op, like in zip(self.ops, self.same_as, strict=True)),
            distinct=tuple(replace(op, shape=shape) for op, shape in zip(self.distinct, shapes, strict=True)),
        )


@lru_cache(maxsize=4096)
def _one_object(shape: Shape) -> Shape:
    """The same object for equal shapes of all schedules: costs look them up, and need not compare field by field."""
    return shape


class OpTimes(NamedTuple):
    """How long a schedule's ops take alone, and what comes before them; seconds."""

    durations_s: list[Number]
    """Of each distinct op."""
    leads_s: dict[Lead, Number]
    """Of every lead in the schedule."""
    launch_s: Number
    """Of one launch by the CPU; 0 launches nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """One rank's tasks: first every CPU launch, then every op, each in issue order."""

    program: Program
    """What the simulator runs."""
    launches: int
    """Launch tasks, each of the op in its position; op i is task ``launches + i``."""
    schedule: Schedule
    """The ops."""
    estimates: tuple[Estimate, ...]
    """Of each op."""


def schedule(graph: StepGraph, stack: StackSpec) -> Schedule:
    """Put the ops of `graph` on streams, in issue order."""
    ops = tuple(graph.ops())
    position = {op.name: number for number, op in enumerate(ops)}
    streams = tuple(COMM if op.kind in COLLECTIVE_KINDS else COMPUTE for op in ops)
    after = tuple(tuple(position[name] for name in graph.predecessors(op.name)) for op in ops)
    numbers: dict[tuple[str, object], int] = {}
    same_as = tuple(numbers.setdefault((op.kind, op.shape), len(numbers)) for op in ops)
    first = {number: op for op, number in reversed(list(zip(ops, same_as, strict=True)))}
    eager = not (stack.cuda_graphs if graph.phase == "decode" else stack.prefill_cuda_graphs)
    launch_names = tuple(f"launch {op.name}" for op in ops) if eager else ("launch graph",)
    launches = len(launch_names)
    blocking = [-1] * len(ops)
    for number, (stream, needed) in enumerate(zip(streams, after, strict=True)):
        if stream == COMPUTE and number and streams[number - 1] == COMM and number - 1 in needed:
            blocking[number - 1] = blocking[number] = number - 1
    leads = tuple(
        Lead(
            stream=stream,
            waits=any(streams[i] != stream for i in needed),
            collective=same_as[collective] if collective >= 0 else -1,
        )
        for stream, needed, collective in zip(streams, after, blocking, strict=True)
    )
    return Schedule(
        ops=ops,
        streams=streams,
        after=after,
        after_launch=tuple(
            (*(launches + i for i in needed), *((number,) if number < launches else ()))
            for number, needed in enumerate(after)
        ),
        leads=leads,
        eager=eager,
        launch_names=launch_names,
        synchronises=any(op.kind in ("all_reduce", "all_gather") for op in ops),
        serial=all(streams[i] == streams[i - 1] or i - 1 in after[i] for i in range(1, len(ops))),
        distinct=tuple(first[number] for number in range(len(numbers))),
        same_as=same_as,
    )


def op_times(plan: Schedule, prices: Sequence[Estimate], hardware: Hardware) -> OpTimes:
    """Times of a schedule's ops.

    An op that depends on the other stream waits for its event (``stream_wait_s``); only a custom all-reduce whose
    result is needed at once is issued among the kernels. A collective also pays its start-up (``collective_launch_s``).

    Parameters
    ----------
    plan
        Ops and their order.
    prices
        Estimates of ``plan.distinct``.
    hardware
        Launch and wait costs, and the slowest rank's skew.
    """
    stack = hardware.stack
    # where nothing makes the ranks meet, the one whose token counts is a typical one
    slowdown = 1.0 + hardware.rank_skew if plan.synchronises else 1.0
    leads_s: dict[Lead, Number] = {}
    for lead in plan.leads:
        if lead in leads_s:
            continue
        held_s = stack.collective_launch_s if lead.stream == COMM else stack.kernel_gap_s
        if lead.waits:
            inline = prices[lead.collective].inline if lead.collective >= 0 else 0.0
            held_s = held_s + stack.stream_wait_s * (1.0 - inline)
        leads_s[lead] = held_s
    return OpTimes(
        durations_s=[
            price.seconds if op.kind in COLLECTIVE_KINDS else price.seconds * slowdown
            for op, price in zip(plan.distinct, prices, strict=True)
        ],
        leads_s=leads_s,
        launch_s=stack.eager_launch_s if plan.eager else stack.graph_launch_s,
    )


def lower(plan: Schedule, prices: Sequence[Estimate], hardware: Hardware, sms: int) -> Lowered:
    """One rank's tasks.

    Without a CUDA graph a CPU thread launches op after op, and an op starts no earlier than its launch ends; with one,
    there is a single launch.

    Parameters
    ----------
    plan, prices, hardware
        As in `op_times`.
    sms
        Of the GPU.
    """
    times = op_times(plan, prices, hardware)
    demands = [_demand(price) for price in prices]
    free = isinstance(times.launch_s, float) and times.launch_s == 0.0
    tasks = [] if free else [Task(name=name, stream=LAUNCH, duration_s=times.launch_s) for name in plan.launch_names]
    launches = len(tasks)
    rows = zip(plan.ops, plan.streams, plan.after if free else plan.after_launch, plan.leads, plan.same_as, strict=True)
    tasks += [
        Task(op.name, stream, times.durations_s[like], after, times.leads_s[lead], demands[like])
        for op, stream, after, lead, like in rows
    ]
    return Lowered(
        program=Program(tasks=tuple(tasks), streams=STREAMS, device=Device(sms=sms)),
        launches=launches,
        schedule=plan,
        estimates=tuple(prices[like] for like in plan.same_as),
    )


def _demand(estimate: Estimate) -> Demand:
    use = estimate.sms
    return Demand(
        held_sms=use.held_sms,
        tiles=use.tiles,
        spare=use.spare,
        slowdown=use.slowdown,
        memory=estimate.memory,
        link=estimate.link,
    )
