"""What one step of an engine runs: requests that decode, and chunks of prompts; and what knows how long that takes."""

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol, Self


class StepLimits(NamedTuple):
    """The largest step that times are made for."""

    requests: int
    """In one step."""
    tokens: int
    """New ones, in one step."""
    context: int
    """Tokens of one request, prompt and answer."""


class Mix(NamedTuple):
    """The requests of one step, added up.

    Attention of prompts grows with the pairs of a new token and one that it reads. Of a chunk of `new` tokens after
    `before` others, ``new * (2 * before + new)`` is twice their number.
    """

    decoding: int = 0
    """Requests that decode a token."""
    context: int = 0
    """Tokens that they read together, the new ones included."""
    prompts: int = 0
    """Requests that run a chunk of their prompt."""
    chunk: int = 0
    """New tokens of these chunks together."""
    pairs: int = 0
    """Twice the pairs of a new token of theirs and one that it reads."""
    drafted: int = 0
    """Further tokens of the requests that decode, which others guessed: each is a row of the step, next to that of its
    request, whose tokens are read once for all of its rows."""

    @classmethod
    def of(cls, decode: Iterable[int] = (), prefill: Iterable[tuple[int, int]] = ()) -> Self:
        """Add up the requests of a step.

        Parameters
        ----------
        decode
            Of each request that decodes, the tokens that it reads, its new one included.
        prefill
            Of each chunk of a prompt, its new tokens and those before them. A single one is a request that decodes.

        Examples
        --------
        >>> Mix.of(decode=[1025, 600], prefill=[(512, 0)])
        Mix(decoding=2, context=1625, prompts=1, chunk=512, pairs=262144, drafted=0)
        """
        contexts = list(decode)
        return cls(len(contexts), sum(contexts)).with_prompts(prefill)

    def with_prompts(self, prefill: Iterable[tuple[int, int]]) -> Self:
        """Return the mix with chunks of prompts added, as in `of`."""
        decoding, context, prompts, chunk, pairs, drafted = self
        for new, before in prefill:
            if new == 1:
                decoding, context = decoding + 1, context + before + 1
            else:
                prompts, chunk, pairs = prompts + 1, chunk + new, pairs + new * (2 * before + new)
        return type(self)(decoding, context, prompts, chunk, pairs, drafted)

    @property
    def tokens(self) -> int:
        """New tokens: the rows of the step."""
        return self.decoding + self.drafted + self.chunk


class Line(NamedTuple):
    """Seconds of steps that decode the same requests, one after the other, which read a token more in each."""

    first_s: float
    """Seconds of the first step."""
    more_s: float
    """Seconds by which each takes longer than the one before."""
    steps: int
    """Number of steps of which this is known."""

    def until(self, steps: int) -> float:
        """Return the seconds of the first `steps` steps."""
        return steps * self.first_s + 0.5 * steps * (steps - 1) * self.more_s

    def within(self, seconds: float) -> int:
        """Return how many steps end before that."""
        steps = int(seconds / self.first_s)
        if self.more_s:
            half = self.first_s - 0.5 * self.more_s
            root = math.sqrt(max(0.0, half * half + 2.0 * self.more_s * seconds))
            steps = int(2.0 * seconds / (half + root))
        # rounding
        while steps and self.until(steps) >= seconds:
            steps -= 1
        while self.until(steps + 1) < seconds:
            steps += 1
        return steps


class MixTimes(Protocol):
    """How long steps take: simulated (`ladder_sim.serving.StepTimes`) or measured (`MeasuredSteps`)."""

    @property
    def limits(self) -> StepLimits: ...

    def of_mix(self, mix: Mix, duty: float = 0.0) -> float:
        """Return the seconds of a step, while prompts take a share `duty` of the time."""

    def line(self, mix: Mix) -> "Line":
        """Return the seconds of a step that decodes, and of those after it."""

    def slower(self, factor: float) -> Self: ...
