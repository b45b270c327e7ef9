"""A forward pass without sizes: which kernel comes after which, over all layers of a residual wiring.

Blocks are strung along the residual stream: joins and norms in front of each, the exchange of its output behind it.
Models, plans and precisions of one structure share one layout: it is built from `Structure` alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ladder_sim.graph.block import NORM, BlockStructure
from ladder_sim.graph.ops import BlockKey, InChunks, OpKind, PortionOf, ResidualOp, Role
from ladder_sim.hf.shape import BlockNorms
from ladder_sim.wirings import layout as wirings
from ladder_sim.wirings.layout import Block, Layer, Wiring
from ladder_sim.wirings.rules import Part, Weight

PART_NAMES: dict[Part, str] = {"attention": "attn", "mlp": "mlp", "both": "block"}


class Output(NamedTuple):
    """What a block put out, by the ops that make it."""

    block: Block
    """Whose it is."""
    own: int
    """The rank's own part."""
    sum: int
    """What joins the residual."""
    exchanged: bool
    """Other ranks have parts of it."""
    shared: int = NORM
    """What shared experts put out next to it, to be added to it; `NORM`: nothing, or it was added."""


class Term(NamedTuple):
    """A tensor to be added to the residual stream."""

    tensor: int
    """The op that makes it."""
    weights: tuple[Weight, ...] = ()
    """Factor in each lane; one for all of them; none: 1."""


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
    """Order of each block's kernels, in the order of `block_keys`."""
    stages: tuple[int, ...]
    """Layers of each pipeline stage; empty: there is one stage."""
    tensor_parallel: bool
    """Ranks share blocks."""
    splits: bool
    """They have a share of the residual stream's tokens each (sequence parallel)."""
    fused_add: bool
    """A norm adds the output of the block just before it."""
    fused_ladder_add: bool
    """Whether a norm adds an output that is joined later."""
    norms: BlockNorms
    """What blocks normalise: what they read, their outputs before they are joined, or both."""
    vocab_parallel: bool
    """Each rank has a part of embedding and LM head."""
    reduce_kernel: str = ""
    """As `CollectiveShape.kernel`, of blocks' all-reduces."""

    @property
    def wiring(self) -> Wiring:
        """The variant, laid out over all layers."""
        kinds = self.layer_kinds if len(self.kinds) > 1 else ()
        return wirings.lay_out(self.variant, self.layers, self.ladder_layers, kinds=kinds, stages=self.stages)

    @property
    def block_keys(self) -> list[BlockKey]:
        blocks = self.wiring.distinct_blocks
        return list(dict.fromkeys(BlockKey.of(self.kinds[kind], part, reduces) for kind, part, reduces in blocks))


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
    """Roles of the layout, in the order of their first ops."""
    next_to: Mapping[int, tuple[int, ...]]
    """Roles that run next to each role that has such, as `Kernel.next_to` says."""
    chunked: Mapping[int, int] = field(default_factory=dict)
    """The GEMM of each collective that runs chunk by chunk with one; both are roles."""
    prefetching: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The GEMMs whose weights are read during each collective; all are roles."""
    uncontended: bool = False
    """Whether the layout's streams take nothing of the GPU from each other."""


@lru_cache(maxsize=1024)
def lay_out(structure: Structure, keep: int | None = None) -> Layout:
    """Put the ops of a pass in issue order, with `keep` periods of each run of identical layers; all by default."""
    whole = structure.wiring
    return _Builder(structure).build(whole if keep is None else whole.condense(keep))


class _Builder:
    """A layout under construction; `streams` are the ops whose completion makes the lanes of the residual ready."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.keys = {
            (kind, part, reduces): BlockKey.of(structure.kinds[kind], part, reduces)
            for kind, part, reduces in structure.wiring.distinct_blocks
        }
        self.blocks = dict(zip(structure.block_keys, structure.blocks, strict=True))
        self.split = structure.splits
        self.names: list[str] = []
        self.kinds: list[OpKind] = []
        self.layers: list[int] = []
        self.after: list[tuple[int, ...]] = []
        self.same_as: list[int] = []
        self.roles: dict[Role, int] = {}
        self.streams: dict[str, int] = dict.fromkeys(structure.wiring.lanes, -1)

        # the lane that the block at hand reads
        self.lane = structure.wiring.lanes[0]

        # the streams without the parts that a sum brings again
        self.kept: dict[str, int] = {}

        # what every block so far put out, and the numbers of those that are not joined
        self.outputs: list[Output] = []
        self.waiting: list[int] = []

        # those of which the rank's own part, or what shared experts put out, is read ahead of the sum
        self.read_ahead: set[int] = set()
        self.read_shared: set[int] = set()

        # how often each name was wanted
        self.used: Counter[str] = Counter()

    @property
    def residual(self) -> int:
        """The stream that the block at hand reads."""
        return self.streams[self.lane]

    def build(self, wiring: Wiring) -> Layout:
        if wiring.is_own:
            wiring.check_norms(1 + self.structure.tensor_parallel, behind=self.structure.norms != "before")
        if self.split:
            wiring.check_shares()
        if self.structure.stages:
            wiring.check_stages([layer.index for layer in wiring.layers if layer.starts_stage])
        self.split = self.split and wiring.reduces
        self._embedding(reduces=wiring.reduces)
        for number, (_, block) in enumerate(wiring.blocks):
            self.read_ahead.update(number - back for back in block.reads_ahead)
            self.read_shared.update([number - 1] if block.reads_shared or block.reads_ahead else [])
        for layer, block in wiring.blocks:
            self.lane = block.lane
            if layer.starts_stage and block is layer.blocks[0]:
                self._send(layer.index)
            self._block(layer, block)
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
            if not isinstance(role, ResidualOp | PortionOf | InChunks):
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

    def _numbered(self, name: str) -> str:
        self.used[name] += 1
        return name if self.used[name] == 1 else f"{name}{self.used[name]}"

    def _due(self, joins: Sequence[int]) -> list[int]:
        """Return the numbers of the outputs that join, without those that joined when they were read ahead."""
        due: list[int] = []
        for number in [len(self.outputs) - back for back in joins]:
            carried = [number - back for back in self.outputs[number].block.carries]
            if self.structure.tensor_parallel:
                self.waiting = [each for each in self.waiting if each not in carried]
            else:
                # there is no sum that has them
                due += carried
            due.append(number)
        return [number for number in due if number in self.waiting]

    def _join(self, numbers: Sequence[int], prefix: str, layer: int) -> list[Term]:
        """Bring outputs into the residual, all but the last one: it is returned if a norm can still add it."""
        last: list[Term] = []
        for number in numbers:
            self.waiting.remove(number)
            output = self.outputs[number]
            entry = self._enters(output)
            if entry == "stream":
                self.streams = dict.fromkeys(self.streams, output.sum)
                continue
            self._add(last, prefix, layer)
            last = []
            if entry == "kept":
                self.streams = dict(self.kept)
            if entry == "others" if entry else number in self.read_ahead:
                self._add_others(number, prefix, layer)
            else:
                last = [Term(self._normed(self._with_shared(number).sum, prefix, layer), _by_lane(output.block))]
        return last

    def _enters(self, output: Output) -> str:
        """Return how a sum over the ranks enters the stream; empty for an output without one."""
        return output.block.entry if output.block.reduces and self.structure.tensor_parallel else ""

    def _add_others(self, number: int, prefix: str, layer: int) -> None:
        """Add a sum without the parts of it that the residual has."""
        output = self.outputs[number]
        others = [self.outputs[number - back].own for back in output.block.read if back] if output.block.carries else []
        arrived, own = self._normed(output.sum, prefix, layer), output.own
        if output.block.carries and 0 not in output.block.read:
            own, *others = others
        for other in others:
            own = self._op(self._numbered(f"{prefix}.sum_read"), "add", ResidualOp("fold"), [own, other], layer)
        for stream, lanes in self._alike(_by_lane(output.block)):
            name = self._numbered(f"{prefix}.add_others")
            self._set(lanes, self._op(name, "add", ResidualOp("add_others"), [stream, arrived, own], layer))

    def _read_ahead(self, block: Block, prefix: str, layer: int) -> list[Term]:
        """Return the tensors that a block reads ahead of the sums that have them."""
        terms = []
        for number in [len(self.outputs) - back for back in block.reads_ahead]:
            output = self.outputs[number]
            terms.append(Term(self._normed(output.own, prefix, layer), _by_lane(output.block)))
            if not output.exchanged:
                self.waiting.remove(number)
            else:
                self.outputs[number] = output._replace(own=terms[-1].tensor)
        if self.outputs and (block.reads_ahead or block.reads_shared):
            shared = self.outputs[-1].shared
            terms += [Term(shared, _by_lane(self.outputs[-1].block))] if shared != NORM else []
            self.outputs[-1] = self.outputs[-1]._replace(shared=NORM)
        return terms

    def _add(self, terms: Sequence[Term], prefix: str, layer: int) -> None:
        for tensor, weights in terms:
            self._add_to(self._alike(weights), tensor, prefix, layer)

    def _add_to(self, alike: Iterable[tuple[int, Sequence[str]]], tensor: int, prefix: str, layer: int) -> None:
        for stream, lanes in alike:
            name = self._numbered(f"{prefix}.add")
            self._set(lanes, self._op(name, "add", ResidualOp("add", self.split), [stream, tensor], layer))

    def _alike(self, weights: Sequence[Weight | None]) -> list[tuple[int, list[str]]]:
        """Return each stream with the lanes that have it and to which an output is added with the same factor."""
        lanes: dict[tuple[int, Weight | str | None], list[str]] = {}
        for number, (lane, stream) in enumerate(self.streams.items()):
            weight = weights[number] if len(weights) > 1 else None
            if weight != 0:
                lanes.setdefault((stream, lane if weight == "learned" else weight), []).append(lane)
        return [(stream, each) for (stream, _), each in lanes.items()]

    def _set(self, lanes: Iterable[str], stream: int) -> None:
        self.streams.update(dict.fromkeys(lanes, stream))

    def _normed(self, tensor: int, prefix: str, layer: int) -> int:
        if self.structure.norms == "before":
            return tensor
        name = self._numbered(f"{prefix}.post_norm")
        return self._op(name, "norm", ResidualOp("post_norm", self.split), [tensor], layer)

    def _with_shared(self, number: int) -> Output:
        output = self.outputs[number]
        if output.shared != NORM:
            name, needed = f"{self.names[output.sum]}.shared_add", [output.sum, output.shared]
            added = self._op(name, "add", ResidualOp("shared_add"), needed, self.layers[output.sum])
            output = self.outputs[number] = output._replace(sum=added, shared=NORM)
        return output

    def _norm(self, prefix: str, joins: Sequence[int], layer: int, block: Block | None = None) -> int:
        """Join, then normalise; a fused kernel reads residual and output, writes the new residual and the norm.

        Blocks with norms behind them read the residual as it is. Shares of the residual stream are gathered after it.
        """
        numbers = self._due(joins)
        deferred = any(number < len(self.outputs) - 1 for number in numbers)
        if block and block.keeps:
            # sums come first: they are older than what is open
            sums = [number for number in numbers if self.outputs[number].block.reduces]
            self._add(self._join(sums, prefix, layer), prefix, layer)
            numbers = [number for number in numbers if number not in sums]
            self.kept = dict(self.streams)
        last = self._join(numbers, prefix, layer)
        for term in self._read_ahead(block, prefix, layer) if block else ():
            self._add(last, prefix, layer)
            last, deferred = [term], False
        normalises = block is None or self.structure.norms != "behind"
        fuses = self.structure.fused_ladder_add if deferred else self.structure.fused_add
        if not (normalises and fuses and last and len(last[0].weights) < 2):
            self._add(last, prefix, layer)
            last = []
        before = self.residual
        if last:
            # the kernel adds to one lane
            others = [(stream, lanes) for stream, lanes in self._alike(()) if stream != before]
            self._add_to(others, last[0].tensor, prefix, layer)
        read = before
        if normalises:
            role = ResidualOp("add_norm" if last else "norm", self.split)
            read = self._op(f"{prefix}.norm", "norm", role, [before, *(term.tensor for term in last)], layer)
        if last:
            self._set([lane for lane, stream in self.streams.items() if stream == before], read)
        if not self.split:
            return read
        return self._op(f"{prefix}.all_gather", "all_gather", ResidualOp("all_gather"), [read], layer)

    def _reduce(self, prefix: str, block: Block, output: int, layer: int) -> int:
        """Add the ops that reduce an output of several ranks; return the last one's number."""
        if self.split:
            return self._op(f"{prefix}.reduce_scatter", "reduce_scatter", ResidualOp("reduce_scatter"), [output], layer)
        folded = [self.outputs[len(self.outputs) - back].own for back in block.carries]
        for tensor in [self.residual] if block.entry == "stream" else folded:
            output = self._op(self._numbered(f"{prefix}.fold"), "add", ResidualOp("fold"), [tensor, output], layer)
        if block.percent < 100:
            output = self._op(f"{prefix}.slice", "copy", ResidualOp("slice", percent=block.percent), [output], layer)
        role = ResidualOp("all_reduce", percent=block.percent, kernel=self.structure.reduce_kernel)
        return self._op(f"{prefix}.all_reduce", "all_reduce", role, [output], layer)

    def _send(self, layer: int) -> None:
        if any(self._enters(self.outputs[number]) == "kept" for number in self.waiting):
            self.streams = dict(self.kept)
        needed, whole = [self.residual], 1
        for number in self.waiting:
            output = self.outputs[number]
            if number not in self.read_shared:
                output = self._with_shared(number)
            needed += [output.sum]
            needed += [output.own] if number in self.read_ahead and output.exchanged else []
            needed += [output.shared] if output.shared != NORM else []
            # that one is the residual
            whole = 0 if self._enters(output) == "stream" else whole
        role = ResidualOp("send", self.split, len(needed) - 1 + whole)
        sent = self._op(f"layer{layer}.send", "send", role, needed, layer)
        for number in self.waiting:
            output = self.outputs[number]
            shared = output.shared if output.shared == NORM else sent
            self.outputs[number] = output._replace(own=sent, sum=sent, shared=shared)
        self.streams = self.kept = dict.fromkeys(self.streams, sent)

    def _block(self, layer: Layer, block: Block) -> None:
        prefix, at = f"layer{layer.index}.{PART_NAMES[block.part]}", layer.index
        read = self._norm(prefix, block.joins, at, block)
        key = self.keys[layer.kind, block.part, block.reduces]
        kernels, output, shared, own = self.blocks[key]
        start = len(self.names)
        # one by one they take most of the time of a layout
        self.names += [f"{prefix}.{kernel.name}" for kernel in kernels]
        self.kinds += [kernel.kind for kernel in kernels]
        self.layers += [at] * len(kernels)
        self.after += [
            tuple([read if before == NORM else start + before for before in kernel.after]) for kernel in kernels
        ]
        self.same_as += [self.roles.setdefault((key, position), len(self.roles)) for position in range(len(kernels))]
        made, exchanged = start + output, block.reduces and self.structure.tensor_parallel
        self.outputs.append(
            Output(
                block,
                own=made if own == NORM else start + own,
                sum=self._reduce(prefix, block, made, at) if exchanged else made,
                exchanged=exchanged or own != NORM,
                shared=NORM if shared == NORM else start + shared,
            )
        )
        if block.reduces or block.adds:
            self.waiting.append(len(self.outputs) - 1)

    def _embedding(self, *, reduces: bool) -> None:
        embedded = self._op("embedding", "embedding", ResidualOp("embedding"), [])
        if self.structure.vocab_parallel and reduces:
            embedded = self._op("embedding.all_reduce", "all_reduce", ResidualOp("all_reduce"), [embedded])
        self.streams = dict.fromkeys(self.streams, embedded)

    def _head(self, wiring: Wiring) -> None:
        joins, self.lane = wiring.final_joins, wiring.lanes[0]
        averages = wiring.head == "mean" and wiring.percent < 100 and self.structure.tensor_parallel
        if averages or len(set(self.streams.values())) > 1 or len(wiring.lanes) > 1:
            self._add(self._join(self._due(joins), "final", -1), "final", -1)
            joins = ()
            mean, *others = dict.fromkeys(self.streams.values())
            for other in others:
                mean = self._op(self._numbered("final.mean"), "add", ResidualOp("add", self.split), [mean, other])
            self.streams = dict.fromkeys(self.streams, mean)
        if averages:
            # shards of the vocabulary need one residual: the mean of the ranks' own channels, scaled as they are copied
            role = ResidualOp("slice", percent=wiring.percent, others=True)
            own = self._op("final.slice", "copy", role, [self.residual])
            role = role._replace(op="all_reduce", kernel=self.structure.reduce_kernel)
            self.streams = dict.fromkeys(self.streams, self._op("final.all_reduce", "all_reduce", role, [own]))
        norm = self._norm("final", joins, -1)
        logits = self._op("lm_head", "lm_head", ResidualOp("lm_head"), [norm])
        if self.structure.vocab_parallel:
            logits = self._op("lm_head.all_gather", "all_gather", ResidualOp("gather_logits"), [logits])
        token = self._op("sample", "sample", ResidualOp("sample"), [logits])
        if wiring.head == "own" and self.structure.tensor_parallel:
            # ranks disagree: rank 0's token is the one that counts
            self._op("token.broadcast", "broadcast", ResidualOp("broadcast"), [token])


def _by_lane(block: Block) -> tuple[Weight, ...]:
    """Return the factors that differ between lanes; one that all share scales the output's projection."""
    return block.weights if len(block.weights) > 1 else ()
