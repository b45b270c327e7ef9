"""The rate at which a promise breaks, and the fewest replicas that keep it, found by bisection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical_names
from ladder_sim.serve.load import DEFAULT_VARIANTS, Service
from ladder_sim.serve.outcome import Outcome
from ladder_sim.serve.promise import Promise
from ladder_sim.serve.traffic import Traffic
from ladder_sim.specs.scenario import Scenario

# of the rate at which one replica breaks the promise
PRECISION = 0.02
# requests to an idle system, and how seldom they come
_IDLE_REQUESTS, _IDLE_RATE = 50, 1e-3
# beyond, all requests come at once
_MOST_RATE = 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one variant needs to keep a promise."""

    variant: str
    """Canonical name."""
    rate: float
    """Requests per second to serve."""
    rate_limit: float
    """The highest rate at which one replica keeps it; 0: there is none."""
    breaks: tuple[str, ...]
    """The bounds that break first; at any rate, if there is no limit."""
    replicas: int
    """The fewest that keep it; 0: no number does."""
    gpus: int
    """Of these replicas."""
    outcome: Outcome
    """Of these replicas at the rate; if there are none, of an idle one."""


def capacity(
    scenario: Scenario,
    traffic: Traffic,
    promise: Promise,
    variants: Sequence[str] = DEFAULT_VARIANTS,
    *,
    service: Service | None = None,
    watch: Callable[[str], object] = lambda text: None,
    **how: object,
) -> dict[str, Capacity]:
    """Find the fewest replicas that keep a promise, for each variant.

    Parameters
    ----------
    scenario
        Model, GPUs and stack of one replica.
    traffic
        Requests at a rate; other rates bring the same ones, closer together or further apart.
    promise
        To be kept, by a queue that does not grow without end.
    variants
        Residual wirings.
    service
        What serves the requests, if there is one already.
    watch
        Is told what is simulated.
    **how
        Fields of `ladder_sim.serve.load.Service`.
    """
    if not traffic.rate:
        raise UsageError("capacity without a rate: there is no load to carry", hint="give --rate, requests per second")
    service = service or Service.for_requests(scenario, traffic, **how)
    return {name: _Search(service, name, traffic, promise, watch).capacity() for name in canonical_names(variants)}


class _Search:
    """Of one variant."""

    def __init__(
        self, service: Service, variant: str, traffic: Traffic, promise: Promise, watch: Callable[[str], object]
    ) -> None:
        self.service, self.variant, self.traffic, self.promise = service, variant, traffic, promise
        self.watch = watch

    def capacity(self) -> Capacity:
        """Search."""
        idle = self._run(replace(self.traffic, rate=_IDLE_RATE, requests=min(_IDLE_REQUESTS, self.traffic.requests)), 1)
        if idle.broken:
            return self._answer(0.0, idle.broken, 0, idle)
        limit, breaks = self._rate_limit()
        replicas, outcome = self._fewest(max(1, ceil(self.traffic.rate / limit)))
        return self._answer(limit, breaks, replicas, outcome)

    def _answer(self, limit: float, breaks: tuple[str, ...], replicas: int, outcome: Outcome) -> Capacity:
        return Capacity(
            variant=self.variant,
            rate=self.traffic.rate,
            rate_limit=limit,
            breaks=breaks,
            replicas=replicas,
            gpus=replicas * self.service.scenario.plan.replica_gpus,
            outcome=outcome,
        )

    def _run(self, traffic: Traffic, replicas: int) -> Outcome:
        self.watch(f"{self.variant}: {replicas} replicas at {traffic.rate:.4g} requests/s")
        return self.service.run(self.variant, traffic, replicas=replicas, promise=self.promise)

    def _rate_limit(self) -> tuple[float, tuple[str, ...]]:
        """The highest rate of one replica, and what breaks above it; the same for every rate that is to be served.

        From a power of two near that rate by doubling or halving, for a replica with little to do takes longest to
        simulate, then by bisection.
        """
        kept = broken = 2.0 ** round(log2(self.traffic.rate))
        if breaks := self._breaks(broken):
            kept /= 2.0
            while kept > _IDLE_RATE and (bounds := self._breaks(kept)):
                kept, broken, breaks = kept / 2.0, kept, bounds
        else:
            broken *= 2.0
            while not (breaks := self._breaks(broken)):
                kept, broken = broken, 2.0 * broken
                if broken > _MOST_RATE:
                    return kept, ()
        while broken > (1.0 + PRECISION) * kept:
            middle = (kept * broken) ** 0.5
            if bounds := self._breaks(middle):
                broken, breaks = middle, bounds
            else:
                kept = middle
        return kept, breaks

    def _breaks(self, rate: float) -> tuple[str, ...]:
        outcome = self._run(replace(self.traffic, rate=rate), 1)
        return outcome.broken or (() if outcome.stable else ("the queue grows without end",))

    def _fewest(self, replicas: int) -> tuple[int, Outcome]:
        """The fewest replicas, near a number that should do: a router spreads requests less evenly than one queue."""
        outcome = self._run(self.traffic, replicas)
        if self._keeps(outcome):
            while replicas > 1 and self._keeps(fewer := self._run(self.traffic, replicas - 1)):
                replicas, outcome = replicas - 1, fewer
            return replicas, outcome
        while not self._keeps(outcome):
            replicas += 1
            outcome = self._run(self.traffic, replicas)
        return replicas, outcome

    @staticmethod
    def _keeps(outcome: Outcome) -> bool:
        return not outcome.broken and outcome.stable
