"""Operations of one rank in one forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ladder_sim.graph.shapes import Shape

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
