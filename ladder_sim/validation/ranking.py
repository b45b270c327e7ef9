"""Measured servings that differ in their plan alone: what is lost by running the plan that is predicted to be best."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple, get_args

import numpy as np

from ladder_sim.answer import Listed
from ladder_sim.errors import UsageError
from ladder_sim.specs.plan import Plan
from ladder_sim.validation.serving import ServingComparison
from ladder_sim.validation.serving_table import SAME_TPOT, Serving

# what is to be highest: throughput on one number of GPUs, or per GPU of any number, without and with a limit on TPOT
Choice = Literal["same GPUs", "per GPU", "per GPU within TPOT"]
CHOICES: tuple[Choice, ...] = get_args(Choice)

# limits on TPOT, seconds, from 100 to 10 tokens per second and request
LIMITS_S = (0.01, 0.015, 0.02, 0.03, 0.05, 0.1)


class Ran(NamedTuple):
    """A plan that was measured, or predicted."""

    tokens_per_s: float
    """New tokens of all requests per second; per GPU where plans have different numbers of them."""
    tpot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The plan that is predicted to be the best of those that were measured with one load."""

    choice: Choice
    """What was to be the best."""
    serving: Serving
    """Measured serving of the picked plan."""
    best: Plan
    """Plan that was measured to be the best."""
    plans: int
    """Number of plans to choose from."""
    max_tpot_s: float | None
    """Limit on TPOT, seconds; None: none."""
    tpot_s: float
    """Measured TPOT of the picked plan, seconds."""
    loss: float
    """Throughput of the picked plan below that of the best, as a fraction, or how far its TPOT exceeds the limit, as a
    fraction of that TPOT: the larger."""
    random_loss: float
    """Mean loss over all plans: that of a random pick."""

    @property
    def over(self) -> bool:
        """Whether the measured TPOT of the picked plan exceeds the limit."""
        return self.max_tpot_s is not None and self.tpot_s > self.max_tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Losses of several picks, as fractions."""

    choice: Choice
    """What was to be the best."""
    picks: int
    """Number of picks."""
    mean_loss: float
    """Mean loss."""
    p90_loss: float
    """90th percentile of the losses."""
    max_loss: float
    """Largest loss."""
    right: float
    """Share of picks that are the best plan."""
    over: float
    """Share of picks whose measured TPOT exceeds the limit."""
    random_loss: float
    """Mean loss of random picks."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Ranking(Listed[Pick]):
    """Picks among the plans of a table of servings."""

    shown_by = "ranking.RankingReport"
    parts = "picks"

    name: str
    """Table that the servings are from."""
    groups: int
    """Groups of servings that differ in their plan alone."""
    picks: tuple[Pick, ...]

    @property
    def losses(self) -> tuple[Losses, ...]:
        """Losses by choice."""
        chosen = {choice: [pick for pick in self.picks if pick.choice == choice] for choice in CHOICES}
        return tuple(_losses(choice, picks) for choice, picks in chosen.items() if picks)


def rank_plans(comparisons: Sequence[ServingComparison], *, name: str = "") -> Ranking:
    """Pick the plan that is predicted to be the best of each group of servings that differ in it alone.

    `comparisons` are what `compare_servings` returns for the table `name`. Raises UsageError if no two servings differ
    in their plan alone.
    """
    groups: dict[Serving, dict[Plan, list[ServingComparison]]] = defaultdict(lambda: defaultdict(list))
    for each in comparisons:
        if each.tpot and each.ttft:
            row = each.serving
            alike = replace(row, line=0, ttft_s=0.0, tpot_s=0.0, setup=replace(row.setup, plan=Plan()))
            groups[alike][row.setup.plan].append(each)
    several = [plans for plans in groups.values() if len(plans) > 1]
    if not several:
        raise UsageError(
            f"{name}: no two rows differ in their plan alone", hint="give rows of one load on several plans"
        )
    return Ranking(name=name, groups=len(several), picks=tuple(pick for plans in several for pick in _picks(plans)))


def _picks(plans: Mapping[Plan, Sequence[ServingComparison]]) -> Iterator[Pick]:
    by_gpus: dict[int, dict[Plan, Sequence[ServingComparison]]] = defaultdict(dict)
    for plan, rows in plans.items():
        by_gpus[plan.gpus][plan] = rows
    for alike in by_gpus.values():
        yield from _pick("same GPUs", alike, None)
    yield from _pick("per GPU", plans, None)
    for limit_s in LIMITS_S:
        yield from _pick("per GPU within TPOT", plans, limit_s)


def _pick(choice: Choice, plans: Mapping[Plan, Sequence[ServingComparison]], limit_s: float | None) -> Iterator[Pick]:
    """Yield a pick, unless plans differ no more than repeats of one run, or the limit tells none from another."""
    measured, predicted = (
        [_ran(plan, rows, predicted=which) for plan, rows in plans.items()] for which in (False, True)
    )
    rates = [ran.tokens_per_s for ran in measured]
    most_s = math.inf if limit_s is None else limit_s
    within = [ran.tpot_s <= most_s for ran in measured]
    if max(rates) <= (1.0 + SAME_TPOT) * min(rates) or not any(within) or (limit_s is not None and all(within)):
        return
    allowed = [rate if fits else 0.0 for rate, fits in zip(rates, within, strict=True)]
    losses = [max(0.0, 1.0 - ran.tokens_per_s / max(allowed), 1.0 - most_s / ran.tpot_s) for ran in measured]
    # the fastest for each request, if none is predicted to keep the limit
    picked = max(
        range(len(plans)),
        key=lambda at: (
            (1.0, predicted[at].tokens_per_s) if predicted[at].tpot_s <= most_s else (0.0, -predicted[at].tpot_s)
        ),
    )
    yield Pick(
        choice=choice,
        serving=[*plans.values()][picked][0].serving,
        best=[*plans][int(np.argmax(allowed))],
        plans=len(plans),
        max_tpot_s=limit_s,
        tpot_s=measured[picked].tpot_s,
        loss=losses[picked],
        random_loss=fmean(losses),
    )


def _ran(plan: Plan, rows: Sequence[ServingComparison], *, predicted: bool) -> Ran:
    """Return throughput per GPU and TPOT of a plan, over the rows that repeat it."""
    rates, tpots_s = [], []
    for row in rows:
        ttft_s, tpot_s = (
            each.predicted.value if predicted else each.measured for each in (row.ttft, row.tpot) if each is not None
        )
        serving = row.serving
        rates.append(serving.concurrency * serving.gen / (ttft_s + (serving.gen - 1) * tpot_s))
        tpots_s.append(tpot_s)
    return Ran(fmean(rates) / plan.gpus, fmean(tpots_s))


def _losses(choice: Choice, picks: Sequence[Pick]) -> Losses:
    losses = [pick.loss for pick in picks]
    return Losses(
        choice=choice,
        picks=len(picks),
        mean_loss=fmean(losses),
        p90_loss=float(np.quantile(losses, 0.9)),
        max_loss=max(losses),
        right=fmean(pick.serving.setup.plan == pick.best for pick in picks),
        over=fmean(pick.over for pick in picks),
        random_loss=fmean(pick.random_loss for pick in picks),
    )
