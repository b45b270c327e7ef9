"""Feed-forward blocks: an MLP that every token passes, and routed experts, of which each token passes a few.

Both return partial sums over this rank's part. Every rank of a group has all tokens of the group and the same router,
and computes what its experts, or its part of their width, add to a token; the all-reduce that ends the block adds that
up. So a block of experts ends as an MLP does, and every wiring works on it unchanged. Where there are several groups,
tokens are dispatched to the ranks of the others (`dispatch.py`).

Shapes: B batch, T tokens, M = B * T, D hidden, N stacked gate and up features, I width, E experts, L experts of this
rank, k experts of a token.
"""

import torch
from torch import Tensor, nn

from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.dispatch import Arriving, exchanged, gathered
from ladder_sim_runtime.model.linear import Linear
from ladder_sim_runtime.model.shard import Shard


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

    def __init__(self, config: ModelConfig, shard: Shard, engine: EngineConfig) -> None:
        super().__init__()
        self.config, self.activation, self.gated = config, config.activation, config.gated_mlp
        self.shard, self.by_rank = shard, engine.dispatch == "all-to-all"
        held = shard.experts(config.experts)
        width = config.expert_intermediate * shard.ep // shard.expert_ranks
        self.first = held.start
        self.router = Linear(config.experts, config.hidden)
        # float32 in every checkpoint: the choice depends on small differences
        self.choice_bias_E = (
            nn.Parameter(torch.empty(config.experts, dtype=torch.float32)) if config.routing.biased_choice else None
        )
        self.up_LND = nn.Parameter(torch.empty(len(held), width * (2 if config.gated_mlp else 1), config.hidden))
        self.down_LDI = nn.Parameter(torch.empty(len(held), config.hidden, width))

    def forward(self, n_BTD: Tensor, exchange: Communicator, *, reduces: bool) -> Tensor | Arriving:
        logits_BTE, config = kernels.score(n_BTD, self.router.weight_NF), self.config
        weight_BTk, chosen_BTk = kernels.choose(
            logits_BTE, self.choice_bias_E, config.routing, config.experts_per_token
        )
        tokens = n_BTD.flatten(0, 1), weight_BTk.flatten(0, 1), chosen_BTk.flatten(0, 1)
        groups = exchange.size
        if groups == 1:
            return self._run(*tokens).view_as(n_BTD)
        if not reduces:
            # nothing is dispatched, and as much computed: this group's tokens, in the place of every group's
            sum_AD = self._run(*(x.repeat(groups, 1) for x in tokens))
            return sum_AD[: len(tokens[0])].view_as(n_BTD)
        if self.by_rank:
            held = [self.shard.experts(self.config.experts, group) for group in range(groups)]
            output = exchanged(exchange, tokens, self._run, held)
        else:
            output = gathered(exchange, tokens, self._run)
        return output.then(lambda sum_MD: sum_MD.view_as(n_BTD))

    def _run(self, x_XD: Tensor, weight_Xk: Tensor, chosen_Xk: Tensor) -> Tensor:
        return kernels.run_experts(
            x_XD, weight_Xk, chosen_Xk, self.up_LND, self.down_LDI, self.first, self.activation, self.gated
        )
