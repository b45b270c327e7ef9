"""Operations of one rank in one forward pass, and which of the pass's kernels each is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ladder_sim.graph.shapes import Shape
from ladder_sim.wirings.rules import Part

# mixed: a step of continuous batching, decode of some sequences and prompt tokens of others in one pass
Phase = Literal["prefill", "decode", "mixed"]
Stream = Literal["compute", "comm"]
# by phase, `GemmShape.duty` of a run of such passes alone; that of mixed steps depends on how many there are
PROMPT_DUTY: Mapping[Phase, float] = {"prefill": 1.0, "decode": 0.0, "mixed": 0.0}
CollectiveKind = Literal[
    "all_reduce",
    "all_reduce_norm",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "dispatch",
    "combine",
    "broadcast",
    "send",
]
OpKind = Literal[
    "embedding",
    "norm",
    "gemm",
    "bmm",
    "expand",
    "router",
    "experts",
    "rope",
    "quantize",
    "attention",
    "activation",
    "add",
    "copy",
    "lm_head",
    "sample",
    CollectiveKind,
]

COLLECTIVE_KINDS: frozenset[str] = frozenset(get_args(CollectiveKind))


class Portion(NamedTuple):
    """A part of a pass's tokens."""

    number: int = 0
    of: int = 1
    """Number of parts."""


WHOLE = Portion()


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


# ops between the blocks, and before and after all of them; "add_norm" is a norm that adds an output first, "add_others"
# adds a sum without the rank's own part, which the residual has; "sum_parts" adds up what ranks sent of each token
ResidualOpName = Literal[
    "embedding",
    "add",
    "add_others",
    "post_norm",
    "shared_add",
    "norm",
    "add_norm",
    "all_reduce_norm",
    "fold",
    "sum_parts",
    "slice",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "send",
    "lm_head",
    "gather_logits",
    "sample",
    "broadcast",
]


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
