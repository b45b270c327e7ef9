"""Kinds of decoder layers: their weights, what they keep in the KV cache, and how ranks share them.

Attention of the families whose kernels are tabled has kinds of its own, `Gqa` and `Mla`. `Mixer` is the general form:
linear layers, and between them attention or recurrent states of any shape, as a traced model has them.

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

# of a recurrent state: the gated delta rule (arXiv 2412.06464); Kimi delta attention, whose decay is of each channel
# (arXiv 2510.26692); Mamba 2 (arXiv 2405.21060); empty: another
Rule = Literal["", "gated-delta", "kda", "mamba2"]


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

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        """Return pairs of a window and the elements that a token keeps on each of `tp` ranks, replicas included."""
        return ((self.window, self.kv_elements * (max(1, self.kv_heads // tp) / self.kv_heads)),)

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

    index: "Index | None" = None
    """Index that chooses the tokens it reads (DeepSeek sparse attention); None: it reads all."""
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
        index = self.index.parameters(self.hidden, self.q_lora_rank or self.hidden) if self.index else 0
        return queries + down + up + self.heads * self.value_head_dim * self.hidden + index

    @property
    def kv_elements(self) -> int:
        """What one token keeps in the cache."""
        return self.kv_lora_rank + self.rope_head_dim

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        """Return pairs of a window and the elements that a token keeps on a rank: every rank's heads read all."""
        return ((0, float(self.kv_elements + (self.index.dim if self.index else 0))),)

    def partition_problem(self, tp: int) -> str:
        return f"heads is {self.heads}: not divisible by tp {tp}" if self.heads % tp else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Chooses the entries of the cache that attention reads, by small heads with keys of their own.

    Every rank has all of it, because a choice needs the scores of all heads.
    """

    heads: int
    """Query heads of the index, whose key is one for all; 0: an earlier layer has chosen."""
    dim: int
    """Width of one head."""
    top_k: int
    """Entries that each token attends to at most."""

    def parameters(self, hidden: int, low: int) -> int:
        """Return the weights: keys and head weights from the residual, queries from `low` channels, a LayerNorm."""
        return hidden * (self.dim + self.heads) + low * self.heads * self.dim + 2 * self.dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """Attention between the linear layers of a `Mixer`."""

    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads."""
    key_dim: int
    """Width of a query or key head."""
    value_dim: int
    """Width of a value head; 0: keys are values, too, and cached once."""
    window: int = 0
    """Tokens that it attends to; 0: all."""
    every: int = 1
    """Tokens that one entry of the cache stands for."""
    index: Index | None = None
    """Chooses the entries it reads; None: it reads all."""

    @property
    def mean_dim(self) -> int:
        """Mean width of keys and values: kernels take as long as those of this width."""
        return (self.key_dim + (self.value_dim or self.key_dim)) // 2

    @property
    def is_plain(self) -> bool:
        """Whether kernels for grouped-query attention run it."""
        return self.every == 1 and self.index is None

    def rank_heads(self, tp: int) -> tuple[int, int]:
        """Return the query heads and the key/value heads on each of `tp` ranks."""
        return self.heads // tp, max(1, self.kv_heads // tp)

    def elements(self, tp: int) -> float:
        """Return what one token keeps in the cache on each of `tp` ranks, in elements, without keys of the index."""
        return self.rank_heads(tp)[1] * (self.key_dim + self.value_dim) / self.every


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A recurrent state between the linear layers of a `Mixer`, constant for each sequence.

    Linear attention, state-space models, and convolutions over a few tokens.
    """

    heads: int
    """Parts that ranks can share."""
    elements: int
    """Elements of a sequence's state over all ranks."""
    size_bytes: int
    """Bytes of a sequence's state over all ranks, convolutions included."""
    rule: Rule = ""
    """How tokens change it."""
    channels: int = 0
    """Channels of the convolution in front of it, over all ranks; 0: not known."""

    def bytes_on_rank(self, tp: int) -> float:
        """Return the bytes of a sequence's state on each of `tp` ranks."""
        return self.size_bytes / min(tp, self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer of a `Mixer`."""

    n: int
    """Output features over all ranks."""
    k: int
    """Input features over all ranks."""
    sharding: Literal["columns", "rows", "none"] = "columns"
    """What ranks share: outputs; inputs, so that outputs are partial sums; or nothing."""
    heads: int = 0
    """Heads that outputs belong to, of which a rank has one at least; 0: outputs are split anyhow."""

    def on_rank(self, tp: int) -> tuple[int, int]:
        """Return output and input features on each of `tp` ranks."""
        if self.sharding == "none":
            return self.n, self.k
        if self.sharding == "rows":
            return self.n, -(-self.k // tp)
        return (self.n // self.heads * max(1, self.heads // tp) if self.heads else -(-self.n // tp)), self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """A block that mixes tokens, in general: linear layers, and between them attention or recurrent states."""

    hidden: int
    """Width of the residual stream."""
    inputs: tuple[tuple[Linear, ...], ...]
    """Linear layers in order; those that read the same tensor run as one GEMM."""
    cores: tuple[Attend | State, ...]
    """What mixes tokens."""
    outputs: tuple[Linear, ...]
    """Linear layers after it; the last makes the block's output, and others that end the block are added to it."""
    norms: tuple[int, ...] = ()
    """Width over all heads of each norm of queries, keys or low-rank inputs."""
    joint_norms: bool = False
    """Whether queries and keys are normalised over all heads, so that ranks add up their squares first."""
    gates: int = 0
    """Width over all ranks of what its output is multiplied by."""
    parameters: int
    """Number of weights."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts that its checkpoint keeps in 16 bits."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return (*(linear for group in self.inputs for linear in group), *self.outputs)

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        """Return pairs of a window and the elements that a token keeps on each of `tp` ranks, replicas included."""
        return tuple(
            (core.window, core.elements(tp) + (core.index.dim / core.every if core.index else 0.0))
            for core in self.cores
            if isinstance(core, Attend)
        )

    def state_bytes(self, tp: int) -> float:
        """Return the bytes of a sequence's recurrent states on each of `tp` ranks."""
        return sum(core.bytes_on_rank(tp) for core in self.cores if isinstance(core, State))

    def partition_problem(self, tp: int) -> str:
        """Say why `tp` ranks cannot share it; empty if they can."""
        for core in self.cores:
            if core.heads % tp:
                return f"heads is {core.heads}: not divisible by tp {tp}"
            if isinstance(core, Attend) and core.kv_heads % tp and tp % core.kv_heads:
                return f"kv_heads is {core.kv_heads}: neither divisible by tp {tp} nor a divisor of it"
        return ""


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
    hidden: int = 0
    """Width of the residual stream, which is projected to the experts' and back on every rank; 0: it is theirs."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts that its checkpoint keeps in 16 bits."""

    @property
    def router_parameters(self) -> int:
        return self.experts * ((self.hidden or self.expert.hidden) + self.router_bias)

    @property
    def parameters(self) -> int:
        shared = self.shared.parameters if self.shared else 0
        latent = 2 * self.hidden * self.expert.hidden
        return self.experts * self.expert.parameters + self.router_parameters + shared + latent

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


BlockKind = Gqa | Mla | Mixer | Dense | Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What a decoder layer is made of: two blocks in a row, each of any kind."""

    attention: BlockKind
    """First block of the layer; attention in most models."""
    feed_forward: BlockKind
    """Second block of the layer; feed-forward in most models."""

    @property
    def blocks(self) -> tuple[BlockKind, BlockKind]:
        """Both blocks in order."""
        return self.attention, self.feed_forward

    @property
    def parameters(self) -> int:
        """Number of weights of both blocks, without the norms in front of them."""
        return self.attention.parameters + self.feed_forward.parameters
