"""Residual wirings: which block reads which residual, and which outputs are all-reduced.

A wiring is a sequence of blocks. What a block computes is `kernels.py`'s business; here only the residual stream
counts. A block first *joins* the outputs of earlier blocks into the residual, then reads it. Blocking variants join the
block just before; ladder joins the one before that, so that an all-reduce overlaps a whole block.

References
----------
Ladder Residual, arXiv 2501.06589; PaLM (parallel blocks), arXiv 2204.02311.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from ladder_sim.errors import UnknownNameError, UsageError

Part = Literal["attention", "mlp", "both"]

VARIANTS = {
    "standard": "each block waits for the all-reduce of the one before",
    "parallel": "attention and MLP side by side: one all-reduce per layer",
    "ladder": "each block reads the residual before the last block, whose all-reduce it overlaps",
    "hybrid-ladder:K": "standard, with the last K layers ladder",
    "desync:N": "only every N-th block is all-reduced, and the last",
    "upper-bound": "no block is all-reduced: no communication, standard GEMMs",
}
DEFAULT_VARIANTS = ("standard", "parallel", "ladder", "upper-bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a layer, as the residual stream sees it."""

    part: Part
    """What it computes; "both": attention and MLP side by side."""
    joins: tuple[int, ...]
    """Outputs added to the residual before the block reads it, counted backwards: 1 is the block just before."""
    reduces: bool
    """Its output is summed over the ranks."""
    folds_residual: bool = False
    """The sum carries residual / tp along, so that its result is the new residual (desync)."""


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
    """Its inputs come from another pipeline stage."""
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
    """Layers after which the pattern repeats."""

    @cached_property
    def repeats(self) -> Mapping[int, int]:
        """Layers that each layer stands for, by its index in the model."""
        return {layer.index: layer.repeats for layer in self.layers}

    @cached_property
    def forms(self) -> tuple[tuple[int, Part, bool], ...]:
        """Kind of the layer, what it computes and whether it reduces, of blocks that differ in these."""
        blocks = ((layer.kind, block) for layer in self.layers for block in layer.blocks)
        return tuple(dict.fromkeys((kind, block.part, block.reduces) for kind, block in blocks))

    @cached_property
    def reduces(self) -> bool:
        """Whether any block is all-reduced; without, ranks disagree about the next token."""
        return any(block.reduces for layer in self.layers for block in layer.blocks)

    def condense(self, keep: int) -> "Wiring":
        """The same wiring with every run of identical layers cut down to `keep` periods.

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
        """Maximal runs of a repeating pattern as (first layer, layers in the pattern, times it stands there)."""
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
    """Layers after which the kinds repeat, whatever the first few are; 1: they do not."""
    layers = len(kinds)
    first = next((i for i in range(layers) if kinds[i] != kinds[0]), layers)
    periods = range(1, layers // 2 + 1)
    return next((p for p in periods if all(kinds[i] == kinds[i + p] for i in range(first, layers - p))), 1)


def canonical(variant: str) -> str:
    """Check a variant's name and parameter.

    Raises
    ------
    UnknownNameError
        No such variant.
    UsageError
        A parameter is missing, not a positive integer, or not wanted.

    Examples
    --------
    >>> canonical("Ladder")
    'ladder'
    >>> canonical("hybrid-ladder:016")
    'hybrid-ladder:16'
    """
    name, colon, parameter = variant.strip().lower().partition(":")
    letter = {"hybrid-ladder": "K", "desync": "N"}.get(name)
    if letter is None:
        if name not in VARIANTS:
            raise UnknownNameError("variant", variant, VARIANTS)
        if colon:
            raise UsageError(f"variant '{variant}': '{name}' takes no parameter", hint=f"write '{name}'")
        return name
    # more digits than any model has layers, and than int() reads
    if not parameter.isascii() or not parameter.isdigit() or not 0 < len(parameter.lstrip("0")) < 10:
        what = "the last K layers are ladder" if letter == "K" else "every N-th block is all-reduced"
        raise UsageError(
            f"variant '{variant}': '{name}' needs a positive whole number {letter} ({what})",
            hint=f"for example '{name}:{16 if letter == 'K' else 4}'",
        )
    return f"{name}:{int(parameter)}"


def canonical_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Check one name or several, and leave out what is repeated.

    Raises
    ------
    UsageError
        As `canonical` does, and if there is no name.

    Examples
    --------
    >>> canonical_names("ladder"), canonical_names(["Ladder", "desync:4", "ladder"])
    (('ladder',), ('ladder', 'desync:4'))
    """
    names = tuple(dict.fromkeys(map(canonical, [given] if isinstance(given, str) else given)))
    if not names:
        raise UsageError("no variants: must be at least one", hint="for example 'ladder'")
    return names


def checked(variant: str, layers: int) -> tuple[str, str, int]:
    """Canonical name, family and parameter (0: none) of a variant of a model of so many layers.

    Raises
    ------
    UsageError
        The parameter does not fit the model.

    Examples
    --------
    >>> checked("Hybrid-Ladder:4", 32)
    ('hybrid-ladder:4', 'hybrid-ladder', 4)
    """
    name = canonical(variant)
    family, _, parameter = name.partition(":")
    count = int(parameter) if parameter else 0
    if family == "hybrid-ladder" and count > layers:
        raise UsageError(
            f"variant '{variant}': the model has {layers} layers, so at most {layers} can be ladder",
            hint=f"use 'hybrid-ladder:{layers}' or 'ladder'",
        )
    if family == "desync" and count > 2 * layers:
        raise UsageError(
            f"variant '{variant}': the model has {2 * layers} blocks, so none but the last would be reduced",
            hint=f"use a number up to {2 * layers}, or 'upper-bound' for no all-reduce at all",
        )
    return name, family, count


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
        Name, see `VARIANTS`.
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
    """
    name, family, count = checked(variant, layers)
    if family == "parallel":
        parts: list[Part] = ["both"] * layers
    else:
        parts = ["attention", "mlp"] * layers
    last = len(parts) - 1
    if family == "ladder":
        is_ladder = set(range(layers))
    elif family == "hybrid-ladder":
        is_ladder = set(ladder_layers if len(ladder_layers) == count else range(layers - count, layers))
    else:
        is_ladder = set()
    per_layer = len(parts) // layers
    reads = [i - 2 if i // per_layer in is_ladder else i - 1 for i in range(len(parts))]
    desync = family == "desync" and count > 1

    # equal blocks are the same object
    known: dict[tuple[Part, tuple[int, ...], bool], Block] = {}
    blocks: list[Block] = []
    joined = -1
    for i, part in enumerate(parts):
        joins = tuple(range(i - joined - 1, i - reads[i] - 1, -1))
        joined = max(joined, reads[i])
        reduces = family != "upper-bound" and (not desync or (i + 1) % count == 0 or i == last)
        form = part, joins, reduces
        if form not in known:
            known[form] = Block(part=part, joins=joins, reduces=reduces, folds_residual=desync and reduces)
        blocks.append(known[form])
    of_layer = kinds or (0,) * layers
    starts = set(itertools.accumulate(stages[:-1]))
    return Wiring(
        name=name,
        layers=tuple(
            Layer(
                index=layer,
                blocks=tuple(blocks[layer * per_layer : (layer + 1) * per_layer]),
                kind=of_layer[layer],
                starts_stage=layer in starts,
            )
            for layer in range(layers)
        ),
        final_joins=tuple(len(parts) - j for j in range(joined + 1, len(parts))),
        period=math.lcm(math.lcm(count, 2) // 2 if desync else 1, _kind_period(of_layer)),
    )
