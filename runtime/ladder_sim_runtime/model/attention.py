"""Grouped-query attention, and what every kind of attention has.

A kind takes the projections of the residual stream from its layer, one GEMM for each of its `inputs`, the features of
each, and returns partial sums over this rank's heads.

Shapes: B batch, T new tokens, S positions, H query heads, G key/value heads, K head width, N features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.device import Spans, kind_of
from ladder_sim_runtime.model import attention_kernels, kernels
from ladder_sim_runtime.model.linear import Linear, RMSNorm
from ladder_sim_runtime.model.shard import Shard

# of heads that FlashAttention 2 has: https://github.com/Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp
FLASH_WIDTHS = range(8, 257, 8)


@dataclass(frozen=True, slots=True)
class Step:
    """What the layers of one forward pass share."""

    turn_2TK: Tensor
    """Cosines and sines of the new tokens; with padding, 2 x B x 1 x T x K."""
    position_T: Tensor
    """Positions of the new tokens."""
    context: int
    """Positions that a fused attention reads, including the new ones."""
    pad_B: Tensor | None = None
    """Positions of padding before each sequence."""
    spans: Spans | None = None
    """Spans of the sequences in the cache, where a device's decode attention reads them."""
    comm: Communicator | None = None
    """The ranks whose heads are normalised together; None: each rank's by themselves."""

    def attend(
        self,
        engine: EngineConfig,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSK: Tensor,
        scale: float | None = None,
        window: int = 0,
    ) -> Tensor:
        """Return the causal attention to the last `window` tokens, or to all: B, T, H * width of the values."""
        if engine.attention == "math":
            return attention_kernels.math_attention(q_BHTK, k_BGSK, v_BGSK, self.position_T, self.pad_B, scale, window)
        return attention_kernels.flash_attention(
            q_BHTK, k_BGSK, v_BGSK, self.position_T, self.context, self.pad_B, scale, window, self.spans
        )


class GroupedAttention(nn.Module):
    """Queries, keys and values of whole heads; the cache holds keys and values."""

    # the dimension of the sequences in a layer's cache
    sequences = 1

    def __init__(self, config: ModelConfig, shard: Shard, engine: EngineConfig, window: int = 0) -> None:
        super().__init__()
        self.shard, self.engine, self.head_dim, self.window = shard, engine, config.head_dim, window
        self.inputs = ((shard.heads + 2 * shard.kv_heads) * config.head_dim,)
        self.has_joint_norms = config.qk_norm == "all"
        normed = (shard.heads, shard.kv_heads) if self.has_joint_norms else (1, 1)
        self.q_norm, self.k_norm = (
            RMSNorm(heads * config.head_dim, config.norm_eps) if config.qk_norm != "none" else None for heads in normed
        )
        self.o = Linear(config.hidden, shard.heads * config.head_dim, bias=config.out_bias)

    def flash_decodes(self, like: Tensor) -> bool:
        """Whether decode steps run the device's own attention, for tensors like this one."""
        return (
            self.engine.attention == "flash"
            and kind_of(like).has_flash_decode
            and like.dtype in (torch.bfloat16, torch.float16)
            and self.head_dim in FLASH_WIDTHS
        )

    def cache(self, layers: int, batch: int, positions: int, like: Tensor) -> Tensor:
        """Return an empty cache of several layers, L x 2 x B x G x S x K."""
        kv_heads, width = self.shard.kv_heads, self.head_dim
        if self.flash_decodes(like):
            return like.new_zeros((layers, 2, batch, positions, kv_heads, width)).transpose(3, 4)
        return like.new_zeros((layers, 2, batch, kv_heads, positions, width))

    def cache_tensors(self, cache_2BGSK: Tensor | None) -> tuple[Tensor, ...]:
        """Return the keys and values of one layer's cache; empty if there is no cache."""
        return () if cache_2BGSK is None else (cache_2BGSK[0], cache_2BGSK[1])

    def forward(self, inputs: Sequence[Tensor], step: Step, cache: Sequence[Tensor]) -> Tensor:
        (qkv_BTN,) = inputs
        heads, kv_heads = self.shard.heads, self.shard.kv_heads
        qkv_BTXK = qkv_BTN.unflatten(-1, (heads + 2 * kv_heads, -1))
        q_BTHK, k_BTGK, v_BTGK = qkv_BTXK.split((heads, kv_heads, kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            if self.has_joint_norms:
                q_BTHK, k_BTGK = _joint(self.q_norm, q_BTHK, self.k_norm, k_BTGK, step.comm)
            else:
                q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        q_BHTK, k_BGSK, v_BGSK = attention_kernels.rope(q_BTHK, k_BTGK, v_BTGK, step.turn_2TK, step.position_T, cache)
        output_BTD: Tensor = self.o(step.attend(self.engine, q_BHTK, k_BGSK, v_BGSK, window=self.window))
        return output_BTD


def _joint(
    q_norm: RMSNorm, q_BTHK: Tensor, k_norm: RMSNorm, k_BTGK: Tensor, comm: Communicator | None
) -> tuple[Tensor, Tensor]:
    """Return queries and keys, each normalised over all heads.

    A mean over all heads is the mean of the ranks': each has as many, and as many ranks have each key/value head.
    """
    square_2BT = kernels.mean_squares(q_BTHK, k_BTGK, comm.size if comm else 1)
    if comm:
        comm.all_reduce(square_2BT, blocking=True).wait()
    return (
        kernels.norm_heads(q_BTHK, square_2BT[0], q_norm.weight_D, q_norm.eps),
        kernels.norm_heads(k_BTGK, square_2BT[1], k_norm.weight_D, k_norm.eps),
    )
