"""One rank's shard of a decoder layer, with the kinds of attention and feed-forward block that the config says.

Shapes: B batch, T new tokens, D hidden, N features.
"""

from torch import Tensor, nn

from runtime.config import EngineConfig, ModelConfig
from runtime.model import kernels
from runtime.model.attention import GroupedAttention, Step
from runtime.model.feed_forward import MLP, RoutedExperts
from runtime.model.latent import LatentAttention
from runtime.model.linear import Linear, RMSNorm
from runtime.model.shard import Shard
from runtime.model.wiring import Part


class Layer(nn.Module):
    """Attention and feed-forward block; their input projections are one matrix, so that `parallel` runs one GEMM.

    `forward` returns partial sums: the output is their sum over the ranks. The cache is this layer's; without one the
    new tokens attend to each other only.
    """

    def __init__(self, config: ModelConfig, index: int, shard: Shard, engine: EngineConfig) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        width, experts = config.mlp_of(index), config.experts_of(index)
        self.attn_norm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = (
            LatentAttention(config, config.latent, shard, engine)
            if config.latent
            else GroupedAttention(config, shard, engine)
        )
        # of all tokens: the only one of its layer, or shared experts
        self.mlp = MLP(config, shard, width) if width else None
        self.experts = RoutedExperts(config, experts, shard) if experts else None
        attn, mlp = self.attention.inputs, self.mlp.inputs if self.mlp else 0
        self.attn_rows, self.mlp_rows = slice(0, attn), slice(attn, attn + mlp)
        self.inputs = Linear(attn + mlp, config.hidden, bias=config.qkv_bias or config.mlp_bias)

    def norm(self, part: Part) -> RMSNorm:
        """The norm before a block; "both" reads attention's."""
        return self.mlp_norm if part == "mlp" else self.attn_norm

    def forward(self, part: Part, n_BTD: Tensor, step: Step, cache: Tensor | None) -> Tensor:
        if part == "attn":
            return self._attend(self.inputs(n_BTD, self.attn_rows), step, cache)
        if part == "mlp":
            return self._transform(n_BTD, self.inputs(n_BTD, self.mlp_rows) if self.mlp else None)
        wide_BTN = self.inputs(n_BTD)
        attention_BTD = self._attend(wide_BTN[..., self.attn_rows], step, cache)
        return kernels.add(attention_BTD, self._transform(n_BTD, wide_BTN[..., self.mlp_rows]))

    def _attend(self, x_BTN: Tensor, step: Step, cache: Tensor | None) -> Tensor:
        output_BTD: Tensor = self.attention(x_BTN, step, cache)
        return output_BTD

    def _transform(self, n_BTD: Tensor, up_BTN: Tensor | None) -> Tensor:
        parts = [self.mlp(up_BTN)] if self.mlp else []
        parts += [self.experts(n_BTD)] if self.experts else []
        output_BTD: Tensor = parts[0] if len(parts) == 1 else kernels.add(*parts)
        return output_BTD
