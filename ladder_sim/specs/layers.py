"""Kinds of decoder layers: their weights, what they keep in the KV cache, and how ranks share them.

References
----------
Multi-head latent attention and shared experts: DeepSeek-V2, arXiv 2405.04434; the correction of a router's scores:
DeepSeek-V3, arXiv 2412.19437; attention sinks: gpt-oss model card, arXiv 2508.10925.
"""

from dataclasses import dataclass
from typing import Literal

# parts of a layer that a checkpoint may keep in 16 bits: what attention projects from, its output projection, the MLP
# and shared experts, the routed experts
LayerPart = Literal["qkv", "out", "mlp", "experts"]

# of queries and keys, before they are rotated: head by head as in Qwen3 and Gemma 3, over all heads together as in
# OLMo 2, where ranks add up their squares first, or head by head without weights as in Llama 4
QkNorm = Literal["none", "heads", "all", "weightless"]

# of the residual stream that a block reads as in Llama, of the output that it adds to it as in OLMo 2, or of both as in
# Gemma 3
BlockNorms = Literal["before", "behind", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa:
    """Multi-head or grouped-query attention."""

    # as in `ladder_sim.specs.model.ModelSpec`
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = "none"

    sinks: bool = False
    """A learned logit for each head joins the softmax."""
    window: int = 0
    """Tokens that it attends to; 0: all."""
    rotated: bool = True
    """Queries and keys are rotated; else queries are scaled by their position instead, and neither is normalised."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts that its checkpoint keeps in 16 bits."""

    @property
    def parameters(self) -> int:
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = {"heads": 2 * self.head_dim, "all": q_width + kv_width}.get(self.qk_norm, 0)
        biases = (q_width + 2 * kv_width) * self.qkv_bias + self.hidden * self.out_bias
        return self.hidden * 2 * (q_width + kv_width) + biases + norms + self.heads * self.sinks

    @property
    def kv_elements(self) -> int:
        """What one token keeps in the cache, over all ranks."""
        return 2 * self.kv_heads * self.head_dim

    def kv_share(self, tp: int) -> float:
        """Return the part of the KV elements on each of `tp` ranks: a share of the heads, replicas included."""
        return max(1, self.kv_heads // tp) / self.kv_heads

    def partition_problem(self, tp: int) -> str:
        """Say why `tp` ranks cannot share it; empty if they can."""
        if self.heads % tp:
            return f"heads is {self.heads}: not divisible by tp {tp}"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"kv_heads is {self.kv_heads}: neither divisible by tp {tp} nor a divisor of it"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: the cache holds one compressed vector for all heads."""

    # as in `ladder_sim.specs.model.ModelSpec`
    hidden: int
    heads: int
    kv_lora_rank: int
    q_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    value_head_dim: int

    unquantized: tuple[LayerPart, ...] = ()
    """Parts that its checkpoint keeps in 16 bits."""

    @property
    def q_head_dim(self) -> int:
        """Width of a whole query head."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def parameters(self) -> int:
        q_width = self.heads * self.q_head_dim
        queries = self.q_lora_rank * (self.hidden + 1 + q_width) if self.q_lora_rank else self.hidden * q_width
        down = self.hidden * self.kv_elements + self.kv_lora_rank
        up = self.kv_lora_rank * self.heads * (self.nope_head_dim + self.value_head_dim)
        return queries + down + up + self.heads * self.value_head_dim * self.hidden

    @property
    def kv_elements(self) -> int:
        """What one token keeps in the cache."""
        return self.kv_lora_rank + self.rope_head_dim

    @property
    def window(self) -> int:
        """0: it attends to all tokens."""
        return 0

    def kv_share(self, tp: int) -> float:
        """Return the part of the KV elements on each of `tp` ranks: every rank's heads read all of them."""
        return 1.0

    def partition_problem(self, tp: int) -> str:
        return f"heads is {self.heads}: not divisible by tp {tp}" if self.heads % tp else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A multi-layer perceptron."""

    hidden: int
    """Width of the residual stream."""
    width: int
    """Width of the MLP's inner layer."""
    gated: bool = True
    """Gate and up projections, or one up projection."""
    bias: bool = False
    """Bias vectors."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts that its checkpoint keeps in 16 bits."""

    @property
    def up_width(self) -> int:
        """Outputs of its first GEMM: gate and up."""
        return self.width * (2 if self.gated else 1)

    @property
    def parameters(self) -> int:
        return (self.up_width + self.width) * self.hidden + (self.up_width + self.hidden) * self.bias

    def partition_problem(self, tp: int) -> str:
        return f"intermediate is {self.width}: not divisible by tp {tp}" if self.width % tp else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: a router sends each token to a few of them; shared experts see every token."""

    expert: Dense
    """One routed expert."""
    experts: int
    """Routed experts."""
    experts_per_token: int
    """Routed experts that each token is sent to."""
    shared: Dense | None = None
    """All shared experts together, which are one MLP."""
    router_bias: bool = False
    """A bias or a correction of its score for each expert."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts that its checkpoint keeps in 16 bits."""

    @property
    def router_parameters(self) -> int:
        return self.experts * (self.expert.hidden + self.router_bias)

    @property
    def parameters(self) -> int:
        shared = self.shared.parameters if self.shared else 0
        return self.experts * self.expert.parameters + self.router_parameters + shared

    def partition_problem(self, tp: int) -> str:
        """Say why `tp` ranks cannot share the shared experts; empty if they can."""
        if self.shared is None or self.shared.width % tp == 0:
            return ""
        return f"shared_intermediate is {self.shared.width}: not divisible by tp {tp}"

    def expert_problem(self, ep: int, tp: int) -> str:
        """Say why routed experts cannot be split `ep` ways, and each of them over `tp` ranks; empty if they can."""
        if self.experts % ep:
            return f"experts is {self.experts}: not divisible by ep {ep}"
        if self.expert.width % tp:
            return f"expert_intermediate is {self.expert.width}: not divisible by {tp} ranks"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What a decoder layer is made of."""

    attention: Gqa | Mla
    """Attention, the first block of the layer."""
    feed_forward: Dense | Moe
    """Feed-forward block, the second block of the layer."""

    @property
    def parameters(self) -> int:
        """Number of weights of both blocks, without the norms in front of them."""
        return self.attention.parameters + self.feed_forward.parameters
