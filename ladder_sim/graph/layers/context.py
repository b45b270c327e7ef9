"""Kernels over the context of every sequence, and in a mixed step another one over the prompt's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ladder_sim.graph.block import BlockKernels
from ladder_sim.graph.rank import RankPass
from ladder_sim.hf.attention import Index
from ladder_sim.kernels import AttentionShape, InContext

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
