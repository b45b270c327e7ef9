"""Residual wirings: which block reads which residual, and which outputs are all-reduced.

A wiring is a sequence of blocks. What a block computes is `kernels.py`'s business; here only the residual stream
counts. A block first *joins* the outputs of earlier blocks into the residual, then reads it. Blocking variants join the
block just before; ladder joins the one before that, so that an all-reduce overlaps a whole block. Others read a rank's
own part of an output ahead of its sum. Families of variants (`variants.py`) say how late each block reads and what its
sum has; what joins where follows from that.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ladder_sim.graph.variants import FAMILIES, Part, Place, Rule, Variant, parse


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
    reduces: bool
    """Whether the block's output is summed over the ranks."""
    percent: int = 100
    """Channels that are summed; of the others each rank keeps its own part."""
    folds_residual: bool = False
    """The sum carries residual / tp along, so that its result is the new residual (desync)."""
    folds_ahead: bool = False
    """The sum carries the parts read ahead along, so that they are not kept in the residual (drop)."""


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

    @cached_property
    def repeats(self) -> Mapping[int, int]:
        """Layers that each layer stands for, by its index in the model."""
        return {layer.index: layer.repeats for layer in self.layers}

    @cached_property
    def distinct_blocks(self) -> tuple[tuple[int, Part, bool], ...]:
        """Kind of the layer, what it computes and whether it reduces, of blocks that differ in these."""
        blocks = ((layer.kind, block) for layer in self.layers for block in layer.blocks)
        return tuple(dict.fromkeys((kind, block.part, block.reduces) for kind, block in blocks))

    @cached_property
    def percent(self) -> int:
        """Channels of the residual that are the same on all ranks."""
        return min(block.percent for layer in self.layers for block in layer.blocks)

    @cached_property
    def is_shared(self) -> bool:
        """All ranks have the same residual: the model is the same at any tensor-parallel degree."""
        blocks = [block for layer in self.layers for block in layer.blocks]
        return self.percent == 100 and all(block.reduces and not block.reads_ahead for block in blocks)

    @cached_property
    def reduces(self) -> bool:
        """Whether any block is all-reduced; without, ranks disagree about the next token."""
        return any(block.reduces for layer in self.layers for block in layer.blocks)

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


@lru_cache(maxsize=256)
def wiring(
    variant: str,
    layers: int,
    ladder_layers: tuple[int, ...] = (),
    *,
    kinds: tuple[int, ...] = (),
    stages: tuple[int, ...] = (),
) -> Wiring:
    """Lay `variant` out over `layers` decoder layers.

    Parameters
    ----------
    variant
        Its name, see `FAMILIES`.
    layers
        Decoder layers of the model.
    ladder_layers
        Layers that the model's config lists as ladder; ``hybrid-ladder:K`` with K of them means these, not the last K.
    kinds
        A number for each layer, equal where layers are made of the same blocks; by default all are.
    stages
        Layers of each pipeline stage; by default there is one stage.

    Raises
    ------
    UsageError
        The parameter does not fit the model.

    Examples
    --------
    >>> [block.joins for block in wiring("ladder", 2).layers[1].blocks]
    [(2,), (2,)]
    >>> [(block.joins, block.reads_ahead) for block in wiring("delayed:1", 2).layers[1].blocks]
    [((2,), (1,)), ((2,), (1,))]
    """
    chosen = parse(variant)
    chosen.check(layers)
    has_it: Sequence[int] = chosen.layers(layers)
    if chosen.name == f"hybrid-ladder:{len(ladder_layers)}":
        has_it = sorted(ladder_layers)
    placed = list(_rules(chosen, has_it, layers))

    # equal blocks are the same object
    known: dict[tuple[Part, Rule, tuple[int, ...], tuple[int, ...]], Block] = {}
    blocks: list[list[Block]] = [[] for _ in range(layers)]
    waiting: list[int] = []
    ahead: set[int] = set()
    reach = 1
    for i, (layer, part, rule) in enumerate(placed):
        due = bisect_left(waiting, i - rule.late)
        joined, waiting = waiting[:due], waiting[due:]
        own = [j for j in waiting if j not in ahead] if rule.reads_own else []
        ahead.update(own)
        form = part, rule, tuple([i - j for j in joined]), tuple([i - j for j in own])
        if form not in known:
            known[form] = _block(*form)
            reach = max(reach, layer - placed[joined[0]][0] if joined else 0)
        blocks[layer].append(known[form])
        if rule.carries == "own":
            waiting = []
        waiting.append(i)
    of_layer = kinds or (0,) * layers
    starts = set(itertools.accumulate(stages[:-1]))
    per_layer = len(chosen.family.parts)
    repeats = math.lcm(math.lcm(chosen.family.period(chosen.number), per_layer) // per_layer, _kind_period(of_layer))
    return Wiring(
        name=chosen.name,
        layers=tuple(
            Layer(index=layer, blocks=tuple(blocks[layer]), kind=of_layer[layer], starts_stage=layer in starts)
            for layer in range(layers)
        ),
        final_joins=tuple(len(placed) - j for j in waiting),
        period=repeats * math.ceil(reach / repeats),
    )


def _block(part: Part, rule: Rule, joins: tuple[int, ...], reads_ahead: tuple[int, ...]) -> Block:
    return Block(
        part=part,
        joins=joins,
        reads_ahead=reads_ahead,
        reads_shared=rule.reads_shared,
        reduces=rule.reduces,
        percent=rule.percent,
        folds_residual=rule.carries == "residual",
        folds_ahead=rule.carries == "own",
    )


def _rules(chosen: Variant, has_it: Sequence[int], layers: int) -> Iterator[tuple[int, Part, Rule]]:
    """Yield the layer, part and rule of every block: chosen in the layers `has_it`, standard in the others."""
    family, standard = chosen.family, FAMILIES["standard"]
    number, blocks = 0, len(has_it) * len(family.parts)
    for layer in range(layers):
        if layer not in has_it:
            yield from ((layer, part, Rule()) for part in standard.parts)
            continue
        for part in family.parts:
            yield layer, part, family.rule(Place(number, part, number == blocks - 1), chosen.number)
            number += 1
