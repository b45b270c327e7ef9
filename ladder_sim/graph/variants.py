"""Variants by name: a family of residual wirings, its parameter, and maybe how many of the last layers have it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.graph.families import FAMILIES, Family, Parameter

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
        """Its canonical name."""
        parameter = self.family.parameter
        numbers = [self.number] if parameter and self.number != parameter.default else []
        numbers += [self.last] if self.last else []
        return ":".join([(HYBRID if self.last else "") + self.family.name, *map(str, numbers)])

    @property
    def sentence(self) -> str:
        """What it is, and what using it takes."""
        return (f"The last {self.last} layers: " if self.last else "") + self.family.sentence

    def layers(self, layers: int) -> range:
        """Those that have it, of so many."""
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
    """The variant of a name.

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
    """The value of a parameter of `variant`, a name as it was given."""
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
    """The canonical name of a variant; errors as `parse`."""
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
