"""The fewest GPUs that meet an SLO, over the plans of a replica, with intervals.

What the best plan needs is searched again with slower and faster steps: these are the ends of its intervals. For what a
variant saves over the first one its steps change only by what the two do not share, and those of the first one stay as
predicted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.confidence import Confidence, Interval
from ladder_sim.confidence.errors import Widths
from ladder_sim.serving.intervals import MOST_SEEDS, confidence_of, of_mean, widths_of
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import SERVED_VARIANTS
from ladder_sim.serving.sizing.best_plan import Best, Candidates, Context, Progress, Tried, best_plan, candidates
from ladder_sim.serving.sizing.search import Case, Need, Search, check_rate
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_seconds
from ladder_sim.values import whole
from ladder_sim.wirings.names import canonical_names

# by default: a bound is compared with the mean over them
SEEDS = 3
# of the limit of a replica, for a curve
_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2)


# no slots: its gains are made once
@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """The fewest GPUs with which a variant meets an SLO."""

    need: Need
    """On the best plan."""
    plans: str
    """Plans of the replicas, as in `ladder_sim.serving.Service`."""
    group_gpus: int
    """GPUs of one replica; with replicas that run prompts only, of the smallest group of the same ratio."""
    gpus: Interval
    """With ends; infinite: no number does."""
    rate_limit: Interval
    """The highest rate of one replica, or of one group."""
    saved: Interval
    """GPUs less than the first variant's; negative: more; NaN: no number meets the SLO with one of the two."""
    gain: Interval
    """Rate per GPU at which the SLO breaks, over that of the first variant; NaN: likewise."""
    tried: tuple[Tried, ...]
    """The plans, those simulated first."""
    confidence: Confidence | None = field(repr=False)
    """Confidence of the predictions; None if no number of GPUs meets the SLO."""
    widths: Widths | None
    """Half-widths of the variant's times of steps; None if no number of GPUs meets the SLO."""
    reasons: tuple[str, ...]
    """Why no number does, by bound; empty: one does."""
    curve: Mapping[float, Sequence[float]] = field(repr=False)
    """What each bound of the SLO bounds, in seconds, by the rate of one group; empty unless it is asked for."""


def smallest_fleets(
    scenario: Scenario,
    traffic: Traffic,
    slo: SLO,
    variants: str | Sequence[str] = SERVED_VARIANTS,
    *,
    plans: Sequence[Plan] = (),
    prefill_tps: Sequence[int] = (),
    seeds: int = SEEDS,
    curves: bool = False,
    watch: Callable[[int, int], object] = lambda done, total: None,
    say: Callable[[str], object] = lambda text: None,
    **how: Any,
) -> dict[str, Fleet]:
    """Find the fewest GPUs that meet an SLO, for each variant, and how sure that is.

    Plans of one replica are chosen from `plans`, by default that of the scenario; each is tried with replicas of
    `prefill_tps` that run prompts only, too. Further arguments are those of `ladder_sim.capacity`, and fields of
    `ladder_sim.serving.service.Service`.
    """
    check_rate(traffic)
    whole(seeds, "seeds", 1, MOST_SEEDS, hint="loads to simulate, e.g. --seeds 3")
    names = canonical_names(variants)
    kinds = [(plan, tp) for tp in (None, *prefill_tps) for plan in plans or [replace(scenario.plan, dp=1)]]
    progress = Progress(len(names) * 3, watch)
    fleets: dict[str, Fleet] = {}
    context = Context(traffic, slo, seeds, {}, progress)
    possible = candidates(context, names, scenario, kinds, how)
    say(_first_answer(possible, names))
    for name in names:
        best = best_plan(context, name, possible)
        first = next(iter(fleets.values()), None)
        fleets[name] = with_intervals(best, first, curves=curves)
        progress.searched()
    return fleets


def _first_answer(possible: Candidates, names: Sequence[str]) -> str:
    """Return what predictions alone say, as a sentence."""
    parts = []
    for name in names:
        service, estimates = possible.ordered(name)[0]
        likely = estimates[name].likely
        parts.append(f"{name} {f'{likely:.0f} GPUs of {service.plans}' if math.isfinite(likely) else 'no number'}")
    return f"by predictions alone: {', '.join(parts)}"


def with_intervals(best: Best, first: Fleet | None, *, curves: bool = False) -> Fleet:
    """Search for the best plan's needs where its steps are slower and faster.

    `first` is the variant that gains are over; None: it is this one.
    """
    need, search, tried = best
    if not need.replicas:
        return _none(best)
    service, variant = search.service, search.variant
    confidence = confidence_of(service.scenario, {variant: need.outcome}, profile=service.profile)
    widths = widths_of(confidence, service.steps)[variant]
    limits = [need.rate_limit]
    limits += [search.limit(near=need.rate_limit, seed=seed)[0] for seed in range(1, search.seeds)]
    sure = all(limits)
    # kept on average over seeds, but with one of them at no rate
    limits = limits if sure else limits[:1]
    limit = _mean(limits)
    spread = of_mean(len(limits)) * float(np.std(np.log(limits), ddof=1)) if len(limits) > 1 else 0.0
    faster = _end(search, limits, spread, widths, -1)
    slower = _end(search, limits, spread, widths, 1) if sure else _NEVER
    saved, gain = (Interval.around(0.0, 0.0), Interval.around(1.0, 0.0)) if first is None else (_UNKNOWN, _UNKNOWN)
    if first and first.confidence:
        # each end again, with the part of the error that the first variant does not share
        own = replace(widths, rate=widths.speedup, ttft_earlier=0.0, ttft_later=0.0)
        own_faster, own_slower = (_end(search, limits, 0.0, own, sign) for sign in (-1, 1))
        gpus, value = _gpus(need, own_faster, own_slower), first.gpus.value
        saved = Interval(value=value - need.gpus, low=value - gpus.high, high=value - gpus.low)
        base = first.rate_limit.value / first.group_gpus * service.gpus(need.group)
        gain = Interval(value=limit / base, low=own_slower.rate_limit / base, high=own_faster.rate_limit / base)
    return Fleet(
        need=need,
        plans=service.plans,
        group_gpus=service.gpus(need.group),
        gpus=_gpus(need, faster, slower),
        rate_limit=Interval(value=limit, low=slower.rate_limit, high=faster.rate_limit),
        saved=saved,
        gain=gain,
        tried=tried,
        confidence=confidence,
        widths=widths,
        reasons=(),
        curve={share * limit: search.seconds(share * limit) for share in (_SHARES if curves else ())},
    )


class _End(NamedTuple):
    """What is needed where steps are slower, or faster."""

    gpus: float
    """Infinite: no number meets the SLO."""
    rate_limit: float
    """Highest rate of one group."""


_NEVER = _End(math.inf, 0.0)
# of what nothing can be compared with
_UNKNOWN = Interval.around(math.nan, 0.0)


def _gpus(need: Need, faster: _End, slower: _End) -> Interval:
    """Return the GPUs with those for faster and slower steps: arrivals may be more or less regular."""
    return Interval(value=float(need.gpus), low=min(need.gpus, faster.gpus), high=max(need.gpus, slower.gpus))


def _end(search: Search, limits: Sequence[float], spread: float, widths: Widths, sign: int) -> _End:
    """Search where steps are slower (1) or faster (-1), by the first of the seeds' limits.

    Their spread counts as a further error of steps, of the size that moves the limit as far.
    """
    # a first token may be off by more than its steps
    later = math.exp(sign * max(0.0, (widths.ttft_later if sign > 0 else widths.ttft_earlier) - widths.rate))
    case = Case(slower=math.exp(sign * widths.rate), later=later)
    limit = search.limit(case, near=limits[0] / case.slower)[0] if search.possible(case) else 0.0
    if not limit:
        return _NEVER
    move = abs(math.log(limit / limits[0]))
    wider = math.hypot(1.0, spread / move) if move else 1.0
    end = _mean(limits) * math.exp(-sign * wider * move)
    sizes = search.fewest(end, replace(case, slower=case.slower**wider))
    return _End(float(search.service.gpus(sizes)) if sizes else math.inf, end)


def _mean(limits: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(limits))))


def _none(best: Best) -> Fleet:
    """Return a fleet for no number of replicas: what an idle one of the plan that comes closest takes."""
    need, search, tried = best
    service = search.service
    reasons = []
    for bound, value_s in zip(search.slo.bounds, need.idle_s, strict=True):
        if bound.name in need.breaks:
            idle = f"it is {format_seconds(value_s)} on an idle replica of {service.plans}"
            reasons.append(f"no rate keeps {bound}: {idle}")
    return Fleet(
        need=need,
        plans=service.plans,
        group_gpus=service.gpus(need.group),
        gpus=Interval.around(math.inf, 0.0),
        rate_limit=Interval.around(0.0, 0.0),
        saved=_UNKNOWN,
        gain=_UNKNOWN,
        tried=tried,
        confidence=None,
        widths=None,
        reasons=tuple(reasons),
        curve={},
    )
