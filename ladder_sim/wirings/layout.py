"""A wiring laid out over a model's layers: what every block adds to the residual stream before it reads it.

A block first *joins* outputs that earlier blocks put out, in whole where they were summed, else as the rank's own part;
then it may read own parts ahead of their sums. Rules say how late each block reads; what joins where, and what a sum
carries, follow from that.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.wirings.names import canonical, parse
from ladder_sim.wirings.rules import NAMES, Head, Part, Placed, Rule, Weight, WiringError, period_of

# how a sum becomes part of the residual stream: it is added; or added without the parts that were read ahead of it; or
# added to the stream as it was before these; or it replaces the stream, because it has it
Entry = Literal["added", "others", "kept", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a layer, as the residual stream sees it; outputs are counted backwards: 1 is the block just before.

    An output joins in whole where it was summed over the ranks, else as the rank's own part.
    """

    part: Part
    """What it computes; "both": attention and MLP side by side."""
    joins: tuple[int, ...]
    """Outputs added to the residual before the block reads it."""
    reads_ahead: tuple[int, ...] = ()
    """Outputs of which the rank's own part is added before, ahead of the sum that has it."""
    reads_shared: bool = False
    """What shared experts put out just before is added too, where it needs no exchange."""
    keeps: bool = False
    """The stream before these is kept, because a sum will be added to it instead."""
    reduces: bool = True
    """Whether the block's output is summed over the ranks."""
    percent: int = 100
    """Channels that are summed; of the others each rank keeps its own part."""
    carries: tuple[int, ...] = ()
    """Open outputs that the sum has too; none if it has the whole stream."""
    averages: bool = False
    """What the sum has of others, or of the stream, is divided by the number of ranks."""
    lane: str = "x"
    """Copy of the stream that it reads."""
    weights: tuple[Weight, ...] = ()
    """Factor of its output in each lane; one for all of them; none: 1."""
    entry: Entry = field(default="added", compare=False)
    """How its sum enters the stream. Follows from what later blocks read."""
    read: tuple[int, ...] = field(default=(), compare=False)
    """Outputs in its sum whose own parts were read ahead, counted from the block: 0 is its own output."""

    @property
    def adds(self) -> bool:
        """Whether its output enters any lane."""
        return not self.weights or any(weight != 0 for weight in self.weights)


class Step(NamedTuple):
    """A block in a pass, with what becomes of its output."""

    number: int
    """Blocks before it."""
    layer: int
    block: Block
    overlaps: bool
    """The next block is computed before its sum is waited for."""
    next_ahead: bool
    """The next block reads of its output what is there, the rank's own part or that of shared experts."""
    read_by: int
    """Number of the block that reads the rank's own part ahead of the sum; -1 if there is none."""
    is_carried: bool
    """The sum of a later block has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A decoder layer and how many identical ones in a row it stands for."""

    index: int
    """Position in the model."""
    blocks: tuple[Block, ...]
    """In issue order."""
    kind: int = 0
    """What its blocks are made of: equal numbers are equal layers."""
    starts_stage: bool = False
    """Whether the layer's inputs come from another pipeline stage."""
    repeats: int = 1
    """Layers that it stands for in a condensed wiring."""


# no slots: what is computed of all layers is kept
@dataclass(frozen=True, kw_only=True)
class Wiring:
    """A variant laid out over a model's layers."""

    name: str
    """Canonical variant name."""
    layers: tuple[Layer, ...]
    """From the embedding to the LM head."""
    final_joins: tuple[int, ...]
    """Outputs joined after the last block, counted backwards from the end."""
    period: int
    """A multiple of the layers after which the pattern repeats; no layer joins outputs from further back than that."""
    lanes: tuple[str, ...] = ("x",)
    """Copies of the residual stream, of which the LM head reads the mean."""
    percent: int = 100
    """Channels of the residual that are the same on all ranks after the last block."""
    head: Head = ""
    """What the LM head reads of open outputs."""
    is_own: bool = False
    """It is a file of one's own."""

    @cached_property
    def repeats(self) -> Mapping[int, int]:
        """Layers that each layer stands for, by its index in the model."""
        return {layer.index: layer.repeats for layer in self.layers}

    @cached_property
    def blocks(self) -> tuple[tuple[Layer, Block], ...]:
        """Every block with its layer, in issue order."""
        return tuple((layer, block) for layer in self.layers for block in layer.blocks)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every block of a pass over all layers."""
        read_by = {number - back: number for number, (_, block) in enumerate(self.blocks) for back in block.reads_ahead}
        carried = {number - back for number, (_, block) in enumerate(self.blocks) for back in block.carries}
        steps = []
        for number, (layer, block) in enumerate(self.blocks):
            after = self.blocks[number + 1][1] if number + 1 < len(self.blocks) else None
            steps.append(
                Step(
                    number,
                    layer.index,
                    block,
                    overlaps=after is not None and 1 not in after.joins,
                    next_ahead=after is not None and (after.reads_shared or 1 in after.reads_ahead),
                    read_by=read_by.get(number, -1),
                    is_carried=number in carried,
                )
            )
        return tuple(steps)

    def reads(self) -> list[dict[int, str]]:
        """Return what each block reads, and the LM head, of which outputs: their sum, mean, a part of it, or own."""
        stream: dict[int, str] = {}
        reads: list[dict[int, str]] = []
        blocks = [block for _, block in self.blocks]
        for number, joins in enumerate([*(block.joins for block in blocks), self.final_joins]):
            for output in [number - back for back in joins]:
                block = blocks[output]
                settled = [output - back for back in block.carries] if block.reduces else []
                if block.entry == "stream":
                    settled = [each for each, form in stream.items() if form == "own"]
                stream |= dict.fromkeys(settled, "mean" if block.averages else "sum")
                stream[output] = "own" if not block.reduces else "sum" if block.percent == 100 else "part"
            ahead = blocks[number].reads_ahead if number < len(blocks) else ()
            stream |= {number - back: "own" for back in ahead}
            reads.append(dict(sorted(stream.items())))
        return reads

    @cached_property
    def model(self) -> Sequence[object] | None:
        """What each layer's attention and MLP read, and the LM head: equal where wirings are one model; None: lanes."""
        if len(self.lanes) > 1 or any(block.weights not in ((), (1,)) for _, block in self.blocks):
            return None
        halves: dict[Part, tuple[Part, ...]] = {"both": ("attention", "mlp")}
        outputs = [
            [(layer.index, part) for part in halves.get(block.part, (block.part,))] for layer, block in self.blocks
        ]
        whole = [{each: form for number, form in read.items() for each in outputs[number]} for read in self.reads()]
        return [*((part, read) for parts, read in zip(outputs, whole, strict=False) for part in parts), whole[-1]]

    def waiting(self, layer: int) -> list[Step]:
        """Return the blocks whose outputs are not in the residual when a layer begins, the newest last."""
        before = [step for step in self.steps if step.layer < layer]
        joined = {step.number - back for step in before for back in step.block.joins}
        return [step for step in before if step.number not in joined]

    @property
    def longest_wait(self) -> int:
        """Outputs that are held at most, because their sum is on its way or to come."""
        return max(max([0, *(back - 1 for back in block.joins), *block.carries]) for _, block in self.blocks)

    @cached_property
    def distinct_blocks(self) -> tuple[tuple[int, Part, bool], ...]:
        """Kind of the layer, what it computes and whether it reduces, of blocks that differ in these."""
        return tuple(dict.fromkeys((layer.kind, block.part, block.reduces) for layer, block in self.blocks))

    @cached_property
    def is_shared(self) -> bool:
        """All ranks have the same residual: the model is the same at any tensor-parallel degree."""
        return all(block.percent == 100 and block.reduces and not block.reads_ahead for _, block in self.blocks)

    @cached_property
    def reduces(self) -> bool:
        """Whether any block is all-reduced; without, ranks disagree about the next token."""
        return any(block.reduces for _, block in self.blocks)

    def check_shares(self) -> None:
        """Raise UsageError if the ranks' residuals differ, so that none can have a share of the tokens alone."""
        if self._differs:
            raise UsageError(
                f"variant '{self.name}' in sequence parallel: its ranks' residuals differ, so they cannot be split",
                hint="choose another variant, or leave out sp, sequence-parallel and gemm-overlap",
            )

    def check_training(self, ranks: int, trained: int) -> None:
        """Raise WiringError if ranks read their own parts, and the weights were trained by another number of them."""
        if trained and ranks != trained and not self.is_shared:
            raise WiringError(
                f"checkpoint was trained as {self.name} at TP {trained}, not {ranks}", hint=f"--tp {trained}"
            )

    def check_norms(self, ranks: int, *, behind: bool, joint: bool = False) -> None:
        """Raise UsageError if ranks would normalise parts: outputs of blocks (`behind`), or all heads together."""
        if behind and any(block.part == "both" for _, block in self.blocks):
            raise UsageError(
                f"variant '{self.name}': the model normalises the outputs of attention and MLP, each by itself",
                hint="choose a variant whose blocks are not parallel",
            )
        if (behind or joint) and ranks > 1 and self._differs:
            raise UsageError(
                f"variant '{self.name}': its blocks read parts of sums, which the model normalises as a whole",
                hint='instead = "nothing"' if self.is_own else "standard, ladder and hybrids of it have the whole sums",
            )

    def check_stages(self, starts: Sequence[int]) -> None:
        """Raise UsageError if a stage that starts at one of these layers would need more than stages send."""
        firsts = {layer.index: number for number, (layer, _) in reversed(list(enumerate(self.blocks)))}
        joins = [*(block.joins for _, block in self.blocks), self.final_joins]
        joined = {number - back: number for number, backs in enumerate(joins) for back in backs}
        for number, (layer, block) in enumerate(self.blocks):
            open_since = number - max(block.carries, default=0)
            inside = [firsts[start] for start in starts if open_since < firsts[start] <= joined[number]]
            # the next stage may begin with the sum that is added to what was kept
            crosses = block.carries and inside and (block.entry != "kept" or inside != [joined[number]])
            if starts and (crosses or len(self.lanes) > 1):
                raise UsageError(
                    f"variant '{self.name}' in pipeline stages: what layer {layer.index} sums is not sent",
                    hint="leave out pp",
                )

    @property
    def _differs(self) -> bool:
        """The ranks' residuals differ, but not for good."""
        return self.reduces and not self.is_shared

    def condense(self, keep: int) -> "Wiring":
        """Return the wiring with every run of identical layers cut down to `keep` periods.

        The second last kept period carries ``repeats`` for all that were cut; the period before it is its twin. Joins
        count backwards over blocks, so they stay right across a cut.
        """
        kept: list[Layer] = []
        for start, width, periods in self._runs():
            chosen = range(periods) if periods <= keep else [*range(keep - 1), periods - 1]
            for position, period_index in enumerate(chosen):
                stands_for = periods - keep + 1 if periods > keep and position == keep - 2 else 1
                kept += [
                    replace(layer, repeats=stands_for) for layer in self.layers[start + period_index * width :][:width]
                ]
        return replace(self, layers=tuple(kept))

    def _runs(self) -> list[tuple[int, int, int]]:
        """Return the maximal runs of a repeating pattern: first layer, layers of the pattern, times it repeats."""
        # what layers have in common that are simulated once
        alike = [(layer.blocks, layer.kind, layer.starts_stage) for layer in self.layers]
        runs: list[tuple[int, int, int]] = []
        start = 0
        while start < len(alike):
            width = min(self.period, len(alike) - start)
            pattern, periods = alike[start : start + width], 1
            while alike[start + periods * width : start + (periods + 1) * width] == pattern:
                periods += 1
            if periods == 1:
                # a layer that starts no run stands alone, so that the next one may start a longer run
                width = 1
            runs.append((start, width, periods))
            start += periods * width
        return runs


def _kind_period(kinds: Sequence[int]) -> int:
    """Return the layers after which the kinds repeat, whatever the first few are; 1 if they do not repeat."""
    layers = len(kinds)
    first = next((i for i in range(layers) if kinds[i] != kinds[0]), layers)
    periods = range(1, layers // 2 + 1)
    return next((p for p in periods if all(kinds[i] == kinds[i + p] for i in range(first, layers - p))), 1)


def lay_out(
    variant: str,
    layers: int,
    ladder_layers: tuple[int, ...] = (),
    *,
    kinds: tuple[int, ...] = (),
    stages: tuple[int, ...] = (),
) -> Wiring:
    """Lay `variant` out over `layers` decoder layers; raises UsageError if the parameter does not fit the model.

    ``hybrid-ladder:K`` with K `ladder_layers`, which the model's config lists, means these, not the last K. `kinds` are
    numbers, equal where layers are made of the same blocks; by default all are. `stages` are the layers of each
    pipeline stage; by default there is one stage.

    Examples
    --------
    >>> [block.joins for block in lay_out("ladder", 2).layers[1].blocks]
    [(2,), (2,)]
    >>> [(block.joins, block.reads_ahead) for block in lay_out("delayed:1", 2).layers[1].blocks]
    [((2,), (1,)), ((2,), (1,))]
    """
    return _laid_out(canonical(variant), layers, ladder_layers, kinds, stages)


@lru_cache(maxsize=256)
def _laid_out(
    variant: str, layers: int, ladder_layers: tuple[int, ...], kinds: tuple[int, ...], stages: tuple[int, ...]
) -> Wiring:
    chosen = parse(variant)
    placed = chosen.place(layers, ladder_layers)
    lanes = tuple(dict.fromkeys(rule.lane for _, _, rule in placed))
    walk = _Walk(placed, lanes)
    of_layer = kinds or (0,) * layers
    starts = set(itertools.accumulate(stages[:-1]))
    repeats = math.lcm(period_of(chosen.family.tables and chosen.tables), _kind_period(of_layer))
    blocks: list[list[Block]] = [[] for _ in range(layers)]
    for each, block in zip(placed, walk.blocks, strict=True):
        blocks[each.layer].append(block)
    laid_out = Wiring(
        name=variant,
        layers=tuple(
            Layer(index=layer, blocks=tuple(blocks[layer]), kind=of_layer[layer], starts_stage=layer in starts)
            for layer in range(layers)
        ),
        final_joins=walk.final_joins,
        period=repeats * math.ceil(walk.reach / repeats),
        lanes=lanes,
        percent=walk.percent,
        head=chosen.family.head,
        is_own=chosen.family.is_own,
    )
    for fault, hint in _faults(laid_out, walk) if laid_out.is_own else ():
        raise WiringError(f"{variant}: {fault}", hint=hint)
    return laid_out


class _Walk:
    """The blocks of a model, in order, with what is on its way, open or read ahead at each."""

    def __init__(self, placed: Sequence[Placed], lanes: Sequence[str]) -> None:
        self.placed = placed
        self.rules = [rule for _, _, rule in placed]
        by_rule = {id(rule): _weights(rule.weight, lanes) for rule in {id(rule): rule for rule in self.rules}.values()}
        self.weights = [by_rule[id(rule)] for rule in self.rules]
        self.has_one_lane = len(lanes) == 1

        # by number of a block: outputs that join before it reads, and those that it reads ahead
        self.joins: list[list[int]] = []
        self.ahead: list[list[int]] = []

        # by number of a block that reduces: open outputs that its sum has
        self.carried: dict[int, list[int]] = {}
        self.percent = 100

        # blocks whose average has something to average
        self.averages: set[int] = set()

        # channels of earlier sums, or of its own, of blocks that cannot sum what is open
        self.partial: dict[int, int] = {}
        self._settle()

        # places in the order of all additions to the stream: of sums, and where those that each block reads end
        self.sum_at: dict[int, int] = {}
        self.ends: list[int] = []

        # of outputs whose own part is added: the block that reads it first, and the place; and by the block whose sum
        # has them, these outputs
        self.own: dict[int, tuple[int, int]] = {}
        self.owned: dict[int, list[int]] = {}

        # by number of a block that averages: own parts in the stream that it reads
        self.unsettled: dict[int, set[int]] = {}
        self._read()
        entries = {number: self._entry(number) for number in self.carried}
        self.partial = {
            number: channels
            for number, channels in self.partial.items()
            if entries[number] != "stream" or self.rules[number].percent < 100
        }
        keeping = {self.own[self.owned[number][0]][0] for number, entry in entries.items() if entry == "kept"}

        # equal blocks are the same object
        known: dict[tuple[object, ...], Block] = {}
        self.blocks: list[Block] = []
        self.reach = 1
        for number, (layer, part, rule) in enumerate(placed):
            entry = entries.get(number, "added")
            carried = [] if entry == "stream" else self.carried.get(number, [])
            own = [] if entry == "stream" else self.owned.get(number, [])
            joins, ahead, carries, read = (
                tuple([number - output for output in outputs]) if outputs else ()
                for outputs in (self.joins[number], self.ahead[number], carried, own)
            )
            keeps, averages = number in keeping, number in self.averages
            form = (part, id(rule), joins, ahead, carries, read, entry, keeps, averages)
            if form not in known:
                known[form] = Block(
                    part=part,
                    joins=joins,
                    reads_ahead=ahead,
                    reads_shared=rule.instead == "shared" and rule.delay > 0,
                    keeps=keeps,
                    reduces=rule.reduce != "none",
                    percent=rule.percent,
                    carries=carries,
                    averages=averages,
                    lane=rule.lane,
                    weights=self.weights[number],
                    entry=entry,
                    read=read,
                )
                furthest = max(*joins, *carries, 0, 0)
                self.reach = max(self.reach, layer - placed[number - furthest].layer)
            self.blocks.append(known[form])
        self.final_joins = tuple(len(placed) - output for output in self.joins[-1])
        if self.final_joins:
            self.reach = max(self.reach, placed[-1].layer + 1 - placed[-max(self.final_joins)].layer)

    def _settle(self) -> None:
        """Find which outputs each sum has."""
        self.open: list[int] = []
        was_open = False
        for number, rule in enumerate(self.rules):
            if rule.reduce == "none":
                self.open += [number] if self._adds(number) else []
                was_open = was_open or bool(self.open)
                continue
            self.carried[number], self.open = self.open, []
            averages = rule.reduce == "mean" and was_open
            if averages:
                self.averages.add(number)
            if rule.percent > self.percent or (averages and rule.percent < 100):
                self.partial[number] = min(self.percent, rule.percent) if not averages else 100
            self.percent = rule.percent if averages else min(self.percent, rule.percent)
            was_open = was_open or rule.percent < 100
        self.collector = {output: number for number, carried in self.carried.items() for output in (*carried, number)}
        if self.open:
            self.percent = 0

    def _read(self) -> None:
        """Find when each output joins the residual stream, and when the rank's own part of it does."""
        waiting: list[int] = []
        unsettled: set[int] = set()
        first, count = 0, 0
        for number, rule in enumerate([*self.rules, Rule()]):
            first = max(first, number - rule.delay)
            due = bisect_left(waiting, first)
            joins, own = [], []
            for output in waiting[:due]:
                collector = self.collector.get(output, number)
                if output == collector:
                    joins.append(output)
                    self.sum_at[output] = count + len(joins) - 1
                    unsettled.difference_update(self.carried[output], (output,))
                elif collector >= first and output not in self.own:
                    joins.append(output)
                    own.append((output, count + len(joins) - 1))
            waiting = waiting[due:]
            ahead = [output for output in waiting if output not in self.own] if rule.instead == "own" else []
            own += [(output, count + len(joins) + at) for at, output in enumerate(ahead)]
            for output, at in own:
                self.own[output] = number, at
                unsettled.add(output)
                if output in self.collector:
                    self.owned.setdefault(self.collector[output], []).append(output)
            count += len(joins) + len(ahead)
            self.joins.append(joins)
            self.ahead.append(ahead)
            self.ends.append(count)
            if number in self.averages:
                self.unsettled[number] = set(unsettled)
            if number < len(self.rules) and (rule.reduce != "none" or self._adds(number)):
                waiting.append(number)

    def _adds(self, number: int) -> bool:
        weights = self.weights[number]
        return not weights or any(weight != 0 for weight in weights)

    def _entry(self, number: int) -> Entry:
        """Return how the sum of a block enters the stream."""
        joined, carried = self.sum_at[number], self.carried[number]
        if number in self.averages:
            # the stream at the end of the block has all of it, nothing on its way, and stays until the sum arrives
            if self.has_one_lane and self.ends[number] == joined and self.unsettled[number] == set(carried):
                return "stream"
            return "others" if number in self.owned else "added"
        if number not in self.owned:
            return "added"
        # nothing else is added from the first own part on, before which its reader adds only sums
        read = [self.own[output] for output in self.owned[number]]
        block, first = read[0]
        sums = sum(self.collector.get(output) == output for output in self.joins[block])
        before = (self.ends[block - 1] if block else 0) + sums
        return "kept" if carried and first == before and first + len(read) == joined else "others"


def _weights(given: Weight | Mapping[str, Weight], lanes: Sequence[str]) -> tuple[Weight, ...]:
    weights = tuple([given.get(lane, 0) if isinstance(given, Mapping) else given for lane in lanes])
    if len(set(weights)) == 1 and (weights[0] != "learned" or len(lanes) == 1):
        weights = weights[:1]
    return () if weights == (1,) else weights


def _faults(wiring: Wiring, walk: _Walk) -> Iterator[tuple[str, str]]:
    placed, rules = walk.placed, walk.rules
    late = max(rule.delay for rule in rules)
    if late and not any(walk.joins[:-1]):
        yield f"delay {late} in {len(placed)} blocks: only the LM head would read a sum", f"at most {len(placed) - 2}"
    for number, (layer, part, rule) in enumerate(placed):
        block, name = walk.blocks[number], NAMES[part]
        where, carries = f"{name} of layer {layer}", bool(walk.carried.get(number))
        if rule.instead == "shared" and rule.delay > 1:
            yield f"{where}: only the newest output's shared experts can be read", f"{name}.delay = 1"
        if unread := set(rule.weight if isinstance(rule.weight, Mapping) else ()) - set(wiring.lanes):
            yield f"{where}: no block reads lane '{min(unread)}'", f'mlp.lane = "{min(unread)}"'
        if not block.adds and block.reduces and not carries:
            yield f"{where}: nobody awaits its sum (weight 0)", f'{name}.reduce = "none"'
        if len(block.weights) > 1 and (carries or walk.collector.get(number) != number or block.percent < 100):
            yield (
                f"layer {layer}: an open output has {len(block.weights)} lane weights, one sum",
                f'{name}.reduce = "sum"',
            )
        if number in walk.partial:
            yield f"{where}: its sum and open outputs have other channels", f"{name}.percent = {walk.partial[number]}"
    if wiring.percent < 100 and not wiring.head:
        first, last = placed[walk.open[0] if walk.open else 0].layer, placed[-1].layer
        where = f"layer {last} is" if first == last else f"layers {first}-{last} are"
        yield f"ranks differ before the LM head: {where} open", 'head = "mean", or reduce the last MLP'
