"""One rank's shard of a decoder layer, with the kinds of attention and feed-forward block that the config says.

Shapes: B batch, T new tokens, D hidden, N features.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ladder_sim.wirings.layout import Block
from ladder_sim.wirings.rules import Part
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.attention import GroupedAttention, Step
from ladder_sim_runtime.model.dispatch import Arriving, arrived
from ladder_sim_runtime.model.feed_forward import MLP, RoutedExperts
from ladder_sim_runtime.model.latent import LatentAttention
from ladder_sim_runtime.model.linear import Linear, RMSNorm
from ladder_sim_runtime.model.shard import Shard


class Layer(nn.Module):
    """Attention and feed-forward block; their input projections are one matrix, so that `parallel` runs one GEMM.

    `forward` returns partial sums: the output is their sum over the ranks. The cache is this layer's; without one the
    new tokens attend to each other only.
    """

    # of all tokens: the only one of its layer, or shared experts; a layer of routed experts may have none
    mlp: MLP

    def __init__(self, config: ModelConfig, index: int, shard: Shard, engine: EngineConfig) -> None:
        super().__init__()
        self.config, self.index, self.shard = config, index, shard
        width, has_experts = config.mlp_of(index), config.has_experts(index)
        self.attn_norm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = (
            LatentAttention(config, shard, engine)
            if config.latent
            else GroupedAttention(config, shard, engine, config.window_of(index))
        )
        if width:
            self.mlp = MLP(config, shard, width)
        self.experts = RoutedExperts(config, shard, engine) if has_experts else None
        # where both blocks begin with one GEMM of the same tokens, `parallel` runs them as one
        self.is_wide = not (config.latent or has_experts)
        attn, mlp = sum(self.attention.inputs), self.mlp.inputs if width else 0
        self.mlp_rows = slice(attn, attn + mlp)
        self.inputs = Linear(attn + mlp, config.hidden, bias=config.qkv_bias or config.mlp_bias)

        # of the wiring in the config itself
        lanes = config.learned_of(index).items()
        self.learned = nn.ParameterDict({part: nn.Parameter(torch.ones(count)) for part, count in lanes})

    @property
    def has_mlp(self) -> bool:
        """Whether there is an MLP that every token passes."""
        return self.config.mlp_of(self.index) > 0

    def norms(self, part: Part) -> tuple[RMSNorm | None, RMSNorm | None]:
        """Return the norms before and behind a block, of which there is one; "both" reads attention's norm."""
        norm = self.mlp_norm if part == "mlp" else self.attn_norm
        return (None, norm) if self.config.norms_behind else (norm, None)

    def forward(
        self, block: Block, n_BTD: Tensor, step: Step, cache: Tensor | None, exchange: Communicator
    ) -> Tensor | Arriving:
        if block.part == "mlp":
            return self._transform(n_BTD, exchange, reduces=block.reduces)
        held = self.attention.cache_tensors(cache)
        if block.part == "attention":
            return self._attend(n_BTD, step, held)
        if self.is_wide:
            return self._both(n_BTD, step, held)
        attended_BTD = self._attend(n_BTD, step, held)
        return kernels.add(attended_BTD, arrived(self._transform(n_BTD, exchange, reduces=block.reduces)))

    def compile_by(self, compiled: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> None:
        """Compile what is computed between messages, whatever the wiring.

        Experts, whose sizes are numbers, stay, and so does attention with a message in it.
        """
        has_message = self.config.qk_norm == "all" and self.shard.ranks > 1
        for name in ("_mlp",) if has_message else ("_attend", "_both", "_mlp"):
            setattr(self, name, compiled(getattr(self, name)))

    def _both(self, n_BTD: Tensor, step: Step, cache: Sequence[Tensor]) -> Tensor:
        wide_BTN = self.inputs(n_BTD)
        attended_BTD = self.attention((wide_BTN[..., : self.mlp_rows.start],), step, cache)
        return kernels.add(attended_BTD, self.mlp(wide_BTN[..., self.mlp_rows]))

    def _attend(self, n_BTD: Tensor, step: Step, cache: Sequence[Tensor]) -> Tensor:
        inputs, first = [], 0
        for features in self.attention.inputs:
            inputs.append(self.inputs(n_BTD, slice(first, first + features)))
            first += features
        output_BTD: Tensor = self.attention(inputs, step, cache)
        return output_BTD

    def _transform(self, n_BTD: Tensor, exchange: Communicator, *, reduces: bool) -> Tensor | Arriving:
        if self.experts is None:
            return self._mlp(n_BTD)
        output: Tensor | Arriving = self.experts(n_BTD, exchange, reduces=reduces)
        if not self.has_mlp:
            return output
        shared_BTD = self._mlp(n_BTD)
        if isinstance(output, Arriving):
            output.shared = shared_BTD
            return output
        return kernels.add(output, shared_BTD)

    def _mlp(self, n_BTD: Tensor) -> Tensor:
        output_BTD: Tensor = self.mlp(self.inputs(n_BTD, self.mlp_rows))
        return output_BTD
