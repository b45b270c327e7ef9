"""Multi-head or grouped-query attention on one rank, which has its share of the heads.

Its first projection is column-parallel, its last row-parallel.
"""

from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.graph.layers.context import SQUARES_BYTES, attention_shape, in_context
from ladder_sim.kernels import STATE_BYTES, CollectiveShape
from ladder_sim.specs.layers import Gqa


def add(block: BlockKernels, kind: Gqa, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels, with exchanges between ranks if the block `reduces`; return its output's position."""
    width = qkv_width(kind, block.rank.tp)
    bias = width * kind.qkv_bias
    qkv = block.linear(f"{prefix}qkv", width, kind.hidden, [NORM], format=block.rank.format("qkv", kind), bias=bias)
    return attend(block, kind, qkv, prefix, reduces=reduces)


def qkv_width(kind: Gqa, tp: int) -> int:
    """Return the width of one rank's queries, keys and values together, in elements."""
    heads, kv_heads = _heads(kind, tp)
    return (heads + 2 * kv_heads) * kind.head_dim


def _heads(kind: Gqa, tp: int) -> tuple[int, int]:
    return kind.heads // tp, max(1, kind.kv_heads // tp)


def attend(block: BlockKernels, kind: Gqa, qkv: int, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels from queries, keys and values to attention's output; return the output's position."""
    rank = block.rank
    heads, kv_heads = _heads(kind, rank.tp)
    if kind.qk_norm != "none" and kind.rotated:
        qkv = _qk_norm(block, kind, qkv, prefix, reduces=reduces)
    # with the cache write
    moved = 2.0 * rank.tokens * qkv_width(kind, rank.tp) * STATE_BYTES
    if not kind.rotated:
        # by a kernel of its own: vLLM, Llama4Attention
        scaled = 2.0 * rank.tokens * heads * kind.head_dim * STATE_BYTES
        qkv, moved = block.elementwise(f"{prefix}q_scale", "rope", scaled, [qkv]), moved - scaled
    rope = block.elementwise(f"{prefix}{'rope' if kind.rotated else 'cache_write'}", "rope", moved, [qkv])
    shape = attention_shape(rank, heads, kv_heads, kind.head_dim, kind.window)
    sinks = float(heads * STATE_BYTES) if kind.sinks else 0.0
    outputs = in_context(block, f"{prefix}attention", shape, [rope], weights=sinks)
    bias = kind.hidden if kind.out_bias else 0
    return block.linear(
        f"{prefix}o", kind.hidden, heads * kind.head_dim, outputs, format=rank.format("out", kind), bias=bias
    )


def _qk_norm(block: BlockKernels, kind: Gqa, qkv: int, prefix: str, *, reduces: bool) -> int:
    """Add the two kernels of the shard's heads in vLLM's Qwen3Attention: one over queries, one over keys.

    Over all heads, ranks add up the squares of both for each token first, as in vLLM's MiniMaxText01RMSNormTP.
    """
    rank, after = block.rank, qkv
    heads, kv_heads = _heads(kind, rank.tp)
    if kind.qk_norm == "all" and rank.tp > 1 and reduces:
        squares = CollectiveShape(message_bytes=float(rank.tokens) * 2 * SQUARES_BYTES, own_type=True)
        after = block.op(f"{prefix}qk_all_reduce", "all_reduce", squares, [after])
    for name, normed in (("q_norm", heads), ("k_norm", kv_heads)):
        moved = 2.0 * rank.tokens * normed * kind.head_dim * STATE_BYTES
        held = {"heads": 1, "all": normed}.get(kind.qk_norm, 0)
        weights = float(held * kind.head_dim) * STATE_BYTES
        after = block.elementwise(f"{prefix}{name}", "norm", moved, [after], weights)
    return after
