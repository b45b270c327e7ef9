"""Puts a graph's ops on streams and, given their costs, makes a des.Program of them.

One rank stands for all: ranks that do the same work at the same speed reach every collective together. A persistently
slower rank is the one that is simulated, because every collective waits for it; `ranks.py` simulates them all.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.des.shared import Device, Number, maximum
from ladder_sim.graph.build import PassInputs, build
from ladder_sim.graph.ops import COLLECTIVE_KINDS, Op, Phase
from ladder_sim.graph.variants import Layer, Wiring

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


class Period(NamedTuple):
    """A period of layers that stands for several equal ones."""

    start: int
    """Position of its first layer in the wiring."""
    width: int
    """Layers in it."""
    left_out: int
    """Equal periods that are not there."""
    ops: tuple[int, ...]
    """Positions of its ops in the schedule."""
    twins: tuple[int, ...]
    """Positions of the same ops one period earlier."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """What a forward pass runs in which order, some identical layers left out: the same for any size and cost."""

    inputs: PassInputs
    """What runs, for one token."""
    phase: Phase
    """Of the pass."""
    keep: int
    """Periods left of each run of identical layers."""
    wiring: Wiring
    """The layers that are there."""
    ops: tuple[Op, ...]
    """Those of one token, in issue order."""
    streams: tuple[int, ...]
    """Of each op."""
    after: tuple[tuple[int, ...], ...]
    """Positions of the ops that each op needs."""
    leads: tuple[Lead, ...]
    """Of each op."""
    distinct: tuple[Op, ...]
    """One op of each kind and shape."""
    keys: tuple[str, ...]
    """Kind and shape of each of them, as text, which remembers its hash."""
    same_as: tuple[int, ...]
    """Position in `distinct` of each op's like."""
    next_to: Mapping[int, tuple[int, ...]]
    """Positions in `distinct`: of ops with others next to them, and of those of one layer, as `Op.next_to` says."""
    spans: Mapping[tuple[int, Lead], int]
    """How often each of the distinct ops comes after which lead, layers left out included."""
    periods: tuple[Period, ...]
    """Where layers are left out."""
    eager: bool
    """Launched one by one instead of as a CUDA graph."""
    synchronises: bool
    """Holds an all-reduce or all-gather, at which every rank waits for the slowest."""
    serial: bool
    """Every op starts after the one issued before it has ended."""


@lru_cache(maxsize=1024)
def schedule(inputs: PassInputs, phase: Phase, keep: int) -> Schedule:
    """Put the ops of a pass on streams, in issue order.

    Parameters
    ----------
    inputs
        What runs, for one token (`PassInputs.of_one_token`).
    phase
        ``"prefill"`` or ``"decode"``.
    keep
        Periods left of each run of identical layers.
    """
    stack = inputs.stack
    condensed = inputs.wiring.condense(keep)
    graph = build(inputs, phase, 1, layers=condensed)
    ops = tuple(graph.ops())
    position = {op.name: number for number, op in enumerate(ops)}
    streams = tuple(COMM if op.kind in COLLECTIVE_KINDS else COMPUTE for op in ops)
    after = tuple(tuple(position[name] for name in graph.predecessors(op.name)) for op in ops)
    numbers: dict[str, int] = {}
    same_as = tuple(numbers.setdefault(_key(op), len(numbers)) for op in ops)
    next_to: dict[str, tuple[int, ...]] = {}
    for op, like in zip(ops, same_as, strict=True):
        if op.next_to:
            next_to[op.next_to] = (*next_to.get(op.next_to, ()), like)
    first = {number: op for op, number in reversed(list(zip(ops, same_as, strict=True)))}
    leads = _leads(streams, after, same_as)
    repeats = condensed.repeats
    spans: dict[tuple[int, Lead], int] = defaultdict(int)
    for op, like, lead in zip(ops, same_as, leads, strict=True):
        spans[like, lead] += repeats.get(op.layer, 1)
    return Schedule(
        inputs=inputs,
        phase=phase,
        keep=keep,
        wiring=condensed,
        ops=ops,
        streams=streams,
        after=after,
        leads=leads,
        distinct=tuple(first[number] for number in range(len(numbers))),
        keys=tuple(numbers),
        same_as=same_as,
        next_to={same_as[position[name]]: others for name, others in next_to.items()},
        spans=dict(spans),
        periods=_periods(condensed.layers, ops),
        eager=not (stack.cuda_graphs if phase == "decode" else stack.prefill_cuda_graphs),
        synchronises=any(op.kind in ("all_reduce", "all_reduce_norm", "all_gather", "reduce_scatter") for op in ops),
        serial=all(streams[i] == streams[i - 1] or i - 1 in after[i] for i in range(1, len(ops))),
    )


def _key(op: Op) -> str:
    """Equal for ops that take equally long."""
    return f"{op.kind} {op.shape}" + (" next to another" if op.next_to else "")


def _leads(streams: Sequence[int], after: Sequence[tuple[int, ...]], same_as: Sequence[int]) -> tuple[Lead, ...]:
    blocking = [-1] * len(streams)
    for number, (stream, needed) in enumerate(zip(streams, after, strict=True)):
        if stream == COMPUTE and number and streams[number - 1] == COMM and number - 1 in needed:
            blocking[number - 1] = blocking[number] = number - 1
    return tuple(
        Lead(
            stream=stream,
            waits=any(streams[i] != stream for i in needed),
            collective=same_as[collective] if collective >= 0 else -1,
        )
        for stream, needed, collective in zip(streams, after, blocking, strict=True)
    )


def _periods(layers: Sequence[Layer], ops: Sequence[Op]) -> tuple[Period, ...]:
    ops_of: dict[int, list[int]] = defaultdict(list)
    for number, op in enumerate(ops):
        ops_of[op.layer].append(number)
    periods = []
    for repeats, run in groupby(range(len(layers)), key=lambda position: layers[position].repeats):
        if repeats == 1:
            continue
        start, *others = run
        width = 1 + len(others)
        own, twins = (
            tuple(number for layer in layers[at : at + width] for number in ops_of[layer.index])
            for at in (start, start - width)
        )
        periods.append(Period(start=start, width=width, left_out=repeats - 1, ops=own, twins=twins))
    return tuple(periods)


def op_times(
    plan: Schedule, estimates: Sequence[Estimate], hardware: Hardware
) -> tuple[list[Number], dict[Lead, Number], Number]:
    """How long a schedule's ops take alone, and what comes before them.

    An op that depends on the other stream waits for its event (``stream_wait_s``); only a custom all-reduce whose
    result is needed at once is issued among the kernels. A collective also pays its start-up (``collective_launch_s``),
    and across nodes in a CUDA graph a wait for its host node.

    Parameters
    ----------
    plan
        Ops and their order.
    estimates
        Of ``plan.distinct``.
    hardware
        Launch and wait costs, and the slowest rank's skew.

    Returns
    -------
    durations, leads, launch
        Seconds of each distinct op, of every lead in the schedule, and of one launch by the CPU (0: nothing is
        launched).
    """
    stack = hardware.stack
    # NCCL (2.21.5, src/enqueue.cc) captures a host node with every collective that needs the network's proxy: it runs
    # ahead of the kernels, and the collective waits for its event
    host_node_s = stack.stream_wait_s if hardware.across_nodes and not plan.eager else 0.0
    # where nothing makes the ranks meet, the one whose token counts is a typical one
    slowdown = 1.0 + hardware.rank_skew if plan.synchronises else 1.0
    leads_s: dict[Lead, Number] = {}
    for lead in plan.leads:
        if lead in leads_s:
            continue
        held_s = stack.collective_launch_s + host_node_s if lead.stream == COMM else stack.kernel_gap_s
        if lead.waits:
            inline = estimates[lead.collective].inline if lead.collective >= 0 else 0.0
            held_s = held_s + stack.stream_wait_s * (1.0 - inline)
        leads_s[lead] = held_s
    durations_s = [
        estimate.seconds if op.kind in COLLECTIVE_KINDS else estimate.seconds * slowdown
        for op, estimate in zip(plan.distinct, estimates, strict=True)
    ]
    for first, others in plan.next_to.items():
        alone_s = sum((durations_s[other] for other in others), start=0.0)
        # each keeps its part of what they last longer
        longer = maximum(0.0, 1.0 - durations_s[first] / alone_s)
        for other in set(others):
            durations_s[other] = durations_s[other] * longer
    return durations_s, leads_s, stack.eager_launch_s if plan.eager else stack.graph_launch_s


def lower(plan: Schedule, estimates: Sequence[Estimate], hardware: Hardware, sms: int) -> Program:
    """One rank's tasks: first every CPU launch, then every op, each in issue order.

    Without a CUDA graph a CPU thread launches op after op, and an op starts no earlier than its launch ends; with one,
    there is a single launch. A launch that takes no time is no task.

    Parameters
    ----------
    plan, estimates, hardware
        As in `op_times`.
    sms
        Of the GPU.
    """
    durations_s, leads_s, launch_s = op_times(plan, estimates, hardware)
    demands = [estimate.demand for estimate in estimates]
    free = isinstance(launch_s, float) and launch_s == 0.0
    names = [] if free else [f"launch {op.name}" for op in plan.ops] if plan.eager else ["launch graph"]
    tasks = [Task(name=name, stream=LAUNCH, duration_s=launch_s) for name in names]
    launches = len(tasks)
    rows = zip(plan.ops, plan.streams, plan.after, plan.leads, plan.same_as, strict=True)
    for number, (op, stream, needed, lead, like) in enumerate(rows):
        launched = (number,) if number < launches else ()
        after = (*(launches + i for i in needed), *launched) if launches else needed
        tasks.append(Task(op.name, stream, durations_s[like], after, leads_s[lead], demands[like]))
    return Program(tasks=tuple(tasks), streams=STREAMS, device=Device(sms=sms))
