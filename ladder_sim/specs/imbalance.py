"""How unevenly tokens choose experts, so that ranks that hold different ones wait for the busiest."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast, get_args

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.specs.hf_reader import MAXIMA
from ladder_sim.specs.values import real
from ladder_sim.system.files import read_text, shown_path

# all equally often, or the i-th most frequent one in proportion to i to minus this power
Imbalance = Literal["balanced", "power-law-1.01", "power-law-1.2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoads:
    """How often tokens choose each expert: one of the ways that tables were measured with, or counts of one's own."""

    name: str = "power-law-1.01"
    """An `Imbalance`, or the name of the file of counts."""
    counts: tuple[float, ...] = ()
    """Tokens of each expert, in any unit; empty: as the name says."""

    def __post_init__(self) -> None:
        if not self.counts and self.name not in get_args(Imbalance):
            raise UnknownNameError("imbalance", self.name, get_args(Imbalance), more="or a file of tokens per expert")

    @classmethod
    def of(cls, given: "str | Sequence[float] | ExpertLoads") -> Self:
        """Return the loads of a name, of a file of numbers, or of a list of numbers.

        Raises
        ------
        SpecError, UnknownNameError
            There is no such name and no such file, or it does not hold tokens of each expert.

        Examples
        --------
        >>> ExpertLoads.of([10, 30, 20, 20]).busiest(2)
        1.0
        >>> ExpertLoads.of([10, 30, 20, 20]).busiest(4)
        1.5
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, str):
            return cls._counted("measured", given, "imbalance")
        path = Path(given.strip())
        if given.strip() in get_args(Imbalance) or not path.is_file():
            return cls(name=given.strip())
        where = shown_path(path)
        text = read_text(path, what="a file of tokens per expert")
        numbers = [each for each in re.split(r"[\s,\[\]]+", text) if each]
        return cls._counted(path.name, numbers, where)

    @classmethod
    def _counted(cls, name: str, given: object, where: str) -> Self:
        hint = "a list of tokens per expert, in the order of the experts, e.g. [120, 80, ...]"
        if not isinstance(given, Sequence) or not 2 <= len(given) <= MAXIMA["experts"]:
            raise SpecError(f"{where}: must hold a number for each expert", hint=hint)
        try:
            counts = tuple(float(each) for each in given)
        except (TypeError, ValueError):
            raise SpecError(f"{where}: must hold numbers only", hint=hint) from None
        for count in counts:
            real(count, f"{where}: tokens of an expert", 1e30, zero=True)
        if not math.fsum(counts):
            raise SpecError(f"{where}: no expert has any tokens", hint=hint)
        return cls(name=name, counts=counts)

    @property
    def tabled(self) -> Imbalance:
        """The imbalance of the table that prices them."""
        return "balanced" if self.counts else cast(Imbalance, self.name)

    def busiest(self, ep: int) -> float:
        """Return the tokens of the busiest part of the experts over an even share, beyond what the table holds."""
        if not self.counts:
            return 1.0
        held = len(self.counts) // ep
        parts = [math.fsum(self.counts[start : start + held]) for start in range(0, len(self.counts), held)]
        return max(parts) * ep / math.fsum(parts)


# what most tables of experts were measured with; measured servings err by 9 % with it, by 11 % if balanced
USUAL = ExpertLoads()
