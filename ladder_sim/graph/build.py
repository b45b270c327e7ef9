"""Builds the graph of one forward pass: a layer's ops, strung along a residual wiring.

The wiring (variants.py) says what each block joins and whether it reduces; this module says which kernels a block is.
Tensor parallelism is Megatron's: column-parallel QKV and gate/up, row-parallel output and down projections, so that a
block ends in partial sums (arXiv 1909.08053).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from ladder_sim.graph.ops import (
    PROMPT_DUTY,
    AttentionShape,
    CollectiveShape,
    Count,
    ElementwiseShape,
    GemmShape,
    Op,
    OpKind,
    Phase,
    Shape,
    StepGraph,
)
from ladder_sim.graph.variants import Block, Layer, Part, Wiring, wiring
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Workload

# element size of the residual stream, embedding, norms, LM head and queries: they stay 16-bit in every precision
STATE_BYTES = 2
# one token id, int64 as PyTorch indexes with
TOKEN_BYTES = 8

_PART_NAMES: dict[Part, str] = {"attention": "attn", "mlp": "mlp", "both": "block"}


class PassInputs(NamedTuple):
    """What a forward pass's graph depends on: a scenario without its hardware."""

    model: ModelSpec
    workload: Workload
    stack: StackSpec
    tp: int
    variant: str
    fused_norm_bytes: float = 0.0
    """As `Scenario.fused_norm_bytes`."""

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Those of a scenario."""
        fused_norm_bytes = scenario.fused_norm_bytes
        return cls(scenario.model, scenario.workload, scenario.stack, scenario.tp, scenario.variant, fused_norm_bytes)

    def fuses_norm(self, tokens: Count) -> Any:
        """Whether an all-reduce of so many tokens is small enough to be fused with the norm that needs it."""
        return tokens * float(self.model.hidden * STATE_BYTES) <= self.fused_norm_bytes

    def of_one_token(self, *, fuses_norm: bool = False) -> Self:
        """The same pass over a single token, in both phases: `ladder_sim.graph.sizes` gives its ops any size.

        Which ops there are depends on the size by `fuses_norm` alone.
        """
        one_token = replace(self.workload, batch=1, prompt=1, gen=1)
        return self._replace(workload=one_token, fused_norm_bytes=math.inf if fuses_norm else 0.0)


def build(scenario: Scenario | PassInputs, phase: Phase, kv_len: int, *, layers: Wiring | None = None) -> StepGraph:
    """The graph of one rank's forward pass.

    Parameters
    ----------
    scenario
        Model, workload, stack, tensor-parallel degree and variant.
    phase
        ``"prefill"`` runs every prompt token, ``"decode"`` one token per sequence, ``"mixed"`` that and a prompt.
    kv_len
        Tokens of context the step attends to, its own included. A static-cache (``math``) attention reads
        ``prompt + gen`` whatever the context.
    layers
        A (condensed) wiring to build instead of the scenario's full one.

    Returns
    -------
    StepGraph
        Ops in issue order with their data dependencies.
    """
    plan = layers or wiring(scenario.variant, scenario.model.layers, scenario.model.ladder_layers)
    return _Builder(scenario, phase, kv_len).build(plan)


class _Builder:
    """One forward pass under construction; `residual` is the op whose completion makes the residual stream ready."""

    def __init__(self, scenario: Scenario | PassInputs, phase: Phase, kv_len: int) -> None:
        model, workload, stack, tp = scenario.model, scenario.workload, scenario.stack, scenario.tp
        self.model, self.stack, self.tp = model, stack, tp
        self.phase: Phase = phase
        self.batch = workload.batch
        self.q_len = workload.prompt if phase == "prefill" else 1
        self.prompt = workload.prompt if phase == "mixed" else 0
        self.tokens = self.batch * self.q_len + self.prompt
        self.duty = PROMPT_DUTY[phase]
        self.kv_element_bytes = KV_BYTES[workload.kv_dtype]
        self.kv_len = workload.context if stack.static_cache else kv_len
        self.format = FORMATS[workload.dtype]
        self.heads = model.heads // tp
        self.kv_heads = max(1, model.kv_heads // tp)
        self.intermediate = model.intermediate // tp
        self.mlp_width = self.intermediate * (2 if model.gated_mlp else 1)
        self.qkv_width = (self.heads + 2 * self.kv_heads) * model.head_dim
        self.state_bytes = float(self.tokens) * model.hidden * STATE_BYTES
        self.fuses_norm = (
            stack.fused_residual_add and not model.post_norms and self.state_bytes <= scenario.fused_norm_bytes
        )
        self.graph = StepGraph(phase)
        self.residual = ""

        # output of every block so far: what a join waits for
        self.pending: list[str] = []

        # outputs that replace the residual instead of being added to it
        self.folded: set[str] = set()

        # partial sums that the next norm's kernel is to reduce
        self.partial: set[str] = set()

    def build(self, plan: Wiring) -> StepGraph:
        self._embedding(reduces=plan.reduces)
        blocks = [(layer, block) for layer in plan.layers for block in layer.blocks]
        next_joins = [*(block.joins for _, block in blocks[1:]), plan.final_joins]
        for (layer, block), joins in zip(blocks, next_joins, strict=True):
            self._block(layer, block, needed_at_once=joins == (1,))
        self._head(plan)
        return self.graph

    # ops

    def _op(
        self, name: str, kind: OpKind, shape: Shape, after: Sequence[str], *, layer: int = -1, weights: float = 0.0
    ) -> str:
        return self.graph.add_op(Op(name=name, kind=kind, shape=shape, layer=layer, weight_bytes=weights), after=after)

    def _elementwise(
        self, name: str, kind: OpKind, moved: float, after: Sequence[str], layer: int, weights: float = 0.0
    ) -> str:
        return self._op(name, kind, ElementwiseShape(moved_bytes=moved), after, layer=layer, weights=weights)

    def _linear(self, name: str, n: int, k: int, after: Sequence[str], layer: int, *, bias: int = 0) -> str:
        shape = GemmShape(
            m=self.tokens,
            n=n,
            k=k,
            weight_element_bytes=self.format.weight_bytes,
            input_element_bytes=self.format.activation_bytes,
            output_element_bytes=STATE_BYTES,
            format=self.format.name,
            duty=self.duty,
        )
        if self.format.quantizes:
            moved = float(self.tokens) * k * self.stack.quantize_element_bytes
            after = [self._elementwise(f"{name}_quantize", "quantize", moved, after, layer)]
        weights = float(n) * k * self.format.weight_bytes + bias * STATE_BYTES
        return self._op(name, "gemm", shape, after, layer=layer, weights=weights)

    # residual stream

    def _join(self, joins: Sequence[int], prefix: str, layer: int, *, fuse_last: bool) -> list[str]:
        """Bring outputs into the residual; returns the one that the next norm is to add itself, if any."""
        outputs = [self.pending[len(self.pending) - back] for back in joins]
        for number, output in enumerate(outputs):
            if output in self.folded:
                self.residual = output
                continue
            if self.model.post_norms:
                weights = float(self.model.hidden) * STATE_BYTES
                normed = f"{prefix}.post_norm{number + 1 if number else ''}"
                output = self._elementwise(normed, "norm", 2 * self.state_bytes, [output], layer, weights)
            if fuse_last and number == len(outputs) - 1:
                return [output]
            else:
                name = f"{prefix}.add" if number == 0 else f"{prefix}.add{number + 1}"
                self.residual = self._elementwise(name, "add", 3 * self.state_bytes, [self.residual, output], layer)
        return []

    def _norm(self, prefix: str, joins: Sequence[int], layer: int, *, deferred: bool) -> str:
        """Join, then normalise; a fused kernel reads residual and output, writes the new residual and the norm.

        It may begin with the output's all-reduce.
        """
        fuses = self.stack.fused_ladder_add if deferred else self.stack.fused_residual_add
        added = self._join(joins, prefix, layer, fuse_last=fuses)
        needed = [self.residual, *added]
        weights = float(self.model.hidden) * STATE_BYTES
        if self.partial.intersection(added):
            message = CollectiveShape(message_bytes=self.state_bytes)
            norm = self._op(
                f"{prefix}.all_reduce_norm", "all_reduce_norm", message, needed, layer=layer, weights=weights
            )
        else:
            moved = self.state_bytes * (4 if added else 2)
            norm = self._elementwise(f"{prefix}.norm", "norm", moved, needed, layer, weights)
        if added:
            self.residual = norm
        return norm

    def _reduce(self, prefix: str, block: Block, output: str, layer: int, *, needed_at_once: bool) -> str:
        if not block.reduces or self.tp == 1:
            return output
        if needed_at_once and self.fuses_norm and not block.folds_residual:
            self.partial.add(output)
            return output
        if block.folds_residual:
            output = self._elementwise(f"{prefix}.fold", "add", 3 * self.state_bytes, [self.residual, output], layer)
        reduced = self._op(
            f"{prefix}.all_reduce", "all_reduce", CollectiveShape(message_bytes=self.state_bytes), [output], layer=layer
        )
        if block.folds_residual:
            self.folded.add(reduced)
        return reduced

    # blocks

    def _block(self, layer: Layer, block: Block, *, needed_at_once: bool) -> None:
        prefix = f"layer{layer.index}.{_PART_NAMES[block.part]}"
        at = layer.index
        norm = self._norm(prefix, block.joins, at, deferred=any(back > 1 for back in block.joins))
        if block.part == "attention":
            qkv = self._linear(f"{prefix}.qkv", self.qkv_width, self.model.hidden, [norm], at, bias=self._qkv_bias())
            output = self._attention(prefix, qkv, at)
        elif block.part == "mlp":
            up = self._linear(f"{prefix}.up", self.mlp_width, self.model.hidden, [norm], at, bias=self._up_bias())
            output = self._mlp(prefix, up, at)
        else:
            wide = self._linear(
                f"{prefix}.qkv_up",
                self.qkv_width + self.mlp_width,
                self.model.hidden,
                [norm],
                at,
                bias=self._qkv_bias() + self._up_bias(),
            )
            attention, mlp = self._attention(prefix, wide, at), self._mlp(prefix, wide, at)
            output = self._elementwise(f"{prefix}.sum", "add", 3 * self.state_bytes, [attention, mlp], at)
        self.pending.append(self._reduce(prefix, block, output, at, needed_at_once=needed_at_once))

    def _attention(self, prefix: str, qkv: str, layer: int) -> str:
        model = self.model
        if model.qk_norm:
            qkv = self._qk_norm(prefix, qkv, layer)
        rotated = 2.0 * self.tokens * self.qkv_width * STATE_BYTES
        rope = self._elementwise(f"{prefix}.rope", "rope", rotated, [qkv], layer)
        shape = AttentionShape(
            kernel=self.stack.attention,
            batch=self.batch,
            q_len=self.q_len,
            kv_len=self.kv_len,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=model.head_dim,
            element_bytes=STATE_BYTES,
            kv_element_bytes=self.kv_element_bytes,
        )
        outputs = [self._op(f"{prefix}.attention", "attention", shape, [rope], layer=layer)]
        if self.prompt:
            prompt = replace(shape, batch=1, q_len=self.prompt, kv_len=self.prompt, shares_step=True)
            outputs.append(self._op(f"{prefix}.prompt_attention", "attention", prompt, [rope], layer=layer))
        bias = model.hidden if model.out_bias else 0
        return self._linear(f"{prefix}.o", model.hidden, self.heads * model.head_dim, outputs, layer, bias=bias)

    def _qk_norm(self, prefix: str, qkv: str, layer: int) -> str:
        """Two kernels of the shard's heads, as in vLLM's Qwen3Attention: one over the queries, one over the keys."""
        after = qkv
        for name, heads in (("q_norm", self.heads), ("k_norm", self.kv_heads)):
            moved = 2.0 * self.tokens * heads * self.model.head_dim * STATE_BYTES
            weights = float(self.model.head_dim) * STATE_BYTES
            after = self._elementwise(f"{prefix}.{name}", "norm", moved, [after], layer, weights)
        return after

    def _mlp(self, prefix: str, up: str, layer: int) -> str:
        moved = float(self.tokens) * (self.mlp_width + self.intermediate) * STATE_BYTES
        activation = self._elementwise(f"{prefix}.activation", "activation", moved, [up], layer)
        bias = self.model.hidden if self.model.mlp_bias else 0
        return self._linear(f"{prefix}.down", self.model.hidden, self.intermediate, [activation], layer, bias=bias)

    def _qkv_bias(self) -> int:
        return self.qkv_width if self.model.qkv_bias else 0

    def _up_bias(self) -> int:
        return self.mlp_width if self.model.mlp_bias else 0

    # ends

    def _embedding(self, *, reduces: bool) -> None:
        model = self.model
        sharded = self.stack.sharded_embedding and self.tp > 1
        rows = -(-model.vocab // self.tp) if sharded else model.vocab
        weights = float(rows) * model.hidden * STATE_BYTES
        self.residual = self._elementwise("embedding", "embedding", 2 * self.state_bytes, [], -1, weights)
        if sharded and reduces:
            shape = CollectiveShape(message_bytes=self.state_bytes)
            self.residual = self._op("embedding.all_reduce", "all_reduce", shape, [self.residual])

    def _head(self, plan: Wiring) -> None:
        model, tp = self.model, self.tp
        sequences = self.batch + (1 if self.prompt else 0)
        rows = self.tokens if self.stack.prefill_logits == "all" else sequences
        norm = self._norm("final", plan.final_joins, -1, deferred=len(plan.final_joins) > 1)
        sharded = self.stack.sharded_lm_head and tp > 1
        vocab = -(-model.vocab // tp) if sharded else model.vocab
        shape = GemmShape(
            m=rows,
            n=vocab,
            k=model.hidden,
            weight_element_bytes=STATE_BYTES,
            input_element_bytes=STATE_BYTES,
            output_element_bytes=STATE_BYTES,
            duty=self.duty,
        )
        weights = 0.0 if model.tied_embeddings else float(vocab) * model.hidden * STATE_BYTES
        logits = self._op("lm_head", "lm_head", shape, [norm], weights=weights)
        if sharded:
            gathered = CollectiveShape(message_bytes=float(rows) * vocab * tp * STATE_BYTES)
            logits = self._op("lm_head.all_gather", "all_gather", gathered, [logits])
        sampled = float(sequences) * model.vocab * STATE_BYTES
        token = self._elementwise("sample", "sample", sampled, [logits], -1)
        if not plan.reduces and tp > 1:
            # ranks disagree without all-reduces: rank 0's token is the one that counts
            shape_of_tokens = CollectiveShape(message_bytes=float(sequences) * TOKEN_BYTES)
            self._op("token.broadcast", "broadcast", shape_of_tokens, [token])
