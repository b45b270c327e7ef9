"""The rate at which a promise breaks, and the fewest replicas that keep it, found by bisection.

Behind a router that takes replicas in turn, each of R gets every R-th request: one of them is simulated, with the times
between requests of R together. Other routers decide by what the replicas have, and all are simulated.
"""

import json
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical_names
from ladder_sim.serve.load import DEFAULT_VARIANTS, Service
from ladder_sim.serve.mix import Mix
from ladder_sim.serve.outcome import Outcome
from ladder_sim.serve.promise import Promise
from ladder_sim.serve.traffic import MAX_BURSTINESS, Traffic
from ladder_sim.specs.scenario import Scenario

# of the rate at which one replica breaks the promise
PRECISION = 0.02
# what breaks where every bound is kept
ENDLESS = "the queue grows without end"
# requests to an idle system, and how seldom they come
_IDLE_REQUESTS, _IDLE_RATE = 50, 1e-3
# beyond, all requests come at once
_MOST_RATE = 1e5
# of simulations with all replicas: a quarter of an hour
_MOST_REQUESTS = 5_000_000
# of a bound: beyond these, a further seed decides nothing
_CLEARLY = 1.3
# figures of simulations, by what was simulated: one for each bound, and whether the queue has an end
Points = MutableMapping[str, "tuple[list[float], bool]"]


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
    """Of one of these replicas; if there are none, of an idle one. Of all, if their router does not take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How predictions may be off."""

    slower: float = 1.0
    """How many times as long all steps take."""
    later: float = 1.0
    """How many times as long times to first token are, beyond that."""


AS_PREDICTED = Case()


def capacity(
    scenario: Scenario,
    traffic: Traffic,
    promise: Promise,
    variants: Sequence[str] = DEFAULT_VARIANTS,
    *,
    watch: Callable[[str], object] = lambda text: None,
    **how: object,
) -> dict[str, Capacity]:
    """Find the fewest replicas that keep a promise, for each variant, on the plan of the scenario.

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
    watch
        Is given what is simulated, as a phrase.
    **how
        Fields of `ladder_sim.serve.load.Service`.
    """
    check_rate(traffic)
    service = Service.for_requests(scenario, traffic, **how)
    return {name: Search(service, name, traffic, promise, watch=watch).capacity() for name in canonical_names(variants)}


def check_rate(traffic: Traffic) -> None:
    """Require requests at a rate."""
    if not traffic.rate:
        raise UsageError("capacity without a rate: there is no load to carry", hint="give --rate, requests per second")


class Search:
    """The limits of one variant on one plan.

    Parameters
    ----------
    service
        Of one replica.
    variant
        Canonical name.
    traffic, promise
        As in `capacity`.
    seeds
        The number of replicas keeps the promise on average over so many.
    points
        Simulations that are known; others are added.
    watch
        Is given what is simulated, as a phrase.
    """

    def __init__(
        self,
        service: Service,
        variant: str,
        traffic: Traffic,
        promise: Promise,
        *,
        seeds: int = 1,
        points: Points | None = None,
        watch: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.service, self.variant, self.traffic, self.promise = service, variant, traffic, promise
        self.seeds, self.points, self.watch = seeds, {} if points is None else points, watch

    def capacity(self) -> Capacity:
        """Search."""
        broken = self.breaks(_IDLE_RATE, 1)
        if broken:
            return self._answer(0.0, broken, 0)
        limit, breaks = self.limit()
        return self._answer(limit, breaks, self.fewest(limit))

    def limit(
        self, case: Case = AS_PREDICTED, *, near: float | None = None, seed: int = 0
    ) -> tuple[float, tuple[str, ...]]:
        """The highest rate of one replica, and what breaks above it; the same for every rate that is to be served.

        From a power of two by doubling or halving, for a replica with little to do takes longest to simulate, then by
        bisection; from a rate that is near in small steps.
        """
        step = 2.0 if near is None else 1.1
        kept = broken = self._guess() if near is None else near
        if breaks := self.breaks(broken, 1, case, (seed,)):
            kept /= step
            while kept > _IDLE_RATE and (bounds := self.breaks(kept, 1, case, (seed,))):
                kept, broken, breaks = kept / step, kept, bounds
        else:
            broken *= step
            while not (breaks := self.breaks(broken, 1, case, (seed,))):
                kept, broken = broken, step * broken
                if broken > _MOST_RATE:
                    return kept, ()
        while broken > (1.0 + PRECISION) * kept:
            middle = (kept * broken) ** 0.5
            if bounds := self.breaks(middle, 1, case, (seed,)):
                broken, breaks = middle, bounds
            else:
                kept = middle
        return kept, breaks

    def fewest(self, limit: float, case: Case = AS_PREDICTED) -> int:
        """The fewest replicas, near the number that a limit of one says: routers make arrivals more or less regular.

        As predicted they keep the promise on average over all seeds, else with the first. 0: no number does.
        """
        if not self.possible(case):
            return 0
        enough = max(1, ceil(self.traffic.rate / limit))
        if self._keeps(enough, case):
            few, step = enough - 1, 1
            while few and self._keeps(few, case):
                enough, step = few, 2 * step
                few = max(0, few - step)
        else:
            few, step = enough, 1
            while not self._keeps(few + step, case):
                few, step = few + step, 2 * step
                # with another seed not even an idle one may do
                if self.traffic.rate / few < _IDLE_RATE:
                    return 0
            enough = few + step
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if self._keeps(middle, case) else (middle, enough)
        return enough

    def seconds(self, rate: float) -> Sequence[float]:
        """What each bound bounds, of one replica with the first seed."""
        return self._point(rate, 1, 0, 1.0)[0]

    def possible(self, case: Case) -> bool:
        """Whether an idle replica keeps the promise."""
        return not self.breaks(_IDLE_RATE, 1, case)

    def breaks(
        self, rate: float, replicas: int, case: Case = AS_PREDICTED, seeds: Sequence[int] = (0,)
    ) -> tuple[str, ...]:
        """What of the promise some replicas break at a rate, on average over seeds; empty: nothing."""
        bounds_s = np.array([bound.seconds for bound in self.promise.bounds])
        later = np.array([case.later if bound.metric == "ttft" else 1.0 for bound in self.promise.bounds])
        rows: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
        for seed in seeds:
            seconds, stable = self._point(rate, replicas, seed, case.slower)
            rows.append(later * seconds)
            clear = (rows[0] * _CLEARLY <= bounds_s).all() or (rows[0] > _CLEARLY * bounds_s).any()
            if not stable or clear:
                break
        values_s = np.mean(rows, axis=0)
        return self.promise.broken(values_s.tolist()) or (() if stable else (ENDLESS,))

    def _keeps(self, replicas: int, case: Case) -> bool:
        return not self.breaks(self.traffic.rate, replicas, case, range(self.seeds if case == AS_PREDICTED else 1))

    def _point(self, rate: float, replicas: int, seed: int, slower: float) -> tuple[list[float], bool]:
        """Figures of a simulation, one for each bound."""
        key = json.dumps([self.variant, str(self.service.scenario.plan), slower, seed, rate, replicas])
        if key not in self.points:
            outcome = self._run(rate, replicas, seed, slower)
            self.points[key] = outcome.bounded_s, outcome.stable
        return self.points[key]

    def _run(self, rate: float, replicas: int, seed: int = 0, slower: float = 1.0) -> Outcome:
        self.watch(f"{self.variant}, {self.service.scenario.plan}: {replicas} replicas at {rate:.4g} requests/s")
        requests = self.traffic.requests if rate > _IDLE_RATE else min(_IDLE_REQUESTS, self.traffic.requests)
        load = replace(self.traffic, rate=rate, requests=requests, seed=self.traffic.seed + seed)
        if self.service.router == "round-robin":
            regular = min(MAX_BURSTINESS, replicas * load.burstiness)
            load, replicas = replace(load, rate=rate / replicas, burstiness=regular), 1
        else:
            if replicas * requests > _MOST_REQUESTS:
                raise UsageError(
                    f"{replicas} replicas with {requests} requests each: at most {_MOST_REQUESTS} requests",
                    hint="--router round-robin needs one of them, or use fewer --requests",
                )
            load = replace(load, requests=replicas * requests)
        return self.service.run(self.variant, load, replicas=replicas, promise=self.promise, slower=slower)

    def _guess(self) -> float:
        """A power of two near the rate at which 64 requests decode at a time."""
        times, prompt, gen = self.service.times(self.variant), self.traffic.prompt.mean, self.traffic.gen.mean
        chunk = max(1, min(round(prompt), times.limits.tokens))
        prompt_s = prompt / chunk * times.of_mix(Mix.of(prefill=[(chunk, 0)]))
        decoding = min(64, times.limits.requests)
        decode_s = times.of_mix(Mix.of(decode=[round(prompt + gen / 2)] * decoding))
        return 2.0 ** round(log2(min(1.0 / (prompt_s + gen * decode_s / decoding), _MOST_RATE)))

    def _answer(self, limit: float, breaks: tuple[str, ...], replicas: int) -> Capacity:
        return Capacity(
            variant=self.variant,
            rate=self.traffic.rate,
            rate_limit=limit,
            breaks=breaks,
            replicas=replicas,
            gpus=replicas * self.service.scenario.plan.replica_gpus,
            outcome=self._run(self.traffic.rate, replicas) if replicas else self._run(_IDLE_RATE, 1),
        )
