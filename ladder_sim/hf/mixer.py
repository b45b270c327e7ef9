"""The general form of a block that mixes tokens, as a traced model has it, and what layers are made of."""

from dataclasses import dataclass
from typing import Literal

from ladder_sim.hf.attention import Gqa, Index, Mla, heads_problem, rank_heads
from ladder_sim.hf.block import BlockBase
from ladder_sim.hf.feed_forward import Dense, Moe

# of a recurrent state: the gated delta rule (arXiv 2412.06464); Kimi delta attention, whose decay is of each channel
# (arXiv 2510.26692); Mamba 2 (arXiv 2405.21060); empty: another
Rule = Literal["", "gated-delta", "kda", "mamba2"]


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

    def elements(self, tp: int) -> float:
        """Return what one token keeps in the cache on each of `tp` ranks, in elements, without keys of the index."""
        return rank_heads(self.heads, self.kv_heads, tp)[1] * (self.key_dim + self.value_dim) / self.every


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A recurrent state between the linear layers of a `Mixer`, constant for each sequence.

    Linear attention, state-space models, and convolutions over a few tokens.
    """

    heads: int
    """Parts that ranks share evenly."""
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
class Mixer(BlockBase):
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

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of `config.Shape` that stand for it: those of its attention; empty if it has none."""
        core = next((core for core in self.cores if isinstance(core, Attend)), None)
        return {"heads": core.heads, "kv_heads": core.kv_heads, "head_dim": core.mean_dim} if core else {}

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return (*(linear for group in self.inputs for linear in group), *self.outputs)

    def caches(self, tp: int) -> tuple[tuple[int, float], ...]:
        return tuple(
            (core.window, core.elements(tp) + (core.index.dim / core.every if core.index else 0.0))
            for core in self.cores
            if isinstance(core, Attend)
        )

    def state_bytes(self, tp: int) -> float:
        return sum(core.bytes_on_rank(tp) for core in self.cores if isinstance(core, State))

    def partition_problem(self, tp: int) -> str:
        problems = (
            heads_problem(core.heads, core.kv_heads if isinstance(core, Attend) else core.heads, tp)
            for core in self.cores
        )
        return next(filter(None, problems), "")


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
