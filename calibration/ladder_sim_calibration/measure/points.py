"""What a calibration measures: ops of a model's shards, a grid around them, launches, collectives by group of ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ladder_sim.hf.feed_forward import Moe
from ladder_sim.kernels import STATE_BYTES
from ladder_sim.specs.model import ModelSpec
from ladder_sim_calibration.fit.samples import BESIDE, CURVES, ELEMENTWISE, HELD, SUSTAINED, Sample


class Layout(NamedTuple):
    """A number of nodes, and of ranks on each."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int:
        """On all nodes."""
        return self.nodes * self.per_node


def layouts(world: Layout) -> list[Layout]:
    """Return every layout of two ranks or more whose groups fill `world`.

    Examples
    --------
    >>> [tuple(layout) for layout in layouts(Layout(2, 4))]
    [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
    """
    every = (Layout(nodes, per_node) for nodes in _divisors(world.nodes) for per_node in _divisors(world.per_node))
    return [layout for layout in every if layout.ranks > 1]


def groups(layout: Layout, world: Layout) -> list[list[int]]:
    """Return the ranks of each group: neighbours in a node, and their counterparts on the nodes that follow.

    Examples
    --------
    >>> groups(Layout(2, 2), Layout(2, 4))
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    return [
        [
            node * world.per_node + place
            for node in range(n, n + layout.nodes)
            for place in range(p, p + layout.per_node)
        ]
        for n in range(0, world.nodes, layout.nodes)
        for p in range(0, world.per_node, layout.per_node)
    ]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


# tokens of a GEMM
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# the same on the grid around the shards' shapes
GRID_ROWS = (1, 16, 256, 4096)
# of attention
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
# of attention, with all KV heads of a rank each
SEQUENCES = (1, 4, 16)
# whose next tokens are chosen
SAMPLED = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SAMPLING = ("sample_greedy", "sample_top_k", "sample_top_p")
# bytes of elementwise kernels: 4 KB to 256 MB
MOVED = tuple(4.0**power * 4096 for power in range(9))
# bytes of collectives: 1 KB to 256 MB
MESSAGES = tuple(4.0**power * 1024 for power in range(10))
# bytes of all-reduces that overlap a kernel: 16 KB to 64 MB
OVERLAP_MESSAGES = tuple(8.0**power * 16384 for power in range(5))
# that kernel: tokens of a GEMM, as a reduction, a library's bound by memory and one bound by arithmetic, and context of
# an attention
OVERLAP_ROWS, OVERLAP_CONTEXT = (1, 16, 1024), 4096
# tokens of GEMMs next to held SMs, all bound by the memory: as a reduction, and by kernels of a library
HELD_ROWS = (1, 2, 4, 8, 16, 64)
# SMs that NCCL's channels and engines' kernels hold, and bytes that elementwise kernels move next to them: more than a
# cache holds
HELD_SMS, HELD_MOVED = (4, 8, 16, 24), 2.0**28
# the same of a CPU: threads, one on each core of the smallest machine that has two ranks
HELD_THREADS, HELD_CPU_MOVED = (1, 2), 2.0**22
# bytes of all-reduces that are started on a stream of their own: small, so that the start is not lost in the rest
QUEUED_MESSAGE = 16384.0


class Shard(NamedTuple):
    """One rank's part of a model."""

    gemms: tuple[tuple[int, int], ...]
    """Outputs and inputs of QKV, gate/up, both as one GEMM, attention's output, down."""
    heads: tuple[tuple[int, int], ...]
    """Outputs and inputs of the LM head: whole, and split over the vocabulary."""
    kv_heads: int
    group: int
    """Query heads per KV head."""
    head_dim: int

    def cache(self, sequences: int = 1) -> dict[str, float]:
        """Return the coordinates of the shard's attention, without lengths."""
        return {"batch_kv_heads": sequences * self.kv_heads, "group": self.group, "head_dim": self.head_dim}


def ops_of(
    models: Sequence[ModelSpec],
    degrees: Sequence[int],
    world: Layout,
    *,
    cuda: bool = False,
    overlap: bool = False,
    most: float = math.inf,
) -> list[Sample]:
    """List every op to measure, without its time, in the order of the first round.

    Shards are of each model at each tensor-parallel degree that divides it, collectives of every group size that
    divides the ranks. With `cuda` streams and graphs are measured, with `overlap` kernels next to SMs, or threads, that
    are held. `most` limits tokens of a GEMM, the context, and KB of a message or moved.
    """
    parts = [(model, tp) for model in models for tp in degrees if not model.partition_problem(tp)]
    shards = [_shard(*part) for part in parts]
    every = [
        *(op for shard in shards for op in (*_gemms(shard.gemms, ROWS), *_attention(shard))),
        *(op for part in parts for op in _experts(*part)),
        *(_op(kind, bytes=size) for kind in ELEMENTWISE for size in MOVED),
        *_launches(cuda=cuda),
        # over the whole vocabulary: every rank has all logits by then
        *(_op(op, batch=each, vocab=model.vocab) for model in models for each in SAMPLED for op in SAMPLING),
        *_collectives(world, cuda=cuda),
        *(op for shard in shards for op in _held(shard, cuda=cuda) if overlap),
        *(op for shard in shards for op in _overlaps(shard, world)),
        *(op for shard in shards for op in _gemms(shard.heads, ROWS)),
        *(_longest(shard) for shard in shards if cuda),
        *_gemms(_grid_around([gemm for shard in shards for gemm in shard.gemms]), GRID_ROWS),
        # each is compiled first, for seconds
        *(replace(op, op=f"math_{op.op}") for shard in shards for op in _attention(shard) if "kv_len" in op.point),
    ]
    return list({op.key: op for op in every if _size(op) <= most}.values())


def _shard(model: ModelSpec, tp: int) -> Shard:
    heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
    qkv, up = (heads + 2 * kv_heads) * model.head_dim, model.intermediate // tp * (1 + model.gated_mlp)
    inputs = ((qkv, model.hidden), (up, model.hidden), (qkv + up, model.hidden))
    outputs = ((model.hidden, heads * model.head_dim), (model.hidden, model.intermediate // tp))
    lm_heads = ((model.vocab, model.hidden), (-(-model.vocab // tp), model.hidden))
    return Shard((*inputs, *outputs), lm_heads, kv_heads, heads // kv_heads, model.head_dim)


def _gemms(weights: Sequence[tuple[int, int]], rows: Sequence[int]) -> Iterator[Sample]:
    for n, k in weights:
        for m in rows:
            yield _op("gemm", m=m, n=n, k=k)


def _longest(shard: Shard) -> Sample:
    """Return the longest GEMM of a long prompt, to be run until the GPU's clock has settled."""
    n, k = max(shard.gemms, key=math.prod)
    return _op(SUSTAINED, m=max(ROWS), n=n, k=k)


def _grid_around(weights: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the powers of two that span weights' rows and columns, up to twice the largest weight's elements."""
    if not weights:
        return []
    # from the last power below the smallest side to the first above the largest
    n, k = (
        [2**power for power in range(min(side).bit_length() - 1, (max(side) - 1).bit_length() + 1)]
        for side in zip(*weights, strict=True)
    )
    elements = 2 * max(rows * columns for rows, columns in weights)
    return [(rows, columns) for rows in n for columns in k if rows * columns <= elements]


def _attention(shard: Shard) -> Iterator[Sample]:
    for length in CONTEXTS:
        for sequences in SEQUENCES:
            yield _op("attention_prefill", q_len=length, **shard.cache(sequences))
            yield _op("attention_decode", kv_len=length, **shard.cache(sequences))


def _experts(model: ModelSpec, tp: int) -> Iterator[Sample]:
    """Yield the GEMMs of routers and shared experts, and routed experts, split over all ranks or distributed."""
    for layer in dict.fromkeys(kind.feed_forward for kind in model.kinds):
        if not isinstance(layer, Moe):
            continue
        expert, shared = layer.expert, layer.shared
        gemms = [(layer.experts, expert.hidden)]
        if shared:
            gemms += [(shared.up_width // tp, shared.hidden), (shared.hidden, shared.width // tp)]
        yield from _gemms(gemms, ROWS)
        shape = {"hidden": expert.hidden, "width": expert.width, "experts": layer.experts}
        for expert_tp, ep in dict.fromkeys(((tp, 1), (1, tp))):
            if not layer.expert_problem(ep, expert_tp):
                for tokens in ROWS:
                    split = {"expert_tp": expert_tp, "ep": ep, "tokens": tokens}
                    yield _op("experts", **shape, top_k=layer.experts_per_token, **split)


def _launches(*, cuda: bool) -> Iterator[Sample]:
    yield _op("eager_launch")
    if cuda:
        yield _op("graph_launch")
        yield _op("graph_kernel")
        for streams in (1, 2):
            yield _op("queued_kernel", streams=streams)


def _collectives(world: Layout, *, cuda: bool) -> Iterator[Sample]:
    for layout in layouts(world):
        for op, (_, algorithm) in CURVES.items():
            # others than NCCL's, or gloo's, need memory that the GPUs of a node share
            if algorithm == "nccl" or (cuda and layout.nodes == 1):
                for size in MESSAGES:
                    yield _op(op, bytes=size, ranks=layout.ranks, nodes=layout.nodes)
    if cuda and world.per_node > 1:
        for streams in (1, 2):
            yield _op("queued_all_reduce", streams=streams, bytes=QUEUED_MESSAGE, ranks=world.per_node, nodes=1)


def _overlaps(shard: Shard, world: Layout) -> Iterator[Sample]:
    """Yield the down projection and attention, each during an all-reduce of all ranks in the node."""
    if world.per_node == 1:
        return
    n, k = shard.gemms[-1]
    for size in OVERLAP_MESSAGES:
        message = {"bytes": size, "ranks": world.per_node, "nodes": 1}
        for m in OVERLAP_ROWS:
            yield _op("gemm_beside_all_reduce", m=m, n=n, k=k, **message)
        yield _op("attention_decode_beside_all_reduce", kv_len=OVERLAP_CONTEXT, **shard.cache(), **message)


def _held(shard: Shard, *, cuda: bool) -> Iterator[Sample]:
    """Yield GEMMs of few tokens, decode attention and elementwise kernels during a hold of the processor."""
    counts, moved = (HELD_SMS, HELD_MOVED) if cuda else (HELD_THREADS, HELD_CPU_MOVED)
    for count in counts:
        for n, k in shard.gemms:
            for m in HELD_ROWS:
                yield _op(f"gemm{BESIDE}{HELD}", m=m, n=n, k=k, held=count)
        yield _op(f"attention_decode{BESIDE}{HELD}", kv_len=OVERLAP_CONTEXT, **shard.cache(), held=count)
        for kind in ("add", "norm"):
            yield _op(f"{kind}{BESIDE}{HELD}", bytes=moved, held=count)


def _op(op: str, **point: float) -> Sample:
    return Sample(op=op, point={name: float(value) for name, value in point.items()}, seconds=None)


def _size(op: Sample) -> float:
    """Return the size of an op, in tokens or KiB, which `ops_of` compares with its limit `most`."""
    point = op.point
    tokens = max(point.get(name, 0.0) for name in ("m", "q_len", "kv_len", "tokens"))
    logits_bytes = point.get("batch", 0.0) * point.get("vocab", 0.0) * STATE_BYTES
    return max(tokens, max(point.get("bytes", 0.0), logits_bytes) / 1024.0)
