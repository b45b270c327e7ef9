"""Requests drawn at random: when they come, how long they are, and what they have in common."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.lengths import Lengths
from ladder_sim.serving.requests.request import Request
from ladder_sim.specs.values import whole
from ladder_sim.specs.workload import MAX_TOKENS
from ladder_sim.units import quoted

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

    def __iter__(self) -> Iterator[Request]:
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
            prompts, gens = self.prompt.draw(random, count), self.gen.draw(random, count)
            for arrival_s, prompt, gen in zip(arrivals_s.tolist(), prompts.tolist(), gens.tolist(), strict=True):
                yield Request(
                    arrival_s=arrival_s,
                    prompt=self.prefix + prompt,
                    gen=gen,
                    prefix=("common",) if self.prefix else (),
                    prefix_tokens=self.prefix,
                )
