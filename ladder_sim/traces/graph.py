"""A run as a dependency graph: what ran where, when, and after what.

The ops of a `ladder_sim.graph` have shapes, from which their costs follow, and their kind decides the stream. The
ops of a trace have neither. They have measured times, and run on any number of streams and CPU threads.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from ladder_sim.graph.ops import COLLECTIVE_KINDS
from ladder_sim.kernels import Phase
from ladder_sim.specs.scenario import Scenario

# kinds of collectives: those that predictions have, and others; "collective": which one is not recorded
COLLECTIVES = COLLECTIVE_KINDS | {"all_to_all", "send_recv", "collective"}
# all-reduces, alone or in one kernel with a norm
REDUCES = frozenset({"all_reduce", "all_reduce_norm"})
# work of a CPU between its calls to a device, and in them
HOST_KINDS = frozenset({"host", "launch"})
# what kept a stream busy when the recording began: the trace does not show it
EARLIER = "earlier work"
# a CUDA graph that was recorded as one op
WHOLE_GRAPH = "cuda_graph"
_LAYER = re.compile(r"layers?[._]?\d+")
# a shorter gap between two kernels is the device's own. Holistic Trace Analysis 0.5,
# `get_idle_time_breakdown(consecutive_kernel_delay=30)`: documented as nanoseconds, but compared with microseconds
KERNEL_WAIT_S = 30e-6
# note of a prediction that holds a draw of jitter: it is rewired like a recording, from standard alone
DRAWN = "one draw of jitter in another wiring than standard"
# between the names of a scope
SCOPE_SEPARATOR = "/"
# group of an op without peers; step of an op outside all steps
ALONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A device stream or a CPU thread: it runs its ops one at a time, in order."""

    name: str
    """E.g. "stream 7" or "thread 2910249"."""
    rank: int = 0
    """Rank of its process."""
    device: bool = True
    """A stream of the GPU; False: a CPU thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Recorded properties of a collective other than its time."""

    message_bytes: float = 0.0
    """This rank's input; 0: not recorded."""
    group: str = ""
    """Name of the process group."""
    ranks: int = 0
    """Members of the group; 0: not recorded; 1: one process stands for all, as on an emulated link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOp:
    """One kernel, copy, call or stretch of CPU work."""

    name: str
    """As recorded."""
    kind: str
    """One of COLLECTIVES, EARLIER, "host", "launch", "sync", "memcpy", "memset", or a kernel's family: "gemm", "norm".
    """
    lane: int
    """Position of its lane in `TraceGraph.lanes`."""
    start_s: float
    """Recorded, seconds from the start of the run."""
    end_s: float
    """Recorded, seconds from the start of the run."""
    duration_s: float
    """Time without waiting: less than recorded if it waited for other ops."""
    after: tuple[int, ...] = ()
    """Ops that must end before it starts, in addition to the one before it on its lane."""
    lead_s: float = 0.0
    """Seconds for which the op's lane is blocked before it starts; 0 in all recorded runs."""
    group: int = ALONE
    """Ops of one group start together: the ranks of a collective."""
    step: int = ALONE
    """Position of its iteration in `TraceGraph.steps`."""
    collective: Collective | None = None
    """Set for collectives."""
    blocks: int = 0
    """Thread blocks of its kernel; 0: not recorded."""
    scope: str = ""
    """Modules and ranges that launched it, outermost first: "Llama_0/MLP_3"; empty if not recorded."""

    @property
    def name_in_layer(self) -> str:
        """The name without a layer number, if it has one: the same for the same op of every layer."""
        return _LAYER.sub("layer", self.name)

    @property
    def communicates(self) -> bool:
        """Whether it is a collective."""
        return self.kind in COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a predicted run was predicted from."""

    scenario: Scenario
    """Scenario with the wiring of the run."""
    phase: Phase
    """Passes that the run holds: "prefill", or "decode" for those that a further token takes."""
    weights: tuple[float, ...]
    """How much of each step in `TraceGraph.steps` one prefill, or one further token, takes on average."""
    profile: str | None = None
    """Name or path of the calibration profile that was asked for; None: the cluster's own."""
    step: int = ALONE
    """Position of the step to which the run was cut; ALONE: the run holds every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceGraph:
    """All ranks' ops in issue order: each lane runs its own ops in this order."""

    ops: tuple[TraceOp, ...]
    """Each after the ops it waits for, otherwise in order of time."""
    lanes: tuple[Lane, ...]
    steps: tuple[str, ...] = ()
    """Names of the iterations."""
    notes: tuple[str, ...] = ()
    """What the trace does not record."""
    origin: Origin | None = None
    """Set for a predicted run that holds every op of its passes."""

    @property
    def ranks(self) -> list[int]:
        """Ranks that the trace holds, in order."""
        return sorted({lane.rank for lane in self.lanes})

    @property
    def weights(self) -> dict[str, float]:
        """How much of each step a prediction of it takes on average; empty for a recorded run."""
        if self.origin is None:
            return {}
        weights = self.origin.weights if self.origin.step == ALONE else (1.0,)
        return dict(zip(self.steps, weights, strict=True))

    def queues(self) -> list[list[int]]:
        """Return the positions of the ops of every lane."""
        queues: list[list[int]] = [[] for _ in self.lanes]
        for index, op in enumerate(self.ops):
            queues[op.lane].append(index)
        return queues

    def before_on_lane(self) -> dict[int, int]:
        """Return the positions of ops, each with the op before it on its lane."""
        return {after: before for queue in self.queues() for before, after in pairwise(queue)}

    def awaited(self) -> list[tuple[int, ...]]:
        """Return the positions of all ops that each op waits for, the one before it on its lane included."""
        before = self.before_on_lane()
        return [(*op.after, *([before[index]] if index in before else [])) for index, op in enumerate(self.ops)]

    def launches(self, op: TraceOp) -> list[int]:
        """Return the positions of the calls that enqueued an op."""
        return [before for before in op.after if self.ops[before].kind == "launch"]

    def communication_lanes(self) -> frozenset[int]:
        """Return the device streams, or threads of a CPU backend, that spend most of their time on collectives."""
        lanes = set()
        for lane, queue in enumerate(self.queues()):
            work = [self.ops[index] for index in queue if self.ops[index].kind not in HOST_KINDS | {EARLIER}]
            total_s = sum(op.end_s - op.start_s for op in work)
            comm_s = sum(op.end_s - op.start_s for op in work if op.communicates)
            if comm_s > 0.5 * total_s:
                lanes.add(lane)
        return frozenset(lanes)

    def of_step(self, step: int) -> "TraceGraph":
        """Return one step from time zero; without CPU threads that had launched it before the last step ended."""
        chosen = [index for index, op in enumerate(self.ops) if op.step == step]
        on_device = [op for op in self.ops if self.lanes[op.lane].device]
        first_s = min((op.start_s for op in on_device if op.step == step), default=0.0)
        before_s = max((op.end_s for op in on_device if op.step != step and op.start_s < first_s), default=0.0)
        launched_s = max((self.ops[index].end_s for index in chosen if self.ops[index].kind == "launch"), default=inf)
        if launched_s <= before_s:
            # in the next step they are as far ahead again
            chosen = [index for index in chosen if self.lanes[self.ops[index].lane].device]
        origin = self.origin
        if origin is not None and origin.step == ALONE:
            origin = replace(origin, step=step)
        alone = replace(self.keep(chosen).with_starts(), origin=origin)
        return replace(alone, steps=(self.steps[step],), ops=tuple(replace(op, step=0) for op in alone.ops))

    def with_starts(self) -> "TraceGraph":
        """Let each CPU thread that launches, and waits for nothing before, begin at its recorded time."""
        queues = [queue for queue in self.queues() if any(self.ops[index].kind == "launch" for index in queue)]
        firsts = [self.ops[queue[0]] for queue in queues]
        starts = [
            TraceOp(
                name="start",
                kind="host",
                lane=op.lane,
                start_s=0,
                end_s=op.start_s,
                duration_s=op.start_s,
                step=op.step,
            )
            for op in firsts
            if op.start_s > 0 and not op.after and not self.lanes[op.lane].device
        ]
        moved = (replace(op, after=tuple(before + len(starts) for before in op.after)) for op in self.ops)
        return replace(self, ops=(*starts, *moved))

    def keep(self, chosen: Iterable[int]) -> "TraceGraph":
        """Return the graph of the ops at these positions, from time zero. Dependencies on other ops are dropped."""
        kept = {index: self.ops[index] for index in sorted(chosen)}
        origin_s = min((op.start_s for op in kept.values()), default=0.0)
        return self._of(
            {index: replace(op, start_s=op.start_s - origin_s, end_s=op.end_s - origin_s) for index, op in kept.items()}
        )

    def without(self, dropped: Collection[int]) -> "TraceGraph":
        """Remove ops. An op that depended on a removed op inherits its dependencies, on a stream the op ahead, too."""
        before_on_lane = self.before_on_lane()
        inherited: dict[int, tuple[int, ...]] = {}

        def kept(after: Sequence[int]) -> Iterator[int]:
            for before in after:
                if before in dropped:
                    yield from inherited[before]
                else:
                    yield before

        ops: dict[int, TraceOp] = {}
        for index, op in enumerate(self.ops):
            after = tuple(dict.fromkeys(kept(op.after)))
            if index in dropped:
                ahead = (before_on_lane[index],) if self.lanes[op.lane].device and index in before_on_lane else ()
                inherited[index] = tuple(dict.fromkeys(kept((*op.after, *ahead))))
            else:
                ops[index] = replace(op, after=after)
        return self._of(ops)

    def arranged(self, order: Sequence[int], changed: Mapping[int, TraceOp]) -> "TraceGraph":
        """Return the graph with reordered ops, some replaced; `changed` and its dependencies use present positions."""
        arranged = self._of({index: changed.get(index, self.ops[index]) for index in order})
        return replace(arranged, ops=tuple(replace(op, after=tuple(sorted(op.after))) for op in arranged.ops))

    def _of(self, ops: Mapping[int, TraceOp]) -> "TraceGraph":
        """Return the ops by their present positions, in a new order. Dependencies on other ops are dropped."""
        position = {old: new for new, old in enumerate(ops)}
        placed = (
            replace(op, after=tuple(position[before] for before in op.after if before in position))
            for op in ops.values()
        )
        return replace(self, origin=None, ops=tuple(placed))
