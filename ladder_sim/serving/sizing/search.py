"""The rate at which an SLO breaks, and the fewest replicas that keep it, found by bisection.

Behind a router that takes replicas in turn, each of R gets every R-th request: one of them is simulated, with the times
between requests of R together. Other routers decide by what the replicas have, and all are simulated. Where some
replicas run prompts only, both numbers are searched: as many of either kind, then the fewest of one kind and of the
other, in both orders. Of R equal groups of both, one is simulated.
"""

import copy
import json
from collections import defaultdict
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf, isinf, log, log2
from typing import NamedTuple, Self

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.serving.intervals import STEADY_ROUNDS
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.replicas.simulation import Sizes
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traffic import MAX_BURSTINESS, Traffic
from ladder_sim.serving.service import Service
from ladder_sim.serving.steps.mix import Mix

# of the rate at which one replica breaks the SLO
PRECISION = 0.02
# what breaks where every bound is kept
ENDLESS = "the queue grows without end"
# requests to an idle system, and how seldom they come
_IDLE_REQUESTS, _IDLE_RATE = 50, 1e-3
# requests in flight at the lowest rate of a search: hardly any meets another
_ALONE = 0.02
# so many times the replicas that one's limit says, or none do
_ENOUGH = 16
# beyond, all requests come at once
_MOST_RATE = 1e5
# of simulations with all replicas: a quarter of an hour
_MOST_REQUESTS = 5_000_000
# of a bound: beyond these, a further seed decides nothing
_CLEARLY = 1.3


class Simulated(NamedTuple):
    """What a simulation says of the bounds of an SLO, in their order."""

    values_s: list[float]
    """Time that each bound bounds, seconds; NaN: no request has it."""
    first_s: list[float]
    """Time to first token in each."""
    stable: bool
    """Whether the queue has an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one variant needs to meet an SLO."""

    variant: str
    """Canonical name."""
    rate: float
    """Requests per second to serve."""
    rate_limit: float
    """The highest rate at which one replica, or one group, keeps it; 0: there is none."""
    breaks: tuple[str, ...]
    """The bounds that break first; at any rate, if there is no limit."""
    sizes: Sizes
    """The fewest replicas that keep it; none: no number does."""
    group: Sizes
    """What the limit is of: one replica; with replicas that run prompts only, the smallest group of the same ratio."""
    gpus: int
    """Number of GPUs of the replicas."""
    outcome: Outcome
    """Outcome of one group, or of an idle one if none is needed; of all groups if their router does not take turns."""
    idle_s: Sequence[float]
    """What each bound bounds where requests come alone, on average over seeds, if no number meets the SLO."""

    @property
    def replicas(self) -> int:
        """The fewest that keep it, without those that run prompts only; 0: no number does."""
        return self.sizes.serving

    @property
    def enough_requests(self) -> int:
        """Number of requests that say what a replica carries: several times those in flight at the limit."""
        # by Little's law
        return ceil(STEADY_ROUNDS * self.rate_limit * self.outcome.seconds("e2e"))

    @property
    def too_few(self) -> bool:
        """Whether fewer requests were simulated, of which most meet a server that is filling or emptying."""
        return len(self.outcome.answers) < self.enough_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How predictions may be off."""

    slower: float = 1.0
    """How many times as long all steps take."""
    later: float = 1.0
    """How many times as long times to first token are, beyond that."""


AS_PREDICTED = Case()


def check_rate(traffic: Traffic) -> None:
    """Require requests at a rate."""
    if not traffic.rate:
        raise UsageError("capacity without a rate: there is no load to carry", hint="give --rate, requests per second")
    if traffic.concurrency:
        raise UsageError(
            f"capacity with concurrency {traffic.concurrency}: an SLO is about all requests of the rate",
            hint="leave out --concurrency, whose client holds requests back before they count",
        )


class Search:
    """The limits of one variant on one plan, and the fewest replicas that meet an SLO.

    Other rates bring the same requests, closer together or further apart. Bounds of the SLO are kept by a queue that
    does not grow without end, on average over `seeds`. A replica's limit may be `near` a rate, requests per second; by
    default it is guessed. Simulations that are known are looked up in `simulated`, and others added; `watch` is given
    what is simulated, as a phrase.
    """

    def __init__(
        self,
        service: Service,
        variant: str,
        traffic: Traffic,
        slo: SLO,
        *,
        seeds: int = 1,
        near: float | None = None,
        simulated: MutableMapping[str, Simulated] | None = None,
        watch: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.service, self.variant, self.traffic, self.slo = service, variant, traffic, slo
        self.near = near
        self.seeds, self.simulated, self.watch = seeds, {} if simulated is None else simulated, watch
        # rates that were simulated, by number of replicas, seed and how slow steps were
        self._rates: dict[tuple[Sizes, int, float], set[float]] = defaultdict(set)

        # replicas that kept the SLO last at the rate to serve, and their outcome with the first seed
        self._at_rate: tuple[Sizes, Outcome] | None = None

        # what limits are of
        self.group = service.alike(1)

    def of_group(self, group: Sizes) -> Self:
        """Return the search with limits of another group."""
        other = copy.copy(self)
        other.group = group
        return other

    def need(self) -> Need:
        rate = self.traffic.rate
        if self.breaks(_IDLE_RATE, self.group):
            return self._none(_IDLE_RATE, self.group, (0,))
        limit, breaks = self.limit()
        if not limit:
            return self._none(self._alone, self.group, (0,))
        sizes = self.fewest(limit)
        if sizes is None:
            return self._none(rate, self.service.alike(_ENOUGH * self._near(limit)), range(self.seeds))
        if sizes.group != self.group:
            limit, breaks = self.of_group(sizes.group).limit(near=rate / sizes.groups)
        return Need(
            variant=self.variant,
            rate=rate,
            rate_limit=limit,
            breaks=breaks,
            sizes=sizes,
            group=sizes.group,
            gpus=self.service.gpus(sizes),
            outcome=self._at_rate[1] if self._at_rate and self._at_rate[0] == sizes else self._run(rate, sizes),
            idle_s=(),
        )

    def limit(
        self, case: Case = AS_PREDICTED, *, near: float | None = None, seed: int = 0
    ) -> tuple[float, tuple[str, ...]]:
        """Return the highest rate of one group, and the bounds that break above it.

        It is the same for every rate that is to be served.
        Rates that were simulated before, for whichever case, are looked up first. From the nearest of them, a rate that
        is near or a guess, the search goes where they say that the limit is, by steps that grow; a replica with little
        to do takes longest to simulate. Then it interpolates how far bounds are exceeded. 0: none, and what breaks
        where requests come alone.
        """

        def excess(rate: float) -> float:
            return self._excess(rate, case, seed)

        known = self._known(case, seed)
        broken = next((rate for rate in known if excess(rate) > 0.0), None)
        kept = max((rate for rate in known if broken is None or rate < broken), default=None)
        near = near or self.near
        step, least = 2.0 if near is None else 1.0 + 2.0 * PRECISION, 1.0
        if kept is None and broken is None:
            first = near or self._guess()
            kept, broken = (None, first) if excess(first) > 0.0 else (first, None)
        while kept is None or broken is None:
            if kept is None:
                assert broken is not None
                if broken <= self._alone:
                    return 0.0, self.breaks(broken, self.group, case, (seed,))
                rate = broken / max(least, self._away(broken, case, seed) or step)
                # of less than one in flight
                rate = self._alone if rate * _ALONE < self._alone else rate
            else:
                rate = kept * max(least, self._away(kept, case, seed) or step)
                if rate > _MOST_RATE:
                    return kept, ()
            kept, broken = (kept, rate) if excess(rate) > 0.0 else (rate, broken)
            step, least = min(2.0, step**2), min(2.0, (1.0 + PRECISION) * least**2)
        while broken > (1.0 + PRECISION) * kept:
            middle = _between(kept, broken, excess(kept), excess(broken))
            kept, broken = (kept, middle) if excess(middle) > 0.0 else (middle, broken)
        return kept, self.breaks(broken, self.group, case, (seed,))

    def _away(self, rate: float, case: Case, seed: int) -> float:
        """Return by which factor the limit lies beyond a rate, as the line through the nearest known rates says.

        Where only one rate is known with a seed, the line is as steep as that of the first seed. 0: there is no line.
        """
        excess = self._excess(rate, case, seed)
        for of in dict.fromkeys((seed, 0)):
            near = sorted(self._known(case, of), key=lambda each: abs(log(each / rate)))[:2]
            if len(near) == 2:
                low, high = sorted(near)
                slope = (self._excess(high, case, of) - self._excess(low, case, of)) / log(high / low)
                if 0.0 < slope < inf and not isinf(excess):
                    return exp(min(log(2.0), abs(excess) / slope + PRECISION / 2.0))
        return 0.0

    def fewest(self, limit: float, case: Case = AS_PREDICTED) -> Sizes | None:
        """Return the fewest replicas that meet the SLO; None if no number does.

        It is near the number that a limit says: routers make arrivals more or less regular.
        As predicted they meet the SLO on average over all seeds, else with the first. None: no number does.
        """
        if not self.possible(case):
            return None
        near = self._near(limit)
        enough = self._smallest(near, self.service.alike, case)
        if not enough:
            return None
        if not self.service.prefill:
            return self.service.alike(enough)
        # more of one kind may do with fewer of the other
        ends = []
        for order in (Sizes._fields, Sizes._fields[::-1]):
            sizes = self.service.alike(enough)
            for kind in order:
                sizes = self._with_fewest(kind, sizes, case)
            ends.append(sizes)
        return min(ends, key=self.service.gpus)

    def most(self, gpus: int) -> Sizes | None:
        """Return the most replicas of each kind on a number of GPUs; None if not even one of each fits."""
        smallest = self.service.alike(1)
        left = gpus - self.service.gpus(smallest)
        if left < 0:
            return None
        more = Sizes(
            left // self.service.gpus(Sizes(1, 0)), left // self.service.gpus(Sizes(0, 1)) if smallest.prefill else 0
        )
        return Sizes(smallest.serving + more.serving, smallest.prefill + more.prefill)

    def gpus(self, most: int) -> int:
        """Return how many GPUs of so many replicas can have; 0: not even one of each fits."""
        sizes = self.most(most)
        return self.service.gpus(sizes) if sizes else 0

    def seconds(
        self, rate: float, sizes: Sizes | None = None, case: Case = AS_PREDICTED, *, seed: int = 0
    ) -> Sequence[float]:
        """Return the times that the SLO bounds, in its order, of one group or of `sizes` replicas, with one seed."""
        return self._bounded(rate, sizes or self.group, case, (seed,))[0]

    def possible(self, case: Case) -> bool:
        """Whether an idle replica meets the SLO."""
        return not self.breaks(_IDLE_RATE, self.group, case)

    def breaks(
        self, rate: float, sizes: Sizes, case: Case = AS_PREDICTED, seeds: Sequence[int] = (0,)
    ) -> tuple[str, ...]:
        """Return the bounds of the SLO that replicas break at a rate, on average over seeds; empty if none."""
        values_s, stable = self._bounded(rate, sizes, case, seeds)
        return self.slo.broken(values_s) or (() if stable else (ENDLESS,))

    def _excess(self, rate: float, case: Case, seed: int) -> float:
        """Return the logarithm of the largest of a group's times over their bounds; infinite: the queue grows."""
        values_s, stable = self._bounded(rate, self.group, case, (seed,))
        if not stable:
            return inf
        shares = [value / bound.seconds for value, bound in zip(values_s, self.slo.bounds, strict=True)]
        return log(max([each for each in shares if each > 0.0], default=1e-9))

    def _bounded(self, rate: float, sizes: Sizes, case: Case, seeds: Sequence[int]) -> tuple[list[float], bool]:
        """Return the times that the SLO bounds, seconds, and whether the queue ends, over the first deciding seeds."""
        bounds_s = np.array([bound.seconds for bound in self.slo.bounds])
        rows: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
        for seed in seeds:
            values_s, first_s, stable = self._point(rate, sizes, seed, case.slower)
            rows.append(np.add(values_s, (case.later - 1.0) * np.array(first_s)))
            # NaN, which no request has, keeps a bound
            clear = not (rows[0] * _CLEARLY > bounds_s).any() or (rows[0] > _CLEARLY * bounds_s).any()
            if not stable or clear:
                break
        return np.ma.masked_invalid(rows).mean(axis=0).filled(np.nan).tolist(), stable

    def _near(self, limit: float) -> int:
        """Return the number of replicas of a kind, equal for each, that a rate limit asks for."""
        return max(1, ceil(self.traffic.rate / limit * max(self.group)))

    def _with_fewest(self, kind: str, sizes: Sizes, case: Case) -> Sizes:
        number = self._smallest(max(sizes), lambda number: sizes._replace(**{kind: number}), case)
        return sizes._replace(**{kind: number})

    def _smallest(self, near: int, sizes: Callable[[int], Sizes], case: Case) -> int:
        """Return the smallest number of replicas that meet the SLO; 0 if not even many times the estimate does."""
        seeds = range(self.seeds if case == AS_PREDICTED else 1)

        def keeps(number: int) -> bool:
            return not self.breaks(self.traffic.rate, sizes(number), case, seeds)

        step = 1
        if keeps(near):
            enough, few = near, near - 1
            while few and keeps(few):
                enough, step = few, 2 * step
                few = max(0, few - step)
        else:
            few = near
            while not keeps(enough := min(few + step, _ENOUGH * near)):
                if enough == _ENOUGH * near:
                    return 0
                few, step = enough, 2 * step
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if keeps(middle) else (middle, enough)
        return enough

    def _point(self, rate: float, sizes: Sizes, seed: int, slower: float) -> Simulated:
        """Return the figures of a simulation.

        Steps that are `slower` times as long do to requests what steps as predicted do to requests that come as many
        times as fast, in as many times the time. So one simulation answers for all cases. What the front end takes of a
        prompt stays as it is; links between replicas do too, and these are simulated in each case. The power limit
        averages over seconds, not steps: that moves mean times by 3 % at most.
        """
        if slower == 1.0 or self.service.prefill or rate <= _IDLE_RATE:
            return self._simulated(_rounded(rate), sizes, seed, slower)
        values_s, first_s, stable = self._simulated(_rounded(rate * slower), sizes, seed, 1.0)
        spec = self.service.spec
        front_end_s = spec.frontend_s + spec.frontend_token_s * self.traffic.prompt.mean
        stays_s = [front_end_s * (bound.metric in ("ttft", "e2e")) for bound in self.slo.bounds]

        def scaled(seconds: Sequence[float]) -> list[float]:
            return [slower * (each_s - part_s) + part_s for each_s, part_s in zip(seconds, stays_s, strict=True)]

        return Simulated(scaled(values_s), scaled(first_s), stable)

    def _simulated(self, rate: float, sizes: Sizes, seed: int, slower: float) -> Simulated:
        """Simulate replicas with one seed, or look up what was simulated."""
        self._rates[sizes, seed, slower].add(rate)
        key = json.dumps([self.variant, self.service.plans, slower, seed, rate, sizes])
        if key not in self.simulated:
            outcome = self._run(rate, sizes, seed, slower)
            self.simulated[key] = Simulated(outcome.bounded_s, outcome.first_s, outcome.stable)
            if outcome.kept and (rate, seed, slower) == (self.traffic.rate, 0, 1.0):
                self._at_rate = sizes, outcome
        return self.simulated[key]

    def _known(self, case: Case, seed: int) -> list[float]:
        """Return the rates at which figures of a group are known, ascending."""
        slower, scale = (case.slower, 1.0) if self.service.prefill else (1.0, case.slower)
        return sorted(rate / scale for rate in self._rates[self.group, seed, slower] if rate > _IDLE_RATE)

    def _run(self, rate: float, sizes: Sizes, seed: int = 0, slower: float = 1.0) -> Outcome:
        self.watch(f"{self.variant}, {self.service.plans}: {sum(sizes)} replicas at {rate:.4g} requests/s")
        requests = self.traffic.requests if rate > _IDLE_RATE else min(_IDLE_REQUESTS, self.traffic.requests)
        groups = sizes.groups if self.service.router == "round-robin" else 1
        simulated = Sizes(sizes.serving // groups, sizes.prefill // groups)
        if max(simulated) * requests > _MOST_REQUESTS:
            raise UsageError(
                f"{sum(simulated)} replicas with {requests} requests each: at most {_MOST_REQUESTS} requests",
                hint="router round-robin needs one of those that are alike, or use fewer --requests",
            )
        load = replace(
            self.traffic,
            rate=rate / groups,
            burstiness=min(MAX_BURSTINESS, groups * self.traffic.burstiness),
            requests=max(simulated) * requests,
            seed=self.traffic.seed + seed,
        )
        pools = {"replicas": simulated.serving} | ({"prefill_replicas": simulated.prefill} if simulated.prefill else {})
        return self.service.run(self.variant, load, slo=self.slo, slower=slower, steady=True, **pools)

    @property
    def _alone(self) -> float:
        """The lowest rate of a search."""
        prompt_s, token_s = self._times(1)
        return max(2.0 * _IDLE_RATE, _ALONE / (prompt_s + self.traffic.gen.mean * token_s))

    def _guess(self) -> float:
        """Return a power of two near the rate, in requests per second, at which 64 requests decode at a time."""
        prompt_s, token_s = self._times(64)
        return 2.0 ** round(log2(min(1.0 / (prompt_s + self.traffic.gen.mean * token_s), _MOST_RATE)))

    def _times(self, requests: int) -> tuple[float, float]:
        """Return the seconds of a prompt, and of a token where a number of requests decode at a time."""
        times, prompt, gen = self.service.times(self.variant), self.traffic.prompt.mean, self.traffic.gen.mean
        chunk = max(1, min(round(prompt), times.limits.tokens))
        prompt_s = prompt / chunk * times.of_mix(Mix.of(prefill=[(chunk, 0)]))
        decoding = min(requests, times.limits.requests)
        return prompt_s, times.of_mix(Mix.of(decode=[round(prompt + gen / 2)] * decoding)) / decoding

    def _none(self, rate: float, sizes: Sizes, seeds: Sequence[int]) -> Need:
        """Return the need if no number of replicas meets the SLO: what it is like where requests come alone."""
        idle_s, _ = self._bounded(rate, sizes, AS_PREDICTED, seeds)
        return Need(
            variant=self.variant,
            rate=self.traffic.rate,
            rate_limit=0.0,
            breaks=self.breaks(rate, sizes, AS_PREDICTED, seeds),
            sizes=Sizes(0, 0),
            group=self.group,
            gpus=0,
            outcome=self._run(rate, sizes),
            idle_s=idle_s,
        )


def _rounded(rate: float) -> float:
    """Return a rate without the rounding of products, so that equal rates are found again."""
    return float(f"{rate:.12g}")


def _between(kept: float, broken: float, below: float, above: float) -> float:
    """Return the rate to try next between one that keeps an SLO and one that breaks it.

    It lies just beyond where the excess, `below` and `above`, would be none if it were linear in the logarithm of the
    rate: the end that is further from there moves close to the other.
    """
    width = log(broken / kept)
    if isinf(above):
        return kept * exp(width / 2.0)
    root = -below / (above - below)
    margin = 0.4 * PRECISION / width
    aim = root - margin if root > 0.5 else root + margin
    return kept * exp(width * min(0.9, max(0.1, aim)))
