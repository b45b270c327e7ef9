"""Finds the transformer blocks of a trace by what runs between its all-reduces.

In the standard wiring, the attention and the MLP of a tensor-parallel layer both end in an all-reduce. So the kernels
between all-reduces alternate: MLP, attention, MLP, ... Layers may be of several kinds (sliding windows, experts): every
segment has the kernels of one of the attentions, or of one of the MLPs. The first block is the segment before them,
which begins with the embedding; a pass ends with the LM head, sampling or the loss, and on a pipeline stage where the
next micro-batch is received. Segments that all attend are layers with one all-reduce, whose blocks are not apart.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import DRAWN, EARLIER, HOST_KINDS, REDUCES, WHOLE_GRAPH, TraceGraph, TraceOp

# ops that may differ between equal blocks
_IGNORED = HOST_KINDS | {EARLIER, "sync", "memcpy", "memset"}
# a block multiplies matrices
_MULTIPLIES = frozenset({"gemm", "bmm", "expand", "experts"})
# between two passes
_BETWEEN_PASSES = frozenset({"embedding", "lm_head", "sample", "loss"})
# all-reduces with a block before and behind: two layers have so many
_MIN_SEGMENTS = 3
# of the segments of a pass, those whose like occurs again
_MIN_REPEATED = 0.5

# kinds and names of a segment's kernels
Signature = tuple[tuple[str, str], ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """How much of a run the passes are."""

    layers: int
    """Number of layers of the longest pass."""
    passes: int
    """Number of passes of one rank."""
    covered: int
    """All-reduces that belong to a pass."""
    reduces: int
    """Number of all-reduces of the run."""

    @property
    def share(self) -> float:
        """Share of the all-reduces that belong to a pass."""
        return self.covered / self.reduces if self.reduces else 1.0


def cover(graph: TraceGraph) -> Cover:
    """Return what `find_passes` covers of a trace; a predicted run says by itself what it holds."""
    if graph.origin is not None:
        reduces = sum(op.kind in REDUCES for op in graph.ops)
        layers = graph.origin.scenario.model.layers
        return Cover(layers=layers, passes=len(graph.steps), covered=reduces, reduces=reduces)
    passes = find_passes(graph)
    return Cover(
        layers=max(forward.layers for forward in passes),
        passes=sum(forward.rank == passes[0].rank for forward in passes),
        covered=sum(len(forward.reduces) for forward in passes),
        reduces=sum(op.kind in REDUCES for op in graph.ops),
    )


def find_passes(graph: TraceGraph) -> list[Pass]:
    """Return every forward pass in the standard wiring, rank by rank; raise an error if there is none."""
    passes = [forward for rank in graph.ranks for forward in _of_rank(graph, rank)]
    if not passes:
        if any(op.kind == WHOLE_GRAPH for op in graph.ops):
            raise UsageError(
                "no transformer blocks found: the CUDA graphs were recorded without their kernels",
                hint="record with nsys profile --cuda-graph-trace=node",
            )
        if DRAWN in graph.notes:
            raise UsageError(
                f"no transformer blocks found: the trace is {DRAWN}",
                hint="export it with --variant standard, or without --set jitter",
            )
        count = sum(op.kind in REDUCES for op in graph.ops)
        scatters = any(op.kind == "reduce_scatter" for op in graph.ops)
        plain = ", without sequence parallelism or sharded weights" if scatters else ""
        raise UsageError(
            f"no transformer blocks found: the trace has {count} all-reduces, and the kernels between them do not "
            "alternate between attention and MLP, or do not wait for them",
            hint=f"give a trace of a tensor-parallel forward pass of at least two layers in the standard wiring{plain}",
        )
    return passes


def _of_rank(graph: TraceGraph, rank: int) -> list[Pass]:
    lane = _compute_lane(graph, rank)
    own = [index for index, op in enumerate(graph.ops) if op.lane == lane and op.kind not in REDUCES]
    reduces = [index for index, op in enumerate(graph.ops) if op.kind in REDUCES and graph.lanes[op.lane].rank == rank]
    if lane is None or not reduces:
        return []
    ahead = graph.before_on_lane()
    # number of ops of the lane before each all-reduce
    places = [_place(graph, lane, own, index, ahead.get(index)) for index in reduces]
    segments = [tuple(own[start:stop]) for start, stop in zip(places, [*places[1:], len(own)], strict=True)]
    passes = []
    for first, end in _runs(graph, reduces, segments):
        start, stop = _layers(graph, segments, first, end)
        forward = Pass(rank=rank, lane=lane, reduces=tuple(reduces[start:stop]), segments=tuple(segments[start:stop]))
        if _is_awaited(graph, forward):
            passes.append(forward)
    return passes


def _runs(graph: TraceGraph, reduces: Sequence[int], segments: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the first all-reduce of each pass, and the one behind its last: the blocks between them alternate."""
    first = 0
    # kinds of blocks at even and at odd places
    known: tuple[Counter[Signature], Counter[Signature]] = (Counter(), Counter())
    for place in range(len(reduces)):
        signature = _signature([graph.ops[index] for index in segments[place]])
        ends = place + 1 == len(reduces) or graph.ops[reduces[place]].step != graph.ops[reduces[place + 1]].step
        alike, others = known[place % 2], known[(place + 1) % 2]
        kinds = {kind for kind, _ in signature}
        ends = ends or kinds.isdisjoint(_MULTIPLIES) or not kinds.isdisjoint(_BETWEEN_PASSES)
        ends = ends or _receives(graph, segments[place]) or _heads(signature, alike)
        if ends or signature in others or (_attends(signature) and any(map(_attends, others))):
            if _repeats(known):
                yield first, place + 1
            first = place + ends
            known = (Counter(), Counter())
        if not ends:
            alike[signature] += 1


def _layers(graph: TraceGraph, segments: Sequence[tuple[int, ...]], first: int, stop: int) -> tuple[int, int]:
    signatures = (_signature([graph.ops[index] for index in segments[place]]) for place in range(first, stop - 1))
    attention = next((place for place, signature in enumerate(signatures, first) if _attends(signature)), None)
    if attention is None:
        # an additional first one belongs to an embedding that is sharded by vocabulary
        return first + (stop - first) % 2, stop
    start = first + (attention + 1 - first) % 2
    return start, stop - (stop - start) % 2


def _attends(signature: "Signature") -> bool:
    return any(kind == "attention" for kind, _ in signature)


def _heads(signature: "Signature", alike: Iterable["Signature"]) -> bool:
    """Whether it is an attention like those before, behind a GEMM: that of a head whose other kernels are not known."""
    blocks = (tuple(dropwhile(lambda kernel: kernel[0] not in _MULTIPLIES, block)) for block in alike)
    ahead = (signature[: -len(block)] for block in blocks if block and signature[-len(block) :] == block)
    return _attends(signature) and any(kind in _MULTIPLIES for kernels in ahead for kind, _ in kernels)


def _receives(graph: TraceGraph, segment: Iterable[int]) -> bool:
    """Whether a segment computes with what another pipeline stage sent."""
    ops = (graph.ops[index] for index in segment)
    return any("send_recv" in {op.kind, *(graph.ops[before].kind for before in op.after)} for op in ops)


def _repeats(known: Iterable["Counter[Signature]"]) -> bool:
    counts = [count for kinds in known for count in kinds.values()]
    repeated = sum(count for count in counts if count > 1)
    return sum(counts) >= _MIN_SEGMENTS and repeated >= _MIN_REPEATED * sum(counts)


def _is_awaited(graph: TraceGraph, forward: Pass) -> bool:
    """Whether computation waits for most all-reduces: nothing waits for those of gradients until the end of a step."""
    awaited = sum(
        graph.ops[reduce].lane == forward.lane or any(reduce in graph.ops[index].after for index in segment)
        for reduce, segment in zip(forward.reduces, forward.segments, strict=True)
    )
    return 2 * awaited >= len(forward.reduces)


def _signature(ops: Iterable[TraceOp]) -> Signature:
    return tuple((op.kind, op.name_in_layer) for op in ops if op.kind not in _IGNORED)


def _compute_lane(graph: TraceGraph, rank: int) -> int | None:
    """Return the lane on which a rank spends most time on kernels; None if it has no lane."""
    busy = dict.fromkeys((number for number, lane in enumerate(graph.lanes) if lane.rank == rank), 0.0)
    for op in graph.ops:
        if op.lane in busy and not op.communicates and op.kind not in _IGNORED:
            busy[op.lane] += op.end_s - op.start_s
    return max(busy, key=busy.__getitem__, default=None)


def _place(graph: TraceGraph, lane: int, own: list[int], index: int, ahead: int | None) -> int:
    """Return the number of ops of the lane up to the last that is ahead of an all-reduce.

    The all-reduce waits for that op or, if it waits for none of the lane, was issued after it.
    On CPUs its thread may wake up `ahead` of it, and wait for the call meanwhile.
    """
    after = graph.ops[index].after
    if ahead is not None and graph.ops[ahead].kind in HOST_KINDS:
        after += graph.ops[ahead].after
    awaited = [before for before in after if graph.ops[before].lane == lane]
    return bisect_right(own, max(awaited, default=index))
