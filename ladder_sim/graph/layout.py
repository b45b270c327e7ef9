"""A forward pass without sizes: which kernel comes after which, over all layers of a residual wiring.

Blocks are strung along the residual stream: joins and norms in front of each, the exchange of its output behind it.
Models, plans and precisions of one structure share one layout: it is built from `Structure` alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.graph.kernels import NORM, BlockStructure
from ladder_sim.graph.ops import OpKind
from ladder_sim.graph.variants import Block, Layer, Part, Wiring, wiring

PART_NAMES: dict[Part, str] = {"attention": "attn", "mlp": "mlp", "both": "block"}

# ops between the blocks, and before and after all of them; "add_norm" is a norm that adds an output first
ResidualOpName = Literal[
    "embedding",
    "add",
    "post_norm",
    "shared_add",
    "norm",
    "add_norm",
    "all_reduce_norm",
    "fold",
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


class BlockKey(NamedTuple):
    """What tells the blocks of a model apart."""

    part: Part
    attention: int
    """Position in `ModelBlocks.attentions`; -1: there is none."""
    feed_forward: int
    """Likewise, in `ModelBlocks.feed_forwards`."""
    reduces: bool
    """As `Block.reduces`."""

    @classmethod
    def of(cls, kind: tuple[int, int], part: Part, reduces: bool) -> "BlockKey":
        """The one of a layer's kind, as in `ModelBlocks.kinds`."""
        return cls(part, -1 if part == "mlp" else kind[0], -1 if part == "attention" else kind[1], reduces)


# which of a pass's kernels an op is
Role = ResidualOp | tuple[BlockKey, int]


class Structure(NamedTuple):
    """Everything that ops and their order depend on."""

    variant: str
    layers: int
    ladder_layers: tuple[int, ...]
    layer_kinds: tuple[int, ...]
    """Position of each layer's kind in `kinds`."""
    kinds: tuple[tuple[int, int], ...]
    """As `ModelBlocks.kinds`."""
    blocks: tuple[BlockStructure, ...]
    """As `block_keys`."""
    stages: tuple[int, ...]
    """Layers of each pipeline stage; empty: there is one stage."""
    tensor_parallel: bool
    """Ranks share blocks."""
    splits: bool
    """They have a share of the residual stream's tokens each (sequence parallel)."""
    fused_add: bool
    """A norm adds the output of the block just before it."""
    fused_ladder_add: bool
    """And one that is joined later."""
    fuses_norm: bool
    """An all-reduce is part of the norm that needs it at once."""
    post_norms: bool
    """Outputs are normalised before they are joined."""
    sharded_embedding: bool
    sharded_lm_head: bool

    @property
    def wiring(self) -> Wiring:
        """The variant, laid out over all layers."""
        kinds = self.layer_kinds if len(self.kinds) > 1 else ()
        return wiring(self.variant, self.layers, self.ladder_layers, kinds=kinds, stages=self.stages)

    @property
    def block_keys(self) -> list[BlockKey]:
        """Of all blocks that differ."""
        return list(
            dict.fromkeys(BlockKey.of(self.kinds[kind], part, reduces) for kind, part, reduces in self.wiring.forms)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Ops of one forward pass in issue order, some equal layers left out; each field has one entry per op."""

    wiring: Wiring
    """The layers that are there."""
    names: tuple[str, ...]
    kinds: tuple[OpKind, ...]
    layers: tuple[int, ...]
    """As `Op.layer`."""
    after: tuple[tuple[int, ...], ...]
    """Positions of the ops that it needs."""
    same_as: tuple[int, ...]
    """Position of its role in `roles`."""
    roles: tuple[Role, ...]
    """Those that there are, in the order of their first ops."""
    next_to: Mapping[int, tuple[int, ...]]
    """Of roles with others next to them, as `Kernel.next_to` says, and of those."""


@lru_cache(maxsize=1024)
def lay_out(structure: Structure, keep: int | None = None) -> Layout:
    """Put the ops of a pass in issue order.

    Parameters
    ----------
    structure
        Of the pass.
    keep
        Periods left of each run of identical layers; all by default.
    """
    whole = structure.wiring
    return _Builder(structure).build(whole if keep is None else whole.condense(keep))


class _Builder:
    """A layout under construction; `residual` is the op whose completion makes the residual stream ready."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.keys = {
            (kind, part, reduces): BlockKey.of(structure.kinds[kind], part, reduces)
            for kind, part, reduces in structure.wiring.forms
        }
        self.blocks = dict(zip(structure.block_keys, structure.blocks, strict=True))
        self.split = structure.splits
        self.names: list[str] = []
        self.kinds: list[OpKind] = []
        self.layers: list[int] = []
        self.after: list[tuple[int, ...]] = []
        self.same_as: list[int] = []
        self.roles: dict[Role, int] = {}
        self.residual = -1

        # output of every block so far: what a join waits for
        self.pending: list[int] = []

        # outputs that replace the residual instead of being added to it
        self.folded: set[int] = set()

        # partial sums that the next norm's kernel is to reduce
        self.partial: set[int] = set()

        # outputs of shared experts, by what they are added to once it has arrived
        self.shared: dict[int, int] = {}

    def build(self, wiring: Wiring) -> Layout:
        blocks = [(layer, block) for layer in wiring.layers for block in layer.blocks]
        if self.split and len({block.reduces for _, block in blocks}) > 1:
            raise UsageError(
                f"variant '{wiring.name}' with sp: its ranks keep different residuals, which cannot be split",
                hint="leave out --sp, or choose another variant",
            )
        self.split = self.split and wiring.reduces
        self._embedding(reduces=wiring.reduces)
        following = [*((block.joins, layer.starts_stage) for layer, block in blocks[1:]), (wiring.final_joins, False)]
        joined = 0
        for (layer, block), (joins, sent) in zip(blocks, following, strict=True):
            if layer.starts_stage and block is layer.blocks[0]:
                self._send(layer.index, joined)
            joined += len(block.joins)
            self._block(layer, block, needed_at_once=joins == (1,) and not sent)
        self._head(wiring)
        return Layout(
            wiring=wiring,
            names=tuple(self.names),
            kinds=tuple(self.kinds),
            layers=tuple(self.layers),
            after=tuple(self.after),
            same_as=tuple(self.same_as),
            roles=tuple(self.roles),
            next_to=self._next_to(),
        )

    def _next_to(self) -> dict[int, tuple[int, ...]]:
        others: dict[int, tuple[int, ...]] = {}
        for role, number in self.roles.items():
            if not isinstance(role, ResidualOp):
                key, position = role
                first = self.blocks[key].kernels[position].next_to
                if first != NORM:
                    like = self.roles[key, first]
                    others[like] = (*others.get(like, ()), number)
        return others

    def _op(self, name: str, kind: OpKind, role: Role, after: Sequence[int], layer: int = -1) -> int:
        self.names.append(name)
        self.kinds.append(kind)
        self.layers.append(layer)
        self.after.append(tuple(dict.fromkeys(after)))
        self.same_as.append(self.roles.setdefault(role, len(self.roles)))
        return len(self.names) - 1

    def _join(self, joins: Sequence[int], prefix: str, layer: int, *, fuse_last: bool) -> list[int]:
        """Bring outputs into the residual; returns the one that the next norm is to add itself, if any."""
        outputs = [self.pending[len(self.pending) - back] for back in joins]
        for number, output in enumerate(outputs):
            if output in self.folded:
                self.residual = output
                continue
            output = self._with_shared(output)
            if self.structure.post_norms:
                name = f"{prefix}.post_norm{number + 1 if number else ''}"
                output = self._op(name, "norm", ResidualOp("post_norm", self.split), [output], layer)
            if fuse_last and number == len(outputs) - 1:
                return [output]
            name = f"{prefix}.add" if number == 0 else f"{prefix}.add{number + 1}"
            self.residual = self._op(name, "add", ResidualOp("add", self.split), [self.residual, output], layer)
        return []

    def _with_shared(self, output: int) -> int:
        """An output and that of the shared experts next to it, if there are any that were not added before."""
        if output not in self.shared:
            return output
        needed = [output, self.shared.pop(output)]
        return self._op(
            f"{self.names[output]}.shared_add", "add", ResidualOp("shared_add"), needed, self.layers[output]
        )

    def _norm(self, prefix: str, joins: Sequence[int], layer: int, *, deferred: bool) -> int:
        """Join, then normalise; a fused kernel reads residual and output, writes the new residual and the norm.

        It may begin with the output's all-reduce. Shares of the residual stream are gathered after it.
        """
        fuses = self.structure.fused_ladder_add if deferred else self.structure.fused_add
        added = self._join(joins, prefix, layer, fuse_last=fuses)
        needed = [self.residual, *added]
        if self.partial.intersection(added):
            norm = self._op(
                f"{prefix}.all_reduce_norm", "all_reduce_norm", ResidualOp("all_reduce_norm"), needed, layer
            )
        else:
            norm = self._op(
                f"{prefix}.norm", "norm", ResidualOp("add_norm" if added else "norm", self.split), needed, layer
            )
        if added:
            self.residual = norm
        if not self.split:
            return norm
        return self._op(f"{prefix}.all_gather", "all_gather", ResidualOp("all_gather"), [norm], layer)

    def _reduce(self, prefix: str, block: Block, output: int, layer: int, *, needed_at_once: bool) -> int:
        if not block.reduces or not self.structure.tensor_parallel:
            return output
        if self.split:
            return self._op(f"{prefix}.reduce_scatter", "reduce_scatter", ResidualOp("reduce_scatter"), [output], layer)
        if needed_at_once and self.structure.fuses_norm and not block.folds_residual:
            self.partial.add(output)
            return output
        if block.folds_residual:
            output = self._op(f"{prefix}.fold", "add", ResidualOp("fold"), [self.residual, output], layer)
        reduced = self._op(f"{prefix}.all_reduce", "all_reduce", ResidualOp("all_reduce"), [output], layer)
        if block.folds_residual:
            self.folded.add(reduced)
        return reduced

    def _send(self, layer: int, joined: int) -> None:
        """Hand the residual stream, and outputs that are not joined yet, to the next pipeline stage."""
        # a folded output is the residual
        waiting = [self._with_shared(output) for output in self.pending[joined:]]
        whole = 0 if self.folded.intersection(waiting) else 1
        tensors = whole + len(waiting)
        sent = self._op(
            f"layer{layer}.send", "send", ResidualOp("send", self.split, tensors), [self.residual, *waiting], layer
        )
        self.folded.update({sent} if self.folded.intersection(waiting) else ())
        self.pending[joined:] = [sent] * len(waiting)
        self.residual = sent

    def _block(self, layer: Layer, block: Block, *, needed_at_once: bool) -> None:
        prefix, at = f"layer{layer.index}.{PART_NAMES[block.part]}", layer.index
        norm = self._norm(prefix, block.joins, at, deferred=any(back > 1 for back in block.joins))
        key = self.keys[layer.kind, block.part, block.reduces]
        kernels, output, shared = self.blocks[key]
        start = len(self.names)
        # one by one they take most of the time of a layout
        self.names += [f"{prefix}.{kernel.name}" for kernel in kernels]
        self.kinds += [kernel.kind for kernel in kernels]
        self.layers += [at] * len(kernels)
        self.after += [
            tuple([norm if before == NORM else start + before for before in kernel.after]) for kernel in kernels
        ]
        self.same_as += [self.roles.setdefault((key, position), len(self.roles)) for position in range(len(kernels))]
        reduced = self._reduce(prefix, block, start + output, at, needed_at_once=needed_at_once)
        if shared != NORM:
            self.shared[reduced] = start + shared
        self.pending.append(reduced)

    def _embedding(self, *, reduces: bool) -> None:
        self.residual = self._op("embedding", "embedding", ResidualOp("embedding"), [])
        if self.structure.sharded_embedding and reduces:
            self.residual = self._op("embedding.all_reduce", "all_reduce", ResidualOp("all_reduce"), [self.residual])

    def _head(self, wiring: Wiring) -> None:
        norm = self._norm("final", wiring.final_joins, -1, deferred=len(wiring.final_joins) > 1)
        logits = self._op("lm_head", "lm_head", ResidualOp("lm_head"), [norm])
        if self.structure.sharded_lm_head:
            logits = self._op("lm_head.all_gather", "all_gather", ResidualOp("gather_logits"), [logits])
        token = self._op("sample", "sample", ResidualOp("sample"), [logits])
        if not wiring.reduces and self.structure.tensor_parallel:
            # ranks disagree without all-reduces: rank 0's token is the one that counts
            self._op("token.broadcast", "broadcast", ResidualOp("broadcast"), [token])
