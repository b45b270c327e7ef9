"""Finds the transformer blocks of a trace by their repetition between all-reduces.

In the standard wiring, the attention and the MLP of a tensor-parallel layer both end in an all-reduce. So the kernels
between all-reduces alternate: MLP, attention, MLP, ... Such a segment has the same kernels as the last but one. The
first block is the segment before them, which begins with the embedding.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import HOST_KINDS, TraceGraph, TraceOp

# ops that may differ between equal blocks
_IGNORED = HOST_KINDS | {"sync", "memcpy", "memset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass of one rank. Block i ends with all-reduce i."""

    rank: int
    lane: int
    """The lane that computes."""
    reduces: tuple[int, ...]
    """Positions of the all-reduces of attention and MLP in turn."""
    segments: tuple[tuple[int, ...], ...]
    """Positions of the ops on `lane` from each all-reduce to the next; the last segment runs to the end of the pass."""

    @property
    def layers(self) -> int:
        """Number of layers, of two blocks each."""
        return len(self.reduces) // 2


def find_passes(graph: TraceGraph) -> list[Pass]:
    """Every forward pass in the standard wiring, rank by rank.

    Raises
    ------
    UsageError
        There is no such pass.
    """
    ranks = sorted({lane.rank for lane in graph.lanes})
    passes = [forward for rank in ranks for forward in _of_rank(graph, rank)]
    if not passes:
        if any(op.kind == "all_reduce_norm" for op in graph.ops):
            raise UsageError(
                "the trace's all-reduces hold the norms: no wiring can move one without the other",
                hint="export it with --set stack.fused_allreduce_norm=false",
            )
        count = sum(op.kind == "all_reduce" for op in graph.ops)
        raise UsageError(
            f"no transformer blocks found: the trace has {count} all-reduces, and the kernels between them do not "
            "alternate between attention and MLP",
            hint="give a trace of a tensor-parallel forward pass of at least two layers in the standard wiring",
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
    # number of ops of the lane before each all-reduce
    places = [_place(graph, lane, own, index) for index in reduces]
    segments = [tuple(own[start:stop]) for start, stop in zip(places, [*places[1:], len(own)], strict=True)]
    signatures = [_signature(graph.ops[index] for index in segment) for segment in segments]
    passes = []
    at = 0
    while at + 2 < len(reduces) - 1:
        last = at
        # segments `at` to `last` alternate; each has an all-reduce at both ends
        while last + 2 < len(reduces) - 1 and signatures[last] == signatures[last + 2] != signatures[last + 1]:
            last += 1
        if last == at:
            at += 1
            continue
        stop = last + 3
        # a layer has two all-reduces; an additional first one belongs to an embedding that is sharded by vocabulary
        first = at + (stop - at) % 2
        passes.append(
            Pass(rank=rank, lane=lane, reduces=tuple(reduces[first:stop]), segments=tuple(segments[first:stop]))
        )
        at = stop
    return passes


def _signature(ops: Iterable[TraceOp]) -> list[tuple[str, str]]:
    """The kernels of a segment, without layer numbers."""
    return [(op.kind, op.name_in_layer) for op in ops if op.kind not in _IGNORED]


def _compute_lane(graph: TraceGraph, rank: int) -> int | None:
    """The lane on which the rank spends most time on kernels."""
    busy = dict.fromkeys((number for number, lane in enumerate(graph.lanes) if lane.rank == rank), 0.0)
    for op in graph.ops:
        if op.lane in busy and not op.communicates and op.kind not in _IGNORED:
            busy[op.lane] += op.end_s - op.start_s
    return max(busy, key=busy.__getitem__, default=None)


def _place(graph: TraceGraph, lane: int, own: list[int], index: int) -> int:
    """Number of ops of the lane up to the last that an all-reduce waits for, or that was issued before it."""
    op = graph.ops[index]
    awaited = [before for before in op.after if graph.ops[before].lane == lane]
    return bisect_right(own, max(awaited, default=index))
