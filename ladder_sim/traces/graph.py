"""A run as a dependency graph: what ran where, when, and after what.

Not a `graph.ops.StepGraph`: the ops of that have shapes from which costs follow, and a stream that follows from their
kind. An op of a trace has neither, but measured times, and runs on any of many streams and CPU threads.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

# kinds of ops that communicate
COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"})
# what a CPU does to keep a device busy: between its calls, and in them
HOST_KINDS = frozenset({"host", "launch"})
_LAYER = re.compile(r"layers?[._]?\d+")
# group of an op that meets no peers; step of an op outside all steps
ALONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A device stream or a CPU thread: its ops run one at a time, in their order."""

    name: str
    """E.g. "stream 7" or "thread 2910249"."""
    rank: int = 0
    """The process it belongs to."""
    device: bool = True
    """A stream of the GPU; False: a CPU thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What is recorded of a collective besides its time."""

    message_bytes: float = 0.0
    """This rank's input; 0: not recorded."""
    group: str = ""
    """Name of the process group."""
    ranks: int = 0
    """Members of the group; 0: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOp:
    """One kernel, copy, call or stretch of CPU work."""

    name: str
    """As recorded."""
    kind: str
    """One of COLLECTIVES, "host", "launch", "sync", "memcpy", "memset", or the family of a kernel: "gemm", "norm", ...
    """
    lane: int
    """Position of its lane."""
    start_s: float
    """Recorded, seconds from the start of the run."""
    end_s: float
    """Recorded."""
    duration_s: float
    """What it takes once everything it waits for is there: less than recorded where it spent time waiting."""
    after: tuple[int, ...] = ()
    """Ops that must have ended before, besides the one before it on its lane."""
    lead_s: float = 0.0
    """Its lane is held this long before it starts; 0 in everything a profiler recorded."""
    group: int = ALONE
    """Ops of one group start together: the ranks of a collective."""
    origin: str = ""
    """Operator that launched it, e.g. "aten::mm"."""
    step: int = ALONE
    """Position of its iteration."""
    collective: Collective | None = None
    """Of a collective."""

    @property
    def kin(self) -> str:
        """Its name without the number of a layer, which some names tell: the same for the same op of every layer."""
        return _LAYER.sub("layer", self.name)

    @property
    def communicates(self) -> bool:
        """Whether it is a collective."""
        return self.kind in COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceGraph:
    """All ranks' ops in issue order: each lane runs its own in the order they stand here."""

    ops: tuple[TraceOp, ...]
    """In order of time."""
    lanes: tuple[Lane, ...]
    """What they run on."""
    steps: tuple[str, ...] = ()
    """Names of the iterations."""
    notes: tuple[str, ...] = ()
    """What the recording does not say."""

    def queues(self) -> list[list[int]]:
        """Positions of every lane's ops."""
        queues: list[list[int]] = [[] for _ in self.lanes]
        for index, op in enumerate(self.ops):
            queues[op.lane].append(index)
        return queues

    def before_on_lane(self) -> dict[int, int]:
        """The op just before each on its lane."""
        return {after: before for queue in self.queues() for before, after in pairwise(queue)}

    def communication_lanes(self) -> frozenset[int]:
        """Device streams, or threads of a CPU backend, that do hardly anything but collectives."""
        found = set()
        for lane, queue in enumerate(self.queues()):
            work = [self.ops[index] for index in queue if self.ops[index].kind not in HOST_KINDS]
            total_s = sum(op.end_s - op.start_s for op in work)
            talk_s = sum(op.end_s - op.start_s for op in work if op.communicates)
            if talk_s > 0.5 * total_s:
                found.add(lane)
        return frozenset(found)

    def of_step(self, step: int) -> "TraceGraph":
        """One iteration by itself, from time zero."""
        return self.keep([index for index, op in enumerate(self.ops) if op.step == step]).with_starts()

    def with_starts(self) -> "TraceGraph":
        """Let each CPU thread that waits for nothing begin when it did: the time until then is its own."""
        firsts = [queue[0] for queue in self.queues() if queue]
        late = [
            op
            for op in (self.ops[index] for index in firsts)
            if op.start_s > 0 and not op.after and not self.lanes[op.lane].device
        ]
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
            for op in late
        ]
        moved = (replace(op, after=tuple(before + len(starts) for before in op.after)) for op in self.ops)
        return replace(self, ops=(*starts, *moved))

    def keep(self, chosen: Iterable[int]) -> "TraceGraph":
        """Only the ops at these positions; what depended on another op no longer does."""
        kept = sorted(chosen)
        position = {old: new for new, old in enumerate(kept)}
        origin_s = min((self.ops[old].start_s for old in kept), default=0.0)
        return replace(
            self,
            ops=tuple(
                replace(
                    op,
                    after=tuple(position[before] for before in op.after if before in position),
                    start_s=op.start_s - origin_s,
                    end_s=op.end_s - origin_s,
                )
                for op in (self.ops[old] for old in kept)
            ),
        )

    def without(self, dropped: Collection[int]) -> "TraceGraph":
        """Take ops out; what depended on one of them depends on what that one depended on."""
        heirs: dict[int, tuple[int, ...]] = {}

        def real(after: Sequence[int]) -> Iterator[int]:
            for before in after:
                if before in dropped:
                    yield from heirs[before]
                else:
                    yield before

        position: dict[int, int] = {}
        ops: list[TraceOp] = []
        for index, op in enumerate(self.ops):
            after = tuple(dict.fromkeys(real(op.after)))
            if index in dropped:
                heirs[index] = after
            else:
                position[index] = len(ops)
                ops.append(replace(op, after=after))
        return replace(self, ops=tuple(replace(op, after=tuple(position[before] for before in op.after)) for op in ops))

    def arranged(self, order: Sequence[int], changed: Mapping[int, TraceOp]) -> "TraceGraph":
        """The ops in another order, some replaced; `changed` and their dependencies are in the present numbering."""
        position = {old: new for new, old in enumerate(order)}
        chosen = (changed.get(old, self.ops[old]) for old in order)
        return replace(
            self,
            ops=tuple(replace(op, after=tuple(sorted(position[before] for before in op.after))) for op in chosen),
        )
