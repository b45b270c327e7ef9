"""Grouped-query attention, and what every kind of attention has.

A kind takes the projections of the residual stream from its layer, one GEMM for each of its `inputs`, the features of
each, and returns partial sums over this rank's heads.

Shapes: B batch, T new tokens, S positions, H query heads, G key/value heads, K head width, N features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor, nn

from runtime.config import EngineConfig, ModelConfig
from runtime.model import kernels
from runtime.model.linear import Linear, RMSNorm
from runtime.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Step:
    """What the layers of one forward pass share."""

    table_2SK: Tensor
    """Cosines and sines by position."""
    position_T: Tensor
    """Of the new tokens."""
    context: int
    """Positions that a fused attention reads, including the new ones."""
    pad_B: Tensor | None = None
    """Positions of padding before each sequence."""

    def part(self, rows: slice, tokens: slice) -> Self:
        """The one of some sequences and some of their new tokens."""
        later = len(self.position_T) - tokens.stop
        pad_B = None if self.pad_B is None else self.pad_B[rows]
        return replace(self, position_T=self.position_T[tokens], context=self.context - later, pad_B=pad_B)

    def attend(
        self,
        engine: EngineConfig,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSK: Tensor,
        scale: float | None = None,
        window: int = 0,
    ) -> Tensor:
        """Causal attention to the last `window` tokens, or to all; returns B, T, H * width of the values."""
        if engine.attention == "math":
            return kernels.math_attention(q_BHTK, k_BGSK, v_BGSK, self.position_T, self.pad_B, scale, window)
        return kernels.flash_attention(q_BHTK, k_BGSK, v_BGSK, self.position_T, self.context, self.pad_B, scale, window)


class GroupedAttention(nn.Module):
    """Queries, keys and values of whole heads; the cache holds keys and values."""

    # the dimension of the sequences in a layer's cache
    sequences = 1

    def __init__(self, config: ModelConfig, shard: Shard, engine: EngineConfig, window: int = 0) -> None:
        super().__init__()
        self.shard, self.engine, self.head_dim, self.window = shard, engine, config.head_dim, window
        self.inputs = ((shard.heads + 2 * shard.kv_heads) * config.head_dim,)
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None for _ in range(2)
        )
        self.o = Linear(config.hidden, shard.heads * config.head_dim, bias=config.out_bias)

    def cache_shape(self, batch: int, positions: int) -> tuple[int, ...]:
        """Of one layer's cache."""
        return (2, batch, self.shard.kv_heads, positions, self.head_dim)

    def forward(self, inputs: Sequence[Tensor], step: Step, cache_2BGSK: Tensor | None) -> Tensor:
        (qkv_BTN,) = inputs
        heads, kv_heads = self.shard.heads, self.shard.kv_heads
        qkv_BTXK = qkv_BTN.unflatten(-1, (heads + 2 * kv_heads, -1))
        q_BTHK, k_BTGK, v_BTGK = qkv_BTXK.split((heads, kv_heads, kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        q_BHTK, k_BGSK, v_BGSK = kernels.rope(
            q_BTHK, k_BTGK, v_BTGK, step.table_2SK, step.position_T, cache_2BGSK, step.pad_B
        )
        output_BTD: Tensor = self.o(step.attend(self.engine, q_BHTK, k_BGSK, v_BGSK, window=self.window))
        return output_BTD
