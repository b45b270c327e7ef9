"""One rank's shard of a decoder layer.

Shapes: B batch, T new tokens, S positions, D hidden, N output features, F input features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runtime.config import EngineConfig, ModelConfig
from runtime.model import kernels
from runtime.model.shard import Shard
from runtime.model.wiring import Part


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


class RMSNorm(nn.Module):
    """Root-mean-square norm of the residual stream, or of a sum that is returned with it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight_D = nn.Parameter(torch.empty(config.hidden))
        self.eps = config.norm_eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return kernels.norm(x_BTD, self.weight_D, self.eps)

    def of_sum(self, x_BTD: Tensor, y_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """The sum and its norm."""
        return kernels.add_norm(x_BTD, y_BTD, self.weight_D, self.eps)


class Linear(nn.Module):
    """A linear layer; a call may use some of its rows only."""

    def __init__(self, features: int, inputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight_NF = nn.Parameter(torch.empty(features, inputs))
        # zeros: only some of the rows stacked in one matrix may have biases
        self.bias_N = nn.Parameter(torch.zeros(features)) if bias else None

    def forward(self, x_BTF: Tensor, rows: slice = slice(None)) -> Tensor:
        bias_N = None if self.bias_N is None else self.bias_N[rows]
        return kernels.linear(x_BTF, self.weight_NF[rows], bias_N)


class Layer(nn.Module):
    """Attention and MLP; their input projections are one matrix, so that `parallel` runs them as one GEMM.

    `forward` returns partial sums: the output is their sum over the ranks. The cache is this layer's keys and values;
    without one the new tokens attend to each other only.
    """

    def __init__(self, config: ModelConfig, shard: Shard, engine: EngineConfig) -> None:
        super().__init__()
        self.config, self.shard, self.engine = config, shard, engine
        qkv = (shard.heads + 2 * shard.kv_heads) * config.head_dim
        up = shard.intermediate * (2 if config.gated_mlp else 1)
        self.qkv_rows, self.up_rows = slice(0, qkv), slice(qkv, qkv + up)
        self.attn_norm = RMSNorm(config)
        self.mlp_norm = RMSNorm(config)
        self.qkv_up = Linear(qkv + up, config.hidden, bias=config.qkv_bias or config.mlp_bias)
        self.o = Linear(config.hidden, shard.heads * config.head_dim, bias=config.out_bias)
        self.down = Linear(config.hidden, shard.intermediate, bias=config.mlp_bias)

    def norm(self, part: Part) -> RMSNorm:
        """The norm before a block; "both" reads attention's."""
        return self.mlp_norm if part == "mlp" else self.attn_norm

    def forward(self, part: Part, n_BTD: Tensor, step: Step, cache_2BGSK: Tensor | None) -> Tensor:
        if part == "attn":
            return self._attend(self.qkv_up(n_BTD, self.qkv_rows), step, cache_2BGSK)
        if part == "mlp":
            return self._transform(self.qkv_up(n_BTD, self.up_rows))
        wide_BTN = self.qkv_up(n_BTD)
        attention_BTD = self._attend(wide_BTN[..., self.qkv_rows], step, cache_2BGSK)
        return kernels.add(attention_BTD, self._transform(wide_BTN[..., self.up_rows]))

    def _attend(self, qkv_BTN: Tensor, step: Step, cache_2BGSK: Tensor | None) -> Tensor:
        q_BHTK, k_BGSK, v_BGSK = kernels.rope(
            qkv_BTN, step.table_2SK, step.position_T, self.shard.heads, self.shard.kv_heads, cache_2BGSK, step.pad_B
        )
        if self.engine.attention == "math":
            out_BTF = kernels.math_attention(q_BHTK, k_BGSK, v_BGSK, step.position_T, step.pad_B)
        else:
            out_BTF = kernels.flash_attention(q_BHTK, k_BGSK, v_BGSK, step.position_T, step.context, step.pad_B)
        output_BTD: Tensor = self.o(out_BTF)
        return output_BTD

    def _transform(self, up_BTN: Tensor) -> Tensor:
        output_BTD: Tensor = self.down(kernels.activate(up_BTN, self.config.activation, self.config.gated_mlp))
        return output_BTD


def rope_table(config: ModelConfig, positions: int) -> Tensor:
    """Cosines and sines of every position and channel, 2 x S x K, float32.

    References
    ----------
    RoFormer, arXiv 2104.09864; the stretching of long wavelengths is Llama 3.1's (Hugging Face ``rope_type: llama3``).
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequency = config.rope_theta**-exponent
    if (scaling := config.rope_scaling) is not None:
        turns = scaling.original_positions * frequency / (2 * torch.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / scaling.factor)
    angle_SK = torch.outer(torch.arange(positions, dtype=torch.float32), frequency).repeat(1, 2)
    return torch.stack((angle_SK.cos(), angle_SK.sin()))
