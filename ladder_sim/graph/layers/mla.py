"""Multi-head latent attention on one rank, maybe with an index that chooses what it reads.

Single tokens are absorbed into the latent space, prompts are expanded (vLLM, mla/common.py).
"""

from collections.abc import Sequence
from dataclasses import replace

from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.graph.layers.context import chosen
from ladder_sim.hf.attention import Index, Mla
from ladder_sim.kernels import STATE_BYTES, BmmShape, MlaShape, SparseShape
from ladder_sim.specs.workload import Format


def add(block: BlockKernels, kind: Mla, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels, none of which exchanges anything between ranks; return the output's position."""
    rank = block.rank
    heads, hidden, qkv = kind.heads // rank.tp, kind.hidden, rank.format("qkv", kind)
    latent, rope = kind.kv_lora_rank, kind.rope_head_dim
    q_width = heads * kind.q_head_dim
    low = kind.q_lora_rank + latent
    norm_moved, norm_weights = 2.0 * rank.tokens * low * STATE_BYTES, float(low) * STATE_BYTES
    if kind.q_lora_rank:
        # every rank has all of it
        down = block.linear(f"{prefix}qkv_a", low + rope, hidden, [NORM], format=qkv)
        normed = block.elementwise(f"{prefix}latent_norm", "norm", norm_moved, [down], norm_weights)
        queries = block.linear(f"{prefix}q_b", q_width, kind.q_lora_rank, [normed], format=qkv)
    else:
        queries = block.linear(f"{prefix}q", q_width, hidden, [NORM], format=qkv)
        down = block.linear(f"{prefix}kv_a", latent + rope, hidden, [NORM], format=qkv)
        normed = block.elementwise(f"{prefix}latent_norm", "norm", norm_moved, [down], norm_weights)
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
        attended = block.op(f"{prefix}attention", "attention", _chosen(kind, shape), [into])
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
        outputs.append(block.op(name, "attention", _chosen(kind, shape), [expanded]))
    return block.linear(f"{prefix}o", hidden, heads * kind.value_head_dim, outputs, format=rank.format("out", kind))


def _index(block: BlockKernels, kind: Mla, index: Index, prefix: str, queries: int, rotated: int) -> int:
    """Add what the index needs that chooses which latent vectors attention reads, whole on every rank."""
    rank, qkv = block.rank, block.rank.format("qkv", kind)
    keys = block.linear(f"{prefix}index_k", index.dim + index.heads, kind.hidden, [NORM], format=qkv)
    low = kind.q_lora_rank or kind.hidden
    width = index.heads * index.dim
    queries = block.linear(f"{prefix}index_q", width, low, [queries], format=qkv)
    moved = 2.0 * rank.tokens * (width + index.dim) * STATE_BYTES
    return block.elementwise(f"{prefix}index_rope", "rope", moved, [keys, queries, rotated])


def _chosen(kind: Mla, shape: MlaShape) -> MlaShape | SparseShape:
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
        **chosen(kind.index),
    )


def _per_head(block: BlockKernels, name: str, qkv: Format, heads: int, n: int, k: int, after: Sequence[int]) -> int:
    shape = BmmShape(heads=heads, m=block.rank.batch * block.rank.q_len, n=n, k=k, format=qkv.name)
    return block.op(name, "bmm", shape, after, weights=float(heads) * n * k * qkv.weight_bytes)
