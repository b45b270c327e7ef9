"""The kernels of one forward pass, each once, and their order along a residual wiring.

The wiring (wiring.py) says what each block joins and whether it reduces, a layout (layout.py) what waits for what.
Tensor parallelism is Megatron's: column-parallel QKV and gate/up, row-parallel output and down projections, so that a
block ends in partial sums (arXiv 1909.08053).
"""

from dataclasses import replace
from functools import lru_cache
from typing import cast

from ladder_sim.graph import layers
from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.graph.layers.attention import attend, qkv_width
from ladder_sim.graph.layers.feed_forward import down
from ladder_sim.graph.layout import PART_NAMES, Layout, Structure, lay_out
from ladder_sim.graph.ops import (
    BlockKey,
    InChunks,
    Op,
    OpKind,
    PassInputs,
    PortionOf,
    RankPass,
    ResidualOp,
    Role,
    model_blocks,
)
from ladder_sim.graph.techniques import form, rewrites_of, rewritten
from ladder_sim.hf.attention import Gqa
from ladder_sim.hf.feed_forward import Dense
from ladder_sim.kernels import (
    STATE_BYTES,
    WHOLE,
    CollectiveShape,
    ElementwiseShape,
    GemmShape,
    Phase,
    Portion,
    SampleShape,
    Shape,
    Sizes,
)
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.techniques import TECHNIQUES

# one token id, int64 as PyTorch indexes with
TOKEN_BYTES = 8
# a share of the channels is rounded up to as many: 16 bytes, which kernels read at once
CHANNELS = 8


@lru_cache(maxsize=256)
def kernels_of(inputs: PassInputs, phase: Phase) -> "PassKernels":
    """Return the kernels of a pass over one token (`PassInputs.of_one_token`), made once."""
    return PassKernels(inputs, phase)


class PassKernels:
    """The kernels of a forward pass on one rank, each once, whichever wiring strings them together."""

    def __init__(self, inputs: PassInputs, phase: Phase, kv_len: int = 1) -> None:
        self.rank = RankPass(inputs, phase, kv_len)
        self._model_blocks = model_blocks(inputs.model)
        self._blocks: dict[BlockKey, BlockKernels] = {}
        self._of: dict[Role, Op] = {}

        # one op of each kind and shape, and the positions of these
        self.distinct: list[Op] = []
        self._numbers: dict[tuple[OpKind, Shape, Portion], int] = {}

    def layout(self, variant: str, rewrites: tuple[str, ...] = (), *, keep: int | None = None) -> Layout:
        """Return the order of ops in a variant, after `rewrites` (see `graph.techniques`); `keep` as in `lay_out`."""
        rank, blocks = self.rank, self._model_blocks
        model, stack, plan = rank.model, rank.stack, rank.plan
        sharded = plan.tp > 1
        structure = Structure(
            variant=variant,
            layers=model.layers,
            ladder_layers=model.ladder_layers,
            layer_kinds=blocks.layers,
            kinds=blocks.kinds,
            blocks=(),
            stages=plan.stages(model.layers) if plan.pp > 1 else (),
            tensor_parallel=sharded,
            splits=plan.sp or any(name in TECHNIQUES and TECHNIQUES[name].splits for name in rewrites),
            fused_add=stack.fused_residual_add,
            fused_ladder_add=stack.fused_ladder_add,
            norms=model.block_norms,
            vocab_parallel=stack.vocab_parallel and sharded,
        )
        own = [structure._replace(variant=name).wiring.layers for name in model.own_wirings]
        # a technique that fuses all-reduces with norms has kernels of its own
        if "fused-norm" not in rewrites and structure.wiring.layers not in own:
            structure = structure._replace(reduce_kernel=stack.rewired_kernel)
        orders = tuple(self._block(key).structure for key in structure.block_keys)
        return rewritten(lay_out(structure._replace(blocks=orders), keep), rewrites)

    def of(self, role: Role) -> Op:
        """Return the kernel of a role, without a layer."""
        if role not in self._of:
            if isinstance(role, ResidualOp):
                self._of[role] = self._stream(role)
            elif isinstance(role, PortionOf):
                self._of[role] = replace(self.of(role.role), portion=role.portion)
            elif isinstance(role, InChunks):
                whole = self.of(role.role)
                self._of[role] = replace(whole, shape=replace(cast(GemmShape, whole.shape), chunks=self.rank.tp))
            else:
                key, position = role
                self._of[role] = self._block(key).ops[position]
        return self._of[role]

    def number(self, role: Role) -> int:
        """Return the position in `distinct` of the op that equals this role's op."""
        op = self.of(role)
        number = self._numbers.setdefault((op.kind, op.shape, op.portion), len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(op)
        return number

    def ops(self, layout: Layout) -> tuple[Op, ...]:
        """Return every op of a layout, in issue order."""
        own = [self.of(role) for role in layout.roles]
        return tuple(
            replace(own[like], name=name, kind=kind, layer=layer)
            for name, kind, layer, like in zip(layout.names, layout.kinds, layout.layers, layout.same_as, strict=True)
        )

    def _block(self, key: BlockKey) -> BlockKernels:
        if key not in self._blocks:
            self._blocks[key] = self._made(key)
        return self._blocks[key]

    def _made(self, key: BlockKey) -> BlockKernels:
        rank, blocks, reduces = self.rank, self._model_blocks, key.reduces
        block = BlockKernels(rank, PART_NAMES[key.part])
        if key.part == "attention":
            block.output = layers.add(block, blocks.attentions[key.attention], reduces=reduces)
        elif key.part == "mlp":
            block.output = layers.add(block, blocks.feed_forwards[key.feed_forward], reduces=reduces)
        else:
            own, other = blocks.attentions[key.attention], blocks.feed_forwards[key.feed_forward]
            one_format = rank.format("qkv", own) == rank.format("mlp", other)
            if isinstance(own, Gqa) and isinstance(other, Dense) and one_format:
                outputs = _wide(block, own, other, reduces=reduces)
            else:
                parts = ((own, "attn."), (other, "mlp."))
                outputs = [layers.add(block, kind, prefix, reduces=reduces) for kind, prefix in parts]
            block.output = block.elementwise("sum", "add", 3 * rank.state_bytes, outputs)
        return block

    def _stream(self, role: ResidualOp) -> Op:
        rank, name = self.rank, role.op
        own_bytes = rank.state_bytes / rank.tp if role.split else rank.state_bytes
        norm_weights = float(rank.model.hidden) * STATE_BYTES
        if name in ("norm", "add_norm", "post_norm"):
            moved = own_bytes * (4 if name == "add_norm" else 2)
            return _op(role, "norm", ElementwiseShape(moved_bytes=moved, normalises=True), norm_weights)
        if name in ("add", "shared_add", "fold", "add_others"):
            return _op(role, "add", ElementwiseShape(moved_bytes=own_bytes * (4 if name == "add_others" else 3)))
        if name == "sum_parts":
            return _op(role, "add", ElementwiseShape(moved_bytes=rank.state_bytes + own_bytes))
        channels_bytes = float(rank.tokens) * self._channels(role) * STATE_BYTES
        if name == "slice":
            return _op(role, "copy", ElementwiseShape(moved_bytes=2 * channels_bytes))
        if name == "send":
            return _op(role, name, CollectiveShape(message_bytes=role.tensors * own_bytes, group="stages"))
        if name in ("all_reduce", "all_gather", "reduce_scatter", "all_reduce_norm"):
            weights = norm_weights if name == "all_reduce_norm" else 0.0
            return _op(role, name, CollectiveShape(message_bytes=channels_bytes, kernel=role.kernel), weights)
        return self._end(role)

    def _channels(self, role: ResidualOp) -> int:
        hidden = self.rank.model.hidden
        first = min(hidden, -(-hidden * role.percent // (100 * CHANNELS)) * CHANNELS)
        return hidden - first if role.others else first

    def _end(self, role: ResidualOp) -> Op:
        rank, name, model, stack = self.rank, role.op, self.rank.model, self.rank.stack
        vocab = -(-model.vocab // rank.tp) if stack.vocab_parallel else model.vocab
        if name == "embedding":
            moved = ElementwiseShape(moved_bytes=2 * rank.state_bytes)
            return _op(role, name, moved, float(vocab) * model.hidden * STATE_BYTES)
        sequences = rank.batch + (1 if rank.prompt else 0)
        rows = rank.tokens if stack.prefill_logits == "all" else sequences
        if name == "lm_head":
            shape = GemmShape(m=rows, n=vocab, k=model.hidden, duty=rank.duty)
            # the first stage's, unless that is another
            held = 0.0 if model.tied_embeddings and rank.plan.pp == 1 else float(vocab) * model.hidden * STATE_BYTES
            return _op(role, name, shape, held)
        if name == "gather_logits":
            gathered = float(rows) * vocab * rank.tp * STATE_BYTES
            per_sequence = stack.prefill_logits != "all"
            return _op(role, "all_gather", CollectiveShape(message_bytes=gathered, per_sequence=per_sequence))
        if name == "broadcast":
            message = float(sequences) * TOKEN_BYTES
            return _op(role, name, CollectiveShape(message_bytes=message, per_sequence=True, own_type=True))
        sample = SampleShape(batch=sequences, vocab=model.vocab, sampling=stack.sampling)
        return _op(role, "sample", sample)


def pass_ops(scenario: Scenario | PassInputs, phase: Phase, kv_len: int) -> list[Op]:
    """Return every op of a rank's forward pass at its size, in issue order.

    Phase ``"prefill"`` runs every prompt token, ``"decode"`` one token per sequence, ``"mixed"`` that and a prompt. A
    step attends to `kv_len` tokens of context, its own included; a static-cache (``math``) attention reads ``prompt +
    gen`` whatever the context.
    """
    inputs = scenario if isinstance(scenario, PassInputs) else PassInputs.of(scenario)
    stack, workload, kernels = inputs.stack, inputs.workload, PassKernels(inputs, phase, kv_len)
    layout = kernels.layout(inputs.variant, rewrites_of(inputs, form(inputs, phase, kernels.rank.tokens)))
    given = {"batch": workload.batch, "prompt": workload.prompt, "gen": workload.gen}
    if phase == "mixed":
        sizes = Sizes.mixed(stack, kv_len, **given, prompts=1, chunk=workload.prompt, duty=0.0)
    else:
        sizes = Sizes.of(stack, phase, kv_len, **given)
    # those of a part of the tokens, grown from one token's
    small = PassKernels(inputs.of_one_token(), phase).ops(layout)
    pairs = zip(kernels.ops(layout), small, strict=True)
    return [op if op.portion == WHOLE else one.resized(sizes) for op, one in pairs]


def _op(role: ResidualOp, kind: OpKind, shape: Shape, weights: float = 0.0) -> Op:
    return Op(name=f"stream.{role.op}", kind=kind, shape=shape, weight_bytes=weights)


def _wide(block: BlockKernels, own: Gqa, other: Dense, *, reduces: bool) -> list[int]:
    """Add attention and MLP side by side, whose first projections are one GEMM."""
    rank = block.rank
    qkv, up = qkv_width(own, rank.tp), other.up_width // rank.tp
    bias = qkv * own.qkv_bias + up * other.bias
    wide = block.linear("qkv_up", qkv + up, own.hidden, [NORM], format=rank.format("qkv", own), bias=bias)
    return [attend(block, own, wide, reduces=reduces), down(block, other, wide)]
