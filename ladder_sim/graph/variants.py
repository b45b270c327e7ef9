"""Residual wirings: families with their parameters, papers and equations, each once, and variants by name.

Blocks i = 0, 1, ... (attention, MLP, attention, ...; "parallel": one a layer) put out p_i^r on rank r, a partial sum;
s_i is the sum of p_i^r over the ranks, which an all-reduce makes; x is the embedding. The docstring of a family's rule
says what a block reads on rank r. The LM head reads x and all sums, unless it says otherwise. A variant names a family,
its parameter, and maybe how many of the last layers have it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.techniques import Support

Part = Literal["attention", "mlp", "both"]
# what a sum has besides the output: residual / ranks, so that it is the new residual, or own parts of earlier outputs
Carried = Literal["nothing", "residual", "own"]


class Place(NamedTuple):
    """Where a block is among those with its wiring."""

    number: int
    """Blocks with this wiring before it."""
    part: Part
    """What it computes; "both": attention and MLP side by side."""
    is_last: bool
    """None of them comes after it."""


class Rule(NamedTuple):
    """What a block reads, and what becomes of its output."""

    late: int = 0
    """Newest outputs whose sums it does not wait for."""
    reads_own: bool = False
    """It reads the rank's own parts of those."""
    reads_shared: bool = False
    """It reads what shared experts put out just before, where that needs no exchange."""
    reduces: bool = True
    """Whether the block's output is summed over the ranks."""
    percent: int = 100
    """Channels that are summed; of the others each rank keeps its own part."""
    carries: Carried = "nothing"
    """What the sum has besides its output; "own": the parts of others that the block reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """The number behind a family's name."""

    letter: str
    """In the name's pattern."""
    meaning: str
    """What the letter stands for, in a sentence with it."""
    counts: Literal["layers", "blocks", "percent"]
    """What it counts: at most as many as the model has, or 100."""
    example: int
    """A number that fits most models."""
    smallest: int = 1
    default: int | None = None
    """Value of the parameter if the name has none; None if the name must have one."""
    too_large: str = ""
    """What a number above the largest would do."""
    instead: str = ""
    """What to write instead of a number that is too small or too large."""

    def largest(self, layers: int) -> int:
        """Return the largest value of this parameter in a model, or its last part, of `layers` layers."""
        return {"layers": layers, "blocks": 2 * layers, "percent": 100}[self.counts]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Wirings of one name."""

    name: str
    summary: str
    """In a line."""
    rule: Callable[[Place, int], Rule]
    """Rule of a block at its place, given the parameter (0 if there is none)."""
    paper: str = ""
    """Where it was published; empty: it is the usual one, or no model."""
    parameter: Parameter | None = None
    parts: tuple[Part, ...] = ("attention", "mlp")
    """Blocks of a layer."""
    period: Callable[[int], int] = lambda parameter: 1
    """Blocks after which the rule repeats, given the parameter."""
    support: Sequence[Support] = ()
    """Engines that run models with it."""
    is_tail: bool = False
    """The parameter says how many of the last layers have it; the others are standard."""

    @property
    def shortest(self) -> str:
        """Name of the family, with the letter of a parameter that a variant must have."""
        if self.parameter is None or self.parameter.default is not None:
            return self.name
        return f"{self.name}:{self.parameter.letter}"

    @property
    def pattern(self) -> str:
        """Name of the family, with the letter of its parameter in brackets where it may be left out."""
        if self.parameter is None or self.parameter.default is None:
            return self.shortest
        return f"{self.name}[:{self.parameter.letter}]"

    @property
    def retrained(self) -> bool:
        """Only a model that was trained with it computes anything useful."""
        return bool(self.paper)

    @property
    def sentence(self) -> str:
        """The summary, and what using it takes."""
        needs = f"; for models trained with it ({self.paper})" if self.retrained else ""
        return f"{self.summary[0].upper()}{self.summary[1:]}{needs}."

    @property
    def fits_hybrids(self) -> bool:
        """It may be the wiring of the last layers of a model that is standard otherwise."""
        return self.retrained and not self.is_tail


def standard(at: Place, parameter: int) -> Rule:
    """Return the rule of ``x + sum_{j<i} s_j``."""
    return Rule()


def ladder(at: Place, late: int) -> Rule:
    """Return the rule of ``x + sum_{j<=i-1-D} s_j``: an all-reduce may take as long as D blocks."""
    return Rule(late=late)


def delayed(at: Place, late: int) -> Rule:
    """Return the rule of ``x + sum_{j<=i-1-D} s_j + sum_{i-1-D<j<i} p_j^r``: only others' parts come D blocks late."""
    return Rule(late=late, reads_own=late > 0)


def desync(at: Place, every: int) -> Rule:
    """Return the rule of ``x^r + p_i^r`` with, after every N-th block, ``sum over r of (x^r / ranks + p_i^r)``."""
    reduces = (at.number + 1) % every == 0 or at.is_last
    return Rule(reduces=reduces, carries="residual" if reduces and every > 1 else "nothing")


def track(at: Place, layers: int) -> Rule:
    """Return the rule of `desync` that reduces after the last block of every D-th layer."""
    return desync(at, 2 * layers)


def drop(at: Place, parameter: int) -> Rule:
    """Return the rule of an MLP that reads ``x + sum_{j<i-1} s_j + p_{i-1}^r`` and sums ``p_{i-1}^r + p_i^r``."""
    if at.part == "attention":
        return Rule(reduces=False)
    return Rule(late=1, reads_own=True, carries="own")


def partial(at: Place, percent: int) -> Rule:
    """Return the rule of ``x + sum_{j<i} s_j`` in the first P percent of channels, ``x + sum_{j<i} p_j^r`` in the rest.

    The LM head's shards need one residual: before it, the others are averaged over the ranks.
    """
    return Rule(percent=percent)


def farskip(at: Place, parameter: int) -> Rule:
    """Return the rule of ``x + sum_{j<i-1} s_j``, and block i - 1's shared experts where that needs no exchange.

    Equation 8a: experts read the residual before attention; attention reads it without the routed experts before it.
    """
    return Rule(late=1, reads_shared=True)


def farskip_own(at: Place, parameter: int) -> Rule:
    """Return the rule of ``x + sum_{j<i-1} s_j + p_{i-1}^r``: equation 8b, with the rank's own part of the missing."""
    return Rule(late=1, reads_own=True)


def upper_bound(at: Place, parameter: int) -> Rule:
    """Return the rule of ``x + sum_{j<i} p_j^r``, which the LM head reads as well."""
    return Rule(reduces=False)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="standard",
            summary="each block waits for the all-reduce of the one before",
            rule=standard,
            support=(Support("all", "the usual wiring"),),
        ),
        Family(
            name="parallel",
            summary="attention and MLP side by side: one all-reduce per layer",
            rule=standard,
            paper="arXiv 2204.02311",
            parts=("both",),
            support=(Support("vLLM, for Falcon", "0.32.0, falcon.py"),),
        ),
        Family(
            name="ladder",
            summary="each block reads the residual before the last D blocks (1), whose all-reduces it overlaps",
            rule=ladder,
            paper="arXiv 2501.06589",
            parameter=Parameter(
                letter="D",
                meaning="an all-reduce may take D blocks",
                counts="blocks",
                example=1,
                default=1,
                too_large="only the LM head would read a sum",
                instead="'standard' for 0",
            ),
            support=(Support("gpt-fast of its authors", "arXiv 2501.06589"),),
        ),
        Family(
            name="delayed",
            summary="each rank adds its own part at once, the sum of the others D blocks later",
            rule=delayed,
            paper="arXiv 2609.13846",
            parameter=Parameter(
                letter="D",
                meaning="parts of other ranks arrive D blocks late",
                counts="blocks",
                example=2,
                smallest=0,
                too_large="only the LM head would read a sum",
            ),
        ),
        Family(
            name="track",
            summary="ranks are independent tracks, averaged by one all-reduce every D layers",
            rule=track,
            paper="arXiv 2602.07306",
            parameter=Parameter(
                letter="D",
                meaning="an all-reduce every D layers",
                counts="layers",
                example=4,
                too_large="none but the last would be reduced",
            ),
            period=lambda layers: 2 * layers,
        ),
        Family(
            name="desync",
            summary="only every N-th block is all-reduced, and the last",
            rule=desync,
            paper="arXiv 2501.06589",
            parameter=Parameter(
                letter="N",
                meaning="every N-th block is all-reduced",
                counts="blocks",
                example=4,
                too_large="none but the last would be reduced",
                instead="'upper-bound' for no all-reduce at all",
            ),
            period=lambda every: every,
        ),
        Family(
            name="drop",
            summary="no all-reduce after attention in the last K layers; the one after the MLP sums both",
            rule=drop,
            paper="arXiv 2502.20727",
            parameter=Parameter(
                letter="K",
                meaning="the last K layers have one all-reduce",
                counts="layers",
                example=16,
                smallest=0,
                too_large="no more can have one all-reduce",
            ),
            is_tail=True,
        ),
        Family(
            name="partial",
            summary="P percent of the channels are all-reduced, the others stay each rank's own",
            rule=partial,
            paper="arXiv 2506.19645",
            parameter=Parameter(
                letter="P", meaning="P percent of the channels are all-reduced", counts="percent", example=50
            ),
        ),
        Family(
            name="farskip",
            summary="ladder on MoE; attention also reads what shared experts put out without an exchange",
            rule=farskip,
            paper="arXiv 2511.11505",
        ),
        Family(
            name="farskip:own",
            summary="farskip that also reads the rank's own part of what is on the way",
            rule=farskip_own,
            paper="arXiv 2511.11505",
        ),
        Family(
            name="upper-bound", summary="no block is all-reduced: no communication, standard GEMMs", rule=upper_bound
        ),
    )
}


# a bound that nobody can run: no block is all-reduced
NO_COMMUNICATION = "upper-bound"
DEFAULT_VARIANTS = ("standard", "parallel", "ladder", NO_COMMUNICATION)
HYBRID = "hybrid-"
# of hybrids
_LAST = Parameter(letter="K", meaning="the last K layers are {name}", counts="layers", example=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A residual wiring, for a model of any depth."""

    family: Family
    number: int = 0
    """The family's parameter; 0 also where it has none."""
    last: int = 0
    """How many of the last layers have it, the others being standard; 0: every layer has it."""

    @property
    def name(self) -> str:
        """Canonical name of the variant."""
        parameter = self.family.parameter
        numbers = [self.number] if parameter and self.number != parameter.default else []
        numbers += [self.last] if self.last else []
        return ":".join([(HYBRID if self.last else "") + self.family.name, *map(str, numbers)])

    @property
    def sentence(self) -> str:
        """What it is, and what using it takes."""
        return (f"The last {self.last} layers: " if self.last else "") + self.family.sentence

    def layers(self, layers: int) -> range:
        """Return the layers that the variant rewires, in a model of `layers` layers."""
        last = self.number if self.family.is_tail else self.last or layers
        return range(layers - last, layers)

    def check(self, layers: int) -> None:
        """Refuse what does not fit a model of so many layers.

        Raises
        ------
        UsageError
            A parameter is too large.
        """
        family, parameter = self.family.name, self.family.parameter
        if self.last > layers:
            fitting = Variant(family=self.family, number=self.number, last=layers)
            raise UsageError(
                f"variant '{self.name}': the model has {layers} layers, so at most {layers} can be {family}",
                hint=f"use '{fitting.name}' or '{Variant(family=self.family, number=self.number).name}'",
            )
        largest = parameter.largest(self.last or layers) if parameter else 0
        if parameter and self.number > largest:
            where = f"the last {self.last} layers have" if self.last else "the model has"
            raise UsageError(
                f"variant '{self.name}': {where} {largest} {parameter.counts}, so {parameter.too_large}",
                hint=f"use a number up to {largest}" + (f", or {parameter.instead}" if parameter.instead else ""),
            )


@lru_cache(maxsize=1024)
def parse(variant: str) -> Variant:
    """Return the variant of a name.

    Raises
    ------
    UnknownNameError
        No such variant.
    UsageError
        A parameter is missing, out of range, or not wanted.

    Examples
    --------
    >>> parse("Hybrid-Delayed:2:016").name, parse("ladder:1").name
    ('hybrid-delayed:2:16', 'ladder')
    """
    text = variant.strip().lower()
    body = text.removeprefix(HYBRID)
    hybrid = body != text
    names = [name for name, family in FAMILIES.items() if family.fits_hybrids or not hybrid]
    # the longest one: names may hold colons
    name = max((name for name in names if f"{body}:".startswith(f"{name}:")), key=len, default="")
    if not name:
        hybrids = [f"{HYBRID}{family.shortest}:K" for family in FAMILIES.values() if family.fits_hybrids]
        raise UnknownNameError("variant", variant, [*(family.shortest for family in FAMILIES.values()), *hybrids])
    family = FAMILIES[name]
    given = body[len(name) + 1 :].split(":") if body != name else []
    last = _number(variant, family, _LAST, given.pop() if given else "", hybrid=hybrid) if hybrid else 0
    parameter = family.parameter
    if parameter is None:
        if given:
            raise UsageError(f"variant '{variant}': '{name}' takes no parameter", hint=f"write '{name}'")
        return Variant(family=family, last=last)
    if not given and parameter.default is not None:
        return Variant(family=family, number=parameter.default, last=last)
    number = _number(variant, family, parameter, ":".join(given), hybrid=hybrid)
    return Variant(family=family, number=number, last=last)


def _number(variant: str, family: Family, parameter: Parameter, text: str, *, hybrid: bool) -> int:
    """Return the value of a parameter of `variant`, a name as it was given."""
    percent = parameter.counts == "percent"
    most = 100 if percent else math.inf
    digits = text.lstrip("0") or text[:1]
    # int() reads no more than some thousand digits
    if digits.isascii() and digits.isdigit() and len(digits) < 10 and parameter.smallest <= int(digits) <= most:
        return int(digits)
    wanted = "whole number" if parameter.smallest == 0 else "positive whole number"
    wanted += f" {parameter.letter}" + (" up to 100" if percent else "")
    example = Variant(
        family=family, number=family.parameter.example if family.parameter else 0, last=_LAST.example if hybrid else 0
    )
    prefix = HYBRID if hybrid else ""
    raise UsageError(
        f"variant '{variant}': '{prefix}{family.name}' needs a {wanted} ({parameter.meaning.format(name=family.name)})",
        hint=f"for example '{example.name}'" + (f", or {parameter.instead}" if parameter.instead else ""),
    )


def canonical(variant: str) -> str:
    """Return the canonical name of a variant; raise what `parse` raises."""
    return parse(variant).name


def is_variant(text: str) -> bool:
    """Whether it is a variant's name."""
    try:
        parse(text)
    except UsageError:
        return False
    return True


def canonical_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Check one name or several, of which there must be one, and leave out what is repeated.

    Examples
    --------
    >>> canonical_names("ladder"), canonical_names(["Ladder", "desync:4", "ladder"])
    (('ladder',), ('ladder', 'desync:4'))
    """
    names = tuple(dict.fromkeys(map(canonical, [given] if isinstance(given, str) else given)))
    if not names:
        raise UsageError("no variants: must be at least one", hint="for example 'ladder'")
    return names
