"""Residual wirings: the whole difference between variants.

A wiring is a list of blocks in issue order. Before a block reads the residual stream, earlier outputs are added to it,
all but the newest `leaves`; it may read the rank's own parts of those. Its own output is then summed over the ranks, or
not. The decoder has one loop for all variants, and the residual stream executes these plans.

What a family's blocks read and which are reduced is said once, with its equation, in `ladder_sim.graph.variants`: real
passes and predictions are of the same wirings.
"""

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from ladder_sim.errors import UsageError
from ladder_sim.wirings.names import FAMILIES, Carried, Part, Place, Rule, parse
from ladder_sim_runtime.config import ModelConfig

# of an output, what is read before its sum: what the shared experts in it put out, or all that this rank has of it
Ahead = Literal["nothing", "shared", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """One block as the residual stream sees it."""

    number: int
    """Blocks before it."""
    layer: int
    """Decoder layer it belongs to."""
    part: Part
    """What it computes; "both": attention and MLP in parallel, from one norm."""
    leaves: int = 0
    """Newest outputs that it does not wait for: 0 blocking, 1 ladder."""
    ahead: Ahead = "nothing"
    """What it reads of those; shared experts' only of the newest, and where that needs no exchange."""
    read_ahead: Ahead = "nothing"
    """What the next block reads of its output so."""
    reduces: bool = True
    """Whether the block's output is summed over the ranks."""
    overlaps: bool = False
    """The next block is computed before that sum is waited for."""
    percent: int = 100
    """Channels that are summed, the first ones; of the others each rank keeps its own part."""
    carries: Carried = "nothing"
    """What the sum includes besides its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A variant laid out over a model's layers."""

    name: str
    """The variant with its parameters, e.g. "desync:4"."""
    blocks: tuple[BlockPlan, ...]
    """From the embedding to the LM head."""

    @property
    def reduces(self) -> bool:
        """Whether the ranks ever agree; if not, rank 0's token counts."""
        return any(block.reduces for block in self.blocks)

    @property
    def percent(self) -> int:
        """Channels in which the ranks agree after the last block."""
        return min(block.percent for block in self.blocks)

    def check_shares(self) -> None:
        """Raise UsageError if the ranks' residuals differ, so that none can have a share of the tokens alone."""
        if self._differs:
            raise UsageError(
                f"variant '{self.name}' in sequence parallel: its ranks' residuals differ, so they cannot be split",
                hint="choose another variant, or leave out sequence-parallel",
            )

    def check_norms(self, config: ModelConfig, ranks: int) -> None:
        """Raise UsageError if the model has norms of sums over the ranks that this wiring does not have."""
        if config.norms_behind and any(block.part == "both" for block in self.blocks):
            raise UsageError(
                f"variant '{self.name}': the model normalises the outputs of attention and MLP, each by itself",
                hint="choose a variant whose blocks are not parallel",
            )
        if (config.norms_behind or config.joint_qk_norm) and ranks > 1 and self._differs:
            raise UsageError(
                f"variant '{self.name}': its blocks read parts of sums, which the model normalises as a whole",
                hint="standard, ladder and hybrids of it have the whole sums",
            )

    @property
    def _differs(self) -> bool:
        """The ranks' residuals differ, but not for good."""
        return self.reduces and any(
            block.ahead == "own" or block.percent < 100 or block.carries != "nothing" or not block.reduces
            for block in self.blocks
        )

    def waiting(self, layer: int) -> tuple[BlockPlan, ...]:
        """Return the blocks whose sums need not be in the residual when a layer begins, the newest last."""
        before = [block for block in self.blocks if block.layer < layer]
        return tuple(before[max(0, *(block.number - block.leaves for block in before)) :])


def lay_out(variant: str, layers: int, ladder_layers: Collection[int] = ()) -> Wiring:
    """Lay `variant` out over `layers` decoder layers.

    Parameters
    ----------
    variant
        A name that `ladder_sim.graph.variants` knows. Hybrids are standard but for the last K layers.
    layers
        Decoder layers of the model.
    ladder_layers
        Layers that the model's config wires as ladder. If they are K, ``hybrid-ladder:K`` is these, not the last K.

    Raises
    ------
    UsageError
        Unknown variant, or a number that does not fit the model.
    """
    given = parse(variant)
    given.check(layers)
    family, name = given.family, given.name
    wired = ladder_layers if name == f"hybrid-ladder:{len(ladder_layers)}" else given.layers(layers)
    numbers, total = itertools.count(), len(wired) * len(family.parts)
    blocks: list[BlockPlan] = []
    for layer in range(layers):
        for part in family.parts if layer in wired else FAMILIES["standard"].parts:
            rule = Rule()
            if layer in wired:
                number = next(numbers)
                rule = family.rule(Place(number, part, number == total - 1), given.number)
            blocks.append(
                BlockPlan(
                    number=len(blocks),
                    layer=layer,
                    part=part,
                    leaves=rule.late,
                    ahead="own" if rule.reads_own else "shared" if rule.reads_shared else "nothing",
                    reduces=rule.reduces,
                    percent=rule.percent,
                    carries=rule.carries,
                )
            )
    # the LM head waits for everything
    after: list[tuple[Ahead, bool]] = [*((block.ahead, block.leaves > 0) for block in blocks[1:]), ("nothing", False)]
    return Wiring(
        name=name,
        blocks=tuple(
            replace(block, read_ahead=ahead, overlaps=overlaps)
            for block, (ahead, overlaps) in zip(blocks, after, strict=True)
        ),
    )
