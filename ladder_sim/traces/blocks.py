"""Finds the transformer blocks in a trace: what runs between two all-reduces, over and over.

A tensor-parallel layer in the standard wiring ends both its attention and its MLP in an all-reduce. So the stretches
between all-reduces alternate: MLP, attention, MLP, ... Where a stretch equals the one before the last, kernel by
kernel, that pattern is under way; the first block is the stretch before it, whose start the embedding shares.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import HOST_KINDS, TraceGraph, TraceOp

# what surrounds a block's kernels and need not be the same every time
_AROUND = HOST_KINDS | {"sync", "memcpy", "memset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass of one rank; block i is closed by all-reduce i."""

    rank: int
    """Whose."""
    lane: int
    """Where it computes."""
    reduces: tuple[int, ...]
    """All-reduces of attention and MLP in turn."""
    segments: tuple[tuple[int, ...], ...]
    """Ops on `lane` behind each all-reduce, up to the next: the last runs to the end of the pass."""

    @property
    def layers(self) -> int:
        """Two blocks each."""
        return len(self.reduces) // 2


def find_passes(graph: TraceGraph) -> list[Pass]:
    """Every forward pass in the standard wiring, rank by rank.

    Raises
    ------
    UsageError
        There is none.
    """
    passes = [found for rank in sorted({lane.rank for lane in graph.lanes}) for found in _of_rank(graph, rank)]
    if not passes:
        count = sum(op.kind == "all_reduce" for op in graph.ops)
        raise UsageError(
            f"no transformer blocks found: {count} all-reduces, and no stretches between them that alternate as "
            "attention and MLP do",
            hint="give a trace of a tensor-parallel forward pass of two layers or more in the standard wiring",
        )
    return passes


def _of_rank(graph: TraceGraph, rank: int) -> list[Pass]:
    lane = _compute_lane(graph, rank)
    own = [index for index, op in enumerate(graph.ops) if op.lane == lane and op.kind != "all_reduce"]
    reduces = [
        index for index, op in enumerate(graph.ops) if op.kind == "all_reduce" and graph.lanes[op.lane].rank == rank
    ]
    if lane is None or not reduces:
        return []
    # how many ops of the lane come before each all-reduce
    places = [_place(graph, lane, own, index) for index in reduces]
    segments = [tuple(own[start:stop]) for start, stop in zip(places, [*places[1:], len(own)], strict=True)]
    signatures = [_signature(graph.ops[index] for index in segment) for segment in segments]
    passes = []
    at = 0
    while at + 2 < len(reduces) - 1:
        last = at
        # segments at..last alternate; each has an all-reduce at its start and one at its end
        while last + 2 < len(reduces) - 1 and signatures[last] == signatures[last + 2] != signatures[last + 1]:
            last += 1
        if last == at:
            at += 1
            continue
        stop = last + 3
        # layers have two each: an odd one ahead of them is that of an embedding sharded over the vocabulary
        first = at + (stop - at) % 2
        passes.append(
            Pass(rank=rank, lane=lane, reduces=tuple(reduces[first:stop]), segments=tuple(segments[first:stop]))
        )
        at = stop
    return passes


def _signature(ops: Iterable[TraceOp]) -> list[tuple[str, str]]:
    """What a stretch runs, whatever its layer."""
    return [(op.kind, op.kin) for op in ops if op.kind not in _AROUND]


def _compute_lane(graph: TraceGraph, rank: int) -> int | None:
    """Where the rank spends most time on kernels."""
    busy = dict.fromkeys((number for number, lane in enumerate(graph.lanes) if lane.rank == rank), 0.0)
    for op in graph.ops:
        if op.lane in busy and not op.communicates and op.kind not in _AROUND:
            busy[op.lane] += op.end_s - op.start_s
    return max(busy, key=busy.__getitem__, default=None)


def _place(graph: TraceGraph, lane: int, own: list[int], index: int) -> int:
    """Behind the last op of the lane that an all-reduce waits for, or that was issued before it."""
    op = graph.ops[index]
    awaited = [before for before in op.after if graph.ops[before].lane == lane]
    return bisect_right(own, max(awaited, default=index))
