"""The fewest GPUs that keep a promise, over the plans of a replica, with intervals; a search that can go on later.

For each variant plans come in the order of GPUs that they need at least, by the closed form of requests in flight, and
are searched only if they do with fewer than the best so far, which one simulation says. What the best plan needs is
searched again with slower and faster steps: these are the ends of its intervals. For what a variant saves over the
first one its steps change only by what the two do not share, and those of the first one stay as predicted.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ladder_sim
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence import Confidence, Interval, Widths
from ladder_sim.errors import LadderSimError
from ladder_sim.graph.variants import canonical_names
from ladder_sim.prediction import resolve_profile
from ladder_sim.serve.cache import digest
from ladder_sim.serve.capacity import Capacity, Case, Points, Search, check_rate
from ladder_sim.serve.evidence import confidence_of, interval_note, widths_of
from ladder_sim.serve.intervals import MOST_SEEDS, of_mean
from ladder_sim.serve.load import DEFAULT_VARIANTS, Service
from ladder_sim.serve.promise import Promise
from ladder_sim.serve.traffic import Traffic
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.values import whole
from ladder_sim.system.journal import Journal
from ladder_sim.units import format_seconds

# by default: a bound is compared with the mean over them
SEEDS = 3
# the reason of a plan that cannot do with as few as the best
MORE = "needs more GPUs"
# requests in flight at which the closed form says what a replica carries at most
_LOADS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
# the closed form of requests in flight lies within this of simulated ones, in rates and times per token
# (tests/serve/test_fleet.py)
_SLACK = 1.25
# of the limit of a replica, for a curve
_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2)
# points of one search, about: of a limit and of replicas
_SEARCH_POINTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of a plan."""

    plan: Plan
    gpus: int
    """That keep the promise; 0: it was not simulated, or no number does."""
    reason: str
    """Why; empty: there are GPUs."""


# no slots: its gains are made once
@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """The fewest GPUs with which a variant keeps a promise."""

    capacity: Capacity
    """On the best plan."""
    scenario: Scenario = field(repr=False)
    """Of one replica."""
    gpus: Interval
    """With ends; infinite: no number does."""
    rate_limit: Interval
    """The highest rate of one replica."""
    saved: Interval
    """GPUs less than the first variant's; negative: more."""
    gain: Interval
    """Rate per GPU at which one replica breaks the promise, over that of the first variant."""
    tried: tuple[Tried, ...]
    """The plans, those simulated first."""
    confidence: Confidence | None = field(repr=False)
    """None: no number keeps the promise."""
    widths: Widths | None
    """Of its times of steps, likewise."""
    reasons: tuple[str, ...]
    """Why no number does, by bound; empty: one does."""
    curve: Mapping[float, Sequence[float]] = field(repr=False)
    """What each bound of the promise bounds, in seconds, by the rate of one replica; empty unless it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleets:
    """What each variant needs."""

    variants: Mapping[str, Fleet]
    """By canonical name."""
    traffic: Traffic
    """To be served."""
    promise: Promise
    """To be kept."""
    seeds: int
    """Simulated of each load."""

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the reader should know, one sentence each."""
        widths = {name: each.widths for name, each in self.variants.items() if each.widths}
        why = (f"{name}: {text}" for name, each in self.variants.items() for text in each.reasons)
        return (*why, *((interval_note(widths, self.seeds),) if widths else ()))


def smallest_fleets(
    scenario: Scenario,
    traffic: Traffic,
    promise: Promise,
    variants: Sequence[str] = DEFAULT_VARIANTS,
    *,
    plans: Sequence[Plan] = (),
    seeds: int | None = None,
    path: Path | None = None,
    resume: bool = False,
    curves: bool = False,
    watch: Callable[[int, int], object] = lambda done, total: None,
    **how: Any,
) -> Fleets:
    """Find the fewest GPUs that keep a promise, for each variant, and how sure that is.

    Parameters
    ----------
    scenario, traffic, promise, variants
        As in `ladder_sim.serve.capacity`.
    plans
        Of one replica, to choose from; by default that of the scenario.
    seeds
        Bounds are compared with means over so many, 3 by default.
    path
        Simulations are kept next to this file until the search ends.
    resume
        Whether to go on with what a killed search has left there.
    curves
        Whether to simulate one replica of the best plan at further rates, with the first seed.
    watch
        Is given how much is simulated, and about how much there is.
    **how
        Fields of `ladder_sim.serve.load.Service`.

    Raises
    ------
    UsageError
        There is no rate, what was left is of another search, or no plan can be simulated.
    """
    check_rate(traffic)
    count = whole(SEEDS if seeds is None else seeds, "seeds", 1, MOST_SEEDS, hint="loads to simulate, e.g. --seeds 3")
    names = canonical_names(variants)
    bases = [replace(scenario, plan=plan, nodes=plan.nodes(scenario.cluster.gpus_per_node)) for plan in plans]
    bases = bases or [replace(scenario, plan=replace(scenario.plan, dp=1))]
    progress = _Progress(len(names) * (len(bases) + 2), watch)
    # the contents of a profile's file, which may change
    profile = resolve_profile(bases[0], how.get("profile"))
    made_from = [ladder_sim.__version__, bases, profile, traffic, promise, names, count, how]
    with _kept_points(path, digest(made_from), resume=resume) as points:
        context = _Context(traffic, promise, count, points, progress, curves)
        fleets: dict[str, Fleet] = {}
        for name in names:
            first = next(iter(fleets.values()), None)
            fleets[name] = _smallest(context, name, bases, first, how)
    return Fleets(variants=fleets, traffic=traffic, promise=promise, seeds=count)


@contextmanager
def _kept_points(path: Path | None, fingerprint: str, *, resume: bool) -> Iterator[Points]:
    """Points in memory, and in a journal next to a file until all is done."""
    if path is None:
        yield {}
        return
    journal = Journal(path=path, fingerprint=fingerprint)
    with journal.locked():
        done = len(journal.done()) if resume else 0
        known = dict(json.loads(chunk) for chunk in journal.chunks()) if done else {}
        with journal.appending(done) as append:
            yield _Kept(known, append)
        journal.drop()


class _Kept(dict[str, Any]):
    """Points of which each further one is written down."""

    def __init__(self, known: Mapping[str, Any], append: Callable[[bytes, int], None]) -> None:
        super().__init__(known)
        self._append = append

    def __setitem__(self, key: str, value: Any) -> None:
        self._append(f"{json.dumps([key, value])}\n".encode(), 1)
        super().__setitem__(key, value)


class _Progress:
    """Searches that are done, and how much of this one, in points of about one size."""

    def __init__(self, searches: int, watch: Callable[[int, int], object]) -> None:
        self.left, self.points, self.watch = searches, 0, watch
        self._done = 0

    def point(self) -> None:
        """One more is about to be simulated."""
        self._done, self.points = self._done + 1, self.points + 1
        self.watch(self._done, self._done + max(1, _SEARCH_POINTS - self.points) + _SEARCH_POINTS * (self.left - 1))

    def searched(self) -> None:
        """One search is done, or need not be made."""
        self.left, self.points = self.left - 1, 0


class _Context(NamedTuple):
    """What all searches share."""

    traffic: Traffic
    promise: Promise
    seeds: int
    points: Points
    progress: _Progress
    curves: bool

    def search(self, service: Service, variant: str) -> Search:
        return Search(
            service,
            variant,
            self.traffic,
            self.promise,
            seeds=self.seeds,
            points=self.points,
            watch=lambda text: self.progress.point(),
        )


def _smallest(
    context: _Context, variant: str, bases: Sequence[Scenario], first: Fleet | None, how: Mapping[str, Any]
) -> Fleet:
    best: tuple[Capacity, Search] | None = None
    unfit: tuple[Capacity, Search] | None = None
    simulated: list[Tried] = []
    left_out: list[Tried] = []
    least: list[tuple[float, Service]] = []
    problem: LadderSimError | None = None
    for base in bases:
        try:
            service = Service.for_requests(base, context.traffic, **how)
            least.append((_least_gpus(service, variant, context), service))
        except LadderSimError as error:
            problem = problem or error
            left_out.append(Tried(plan=base.plan, gpus=0, reason=error.message))
            context.progress.searched()
    for gpus, service in sorted(least, key=lambda each: each[0]):
        plan, search = service.scenario.plan, context.search(service, variant)
        enough = best[0].gpus // plan.replica_gpus if best else None
        try:
            if enough is not None and (
                gpus > enough * plan.replica_gpus or search.breaks(context.traffic.rate, enough)
            ):
                left_out.append(Tried(plan=plan, gpus=0, reason=MORE))
                continue
            need = search.capacity()
        except LadderSimError as error:
            # what has no times of steps
            problem = problem or error
            left_out.append(Tried(plan=plan, gpus=0, reason=error.message))
            continue
        finally:
            context.progress.searched()
        reason = f"{', '.join(need.breaks)} on an idle replica" if not need.replicas else ""
        simulated.append(Tried(plan=plan, gpus=need.gpus, reason=reason))
        if need.replicas and (best is None or _rank(need) < _rank(best[0])):
            best = need, search
        elif not need.replicas and (unfit is None or _excess(need) < _excess(unfit[0])):
            unfit = need, search
    tried = (*simulated, *left_out)
    if best is None:
        if unfit is None:
            assert problem is not None
            raise problem
        return _none(unfit, tried)
    return _with_ends(context, *best, tried, first)


def _rank(need: Capacity) -> tuple[float, ...]:
    """The fewest GPUs; of as many, those that carry most."""
    return need.gpus, -need.rate_limit * need.replicas


def _excess(need: Capacity) -> float:
    """By how much an idle replica exceeds the bound that it exceeds most."""
    outcome = need.outcome
    assert outcome.promise is not None
    return max(
        value_s / bound.seconds for bound, value_s in zip(outcome.promise.bounds, outcome.bounded_s, strict=True)
    )


def _least_gpus(service: Service, variant: str, context: _Context) -> float:
    """GPUs without which a plan cannot carry the load, by the closed form; infinite: no number can.

    Those of one replica where steps were measured.
    """
    scenario, traffic, spec = service.scenario, context.traffic, service.spec
    if service.steps:
        return scenario.plan.replica_gpus
    prompt, gen = (max(1, round(each.mean)) for each in (traffic.prompt, traffic.gen))
    groups = scenario.plan.groups
    loads = groups * _LOADS[spec.step_requests >= _LOADS]
    workload = replace(scenario.workload, batch=1, concurrency=groups, prompt=prompt, gen=gen)
    profile = resolve_profile(scenario, service.profile)
    load = replace(scenario, workload=workload)
    request = simulate_requests(load, {"concurrency": loads}, [variant], profile)[variant]
    bounds_s = [bound.seconds for bound in context.promise.bounds if bound.metric == "tpot"]
    kept = np.asarray(request.decode_s) <= max(1, gen - 1) * _SLACK * min(bounds_s, default=math.inf)
    if not kept.any():
        return math.inf
    rate = _SLACK * float(np.max((loads / (request.ttft_s + request.decode_s))[kept]))
    return math.ceil(traffic.rate / rate) * scenario.plan.replica_gpus


def _with_ends(
    context: _Context, need: Capacity, search: Search, tried: tuple[Tried, ...], first: Fleet | None
) -> Fleet:
    """The best plan's needs where its steps are slower and faster."""
    service, variant = search.service, search.variant
    confidence = confidence_of(service.scenario, {variant: need.outcome}, profile=service.profile)
    widths = widths_of(confidence, service.steps)[variant]
    limits = [need.rate_limit]
    limits += [search.limit(near=need.rate_limit, seed=seed)[0] for seed in range(1, context.seeds)]
    limit = _mean(limits)
    spread = of_mean(context.seeds) * float(np.std(np.log(limits), ddof=1)) if context.seeds > 1 else 0.0
    ends = [_end(search, limits, spread, widths, sign) for sign in (-1, 1)]
    saved, gain = (Interval(value=value, low=value, high=value) for value in (0.0, 1.0))
    if first and first.confidence:
        value = first.gpus.value
        # each end again, with the part of the error that the first variant does not share
        apart = [_end(search, limits, 0.0, replace(widths, rate=widths.speedup, ttft=0.0), sign) for sign in (-1, 1)]
        saved = Interval(value=value - need.gpus, low=value - apart[1][0], high=value - apart[0][0])
        base = first.rate_limit.value / first.scenario.plan.replica_gpus * service.scenario.plan.replica_gpus
        gain = Interval(value=limit / base, low=apart[1][1] / base, high=apart[0][1] / base)
    context.progress.searched()
    return Fleet(
        capacity=need,
        scenario=service.scenario,
        gpus=Interval(value=float(need.gpus), low=min(need.gpus, ends[0][0]), high=max(need.gpus, ends[1][0])),
        rate_limit=Interval(value=limit, low=ends[1][1], high=ends[0][1]),
        saved=saved,
        gain=gain,
        tried=tried,
        confidence=confidence,
        widths=widths,
        reasons=(),
        curve={share * limit: search.seconds(share * limit) for share in (_SHARES if context.curves else ())},
    )


def _end(search: Search, limits: Sequence[float], spread: float, widths: Widths, sign: int) -> tuple[float, float]:
    """GPUs, infinite if no number keeps the promise, and the limit of one replica where steps are slower (1) or faster.

    By the first of the seeds' limits. Their spread counts as a further error of steps, of the size that moves the
    limit as far.
    """
    case = Case(slower=math.exp(sign * widths.rate), later=math.exp(sign * max(0.0, widths.ttft - widths.rate)))
    if not search.possible(case):
        return math.inf, 0.0
    move = abs(math.log(search.limit(case, near=limits[0] / case.slower)[0] / limits[0]))
    wider = math.hypot(1.0, spread / move) if move else 1.0
    end = _mean(limits) * math.exp(-sign * wider * move)
    replicas = search.fewest(end, replace(case, slower=case.slower**wider))
    return float(replicas * search.service.scenario.plan.replica_gpus) if replicas else math.inf, end


def _mean(limits: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(limits))))


def _none(unfit: tuple[Capacity, Search], tried: tuple[Tried, ...]) -> Fleet:
    """No number of replicas keeps the promise: what an idle one of the plan that comes closest takes."""
    need, search = unfit
    plan = search.service.scenario.plan
    reasons = []
    for bound, value_s in zip(search.promise.bounds, need.outcome.bounded_s, strict=True):
        if bound.name in need.breaks:
            takes = "no request has it" if math.isnan(value_s) else f"it is {format_seconds(value_s)}"
            reasons.append(f"no rate keeps {bound}: {takes} on an idle replica of {plan}")
    none = Interval(value=math.inf, low=math.inf, high=math.inf)
    zero = Interval(value=0.0, low=0.0, high=0.0)
    return Fleet(
        capacity=need,
        scenario=search.service.scenario,
        gpus=none,
        rate_limit=zero,
        saved=zero,
        gain=zero,
        tried=tried,
        confidence=None,
        widths=None,
        reasons=tuple(reasons),
        curve={},
    )
