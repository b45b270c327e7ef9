"""A forward pass as one rank runs it: its inputs, the rank's part of them, and its operations."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, cast, get_args

from ladder_sim.hf.mixer import BlockKind
from ladder_sim.hf.quantization import LayerPart
from ladder_sim.kernels import PROMPT_DUTY, STATE_BYTES, WHOLE, CollectiveShape, Count, Phase, Portion, Shape, Sizes
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Format, Workload
from ladder_sim.wirings.rules import Part


class PassInputs(NamedTuple):
    """What a forward pass's graph depends on: a scenario without its hardware, as one rank sees it."""

    model: ModelSpec
    workload: Workload
    """With the requests of one rank."""
    stack: StackSpec
    plan: Plan
    variant: str
    fused_norm_bytes: float = 0.0
    """As `Scenario.fused_norm_bytes`."""
    techniques: tuple[str, ...] = ()
    """As `Techniques.chosen`."""

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        workload = scenario.workload
        if workload.concurrency is None:
            workload = replace(workload, batch=scenario.plan.micro_batch(workload.batch))
        return cls(
            scenario.model,
            workload,
            scenario.stack,
            scenario.plan,
            scenario.variant,
            scenario.fused_norm_bytes,
            scenario.techniques.chosen,
        )

    def fuses_norm(self, tokens: Count) -> Any:
        """Whether the engine by itself fuses an all-reduce of so many tokens with the norm that needs it."""
        return tokens * float(self.model.hidden * STATE_BYTES) <= self.fused_norm_bytes

    def of_one_token(self) -> Self:
        """Return the inputs of a pass over one token, whose ops `Op.resized` gives any size."""
        workload = replace(self.workload, batch=1, prompt=1, gen=1)
        return self._replace(workload=workload, fused_norm_bytes=0.0, techniques=())


class RankPass:
    """One forward pass as one rank runs it: its tokens, its part of the model, the precision of its operands."""

    def __init__(self, inputs: PassInputs, phase: Phase, kv_len: int) -> None:
        model, workload, stack = inputs.model, inputs.workload, inputs.stack
        self.model, self.stack, self.plan, self.tp = model, stack, inputs.plan, inputs.plan.tp
        self.phase: Phase = phase
        self.batch = workload.batch
        self.q_len = workload.prompt if phase == "prefill" else 1
        self.prompt = workload.prompt if phase == "mixed" else 0
        self.tokens = self.batch * self.q_len + self.prompt
        self.duty = PROMPT_DUTY[phase]
        self.loads = workload.imbalance
        self.kv_element_bytes = KV_BYTES[workload.kv_dtype]
        self.kv_len = workload.context if stack.static_cache else kv_len
        self.state_bytes = float(self.tokens) * model.hidden * STATE_BYTES
        self._dtype = workload.dtype
        # in another precision than the checkpoint's no part is known to have its own
        self._as_stored = workload.dtype == model.weights_dtype

    @property
    def lengths(self) -> dict[str, Any]:
        """Sizes of a kernel over the context of every sequence."""
        return {"batch": self.batch, "q_len": self.q_len, "kv_len": self.kv_len}

    def format(self, part: LayerPart, kind: BlockKind) -> Format:
        """Return the format of the operands of a block part's linear layers."""
        own = next((dtype for each, dtype in kind.formats if each == part), self._dtype)
        return FORMATS[own if self._as_stored else self._dtype]


class ModelBlocks(NamedTuple):
    """The blocks that a model is made of, each once."""

    attentions: tuple[BlockKind, ...]
    feed_forwards: tuple[BlockKind, ...]
    kinds: tuple[tuple[int, int], ...]
    """Positions of both in those, of each kind of layer."""
    layers: tuple[int, ...]
    """Position of each layer's kind in those."""


@lru_cache(maxsize=256)
def model_blocks(model: ModelSpec) -> ModelBlocks:
    """Return the blocks of a model."""
    kinds = list(dict.fromkeys(model.kinds))
    # equal kinds of one model are the same object
    numbers = {id(kind): number for number, kind in enumerate(kinds)}
    attentions = tuple(dict.fromkeys(kind.attention for kind in kinds))
    feed_forwards = tuple(dict.fromkeys(kind.feed_forward for kind in kinds))
    return ModelBlocks(
        attentions=attentions,
        feed_forwards=feed_forwards,
        kinds=tuple((attentions.index(kind.attention), feed_forwards.index(kind.feed_forward)) for kind in kinds),
        layers=tuple(numbers[id(kind)] for kind in model.kinds),
    )


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
