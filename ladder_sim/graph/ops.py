"""Operations of one rank in one forward pass, and which of the pass's kernels each is."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

from ladder_sim.kernels import WHOLE, CollectiveShape, Portion, Shape, Sizes
from ladder_sim.wirings.rules import Part

Stream = Literal["compute", "comm"]
Exchange = Literal["all_to_all", "dispatch", "combine"]
CollectiveKind = Literal["all_reduce", "all_reduce_norm", "all_gather", "reduce_scatter", "broadcast", "send", Exchange]
BlockOpKind = Literal["gemm", "bmm", "expand", "router", "experts", "rope", "quantize", "attention", "activation"]
OpKind = Literal[BlockOpKind, CollectiveKind, "embedding", "norm", "add", "copy", "lm_head", "sample"]

COLLECTIVE_KINDS: frozenset[str] = frozenset(get_args(CollectiveKind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One kernel of a forward pass on one rank."""

    name: str
    """Unique in its graph, e.g. "layer3.mlp.down"."""
    kind: OpKind
    """What it is, as broken down in reports."""
    shape: Shape
    """Size of the op, from which its cost follows."""
    layer: int = -1
    """Decoder layer; -1: before the first or after the last."""
    weight_bytes: float = 0.0
    """Parameters this op holds in memory, bytes."""
    portion: Portion = WHOLE
    """Tokens that it processes."""

    @property
    def stream(self) -> Stream:
        """Collectives run in order on a stream of their own, everything else on the compute stream."""
        return "comm" if self.kind in COLLECTIVE_KINDS else "compute"

    @property
    def message(self) -> CollectiveShape | None:
        """Message of a collective; None: the op is a kernel, which runs on one rank by itself."""
        return cast(CollectiveShape, self.shape) if self.kind in COLLECTIVE_KINDS else None

    def resized(self, sizes: Sizes) -> "Op":
        """Return the op of passes of these sizes, given that of a single token."""
        part = sizes.part(self.portion)
        rows: Any = part.tokens
        if self.shape.per_sequence or (self.kind == "lm_head" and not part.every_logit):
            rows = part.batch + part.prompts
        if self.kind == "expand" and part.smallest == 2:
            rows = part.prompts * part.chunk
        return Op(
            name=self.name,
            kind=self.kind,
            shape=self.shape.resized(part, rows),
            layer=self.layer,
            weight_bytes=self.weight_bytes,
            portion=self.portion,
        )


# ops before the first block and behind the last
EndName = Literal["embedding", "lm_head", "gather_logits", "sample", "broadcast"]
# ops between the blocks; "add_norm" is a norm that adds an output first, "add_others" adds a sum without the rank's own
# part, which the residual has; "sum_parts" adds up what ranks sent of each token
JoinName = Literal["add", "add_others", "shared_add", "norm", "add_norm", "post_norm", "fold", "sum_parts", "slice"]
ResidualOpName = Literal[EndName, JoinName, "all_reduce", "all_reduce_norm", "all_gather", "reduce_scatter", "send"]


class ResidualOp(NamedTuple):
    """An op of the residual stream: between the blocks, before them or after them."""

    op: ResidualOpName
    split: bool = False
    """Every rank has its share of the stream's tokens (sequence parallel)."""
    tensors: int = 1
    """How many of them it sends."""
    percent: int = 100
    """First channels of the residual, which it processes."""
    others: bool = False
    """It processes the other channels instead."""
    kernel: str = ""
    """As `CollectiveShape.kernel`."""
    gemm: "Role | None" = None
    """The GEMM with which it runs chunk by chunk; None: it runs by itself."""


class BlockKey(NamedTuple):
    """What tells the blocks of a model apart."""

    part: Part
    attention: int
    """Position in `ModelBlocks.attentions`; -1: there is none."""
    feed_forward: int
    """Position in `ModelBlocks.feed_forwards`; -1 if there is none."""
    reduces: bool
    """As `Block.reduces`."""

    @classmethod
    def of(cls, kind: tuple[int, int], part: Part, reduces: bool) -> "BlockKey":
        """Return the key of a block of a layer's kind, which is one of `ModelBlocks.kinds`."""
        return cls(part, -1 if part == "mlp" else kind[0], -1 if part == "attention" else kind[1], reduces)


class PortionOf(NamedTuple):
    """A kernel on a part of the tokens."""

    role: "Role"
    portion: Portion


class InChunks(NamedTuple):
    """A GEMM that runs on as many chunks of the tokens as there are ranks, one after another."""

    role: "Role"


# which of a pass's kernels an op is
Role = ResidualOp | tuple[BlockKey, int] | PortionOf | InChunks
