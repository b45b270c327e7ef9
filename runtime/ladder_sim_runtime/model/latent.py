"""Multi-head latent attention in both of its forms, which compute the same.

The cache holds one latent vector for each token, which is all that the heads' keys and values are made of, and one
rotated key that the heads share; every rank holds all of it. A prefill expands keys and values of its heads. A decode
step is absorbed: its queries are carried over to the latent space, where the latent vectors are keys and values of a
single head, and its outputs are carried back.

Shapes: B batch, T new tokens, S positions, H heads, K = M + P head width, of it M without position (`nope`) and P
rotated, Q width of the queries' latent vector, R width of that of keys and values, C = R + P cached features, V width
of a head's values, N features.

References
----------
DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ladder_sim.hf.config import Yarn
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model import attention_kernels
from ladder_sim_runtime.model.attention import Step
from ladder_sim_runtime.model.linear import Linear, RMSNorm
from ladder_sim_runtime.model.shard import Shard

# of the norms of latent vectors, whatever `rms_norm_eps` says of the others, as in
# https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/modeling_deepseek.py and in transformers 5.23.0
LATENT_EPS = 1e-6


class LatentAttention(nn.Module):
    """The latent projections are whole on every rank; the heads that are made of them are split."""

    sequences = 0

    def __init__(self, config: ModelConfig, shard: Shard, engine: EngineConfig) -> None:
        super().__init__()
        self.config, self.engine = config, engine
        self.heads = heads = shard.heads
        # width of the part of a head's keys that carries no position, and of all that is made of the latent vector
        self.nope, latent_rank = config.nope_head_dim, config.kv_lora_rank
        made = self.nope + config.value_head_dim
        low = config.q_lora_rank + latent_rank + config.rope_head_dim
        # queries that are not compressed are this rank's heads', the rest is whole: two GEMMs
        self.inputs = (low,) if config.q_lora_rank else (heads * config.head_dim, low)
        self.q_norm = RMSNorm(config.q_lora_rank, LATENT_EPS) if config.q_lora_rank else None
        self.q = Linear(heads * config.head_dim, config.q_lora_rank) if config.q_lora_rank else None
        self.kv_norm = RMSNorm(latent_rank, LATENT_EPS)
        self.kv = Linear(heads * made, latent_rank)
        self.o = Linear(config.hidden, heads * config.value_head_dim, bias=config.out_bias)
        stretched = config.rope_scaling.score_scale if isinstance(config.rope_scaling, Yarn) else 1.0
        self.scale = config.head_dim**-0.5 * stretched

    def flash_decodes(self, like: Tensor) -> bool:
        """Return False: latent vectors are wider than the heads of a device's own attention."""
        return False

    def cache(self, layers: int, batch: int, positions: int, like: Tensor) -> Tensor:
        """Return an empty cache of several layers, L x B x S x C."""
        return like.new_zeros((layers, batch, positions, self.config.kv_lora_rank + self.config.rope_head_dim))

    def cache_tensors(self, cache_BSC: Tensor | None) -> tuple[Tensor, ...]:
        """Return the tensors of one layer's cache; empty if there is no cache."""
        return () if cache_BSC is None else (cache_BSC,)

    def forward(self, inputs: Sequence[Tensor], step: Step, cache: Sequence[Tensor]) -> Tensor:
        config = self.config
        c_BTR, k_BTP = inputs[-1][..., config.q_lora_rank :].split((config.kv_lora_rank, config.rope_head_dim), dim=-1)
        if self.q is not None and self.q_norm is not None:
            low_BTQ, c_BTR = self.q_norm.with_other(inputs[0][..., : config.q_lora_rank], self.kv_norm, c_BTR)
            q_BTN = self.q(low_BTQ)
        else:
            q_BTN, c_BTR = inputs[0], self.kv_norm(c_BTR)
        q_BTHM, q_BTHP = q_BTN.unflatten(-1, (self.heads, -1)).split((self.nope, config.rope_head_dim), dim=-1)
        q_BHTP, c_BSC = attention_kernels.rope_latent(
            q_BTHP, c_BTR, k_BTP, step.turn_2TK, step.position_T, cache[0] if cache else None, config.rope_interleaved
        )
        attend = self._absorbed if cache and q_BTHM.shape[1] == 1 else self._expanded
        output_BTD: Tensor = self.o(attend(q_BTHM, q_BHTP, c_BSC, step))
        return output_BTD

    def _expanded(self, q_BTHM: Tensor, q_BHTP: Tensor, c_BSC: Tensor, step: Step) -> Tensor:
        # tokens so far, also of a static cache: its rest would be expanded for nothing
        expanded = attention_kernels.expand_latent(c_BSC[:, : step.context], self.kv.weight_NF, q_BTHM, q_BHTP)
        return step.attend(self.engine, *expanded, self.scale)

    def _absorbed(self, q_BTHM: Tensor, q_BHTP: Tensor, c_BSC: Tensor, step: Step) -> Tensor:
        weight_HNR = self.kv.weight_NF.unflatten(0, (self.heads, -1))
        q_BHTC = attention_kernels.absorb_queries(q_BTHM, q_BHTP, weight_HNR[:, : self.nope])
        c_B1SC = c_BSC.unsqueeze(1)
        out_BTN = step.attend(self.engine, q_BHTC, c_B1SC, c_B1SC[..., : self.config.kv_lora_rank], self.scale)
        return attention_kernels.absorbed_values(out_BTN.unflatten(-1, (self.heads, -1)), weight_HNR[:, self.nope :])
