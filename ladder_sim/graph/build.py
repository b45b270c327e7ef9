"""Builds the graph of one forward pass: a layer's ops, strung along a residual wiring.

The wiring (variants.py) says what each block joins and whether it reduces; this module says which kernels a block is,
by the kind of its layer. Tensor parallelism is Megatron's: column-parallel QKV and gate/up, row-parallel output and
down projections, so that a block ends in partial sums (arXiv 1909.08053).

Routed experts are spread over all ranks of a stage. Where these share attention, each of them has every token, runs the
experts that it holds, and the block ends in an all-reduce as before (vLLM 0.32.0, fused_moe/layer.py). Where ranks have
requests of their own (data-parallel attention), their tokens are gathered before the experts, quantised, and the sums
are scattered after them (vLLM's all2all backend "allgather_reducescatter"). The router comes first, so that the
gathering waits for it in every wiring; the scattering may overlap the next block.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import (
    PROMPT_DUTY,
    AttentionShape,
    BmmShape,
    CollectiveKind,
    CollectiveShape,
    Count,
    ElementwiseShape,
    GemmShape,
    Group,
    MlaShape,
    MoeShape,
    Op,
    OpKind,
    Phase,
    Shape,
    StepGraph,
)
from ladder_sim.graph.variants import Block, Layer, Part, Wiring, wiring
from ladder_sim.specs.layers import Dense, Gqa, LayerPart, Mla, Moe
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import FORMATS, KV_BYTES, Format, Workload

# element size of the residual stream, embedding, norms, LM head and queries: they stay 16-bit in every precision
STATE_BYTES = 2
# a sum of squares, and a router's score, 32-bit
SQUARES_BYTES = 4
# one token id, int64 as PyTorch indexes with
TOKEN_BYTES = 8

_PART_NAMES: dict[Part, str] = {"attention": "attn", "mlp": "mlp", "both": "block"}


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

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Those of a scenario."""
        workload = scenario.workload
        if workload.concurrency is None:
            workload = replace(workload, batch=scenario.plan.micro_batch(workload.batch))
        fused_norm_bytes = scenario.fused_norm_bytes
        return cls(scenario.model, workload, scenario.stack, scenario.plan, scenario.variant, fused_norm_bytes)

    @property
    def wiring(self) -> Wiring:
        """The variant, laid out over the layers and stages of the model."""
        kinds = self.model.kinds
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return wiring(
            self.variant,
            self.model.layers,
            self.model.ladder_layers,
            kinds=tuple(numbers[kind] for kind in kinds) if len(numbers) > 1 else (),
            stages=self.plan.stages(self.model.layers) if self.plan.pp > 1 else (),
        )

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
        Model, workload, stack, plan and variant.
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
    inputs = scenario if isinstance(scenario, PassInputs) else PassInputs.of(scenario)
    return _Builder(inputs, phase, kv_len).build(layers or inputs.wiring)


class _Builder:
    """One forward pass under construction; `residual` is the op whose completion makes the residual stream ready."""

    def __init__(self, inputs: PassInputs, phase: Phase, kv_len: int) -> None:
        model, workload, stack = inputs.model, inputs.workload, inputs.stack
        self.model, self.stack, self.plan, self.tp = model, stack, inputs.plan, inputs.plan.tp
        self.kinds = model.kinds
        self.phase: Phase = phase
        self.batch = workload.batch
        self.q_len = workload.prompt if phase == "prefill" else 1
        self.prompt = workload.prompt if phase == "mixed" else 0
        self.tokens = self.batch * self.q_len + self.prompt
        self.duty = PROMPT_DUTY[phase]
        self.kv_element_bytes = KV_BYTES[workload.kv_dtype]
        self.kv_len = workload.context if stack.static_cache else kv_len
        self.format = FORMATS[workload.dtype]
        # what its checkpoint keeps in 16 bits is so in the checkpoint's own precision
        self.unquantized = model.unquantized if workload.dtype == model.weights_dtype else ()
        self.state_bytes = float(self.tokens) * model.hidden * STATE_BYTES
        # ranks that hold a share of the residual stream each
        self.shards = self.tp if inputs.plan.sp else 1
        self.residual_bytes = self.state_bytes / self.shards
        self.fuses_norm = (
            stack.fused_residual_add
            and not model.post_norms
            and self.shards == 1
            and self.state_bytes <= inputs.fused_norm_bytes
        )
        self.graph = StepGraph(phase)
        self.residual = ""

        # output of every block so far: what a join waits for
        self.pending: list[str] = []

        # outputs that replace the residual instead of being added to it
        self.folded: set[str] = set()

        # partial sums that the next norm's kernel is to reduce
        self.partial: set[str] = set()

        # op next to which ops are added that run on a stream of their own
        self.next_to = ""

        # outputs of shared experts, by what they are added to once it has arrived
        self.shared: dict[str, tuple[str, int]] = {}

    def build(self, plan: Wiring) -> StepGraph:
        blocks = [(layer, block) for layer in plan.layers for block in layer.blocks]
        if self.shards > 1 and len({block.reduces for _, block in blocks}) > 1:
            raise UsageError(
                f"variant '{plan.name}' with sp: its ranks keep different residuals, which cannot be split",
                hint="leave out --sp, or choose another variant",
            )
        if not plan.reduces:
            self.shards, self.residual_bytes = 1, self.state_bytes
        self._embedding(reduces=plan.reduces)
        following = [*((block.joins, layer.starts_stage) for layer, block in blocks[1:]), (plan.final_joins, False)]
        joined = 0
        for (layer, block), (joins, sent) in zip(blocks, following, strict=True):
            if layer.starts_stage and block is layer.blocks[0]:
                self._send(layer.index, joined)
            joined += len(block.joins)
            self._block(layer, block, needed_at_once=joins == (1,) and not sent)
        self._head(plan)
        return self.graph

    # ops

    def _op(
        self, name: str, kind: OpKind, shape: Shape, after: Sequence[str], *, layer: int = -1, weights: float = 0.0
    ) -> str:
        op = Op(name=name, kind=kind, shape=shape, layer=layer, weight_bytes=weights, next_to=self.next_to)
        return self.graph.add_op(op, after=after)

    def _elementwise(
        self, name: str, kind: OpKind, moved: float, after: Sequence[str], layer: int, weights: float = 0.0
    ) -> str:
        return self._op(name, kind, ElementwiseShape(moved_bytes=moved), after, layer=layer, weights=weights)

    def _collective(
        self, name: str, kind: CollectiveKind, message: float, after: Sequence[str], layer: int, group: Group = "tensor"
    ) -> str:
        return self._op(name, kind, CollectiveShape(message_bytes=message, group=group), after, layer=layer)

    def _format(self, part: LayerPart) -> Format:
        return FORMATS["bf16"] if part in self.unquantized else self.format

    def _linear(
        self,
        name: str,
        n: int,
        k: int,
        after: Sequence[str],
        layer: int,
        *,
        format: Format,
        bias: int = 0,
        kind: OpKind = "gemm",
        tokens: int | None = None,
        held: bool = True,
    ) -> str:
        shape = GemmShape(
            m=self.tokens if tokens is None else tokens,
            n=n,
            k=k,
            weight_element_bytes=format.weight_bytes,
            input_element_bytes=format.activation_bytes,
            output_element_bytes=STATE_BYTES,
            format=format.name,
            duty=self.duty,
        )
        if format.quantizes:
            moved = float(self.tokens) * k * self.stack.quantize_element_bytes
            after = [self._elementwise(f"{name}_quantize", "quantize", moved, after, layer)]
        weights = float(n) * k * format.weight_bytes + bias * STATE_BYTES if held else 0.0
        return self._op(name, kind, shape, after, layer=layer, weights=weights)

    # residual stream

    def _join(self, joins: Sequence[int], prefix: str, layer: int, *, fuse_last: bool) -> list[str]:
        """Bring outputs into the residual; returns the one that the next norm is to add itself, if any."""
        outputs = [self.pending[len(self.pending) - back] for back in joins]
        for number, output in enumerate(outputs):
            if output in self.folded:
                self.residual = output
                continue
            output = self._with_shared(output)
            if self.model.post_norms:
                weights = float(self.model.hidden) * STATE_BYTES
                normed = f"{prefix}.post_norm{number + 1 if number else ''}"
                output = self._elementwise(normed, "norm", 2 * self.residual_bytes, [output], layer, weights)
            if fuse_last and number == len(outputs) - 1:
                return [output]
            else:
                name = f"{prefix}.add" if number == 0 else f"{prefix}.add{number + 1}"
                self.residual = self._elementwise(name, "add", 3 * self.residual_bytes, [self.residual, output], layer)
        return []

    def _with_shared(self, output: str) -> str:
        """An output and that of the shared experts next to it, if there are any that were not added before."""
        if output not in self.shared:
            return output
        shared, layer = self.shared.pop(output)
        return self._elementwise(f"{output}.shared_add", "add", 3 * self.state_bytes, [output, shared], layer)

    def _norm(self, prefix: str, joins: Sequence[int], layer: int, *, deferred: bool) -> str:
        """Join, then normalise; a fused kernel reads residual and output, writes the new residual and the norm.

        It may begin with the output's all-reduce. Shares of the residual stream are gathered after it.
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
            moved = self.residual_bytes * (4 if added else 2)
            norm = self._elementwise(f"{prefix}.norm", "norm", moved, needed, layer, weights)
        if added:
            self.residual = norm
        if self.shards == 1:
            return norm
        return self._collective(f"{prefix}.all_gather", "all_gather", self.state_bytes, [norm], layer)

    def _reduce(self, prefix: str, block: Block, output: str, layer: int, *, needed_at_once: bool) -> str:
        if not block.reduces or self.tp == 1:
            return output
        if self.shards > 1:
            return self._collective(f"{prefix}.reduce_scatter", "reduce_scatter", self.state_bytes, [output], layer)
        if needed_at_once and self.fuses_norm and not block.folds_residual:
            self.partial.add(output)
            return output
        if block.folds_residual:
            output = self._elementwise(f"{prefix}.fold", "add", 3 * self.state_bytes, [self.residual, output], layer)
        reduced = self._collective(f"{prefix}.all_reduce", "all_reduce", self.state_bytes, [output], layer)
        if block.folds_residual:
            self.folded.add(reduced)
        return reduced

    def _send(self, layer: int, joined: int) -> None:
        """Hand the residual stream, and outputs that are not joined yet, to the next pipeline stage."""
        # a folded output is the residual
        waiting = [self._with_shared(output) for output in self.pending[joined:]]
        whole = 0 if self.folded.intersection(waiting) else 1
        message = (whole + len(waiting)) * self.residual_bytes
        needed = dict.fromkeys([self.residual, *waiting])
        sent = self._collective(f"layer{layer}.send", "send", message, list(needed), layer, group="stages")
        self.folded.update({sent} if self.folded.intersection(waiting) else ())
        self.pending[joined:] = [sent] * len(waiting)
        self.residual = sent

    # blocks

    def _block(self, layer: Layer, block: Block, *, needed_at_once: bool) -> None:
        prefix, at, kind = f"layer{layer.index}.{_PART_NAMES[block.part]}", layer.index, self.kinds[layer.index]
        attention, feed_forward = kind.attention, kind.feed_forward
        norm = self._norm(prefix, block.joins, at, deferred=any(back > 1 for back in block.joins))
        if block.part == "attention":
            output = self._attention(prefix, attention, norm, at, block)
        elif block.part == "mlp":
            output = self._feed_forward(prefix, feed_forward, norm, at, block)
        else:
            if isinstance(attention, Gqa) and isinstance(feed_forward, Dense) and not self.unquantized:
                outputs = self._wide(prefix, attention, feed_forward, norm, at, block)
            else:
                outputs = [
                    self._attention(f"{prefix}.attn", attention, norm, at, block),
                    self._feed_forward(f"{prefix}.mlp", feed_forward, norm, at, block),
                ]
            output = self._elementwise(f"{prefix}.sum", "add", 3 * self.state_bytes, outputs, at)
        self.pending.append(self._reduce(prefix, block, output, at, needed_at_once=needed_at_once))

    def _wide(self, prefix: str, attention: Gqa, mlp: Dense, norm: str, layer: int, block: Block) -> list[str]:
        """Attention and MLP side by side, whose first projections are one GEMM."""
        qkv, up = self._qkv_width(attention), mlp.up_width // self.tp
        bias = qkv * attention.qkv_bias + up * mlp.bias
        wide = self._linear(
            f"{prefix}.qkv_up", qkv + up, self.model.hidden, [norm], layer, format=self._format("qkv"), bias=bias
        )
        return [self._attend(prefix, attention, wide, layer, block), self._mlp(prefix, mlp, wide, layer)]

    def _attention(self, prefix: str, attention: Gqa | Mla, norm: str, layer: int, block: Block) -> str:
        if isinstance(attention, Mla):
            return self._latent(prefix, attention, norm, layer)
        width = self._qkv_width(attention)
        bias = width * attention.qkv_bias
        qkv = self._linear(
            f"{prefix}.qkv", width, self.model.hidden, [norm], layer, format=self._format("qkv"), bias=bias
        )
        return self._attend(prefix, attention, qkv, layer, block)

    def _qkv_width(self, attention: Gqa) -> int:
        heads, kv_heads = attention.heads // self.tp, max(1, attention.kv_heads // self.tp)
        return (heads + 2 * kv_heads) * attention.head_dim

    def _attend(self, prefix: str, attention: Gqa, qkv: str, layer: int, block: Block) -> str:
        """From queries, keys and values to attention's output."""
        heads, kv_heads = attention.heads // self.tp, max(1, attention.kv_heads // self.tp)
        if attention.qk_norm:
            qkv = self._qk_norm(prefix, attention, qkv, layer, block)
        rotated = 2.0 * self.tokens * self._qkv_width(attention) * STATE_BYTES
        rope = self._elementwise(f"{prefix}.rope", "rope", rotated, [qkv], layer)
        shape = AttentionShape(
            kernel=self.stack.attention,
            batch=self.batch,
            q_len=self.q_len,
            kv_len=self.kv_len,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=attention.head_dim,
            element_bytes=STATE_BYTES,
            kv_element_bytes=self.kv_element_bytes,
            window=attention.window,
        )
        sinks = float(heads * STATE_BYTES) if attention.sinks else 0.0
        outputs = [self._op(f"{prefix}.attention", "attention", shape, [rope], layer=layer, weights=sinks)]
        if self.prompt:
            prompt = replace(shape, batch=1, q_len=self.prompt, kv_len=self.prompt, shares_step=True)
            outputs.append(self._op(f"{prefix}.prompt_attention", "attention", prompt, [rope], layer=layer))
        return self._out(prefix, heads * attention.head_dim, outputs, layer, bias=attention.out_bias)

    def _out(self, prefix: str, k: int, after: Sequence[str], layer: int, *, bias: bool) -> str:
        hidden = self.model.hidden
        return self._linear(
            f"{prefix}.o", hidden, k, after, layer, format=self._format("out"), bias=hidden if bias else 0
        )

    def _qk_norm(self, prefix: str, attention: Gqa, qkv: str, layer: int, block: Block) -> str:
        """Two kernels of the shard's heads, as in vLLM's Qwen3Attention: one over the queries, one over the keys.

        Over all heads, ranks add up the squares of both for each token first, as in vLLM's MiniMaxText01RMSNormTP.
        """
        heads, kv_heads = attention.heads // self.tp, max(1, attention.kv_heads // self.tp)
        after = qkv
        if attention.qk_norm == "all" and self.tp > 1 and block.reduces:
            message = float(self.tokens) * 2 * SQUARES_BYTES
            after = self._collective(f"{prefix}.qk_all_reduce", "all_reduce", message, [after], layer)
        for name, normed in (("q_norm", heads), ("k_norm", kv_heads)):
            moved = 2.0 * self.tokens * normed * attention.head_dim * STATE_BYTES
            held = {"heads": 1, "all": normed}.get(attention.qk_norm, 0)
            weights = float(held * attention.head_dim) * STATE_BYTES
            after = self._elementwise(f"{prefix}.{name}", "norm", moved, [after], layer, weights)
        return after

    def _latent(self, prefix: str, attention: Mla, norm: str, layer: int) -> str:
        """Multi-head latent attention: absorbed for single new tokens, expanded for prompts (vLLM, mla/common.py)."""
        heads, hidden, qkv = attention.heads // self.tp, self.model.hidden, self._format("qkv")
        latent, rope = attention.kv_lora_rank, attention.rope_head_dim
        q_width = heads * attention.q_head_dim
        low = attention.q_lora_rank + latent
        if attention.q_lora_rank:
            # every rank has all of it
            down = self._linear(f"{prefix}.qkv_a", low + rope, hidden, [norm], layer, format=qkv)
            moved = 2.0 * self.tokens * low * STATE_BYTES
            normed = self._elementwise(f"{prefix}.latent_norm", "norm", moved, [down], layer, float(low) * STATE_BYTES)
            queries = self._linear(f"{prefix}.q_b", q_width, attention.q_lora_rank, [normed], layer, format=qkv)
        else:
            queries = self._linear(f"{prefix}.q", q_width, hidden, [norm], layer, format=qkv)
            down = self._linear(f"{prefix}.kv_a", latent + rope, hidden, [norm], layer, format=qkv)
            moved = 2.0 * self.tokens * low * STATE_BYTES
            normed = self._elementwise(f"{prefix}.latent_norm", "norm", moved, [down], layer, float(low) * STATE_BYTES)
        # queries and the shared key are rotated, the latent vector is written to the cache
        moved = 2.0 * self.tokens * (heads * rope + latent + rope) * STATE_BYTES
        rotated = self._elementwise(f"{prefix}.rope", "rope", moved, [queries, normed], layer)
        shape = MlaShape(
            batch=self.batch,
            q_len=self.q_len,
            kv_len=self.kv_len,
            heads=heads,
            latent=latent,
            rope=rope,
            nope=attention.nope_head_dim,
            value=attention.value_head_dim,
            element_bytes=STATE_BYTES,
            kv_element_bytes=self.kv_element_bytes,
        )
        outputs = []
        if self.phase != "prefill":
            into = self._per_head(f"{prefix}.k_absorb", heads, latent, attention.nope_head_dim, [rotated], layer)
            attended = self._op(f"{prefix}.attention", "attention", shape, [into], layer=layer)
            outputs.append(
                self._per_head(f"{prefix}.v_absorb", heads, attention.value_head_dim, latent, [attended], layer)
            )
        if self.phase == "prefill" or self.prompt:
            expanded = self._linear(
                f"{prefix}.kv_b",
                heads * (attention.nope_head_dim + attention.value_head_dim),
                latent,
                [rotated],
                layer,
                format=qkv,
                kind="expand",
                tokens=self.prompt or self.tokens,
                # the absorbed form holds the same weights
                held=self.phase == "prefill",
            )
            name = f"{prefix}.prompt_attention" if self.prompt else f"{prefix}.attention"
            if self.prompt:
                shape = replace(shape, batch=1, q_len=self.prompt, kv_len=self.prompt, shares_step=True)
            outputs.append(self._op(name, "attention", shape, [expanded], layer=layer))
        return self._out(prefix, heads * attention.value_head_dim, outputs, layer, bias=False)

    def _per_head(self, name: str, heads: int, n: int, k: int, after: Sequence[str], layer: int) -> str:
        qkv = self._format("qkv")
        shape = BmmShape(
            heads=heads,
            m=self.batch * self.q_len,
            n=n,
            k=k,
            weight_element_bytes=qkv.weight_bytes,
            input_element_bytes=STATE_BYTES,
            output_element_bytes=STATE_BYTES,
            format=qkv.name,
        )
        return self._op(name, "bmm", shape, after, layer=layer, weights=float(heads) * n * k * qkv.weight_bytes)

    def _feed_forward(self, prefix: str, feed_forward: Dense | Moe, norm: str, layer: int, block: Block) -> str:
        if isinstance(feed_forward, Moe):
            return self._experts(prefix, feed_forward, norm, layer, block)
        return self._mlp(prefix, feed_forward, self._up(prefix, feed_forward, norm, layer), layer)

    def _up(self, prefix: str, mlp: Dense, norm: str, layer: int) -> str:
        width = mlp.up_width // self.tp
        return self._linear(
            f"{prefix}.up",
            width,
            self.model.hidden,
            [norm],
            layer,
            format=self._format("mlp"),
            bias=width if mlp.bias else 0,
        )

    def _mlp(self, prefix: str, mlp: Dense, up: str, layer: int) -> str:
        width, hidden = mlp.width // self.tp, self.model.hidden
        moved = float(self.tokens) * (mlp.up_width // self.tp + width) * STATE_BYTES
        activation = self._elementwise(f"{prefix}.activation", "activation", moved, [up], layer)
        bias = hidden if mlp.bias else 0
        return self._linear(f"{prefix}.down", hidden, width, [activation], layer, format=self._format("mlp"), bias=bias)

    def _experts(self, prefix: str, moe: Moe, norm: str, layer: int, block: Block) -> str:
        """Router, routed experts of this rank, and shared experts."""
        plan, expert, own = self.plan, moe.expert, self._format("experts")
        gathers = plan.attention_dp > 1 and block.reduces
        bias = moe.experts if moe.router_bias else 0
        scores = self._linear(
            f"{prefix}.router",
            moe.experts,
            self.model.hidden,
            [norm],
            layer,
            format=FORMATS["bf16"],
            bias=bias,
            kind="router",
        )
        # scores and their order, 32-bit
        moved = 2.0 * self.tokens * moe.experts * SQUARES_BYTES / 2
        needed = [self._elementwise(f"{prefix}.top_k", "activation", moved, [scores], layer)]
        every = self.tokens * plan.attention_dp
        if gathers:
            message = float(every) * self.model.hidden * own.activation_bytes
            needed = [self._collective(f"{prefix}.dispatch", "all_gather", message, needed, layer, group="experts")]
        held = moe.experts // plan.ep
        width = expert.width // plan.expert_tp
        ups = expert.up_width // expert.width
        biases = (ups * width + self.model.hidden) * expert.bias
        shape = MoeShape(
            tokens=every,
            hidden=self.model.hidden,
            width=expert.width,
            experts=moe.experts,
            top_k=moe.experts_per_token,
            expert_tp=plan.expert_tp,
            ep=plan.ep,
            weight_element_bytes=own.weight_bytes,
            input_element_bytes=own.activation_bytes,
            output_element_bytes=STATE_BYTES,
            format=own.name,
        )
        weights = held * ((ups + 1) * float(self.model.hidden) * width * own.weight_bytes + biases * STATE_BYTES)
        output = routed = self._op(f"{prefix}.experts", "experts", shape, needed, layer=layer, weights=weights)
        if gathers:
            message = float(every) * self.model.hidden * STATE_BYTES
            output = self._collective(f"{prefix}.combine", "reduce_scatter", message, [output], layer, group="experts")
        if moe.shared is None:
            return output
        self.next_to = routed if self.phase == "decode" and self.stack.shared_expert_stream else ""
        up = self._up(f"{prefix}.shared", moe.shared, norm, layer)
        self.shared[output] = self._mlp(f"{prefix}.shared", moe.shared, up, layer), layer
        self.next_to = ""
        # what other ranks send may be waited for later
        later = gathers and self.tp == 1 and block.part == "mlp"
        return output if later else self._with_shared(output)

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
            gathered = CollectiveShape(
                message_bytes=float(rows) * vocab * tp * STATE_BYTES, per_sequence=self.stack.prefill_logits != "all"
            )
            logits = self._op("lm_head.all_gather", "all_gather", gathered, [logits])
        sampled = float(sequences) * model.vocab * STATE_BYTES
        token = self._elementwise("sample", "sample", sampled, [logits], -1)
        if not plan.reduces and tp > 1:
            # ranks disagree without all-reduces: rank 0's token is the one that counts
            shape_of_tokens = CollectiveShape(message_bytes=float(sequences) * TOKEN_BYTES, per_sequence=True)
            self._op("token.broadcast", "broadcast", shape_of_tokens, [token])
