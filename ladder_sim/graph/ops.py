"""Operations of one rank in one forward pass, and the dependency graph that holds them.

Every count is per rank and per forward pass: FLOPs, bytes of device memory moved, bytes of messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import networkx as nx
import numpy as np
from numpy.typing import NDArray

# mixed: a step of continuous batching, decode of some sequences and prompt tokens of others in one pass
Phase = Literal["prefill", "decode", "mixed"]
Stream = Literal["compute", "comm"]
# by phase, `GemmShape.duty` of a run of such passes alone; that of mixed steps depends on how many there are
PROMPT_DUTY: Mapping[Phase, float] = {"prefill": 1.0, "decode": 0.0, "mixed": 0.0}
CollectiveKind = Literal["all_reduce", "all_reduce_norm", "all_gather", "broadcast"]
OpKind = Literal[
    "embedding",
    "norm",
    "gemm",
    "rope",
    "quantize",
    "attention",
    "activation",
    "add",
    "lm_head",
    "sample",
    "all_reduce",
    "all_reduce_norm",
    "all_gather",
    "broadcast",
]

# of one pass, or of many. Shapes of many passes hold arrays too (`ladder_sim.graph.sizes`); their fields are typed as
# the numbers that they are everywhere else
Count = int | NDArray[np.int64]

COLLECTIVE_KINDS: frozenset[str] = frozenset(get_args(CollectiveKind))


def varies(size: object) -> bool:
    """Whether a size is an array of those of many passes."""
    return isinstance(size, np.ndarray)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape:
    """``[m, k] @ [k, n]``: a linear layer's shard over m tokens."""

    m: int
    """Tokens."""
    n: int
    """Output features on this rank."""
    k: int
    """Input features on this rank."""
    weight_element_bytes: float
    """Of the weight matrix, scales included."""
    input_element_bytes: float
    """Of the input activations."""
    output_element_bytes: float
    """Of the output activations."""
    format: str = "bf16"
    """Of the operands, by `ladder_sim.specs.workload.Format.name`."""
    duty: float = 0.0
    """Share of the time in which the GPU multiplies as much as here: prompts are compute bound, decode is not."""

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two."""
        return 2.0 * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> float:
        """Weights and activations, each read or written once."""
        return (
            1.0 * self.n * self.k * self.weight_element_bytes
            + 1.0 * self.m * self.k * self.input_element_bytes
            + 1.0 * self.m * self.n * self.output_element_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Attention of `q_len` new tokens of each sequence over `kv_len` cached ones."""

    kernel: Literal["flash", "math"]
    """Flash: one fused kernel over the live context, causal; math: scores, softmax and values as separate kernels over
    the whole static cache, KV heads expanded."""
    batch: int
    """Sequences."""
    q_len: int
    """New tokens per sequence."""
    kv_len: int
    """Cached tokens that the kernel reads per sequence, the new ones included."""
    heads: int
    """Query heads on this rank."""
    kv_heads: int
    """key/value heads on this rank."""
    head_dim: int
    """Width of one head."""
    element_bytes: int
    """Of queries, scores and output."""
    kv_element_bytes: int = 2
    """Of the cached keys and values."""
    shares_step: bool = False
    """Of prompts whose step decodes other sequences too; `kv_len` is what their tokens read on average."""

    @property
    def is_prompt(self) -> bool:
        """Several new tokens per sequence, which takes another kernel than one."""
        return varies(self.q_len) or self.q_len > 1

    @property
    def flops(self) -> float:
        """Scores and values; flash skips the masked half of a prefill."""
        masked = (self.q_len - 1) / 2.0 if self.kernel == "flash" else 0.0
        return 4.0 * self.batch * self.heads * self.head_dim * self.q_len * (self.kv_len - masked)

    @property
    def moved_bytes(self) -> float:
        """Device memory traffic.

        Flash moves queries, output and the cache once. Math moves keys and values expanded to every query head (the
        compiler reads them repeated, without a copy), and the score matrix four times: written, read and written by the
        softmax, read.
        """
        query_and_output = 2.0 * self.batch * self.q_len * self.heads * self.head_dim
        per_head = 2.0 * self.batch * self.kv_len * self.head_dim
        if self.kernel == "flash":
            return query_and_output * self.element_bytes + per_head * self.kv_heads * self.kv_element_bytes
        scores = 1.0 * self.batch * self.heads * self.q_len * self.kv_len
        own = query_and_output + 4.0 * scores
        return own * self.element_bytes + per_head * self.heads * self.kv_element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseShape:
    """A memory-bound kernel: norm, rotary embedding, activation, add, lookup, sampling."""

    moved_bytes: float
    """Read and written, bytes."""

    @property
    def flops(self) -> float:
        """Negligible next to the traffic."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveShape:
    """A collective over the tensor-parallel group."""

    message_bytes: float
    """All-reduce, broadcast: the tensor; all-gather: the gathered result."""

    @property
    def flops(self) -> float:
        """Negligible next to the transfer."""
        return 0.0

    @property
    def moved_bytes(self) -> float:
        """Message read and written once in device memory."""
        return 2.0 * self.message_bytes


Shape = GemmShape | AttentionShape | ElementwiseShape | CollectiveShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One kernel of a forward pass on one rank."""

    name: str
    """Unique in its graph, e.g. "layer3.mlp.down"."""
    kind: OpKind
    """What it is, as broken down in reports."""
    shape: Shape
    """Its size, from which its cost follows."""
    layer: int = -1
    """Decoder layer; -1: before the first or after the last."""
    weight_bytes: float = 0.0
    """Parameters this op holds in memory, bytes."""

    @property
    def stream(self) -> Stream:
        """Collectives run in order on a stream of their own, everything else on the compute stream."""
        return "comm" if self.kind in COLLECTIVE_KINDS else "compute"


if TYPE_CHECKING:
    _OpGraph = nx.DiGraph[str]
else:
    _OpGraph = nx.DiGraph


class StepGraph(_OpGraph):
    """Dependency graph of one forward pass: nodes are op names in issue order, edges are data dependencies.

    Node attribute ``op`` holds the `Op`. Costs are kept apart, so that one graph serves any hardware.

    Parameters
    ----------
    phase
        What the pass is.
    """

    def __init__(self, phase: Phase = "decode", **attributes: Any) -> None:
        super().__init__(**attributes)
        self.phase: Phase = phase

    def add_op(self, op: Op, *, after: Iterable[str]) -> str:
        """Append `op`, which needs the ops named in `after`; returns its name."""
        self.add_node(op.name, op=op)
        for name in after:
            self.add_edge(name, op.name)
        return op.name

    def op(self, name: str) -> Op:
        """The op called `name`."""
        op: Op = self.nodes[name]["op"]
        return op

    def ops(self) -> Iterator[Op]:
        """Every op, in issue order."""
        for name in self.nodes:
            yield self.op(name)
