"""Residual wirings: the whole difference between variants.

A wiring is a list of blocks in issue order. Before a block reads the residual stream, earlier outputs are added to it,
all but the newest `leaves`; its own output is then summed over the ranks, or not. The decoder has one loop for all
variants, and the residual stream executes these plans.

References
----------
Ladder Residual, arXiv 2501.06589; PaLM (parallel blocks), arXiv 2204.02311.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ladder_sim.errors import UsageError

Part = Literal["attn", "mlp", "both"]

VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:K", "desync:N", "upper-bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """One block as the residual stream sees it."""

    layer: int
    """Decoder layer it belongs to."""
    part: Part
    """What it computes; "both": attention and MLP in parallel, from one norm."""
    leaves: int = 0
    """Newest outputs that it does not wait for: 0 blocking, 1 ladder."""
    reduces: bool = True
    """Its output is summed over the ranks."""
    carries: bool = False
    """The sum includes residual / ranks and becomes the residual (desync)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A variant laid out over a model's layers."""

    name: str
    """The variant with its parameter, e.g. "desync:4"."""
    blocks: tuple[BlockPlan, ...]
    """From the embedding to the LM head."""

    @property
    def reduces(self) -> bool:
        """Whether the ranks ever agree; if not, rank 0's token counts."""
        return any(block.reduces for block in self.blocks)

    def outputs_before(self, layer: int, ranks: int) -> int:
        """Outputs of blocks on `ranks` ranks that are not in the residual yet when a layer begins."""
        before = [block for block in self.blocks if block.layer < layer]
        if before[-1].carries and ranks > 1:
            # it has become the residual
            return 0
        return min(before[-1].leaves, len(before) - 1) + 1


def lay_out(variant: str, layers: int, ladder_layers: Collection[int] = ()) -> Wiring:
    """Lay `variant` out over `layers` decoder layers.

    Parameters
    ----------
    variant
        One of `VARIANTS`, with its number.
    layers
        Decoder layers of the model.
    ladder_layers
        Layers that the model's config wires as ladder. If they are K, ``hybrid-ladder:K`` is these, not the last K.

    Raises
    ------
    UsageError
        Unknown variant, or a number that does not fit the model.
    """
    family, number = _parse(variant, layers)
    name = f"{family}:{number}" if number else family
    if family == "parallel":
        return Wiring(name=name, blocks=tuple(BlockPlan(layer=i, part="both") for i in range(layers)))
    if family == "ladder":
        deferring: Collection[int] = range(layers)
    elif family == "hybrid-ladder":
        deferring = ladder_layers if len(ladder_layers) == number else range(layers - number, layers)
    else:
        deferring = ()
    desync = family == "desync" and number > 1
    blocks = []
    for i in range(2 * layers):
        last_of_group = not desync or (i + 1) % number == 0 or i == 2 * layers - 1
        reduces = family != "upper-bound" and last_of_group
        blocks.append(
            BlockPlan(
                layer=i // 2,
                part="attn" if i % 2 == 0 else "mlp",
                leaves=1 if i // 2 in deferring else 0,
                reduces=reduces,
                carries=desync and reduces,
            )
        )
    return Wiring(name=name, blocks=tuple(blocks))


def _parse(variant: str, layers: int) -> tuple[str, int]:
    """Family and number of a variant; 0: no number."""
    family, colon, number = variant.strip().lower().partition(":")
    maximum = {"hybrid-ladder": layers, "desync": 2 * layers}.get(family)
    if maximum is None:
        if family not in VARIANTS or colon:
            raise UsageError(f"unknown variant '{variant}'", hint=f"known: {', '.join(VARIANTS)}")
        return family, 0
    if not (number.isascii() and number.isdigit() and len(number) < 10 and 1 <= int(number) <= maximum):
        raise UsageError(
            f"variant '{variant}': needs a whole number from 1 to {maximum}",
            hint=f"for example '{family}:{min(maximum, 2)}'",
        )
    return family, int(number)
