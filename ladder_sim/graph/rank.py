"""What the kernels of a pass depend on: its inputs, the part of them that one rank has, and the blocks of the model."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Self

from ladder_sim.kernels import PROMPT_DUTY, STATE_BYTES, Count, Phase
from ladder_sim.specs.layers import BlockKind, LayerPart
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Format, Workload


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
        self._format = FORMATS[workload.dtype]
        # in another precision than the checkpoint's no part is known to stay
        self._as_stored = workload.dtype == model.weights_dtype

    @property
    def lengths(self) -> dict[str, Any]:
        """Sizes of a kernel over the context of every sequence."""
        return {"batch": self.batch, "q_len": self.q_len, "kv_len": self.kv_len}

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
