"""Attention on one rank, which has its share of the heads: grouped-query or latent.

The first projection of grouped-query attention is column-parallel, its last row-parallel. Every kernel over the context
of all sequences has another one over the prompt's in a mixed step.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.graph.ops import RankPass
from ladder_sim.hf.attention import Gqa, Index, Mla, rank_heads
from ladder_sim.kernels import STATE_BYTES, AttentionShape, BmmShape, CollectiveShape, InContext, MlaShape, SparseShape
from ladder_sim.specs.workload import Format

# a sum of squares, 32-bit
SQUARES_BYTES = 4


def chosen(index: Index | None) -> dict[str, Any]:
    """Return what an index chooses of a cache, as fields of `SparseShape`."""
    return {"top_k": index.top_k, "index_heads": index.heads, "index_dim": index.dim} if index else {}


def attention_shape(rank: RankPass, heads: int, kv_heads: int, head_dim: int, window: int) -> AttentionShape:
    """Return the shape of attention of a rank's new tokens over their contexts; heads are those on the rank."""
    return AttentionShape(
        kernel=rank.stack.attention,
        **rank.lengths,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_element_bytes=rank.kv_element_bytes,
        window=window,
    )


def in_context(
    block: BlockKernels, name: str, shape: InContext, after: Sequence[int], *, weights: float = 0.0
) -> list[int]:
    """Add a kernel over the context, and in a mixed step another one of the prompt; return their positions.

    `weights`: bytes that the first one holds in memory.
    """
    outputs = [block.op(name, "attention", shape, after, weights=weights)]
    if block.rank.prompt:
        prompt = replace(shape, batch=1, q_len=block.rank.prompt, kv_len=block.rank.prompt, shares_step=True)
        start, part = name[: name.rindex(".") + 1] if "." in name else "", name.rpartition(".")[2]
        outputs.append(block.op(f"{start}prompt_{part}", "attention", prompt, after))
    return outputs


def reduce_squares(block: BlockKernels, prefix: str, after: Sequence[int]) -> int:
    """Add the all-reduce of each token's sums of squares, of queries and of keys; return its position."""
    squares = CollectiveShape(message_bytes=float(block.rank.tokens) * 2 * SQUARES_BYTES, own_type=True)
    return block.op(f"{prefix}qk_all_reduce", "all_reduce", squares, after)


def add_gqa(block: BlockKernels, kind: Gqa, prefix: str = "", *, reduces: bool) -> int:
    """Add grouped-query attention, with exchanges between ranks if it `reduces`; return the output's position."""
    width = qkv_width(kind, block.rank.tp)
    bias = width * kind.qkv_bias
    qkv = block.linear(f"{prefix}qkv", width, kind.hidden, [NORM], format=block.rank.format("qkv", kind), bias=bias)
    return attend(block, kind, qkv, prefix, reduces=reduces)


def qkv_width(kind: Gqa, tp: int) -> int:
    """Return the width of one rank's queries, keys and values together, in elements."""
    heads, kv_heads = rank_heads(kind.heads, kind.kv_heads, tp)
    return (heads + 2 * kv_heads) * kind.head_dim


def attend(block: BlockKernels, kind: Gqa, qkv: int, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels from queries, keys and values to attention's output; return the output's position."""
    rank = block.rank
    heads, kv_heads = rank_heads(kind.heads, kind.kv_heads, rank.tp)
    norms_bytes = 0.0
    if kind.rotated and kind.qk_norm == "heads" and rank.stack.fused_qk_norm:
        # by the kernel that rotates
        norms_bytes = 2.0 * kind.head_dim * STATE_BYTES
    elif kind.rotated and kind.qk_norm != "none":
        qkv = _qk_norm(block, kind, qkv, prefix, reduces=reduces)
    # with the cache write
    moved = 2.0 * rank.tokens * qkv_width(kind, rank.tp) * STATE_BYTES
    if not kind.rotated:
        # by a kernel of its own: vLLM, Llama4Attention
        scaled = 2.0 * rank.tokens * heads * kind.head_dim * STATE_BYTES
        qkv, moved = block.elementwise(f"{prefix}q_scale", "rope", scaled, [qkv]), moved - scaled
    name = f"{prefix}{'rope' if kind.rotated else 'cache_write'}"
    rope = block.elementwise(name, "rope", moved, [qkv], norms_bytes)
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
    heads, kv_heads = rank_heads(kind.heads, kind.kv_heads, rank.tp)
    if kind.qk_norm == "all" and rank.tp > 1 and reduces:
        after = reduce_squares(block, prefix, [after])
    for name, normed in (("q_norm", heads), ("k_norm", kv_heads)):
        moved = 2.0 * rank.tokens * normed * kind.head_dim * STATE_BYTES
        held = {"heads": 1, "all": normed}.get(kind.qk_norm, 0)
        weights = float(held * kind.head_dim) * STATE_BYTES
        after = block.elementwise(f"{prefix}{name}", "norm", moved, [after], weights)
    return after


def add_mla(block: BlockKernels, kind: Mla, prefix: str = "", *, reduces: bool) -> int:
    """Add latent attention, which exchanges nothing between ranks; return the output's position.

    Single tokens are absorbed into the latent space, prompts are expanded (vLLM, mla/common.py).
    """
    rank = block.rank
    heads, hidden, qkv = kind.heads // rank.tp, kind.hidden, rank.format("qkv", kind)
    latent, rope = kind.kv_lora_rank, kind.rope_head_dim
    q_width = heads * kind.q_head_dim
    low = kind.q_lora_rank + latent
    if kind.q_lora_rank:
        # every rank has all of it
        down = block.linear(f"{prefix}qkv_a", low + rope, hidden, [NORM], format=qkv)
    else:
        queries = block.linear(f"{prefix}q", q_width, hidden, [NORM], format=qkv)
        down = block.linear(f"{prefix}kv_a", latent + rope, hidden, [NORM], format=qkv)
    moved = 2.0 * rank.tokens * low * STATE_BYTES
    normed = block.elementwise(f"{prefix}latent_norm", "norm", moved, [down], float(low) * STATE_BYTES)
    if kind.q_lora_rank:
        queries = block.linear(f"{prefix}q_b", q_width, kind.q_lora_rank, [normed], format=qkv)
    # queries and the shared key are rotated, the latent vector is written to the cache
    moved = 2.0 * rank.tokens * (heads * rope + latent + rope) * STATE_BYTES
    rotated = block.elementwise(f"{prefix}rope", "rope", moved, [queries, normed])
    shape = MlaShape(
        **rank.lengths,
        heads=heads,
        latent=latent,
        rope=rope,
        nope=kind.nope_head_dim,
        value=kind.value_head_dim,
        kv_element_bytes=rank.kv_element_bytes,
    )
    outputs = []
    if kind.index and kind.index.heads:
        rotated = _index(block, kind, kind.index, prefix, normed, rotated)
    if rank.phase != "prefill":
        into = _per_head(block, f"{prefix}k_absorb", qkv, heads, latent, kind.nope_head_dim, [rotated])
        attended = block.op(f"{prefix}attention", "attention", _chosen(rank, kind, shape), [into])
        outputs.append(_per_head(block, f"{prefix}v_absorb", qkv, heads, kind.value_head_dim, latent, [attended]))
    if rank.phase == "prefill" or rank.prompt:
        expanded = block.linear(
            f"{prefix}kv_b",
            heads * (kind.nope_head_dim + kind.value_head_dim),
            latent,
            [rotated],
            format=qkv,
            kind="expand",
            tokens=rank.prompt or rank.tokens,
            # the absorbed form holds the same weights
            held=rank.phase == "prefill",
        )
        name = f"{prefix}prompt_attention" if rank.prompt else f"{prefix}attention"
        if rank.prompt:
            shape = replace(shape, batch=1, q_len=rank.prompt, kv_len=rank.prompt, shares_step=True)
        outputs.append(block.op(name, "attention", _chosen(rank, kind, shape), [expanded]))
    return block.linear(f"{prefix}o", hidden, heads * kind.value_head_dim, outputs, format=rank.format("out", kind))


def _index(block: BlockKernels, kind: Mla, index: Index, prefix: str, queries: int, rotated: int) -> int:
    """Add what the index needs that chooses which latent vectors attention reads, whole on every rank."""
    rank, qkv = block.rank, block.rank.format("qkv", kind)
    keys = block.linear(f"{prefix}index_k", index.dim + index.heads, kind.hidden, [NORM], format=qkv)
    low = kind.q_lora_rank or kind.hidden
    width = index.heads * index.dim
    queries = block.linear(f"{prefix}index_q", width, low, [queries], format=qkv)
    moved = 2.0 * rank.tokens * (width + index.dim) * STATE_BYTES
    # with the keys' norm
    return block.elementwise(
        f"{prefix}index_rope", "rope", moved, [keys, queries, rotated], weights=2.0 * index.dim * STATE_BYTES
    )


def _chosen(rank: RankPass, kind: Mla, shape: MlaShape) -> MlaShape | SparseShape:
    """Return attention's shape where an index chooses what it reads: single tokens or prompts, in the latent space."""
    if kind.index is None:
        return shape
    return SparseShape(
        batch=shape.batch,
        q_len=shape.q_len,
        kv_len=shape.kv_len,
        shares_step=shape.shares_step,
        form="latent",
        heads=shape.heads,
        token_bytes=float(shape.heads * (2 * shape.latent + shape.rope)) * STATE_BYTES,
        entry_bytes=float(shape.latent + shape.rope) * shape.kv_element_bytes,
        entry_flops=2.0 * shape.heads * (2 * shape.latent + shape.rope),
        kv_element_bytes=shape.kv_element_bytes,
        dense=shape if rank.stack.dense_within_top_k else None,
        **chosen(kind.index),
    )


def _per_head(block: BlockKernels, name: str, qkv: Format, heads: int, n: int, k: int, after: Sequence[int]) -> int:
    shape = BmmShape(heads=heads, m=block.rank.batch * block.rank.q_len, n=n, k=k, format=qkv.name)
    return block.op(name, "bmm", shape, after, weights=float(heads) * n * k * qkv.weight_bytes)
