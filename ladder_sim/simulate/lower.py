"""Puts a graph's ops on streams and, given their costs, makes a des.Program of them.

One rank stands for all: ranks that do the same work at the same speed reach every collective together. A persistently
slower rank is the one that is simulated, because every collective waits for it; `ranks.py` simulates them all.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import NamedTuple

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.des.program import NO_GROUP, Cost, Outline, Program, Stream, Tasks
from ladder_sim.des.shared import NOTHING, Device, Number, maximum, minimum
from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS, Op
from ladder_sim.graph.pass_kernels import PassKernels

COMPUTE, COMM, LAUNCH = range(3)
# kinds of ops at which every rank waits for the slowest
MEETINGS = COLLECTIVE_KINDS - {"broadcast", "send"}
STREAMS = (Stream(name="compute"), Stream(name="comm"), Stream(name="launch"))


# part of the L2 cache that holds weights until the GEMM reads them, and how fast it reads these, in multiples of the
# memory's bandwidth. A100's delivers 5,120 bytes a clock, 3.5 times as much, and each half of it serves the SMs next to
# it (NVIDIA A100 Tensor Core GPU architecture whitepaper): the weights may be in the other half
USABLE_L2, L2_RATE = 0.5, 2.0


class Lead(NamedTuple):
    """What holds a stream before an op, as far as no cost is needed."""

    stream: int
    """The op's."""
    waits: bool
    """For an op of the other stream."""
    collective: int
    """Position in the layout's roles of the collective whose result is needed at once, for itself and for the op that
    needs it; else -1."""


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
class Order:
    """How a layout's ops run: the same for any size and cost."""

    streams: tuple[int, ...]
    """Stream of each op."""
    role_streams: tuple[int, ...]
    """Stream of each of the layout's roles."""
    leads: tuple[Lead, ...]
    """Lead of each op."""
    spans: Mapping[tuple[int, Lead], int]
    """How often each role comes after which lead, layers left out included."""
    counts: tuple[int, ...]
    """How often each role runs, likewise."""
    stages: tuple[Mapping[tuple[int, Lead], int], ...]
    """Roles of each pipeline stage and how often they run, its send included; empty if there is one stage."""
    periods: tuple[Period, ...]
    """Where layers are left out."""
    synchronises: bool
    """Holds one of `MEETINGS`."""
    serial: bool
    """Every op starts after the one issued before it has ended."""


# no slots: its ops are made once, when they are read
@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """What a forward pass runs in which order, some identical layers left out."""

    kernels: PassKernels
    """Kernels of a pass over one token."""
    variant: str
    """Canonical name."""
    rewrites: tuple[str, ...]
    """As in `PassKernels.layout`."""
    keep: int
    """Periods left of each run of identical layers."""
    layout: Layout
    """Ops and what they need."""
    order: Order
    """Their streams."""
    numbers: tuple[int, ...]
    """Which of `kernels.distinct` each of the layout's roles is."""
    eager: bool
    """Launched one by one instead of as a CUDA graph."""

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.kernels.ops(self.layout)

    @cached_property
    def spans_in_order(self) -> tuple[int, ...]:
        """Which of `Order.spans` each op is."""
        places = {span: place for place, span in enumerate(self.order.spans)}
        return tuple(places[span] for span in zip(self.layout.same_as, self.order.leads, strict=True))

    @property
    def distinct(self) -> dict[int, Op]:
        """Ops of the pass that differ in kind or shape, by number."""
        return {number: self.kernels.distinct[number] for number in self.numbers}


@lru_cache(maxsize=1024)
def schedule_pass(kernels: PassKernels, variant: str, keep: int, rewrites: tuple[str, ...] = ()) -> Schedule:
    """Put the ops of a pass over one token on streams, in issue order; the rest as in `PassKernels.layout`."""
    stack, phase = kernels.rank.stack, kernels.rank.phase
    layout = kernels.layout(variant, rewrites, keep=keep)
    return Schedule(
        kernels=kernels,
        variant=variant,
        rewrites=rewrites,
        keep=keep,
        layout=layout,
        order=_order(layout),
        numbers=tuple(kernels.number(role) for role in layout.roles),
        eager=stack.cuda_graphs == "off" or (phase != "decode" and stack.cuda_graphs != "all"),
    )


@lru_cache(maxsize=1024)
def _order(layout: Layout) -> Order:
    after, same_as = layout.after, layout.same_as
    streams = tuple(COMM if kind in COLLECTIVE_KINDS else COMPUTE for kind in layout.kinds)
    leads = _leads(streams, after, same_as)
    repeats = layout.wiring.repeats
    spans: dict[tuple[int, Lead], int] = defaultdict(int)
    for layer, like, lead in zip(layout.layers, same_as, leads, strict=True):
        spans[like, lead] += repeats.get(layer, 1)
    counts = [0] * len(layout.roles)
    for (like, _), count in spans.items():
        counts[like] += count
    return Order(
        streams=streams,
        role_streams=tuple(stream for _, stream in sorted(dict(zip(same_as, streams, strict=True)).items())),
        leads=leads,
        spans=dict(spans),
        counts=tuple(counts),
        stages=_stages(layout, leads) if "send" in layout.kinds else (),
        periods=_periods(layout),
        synchronises=not MEETINGS.isdisjoint(layout.kinds),
        serial=all(streams[i] == streams[i - 1] or i - 1 in after[i] for i in range(1, len(streams))),
    )


def _stages(layout: Layout, leads: Sequence[Lead]) -> tuple[dict[tuple[int, Lead], int], ...]:
    repeats = layout.wiring.repeats
    stages: list[dict[tuple[int, Lead], int]] = [defaultdict(int)]
    for layer, like, lead, kind in zip(layout.layers, layout.same_as, leads, layout.kinds, strict=True):
        stages[-1][like, lead] += repeats.get(layer, 1)
        if kind == "send":
            stages.append(defaultdict(int))
    return tuple(map(dict, stages))


def _leads(streams: Sequence[int], after: Sequence[tuple[int, ...]], same_as: Sequence[int]) -> tuple[Lead, ...]:
    blocking = [-1] * len(streams)
    for number in range(1, len(streams)):
        if streams[number] == COMPUTE and streams[number - 1] == COMM and number - 1 in after[number]:
            blocking[number - 1] = blocking[number] = same_as[number - 1]
    across = (True in [streams[i] != stream for i in needed] for stream, needed in zip(streams, after, strict=True))
    return tuple(map(Lead, streams, across, blocking))


def _periods(layout: Layout) -> tuple[Period, ...]:
    layers = layout.wiring.layers
    ops_of: dict[int, list[int]] = defaultdict(list)
    for number, layer in enumerate(layout.layers):
        ops_of[layer].append(number)
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
    schedule: Schedule, estimates: Sequence[Estimate], hardware: Hardware
) -> tuple[list[Number], dict[Lead, Number], Number]:
    """Return the seconds of a schedule's distinct ops alone, of every lead, and of one launch by the CPU.

    `estimates` are those of the layout's roles. A launch takes 0 where nothing is launched. An op that depends on the
    other stream waits for its event (``stream_wait_s``); only a custom all-reduce whose result is needed at once is
    issued among the kernels. A collective also pays its start-up (``collective_launch_s``), and across nodes in a CUDA
    graph a wait for its host node.
    """
    stack = hardware.stack
    # NCCL (2.21.5, src/enqueue.cc) captures a host node with every collective that needs the network's proxy: it runs
    # ahead of the kernels, and the collective waits for its event
    host_node_s = stack.stream_wait_s if hardware.across_nodes and not schedule.eager else 0.0
    # where nothing makes the ranks meet, the one whose token counts is a typical one
    slowdown = 1.0 + hardware.slowest if schedule.order.synchronises else 1.0
    leads_s: dict[Lead, Number] = {}
    for _, lead in schedule.order.spans:
        if lead in leads_s:
            continue
        held_s = stack.collective_launch_s + host_node_s if lead.stream == COMM else stack.kernel_gap_s
        if lead.waits:
            inline = estimates[lead.collective].inline if lead.collective >= 0 else 0.0
            held_s = held_s + stack.stream_wait_s * (1.0 - inline)
        leads_s[lead] = held_s
    durations_s = [
        estimate.seconds if stream == COMM else estimate.seconds * slowdown
        for stream, estimate in zip(schedule.order.role_streams, estimates, strict=True)
    ]
    for first, others in schedule.layout.next_to.items():
        alone_s = sum((durations_s[other] for other in others), start=0.0)
        # each keeps its part of what they last longer
        longer = maximum(0.0, 1.0 - durations_s[first] / alone_s)
        for other in others:
            durations_s[other] = durations_s[other] * longer
    for collective, gemm in schedule.layout.chunked.items():
        # the longer of both, a chunk of the other one, and an event for each chunk; the GEMM is there as it is
        chunks, own_s, gemm_s = schedule.kernels.rank.tp, durations_s[collective], durations_s[gemm]
        durations_s[collective] = (
            maximum(0.0, own_s - gemm_s) + minimum(own_s, gemm_s) / chunks + chunks * stack.stream_wait_s
        )
    for collective, gemms in schedule.layout.prefetching.items():
        most_s = minimum(durations_s[collective], USABLE_L2 * hardware.l2_bytes / hardware.gpu.hbm_bandwidth_Bps)
        read_s = [minimum(most_s, estimates[gemm].demand.memory * durations_s[gemm]) for gemm in gemms]
        for gemm, seconds in zip(gemms, read_s, strict=True):
            durations_s[gemm] = durations_s[gemm] - seconds * (1.0 - 1.0 / L2_RATE)
        # as any kernel that fills the memory's bandwidth; each of the GEMMs comes as often
        delayed_s = estimates[collective].demand.waits * hardware.overlap.kernel_delay * sum(read_s) / len(gemms)
        durations_s[collective] = durations_s[collective] + delayed_s
    return durations_s, leads_s, stack.eager_launch_s if schedule.eager else stack.graph_launch_s


def lower(schedule: Schedule, estimates: Sequence[Estimate], hardware: Hardware, device: Device) -> Program:
    """Return one rank's tasks: every CPU launch, then every op, in issue order; `op_times` has their times.

    Without a CUDA graph a CPU thread launches op after op, and an op starts no earlier than its launch ends; with one,
    there is a single launch. A launch that takes no time is no task.
    """
    layout = schedule.layout
    durations_s, leads_s, launch_s = op_times(schedule, estimates, hardware)
    demands = [NOTHING if layout.uncontended else estimate.demand for estimate in estimates]
    costs = [
        Cost(durations_s[like], leads_s[lead], demands[like], estimates[like].wake_s)
        for like, lead in schedule.order.spans
    ]
    free = isinstance(launch_s, float) and launch_s == 0.0
    launches = 0 if free else len(layout.names) if schedule.eager else 1
    costs += [Cost(launch_s)] if launches else []
    return Program(tasks=Tasks(_outline(layout, launches), costs), streams=STREAMS, device=device)


@lru_cache(maxsize=1024)
def _outline(layout: Layout, launches: int) -> Outline:
    """Return a layout's ops behind their launches: one for each, one for all, or none."""
    order = _order(layout)
    # the last kind is a launch
    kinds = {span: kind for kind, span in enumerate(order.spans)}
    after = [
        (*(launches + before for before in needed), *((number,) if number < launches else ()))
        for number, needed in enumerate(layout.after)
    ]
    return Outline(
        names=(*(f"launch {name}" for name in (layout.names if launches > 1 else ["graph"][:launches])), *layout.names),
        streams=(*[LAUNCH] * launches, *order.streams),
        after=(*[()] * launches, *after),
        kinds=(*[len(kinds)] * launches, *(kinds[span] for span in zip(layout.same_as, order.leads, strict=True))),
        groups=(NO_GROUP,) * (launches + len(after)),
    )
