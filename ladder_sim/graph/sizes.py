"""What the graph of a pass depends on, and ops of any size from those of one token.

Which ops a forward pass runs, and what waits for what, does not depend on how many sequences there are nor on how long
they are. So one graph, of one token, serves every size: each op grows with the tokens, or with the sequences.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from ladder_sim.graph.ops import PROMPT_DUTY, WHOLE, Op, Phase, Portion
from ladder_sim.graph.shapes import (
    AttentionShape,
    BmmShape,
    CollectiveShape,
    Count,
    ElementwiseShape,
    GemmShape,
    InContext,
    MoeShape,
    SampleShape,
    Shape,
    varies,
)
from ladder_sim.hf.mixer import BlockKind
from ladder_sim.hf.quantization import LayerPart
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Format, Workload

# element size of the residual stream, embedding, norms, LM head and queries: they stay 16-bit in every precision
STATE_BYTES = 2


def operands(format: Format) -> dict[str, Any]:
    """Return the operands of a multiplication as fields of its shape: bytes of an element, and the format."""
    return {
        "weight_element_bytes": format.weight_bytes,
        "input_element_bytes": format.activation_bytes,
        "output_element_bytes": STATE_BYTES,
        "format": format.name,
    }


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
        """Return the inputs of a pass over one token, whose ops `ladder_sim.graph.sizes` gives any size."""
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
        self._format = FORMATS[workload.dtype]
        # in another precision than the checkpoint's no part is known to stay
        self._as_stored = workload.dtype == model.weights_dtype

    def format(self, part: LayerPart, kind: BlockKind) -> Format:
        """Return the format of the operands of a block part's linear layers."""
        return FORMATS["bf16"] if self._as_stored and part in kind.unquantized else self._format


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


# rows of a large GEMM's thread-block tile (cuBLAS and CUTLASS on Ampere and Hopper)
TILE_ROWS = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Sizes of one forward pass or of many: numbers, or arrays of one length."""

    batch: Count
    """Sequences."""
    q_len: Count
    """New tokens of each; as an array more than one everywhere, because a single one takes another kernel."""
    kv_len: Count
    """Tokens that attention reads, the new ones included."""
    every_logit: bool
    """Logits of every token, or of each sequence's last."""
    duty: float | NDArray[np.float64] = 0.0
    """As `GemmShape.duty`."""
    prompts: Count = 0
    """Sequences whose prompt a mixed step runs in addition, maybe a fraction of one on average."""
    chunk: Count = 0
    """Tokens of each of those prompts in the step."""
    chunk_kv_len: Count = 0
    """What the last of these tokens reads, if the chunk is an average one."""
    whole_kv_len: Count = 0
    """`kv_len` of the whole prompts of which these are parts; 0 if they are whole."""
    smallest: int = 1
    """Tokens and sequences of the graph of one token: two in a mixed step, one of each kind."""
    _parts: "dict[Portion, Sizes]" = field(init=False, repr=False, default_factory=dict)
    """As `part` has made them."""

    @classmethod
    def of(cls, stack: StackSpec, phase: Phase, kv_len: Count, *, batch: Count, prompt: Count, gen: Count) -> Self:
        """Return the sizes of a pass over `kv_len` tokens of context, of requests of `batch`, `prompt` and `gen`."""
        return cls(
            batch=batch,
            q_len=prompt if phase == "prefill" else 1,
            kv_len=prompt + gen if stack.static_cache else kv_len,
            every_logit=stack.prefill_logits == "all",
            duty=PROMPT_DUTY[phase],
        )

    @classmethod
    def mixed(
        cls,
        stack: StackSpec,
        kv_len: Count,
        *,
        batch: Count,
        prompts: Count,
        chunk: Count,
        prompt: Count,
        gen: Count,
        duty: float | NDArray[np.float64],
    ) -> Self:
        """Return the sizes of a step that decodes `batch` sequences and runs an average chunk of `prompts` prompts."""
        decode = cls.of(stack, "decode", kv_len, batch=batch, prompt=prompt, gen=gen)
        chunk_kv_len: Any = (prompt + chunk) / 2
        return replace(decode, duty=duty, prompts=prompts, chunk=chunk, chunk_kv_len=chunk_kv_len, smallest=2)

    @property
    def tokens(self) -> Any:
        """Number of new tokens of all sequences in the pass."""
        return self.batch * self.q_len + self.prompts * self.chunk

    @property
    def apart_from_context(self) -> Hashable:
        """Equal for passes that differ in context only; arrays are equal if they are the same."""
        return _same((self.batch, self.q_len, self.duty, self.prompts, self.chunk))

    @property
    def context(self) -> Hashable:
        """Equal for passes with the same context."""
        return _same((self.kv_len, self.chunk_kv_len, self.whole_kv_len))

    def op(self, op: Op) -> Op:
        """Return an op of these sizes, given that of a single token."""
        return Op(
            name=op.name,
            kind=op.kind,
            shape=self.part(op.portion).shape(op),
            layer=op.layer,
            weight_bytes=op.weight_bytes,
            portion=op.portion,
        )

    def part(self, portion: Portion) -> "Sizes":
        """Return the sizes of one of several parts of the tokens.

        Sequences are spread over the parts; one that decodes is in a single part. A lone prompt is cut at whole tiles
        of its GEMMs, so that the parts have no more waves than the whole; each reads what those before it left behind.
        """
        if portion == WHOLE:
            return self
        if portion not in self._parts:
            self._parts[portion] = self._part(*portion)
        return self._parts[portion]

    def _part(self, number: int, of: int) -> "Sizes":
        if self.smallest == 2:
            shares: Any = {"batch": self.batch / of, "prompts": self.prompts / of}
            return replace(self, **shares)
        if not varies(self.q_len) and self.q_len == 1:
            counted = isinstance(self.batch, int) or (varies(self.batch) and self.batch.dtype.kind == "i")
            own: Any = (self.batch + of - 1 - number) // of if counted else self.batch / of
            return replace(self, batch=own)
        start, end = _cut(self.q_len, number, of), _cut(self.q_len, number + 1, of)
        if not varies(self.batch) and self.batch != 1:
            share: Any = self.batch / of
            return replace(self, batch=share)
        alone: Any = self.batch == 1
        pairs = (
            # of a lone prompt, and of several
            (1, self.batch / of),
            (end - start, self.q_len),
            (self.kv_len - self.q_len + end, self.kv_len),
            (self.kv_len, 0),
        )
        batch, q_len, kv_len, whole = (np.where(alone, *pair) if varies(alone) else pair[0] for pair in pairs)
        return replace(self, batch=batch, q_len=q_len, kv_len=kv_len, whole_kv_len=whole)

    def shape(self, op: Op) -> Shape:
        """Return the shape of an op of these sizes, given that of a single token of each sequence."""
        shape = op.shape
        if isinstance(shape, InContext):
            sizes: Any = {"batch": self.batch, "q_len": self.q_len, "kv_len": self.kv_len}
            if np.any(self.whole_kv_len):
                # the math kernel reads the whole cache
                math = isinstance(shape, AttentionShape) and shape.kernel == "math"
                sizes |= {"kv_len": self.whole_kv_len} if math else {"shares_step": True}
            if shape.shares_step:
                sizes = {"batch": self.prompts, "q_len": self.chunk, "kv_len": self.chunk_kv_len}
            return replace(shape, **sizes)
        if isinstance(shape, BmmShape):
            # single new tokens alone: those of prompts are expanded instead
            new: Any = self.batch * self.q_len
            return replace(shape, m=new)
        per_sequence = op.kind == "sample" or (op.kind == "lm_head" and not self.every_logit)
        if isinstance(shape, CollectiveShape):
            per_sequence = shape.per_sequence
        rows: Any = self.batch + self.prompts if per_sequence else self.tokens
        if op.kind == "expand" and self.smallest == 2:
            rows = self.prompts * self.chunk
        if isinstance(shape, GemmShape):
            # written out: `replace` takes several times as long, and there are many of them
            return GemmShape(
                m=rows,
                n=shape.n,
                k=shape.k,
                weight_element_bytes=shape.weight_element_bytes,
                input_element_bytes=shape.input_element_bytes,
                output_element_bytes=shape.output_element_bytes,
                format=shape.format,
                chunks=shape.chunks,
                duty=cast(float, self.duty),
            )
        if isinstance(shape, MoeShape):
            # several where ranks with tokens of their own meet in one group of experts
            return replace(shape, tokens=rows * shape.tokens / self.smallest)
        if isinstance(shape, SampleShape):
            return replace(shape, batch=rows)
        if isinstance(shape, ElementwiseShape):
            return ElementwiseShape(moved_bytes=rows * shape.moved_bytes / self.smallest)
        return CollectiveShape(
            message_bytes=rows * shape.message_bytes / self.smallest,
            group=shape.group,
            per_sequence=per_sequence,
            kernel=shape.kernel,
            own_type=shape.own_type,
        )


def _same(sizes: tuple[Any, ...]) -> Hashable:
    return tuple(id(size) if varies(size) else size for size in sizes)


def _cut(tokens: Any, number: int, of: int) -> Any:
    """Return the token at which a part of a prompt begins: the first of a tile, if every part fills one."""
    if number == of:
        return tokens
    tile, even, has_tile = (
        tokens * number // (of * TILE_ROWS) * TILE_ROWS,
        tokens * number // of,
        tokens >= of * TILE_ROWS,
    )
    if varies(tokens):
        return np.where(has_tile, tile, even)
    return tile if has_tile else even
