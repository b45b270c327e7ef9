"""How long prompts and answers are: one length, or a distribution of lengths."""

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ladder_sim.errors import UsageError
from ladder_sim.specs.workload import MAX_TOKENS
from ladder_sim.units import quoted

_HINT = "e.g. 1024, uniform:512:1536 or lognormal:1024:0.5 (median, standard deviation of the logarithm)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of numbers of tokens.

    Examples
    --------
    >>> Lengths.parse("lognormal:1024:0.5")
    Lengths(kind='lognormal', first=1024.0, second=0.5)
    >>> str(Lengths.parse("uniform:512:1536")), Lengths.parse("1024").mean
    ('uniform:512:1536', 1024.0)
    """

    kind: Literal["fixed", "uniform", "lognormal"]
    """One length; every whole number in a range; or such that its logarithm is normal."""
    first: float
    """The length; the smallest; the median."""
    second: float = 0.0
    """The largest; the standard deviation of the logarithm."""

    @classmethod
    def read(cls, given: int | str | Self) -> Self:
        """Return lengths as they are given: one number of tokens, as typed, or made already."""
        return given if isinstance(given, cls) else cls.parse(str(given))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a distribution as it is typed."""
        kind, *numbers = text.strip().split(":")
        if not numbers:
            kind, numbers = "fixed", [kind]
        try:
            values = [float(number) for number in numbers]
        except ValueError:
            values = []
        sizes = {"fixed": 1, "uniform": 2, "lognormal": 2}
        if kind not in sizes or len(values) != sizes[kind]:
            raise UsageError(f"lengths {quoted(text)}: must be a number of tokens or a distribution", hint=_HINT)
        lengths = cls(kind=kind, first=values[0], second=values[1] if len(values) > 1 else 0.0)  # type: ignore[arg-type]
        bounds = (values[0], values[-1]) if kind == "uniform" else (values[0], values[0])
        if not 1 <= bounds[0] <= bounds[1] <= MAX_TOKENS or not 0.0 <= lengths.second <= MAX_TOKENS:
            raise UsageError(f"lengths {quoted(text)}: must be 1 to {MAX_TOKENS} tokens, smallest first", hint=_HINT)
        if kind == "lognormal" and lengths.second > 3.0:
            raise UsageError(f"lengths {quoted(text)}: a spread above 3 is not meaningful", hint=_HINT)
        return lengths

    @property
    def mean(self) -> float:
        """Of the lengths that it draws, about."""
        if self.kind == "uniform":
            return (self.first + self.second) / 2.0
        return self.first * math.exp(self.second**2 / 2.0)

    def draw(self, random: Generator, count: int) -> NDArray[np.int64]:
        """Return `count` lengths, drawn at random."""
        if self.kind == "uniform":
            return random.integers(round(self.first), round(self.second), count, endpoint=True)
        drawn = self.first * np.exp(self.second * random.standard_normal(count))
        return np.clip(np.round(drawn), 1, MAX_TOKENS).astype(np.int64)

    def __str__(self) -> str:
        numbers = [f"{self.first:g}", *([f"{self.second:g}"] if self.kind != "fixed" else [])]
        return ":".join([*([] if self.kind == "fixed" else [self.kind]), *numbers])
