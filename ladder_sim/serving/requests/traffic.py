"""Requests drawn at random: when they come, how long they are, and what they have in common."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.request import Request
from ladder_sim.specs.workload import MAX_TOKENS
from ladder_sim.units import quoted
from ladder_sim.values import whole

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


# one request in a fortnight, and more than any service has
MIN_RATE, MAX_RATE = 1e-6, 1e6
MIN_BURSTINESS, MAX_BURSTINESS = 0.01, 1000.0
# requests that are drawn at a time
_DRAWN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests at a rate, or so many in flight, or at a rate with at most so many; a seed draws the same requests."""

    prompt: Lengths
    """Tokens of prompts."""
    gen: Lengths
    """Tokens of answers."""
    rate: float = 0.0
    """Requests per second; 0: the next one comes when one is answered."""
    concurrency: int = 0
    """Requests in flight; at a rate, the most at a time, as the client holds others back; 0: it holds none back."""
    requests: int = 1000
    """How many there are."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of times between requests, as in ``vllm bench serve``: 1 is a Poisson process,
    less comes in bursts, more is more regular."""
    prefix: int = 0
    """Tokens that all prompts begin with, in addition to their own."""
    seed: int = 0
    """Seed of the random numbers."""

    def __post_init__(self) -> None:
        for name in ("prompt", "gen"):
            if not isinstance(lengths := getattr(self, name), Lengths):
                raise UsageError(f"{name} is {quoted(lengths)}: must be Lengths", hint='e.g. Lengths.parse("1024")')
        for name, hint in (
            ("rate", "e.g. 4.0; 0: the next one comes when one is answered"),
            ("burstiness", "e.g. 1.0"),
        ):
            if not isinstance(number := getattr(self, name), Real):
                raise UsageError(f"{name} is {quoted(number)}: must be a number", hint=hint)
        if not self.rate and not self.concurrency:
            raise UsageError(
                f"rate {self.rate:g} and concurrency {self.concurrency}: must be one of them, or both",
                hint="requests come at a rate, e.g. --rate 4, or when one is answered, e.g. --concurrency 64",
            )
        if self.rate and not MIN_RATE <= self.rate <= MAX_RATE:
            raise UsageError(
                f"rate {self.rate:g}: must be {MIN_RATE:g} to {MAX_RATE:g} requests/s", hint="e.g. --rate 4"
            )
        for name, low, hint in (("concurrency", 0, "e.g. 64"), ("requests", 1, "e.g. 1000"), ("prefix", 0, "e.g. 512")):
            whole(getattr(self, name), name, low, MAX_TOKENS, hint=hint)
        whole(self.seed, "seed", 0, 2**32 - 1, hint="e.g. 0")
        if not MIN_BURSTINESS <= self.burstiness <= MAX_BURSTINESS:
            raise UsageError(
                f"burstiness {self.burstiness:g}: must be {MIN_BURSTINESS:g} to {MAX_BURSTINESS:g}",
                hint="1 is a Poisson process",
            )

    @property
    def arrivals(self) -> str:
        """When they come, e.g. "4 requests/s"."""
        if not self.rate:
            return f"{self.concurrency} in flight"
        return f"{self.rate:g} requests/s" + (f", at most {self.concurrency} in flight" if self.concurrency else "")

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return self.prefix + max(int((prompts + gens).max()) for _, prompts, gens in self._drawn())

    def __iter__(self) -> Iterator[Request]:
        names = ("common",) if self.prefix else ()
        for columns in self._drawn():
            for arrival_s, prompt, gen in zip(*(column.tolist() for column in columns), strict=True):
                yield Request(
                    arrival_s=arrival_s,
                    prompt=self.prefix + prompt,
                    gen=gen,
                    prefix=names,
                    prefix_tokens=self.prefix,
                )

    def _drawn(self) -> Iterator[tuple[Floats, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield arrivals, seconds, with tokens of own prompts and of answers, some thousands at a time."""
        random = np.random.default_rng(self.seed)
        now_s, left = 0.0, self.requests
        while left:
            count = min(left, _DRAWN)
            left -= count
            gaps_s = np.zeros(count)
            if self.rate:
                gaps_s = random.gamma(self.burstiness, 1.0 / (self.rate * self.burstiness), count)
            arrivals_s = now_s + np.cumsum(gaps_s)
            now_s = float(arrivals_s[-1])
            yield arrivals_s, self.prompt.draw(random, count), self.gen.draw(random, count)
