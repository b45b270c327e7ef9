"""Which of a pass's kernels an op is: a kernel of a block, an op between blocks, or a form of one of these."""

from typing import Literal, NamedTuple

from ladder_sim.graph.ops import Portion
from ladder_sim.graph.variants import Part

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
