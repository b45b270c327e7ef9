"""Feed-forward blocks: an MLP that every token passes, and routed experts, of which each token passes a few.

Both return partial sums over this rank's part. Every rank has every token and the same router, and computes what its
experts, or its part of their width, add to a token; the all-reduce that ends the block adds that up. So a block of
experts ends as an MLP does, and every wiring works on it unchanged.

Shapes: B batch, T tokens, D hidden, N stacked gate and up features, I width, E experts, L experts of this rank.
"""

import torch
from torch import Tensor, nn

from runtime.config import ModelConfig
from runtime.kinds import Experts
from runtime.model import kernels
from runtime.model.linear import Linear
from runtime.model.shard import Shard


class MLP(nn.Module):
    """Of `width` on all ranks; takes `inputs` projections of the residual stream from its layer."""

    def __init__(self, config: ModelConfig, shard: Shard, width: int) -> None:
        super().__init__()
        self.width, self.activation, self.gated = width, config.activation, config.gated_mlp
        self.inputs = width // shard.ranks * (2 if config.gated_mlp else 1)
        self.down = Linear(config.hidden, width // shard.ranks, bias=config.mlp_bias)

    def forward(self, up_BTN: Tensor) -> Tensor:
        output_BTD: Tensor = self.down(kernels.activate(up_BTN, self.activation, self.gated))
        return output_BTD


class RoutedExperts(nn.Module):
    """The router, whole on every rank, and this rank's part of the experts."""

    def __init__(self, config: ModelConfig, experts: Experts, shard: Shard) -> None:
        super().__init__()
        self.experts, self.activation, self.gated = experts, config.activation, config.gated_mlp
        held = shard.experts(experts.count)
        width = experts.intermediate * shard.ep // shard.ranks
        self.first = held.start
        self.router = Linear(experts.count, config.hidden)
        # float32 in every checkpoint: the choice depends on small differences
        self.choice_bias_E = (
            nn.Parameter(torch.empty(experts.count, dtype=torch.float32)) if experts.biased_choice else None
        )
        self.up_LND = nn.Parameter(torch.empty(len(held), width * (2 if config.gated_mlp else 1), config.hidden))
        self.down_LDI = nn.Parameter(torch.empty(len(held), config.hidden, width))

    def forward(self, n_BTD: Tensor) -> Tensor:
        weight_BTk, chosen_BTk = kernels.route(self.router(n_BTD), self.choice_bias_E, self.experts)
        return kernels.run_experts(
            n_BTD, weight_BTk, chosen_BTk, self.up_LND, self.down_LDI, self.first, self.activation, self.gated
        )
