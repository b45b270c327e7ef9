"""Residual wirings: the whole difference between variants.

A wiring is a list of blocks in issue order. Before a block reads the residual stream, earlier outputs are added to it,
all but the newest `leaves`; it may read the rank's own parts of those. Its own output is then summed over the ranks, or
not. The decoder has one loop for all variants, and the residual stream executes these plans.

Block i puts out p_i^r on rank r, a partial sum; s_i is the sum of p_i^r over the ranks, normalised where the model has
norms behind its blocks, and x the embedding. The functions below say what block i reads on rank r, and which blocks are
reduced. The LM head reads x and all sums.

References
----------
Ladder Residual, arXiv 2501.06589; PaLM (parallel blocks), arXiv 2204.02311; delayed tensor parallelism, arXiv
2609.13846; parallel track, arXiv 2602.07306; sync-point drop, arXiv 2502.20727; CAAT-Net (partial channels), arXiv
2506.19645; FarSkip-Collective, arXiv 2511.11505.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ladder_sim.errors import UsageError
from runtime.config import ModelConfig

Part = Literal["attn", "mlp", "both"]
# of an output, what is read before its sum: what the shared experts in it put out, or all that this rank has of it
Ahead = Literal["nothing", "shared", "own"]
# what a sum includes besides the output: residual / ranks, to become the residual, or the own parts that were read
Carried = Literal["nothing", "residual", "own"]


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
    """Its output is summed over the ranks."""
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
        """The blocks whose sums need not be in the residual when a layer begins, the newest last."""
        before = [block for block in self.blocks if block.layer < layer]
        return tuple(before[max(0, *(block.number - block.leaves for block in before)) :])


class _Place(NamedTuple):
    """Where a block is among those with its wiring."""

    number: int
    """Such blocks before it."""
    total: int
    """How many they are."""


# from a block as in standard to the same as the family has it, by its place and the family's parameter
_Rewire = Callable[[BlockPlan, _Place, int], BlockPlan]


def _standard(block: BlockPlan, at: _Place, parameter: int) -> BlockPlan:
    """``x + sum_{j<i} s_j``."""
    return block


def _ladder(block: BlockPlan, at: _Place, late: int) -> BlockPlan:
    """``x + sum_{j<=i-1-D} s_j``."""
    return replace(block, leaves=late)


def _delayed(block: BlockPlan, at: _Place, late: int) -> BlockPlan:
    """``x + sum_{j<=i-1-D} s_j + sum_{i-1-D<j<i} p_j^r``; what is added to the latter later is ``s_j - p_j^r``."""
    return replace(block, leaves=late, ahead="own") if late else block


def _desync(block: BlockPlan, at: _Place, every: int) -> BlockPlan:
    """A residual for each rank, ``x^r + p_i^r``; after every N-th block and the last ``sum_r x^r / ranks + s_i``."""
    if every == 1:
        return block
    if (at.number + 1) % every and at.number + 1 < at.total:
        return replace(block, reduces=False)
    return replace(block, carries="residual")


def _track(block: BlockPlan, at: _Place, layers: int) -> BlockPlan:
    """As `_desync`, after the last block of every D-th layer."""
    return _desync(block, at, 2 * layers)


def _drop(block: BlockPlan, at: _Place, layers: int) -> BlockPlan:
    """In the last K layers the MLP reads ``x + sum_{j<i-1} s_j + p_{i-1}^r``, and ``p_{i-1}^r + p_i^r`` is reduced."""
    if at.total - at.number > 2 * layers:
        return block
    if block.part == "attn":
        return replace(block, reduces=False)
    return replace(block, leaves=1, ahead="own", carries="own")


def _partial(block: BlockPlan, at: _Place, percent: int) -> BlockPlan:
    """``x + sum_{j<i} s_j`` in P percent of the channels, ``x + sum_{j<i} p_j^r`` in the others.

    The LM head reads the mean of the latter over the ranks.
    """
    return replace(block, percent=percent)


def _farskip(block: BlockPlan, at: _Place, parameter: int) -> BlockPlan:
    """``x + sum_{j<i-1} s_j``, and shared experts of block i - 1 where their output needs no exchange (equation 8a)."""
    return replace(block, leaves=1, ahead="shared")


def _farskip_own(block: BlockPlan, at: _Place, parameter: int) -> BlockPlan:
    """``x + sum_{j<i-1} s_j + p_{i-1}^r`` (equation 8b)."""
    return replace(block, leaves=1, ahead="own")


def _upper_bound(block: BlockPlan, at: _Place, parameter: int) -> BlockPlan:
    """``x + sum_{j<i} p_j^r``, which the LM head reads as well."""
    return replace(block, reduces=False)


class _Parameter(NamedTuple):
    """The number in a variant's name."""

    letter: str
    largest: Callable[[int], int]
    """For so many layers."""
    smallest: int = 1
    default: int | None = None
    """If there is no number; None: there must be one."""
    below: str = ""
    """The variant that a smaller number would be."""


class _Family(NamedTuple):
    """Variants of one name."""

    rewire: _Rewire
    parameter: _Parameter | None = None
    parts: tuple[Part, ...] = ("attn", "mlp")
    """Blocks of a layer."""
    in_hybrids: bool = True
    """It may be the wiring of the last layers alone."""

    def pattern(self, name: str) -> str:
        """Its name with the letter of the number."""
        if self.parameter is None:
            return name
        number = f":{self.parameter.letter}"
        return name + (number if self.parameter.default is None else f"[{number}]")


def _layers(layers: int) -> int:
    return layers


def _blocks(layers: int) -> int:
    return 2 * layers


_FAMILIES: dict[str, _Family] = {
    "standard": _Family(_standard, in_hybrids=False),
    "parallel": _Family(_standard, parts=("both",)),
    "ladder": _Family(_ladder, _Parameter("D", _blocks, default=1, below="standard")),
    "delayed": _Family(_delayed, _Parameter("D", _blocks, smallest=0)),
    "track": _Family(_track, _Parameter("D", _layers)),
    "desync": _Family(_desync, _Parameter("N", _blocks)),
    "drop": _Family(_drop, _Parameter("K", _layers, smallest=0), in_hybrids=False),
    "partial": _Family(_partial, _Parameter("P", lambda layers: 100)),
    "farskip": _Family(_farskip),
    "farskip:own": _Family(_farskip_own),
    "upper-bound": _Family(_upper_bound, in_hybrids=False),
}
_HYBRID = "hybrid-"
VARIANTS = (*(family.pattern(name) for name, family in _FAMILIES.items()), "hybrid-NAME:K")


def lay_out(variant: str, layers: int, ladder_layers: Collection[int] = ()) -> Wiring:
    """Lay `variant` out over `layers` decoder layers.

    Parameters
    ----------
    variant
        One of `VARIANTS`, with its numbers. Hybrids are standard but for the last K layers.
    layers
        Decoder layers of the model.
    ladder_layers
        Layers that the model's config wires as ladder. If they are K, ``hybrid-ladder:K`` is these, not the last K.

    Raises
    ------
    UsageError
        Unknown variant, or a number that does not fit the model.
    """
    name, family, parameter, last = _parse(variant, layers)
    has_it = ladder_layers if name == f"hybrid-ladder:{len(ladder_layers)}" else range(layers - last, layers)
    places = itertools.count()
    blocks: list[BlockPlan] = []
    for layer in range(layers):
        for part in family.parts if layer in has_it else _FAMILIES["standard"].parts:
            block = BlockPlan(number=len(blocks), layer=layer, part=part)
            if layer in has_it:
                block = family.rewire(block, _Place(next(places), len(has_it) * len(family.parts)), parameter)
            blocks.append(block)
    # the LM head waits for everything
    after: list[tuple[Ahead, bool]] = [*((block.ahead, block.leaves > 0) for block in blocks[1:]), ("nothing", False)]
    return Wiring(
        name=name,
        blocks=tuple(
            replace(block, read_ahead=ahead, overlaps=overlaps)
            for block, (ahead, overlaps) in zip(blocks, after, strict=True)
        ),
    )


def _parse(variant: str, layers: int) -> tuple[str, _Family, int, int]:
    """Canonical name, family, its parameter (0: it has none), and how many of the last layers have it."""
    text = variant.strip().lower()
    body = text.removeprefix(_HYBRID)
    # names may have a colon
    name = max((name for name in _FAMILIES if f"{body}:".startswith(f"{name}:")), key=len, default="")
    numbers = body[len(name) + 1 :].split(":") if name != body else []
    family, is_hybrid = _FAMILIES.get(name), body != text
    if family is None or (is_hybrid and not family.in_hybrids):
        raise UsageError(f"unknown variant '{variant}'", hint=f"known: {', '.join(VARIANTS)}")
    last = layers
    if is_hybrid:
        last = _number(variant, _Parameter("K", _layers), numbers.pop() if numbers else "", layers)
    words, number = [text[: len(text) - len(body)] + name], 0
    if family.parameter is None:
        if numbers:
            way_out = ":".join([*words, str(last)] if is_hybrid else words)
            raise UsageError(f"variant '{variant}': {name} takes no number", hint=f"write '{way_out}'")
    elif numbers or family.parameter.default is None:
        number = _number(variant, family.parameter, ":".join(numbers), last)
    else:
        number = family.parameter.default
    words += [str(number)] if family.parameter and number != family.parameter.default else []
    words += [str(last)] if is_hybrid else []
    return ":".join(words), family, number, last


def _number(variant: str, parameter: _Parameter, text: str, layers: int) -> int:
    smallest, largest = parameter.smallest, parameter.largest(layers)
    if text.isascii() and text.isdigit() and len(text) < 10 and smallest <= int(text) <= largest:
        return int(text)
    raise UsageError(
        f"variant '{variant}': needs a whole number from {smallest} to {largest} as {parameter.letter}",
        hint=f"for example {min(largest, 2)}" + (f"; a smaller one is '{parameter.below}'" if parameter.below else ""),
    )
