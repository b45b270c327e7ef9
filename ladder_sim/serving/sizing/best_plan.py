"""The plan of a replica with the fewest GPUs that meet an SLO, of all that there are.

Estimates say first how many GPUs each plan needs. Plans come in that order, and are searched only if they may do with
fewer than the best so far, which one simulation says. Where several in turn cannot do with fewer, those predicted to
carry no more are tied with them, and left out.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ladder_sim.errors import LadderSimError
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import Service
from ladder_sim.serving.sizing.estimates import PlanEstimate, Steps, estimates_of, simulated_together, steps_of
from ladder_sim.serving.sizing.search import PRECISION, Need, Search, Simulated
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario

# the reasons of a plan that cannot do with as few as the best, of one that cannot do with fewer, and of one with which
# no number can
MORE, AS_MANY = "needs more GPUs", "needs no fewer GPUs"
TIED = "predicted to carry no more than plans that were simulated"
_NEVER = "breaks the SLO on an idle replica"
# plans in turn that one simulation rules out, beyond which the rest are tied with them
_RULED_OUT = 3
# points of one search, about: of a limit and of replicas
_SEARCH_POINTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of a plan."""

    plans: str
    """Plans of the replicas, as in `ladder_sim.serving.Service`."""
    gpus: int
    """GPUs with which the plan meets the SLO; 0 if it was not simulated, or no number does."""
    reason: str
    """Why; empty: there are GPUs."""


class Progress:
    """Searches that are done, and how much of this one, in points of about one size.

    `searches` are those that are made in any case.
    """

    def __init__(self, searches: int, watch: Callable[[int, int], object]) -> None:
        self.left, self.points, self.watch = searches, 0, watch
        self._done = 0

    def point(self) -> None:
        """Report that one more point is about to be simulated."""
        self._done, self.points = self._done + 1, self.points + 1
        self.watch(self._done, self._done + max(1, _SEARCH_POINTS - self.points) + _SEARCH_POINTS * (self.left - 1))

    def searched(self) -> None:
        """Report that one search is done."""
        self.left, self.points = self.left - 1, 0


class Context(NamedTuple):
    """What searches of all variants share."""

    traffic: Traffic
    slo: SLO
    seeds: int
    simulated: MutableMapping[str, Simulated]
    progress: Progress

    def search(self, service: Service, variant: str, near: float | None) -> Search:
        return Search(
            service,
            variant,
            self.traffic,
            self.slo,
            seeds=self.seeds,
            near=near,
            simulated=self.simulated,
            watch=lambda text: self.progress.point(),
        )


class Candidate(NamedTuple):
    """A plan that can be simulated, and its estimate for each variant."""

    service: Service
    estimates: Mapping[str, PlanEstimate]


class Candidates(NamedTuple):
    """Plans, before any is simulated."""

    able: Sequence[Candidate]
    refused: Sequence[Tried]
    """Plans that cannot be simulated, and why."""
    problem: LadderSimError | None
    """Error of the first of these."""

    def ordered(self, variant: str) -> list[Candidate]:
        """Return the plans in the order in which they are simulated: those without predictions last."""
        return sorted(self.able, key=lambda each: (each.service.prefill is not None, each.estimates[variant].order))


class Best(NamedTuple):
    """What a search over plans ends with."""

    need: Need
    """Need of the best plan; where none meets the SLO, need of the one that comes closest."""
    search: Search
    """On that plan, with the group that its limit is of."""
    tried: tuple[Tried, ...]
    """The plans, those simulated first."""


def candidates(
    context: Context,
    variants: Sequence[str],
    scenario: Scenario,
    kinds: Sequence[tuple[Plan, int | None]],
    how: Mapping[str, Any],
) -> Candidates:
    """Predict what plans need, and the same with prompts on replicas of a tensor parallelism, where one is given.

    Raises LadderSimError if none can be simulated: why the first cannot.
    """
    services: list[Service] = []
    steps: list[list[Steps]] = []
    refused: list[Tried] = []
    problems: list[LadderSimError] = []
    for plan, prefill_tp in kinds:
        try:
            service = _service(scenario, plan, prefill_tp, context.traffic, how)
            steps.append(steps_of(service, variants, context.traffic))
            services.append(service)
        except LadderSimError as error:
            problems.append(error)
            prompts = f", prompts on TP {prefill_tp}" if prefill_tp else ""
            refused.append(Tried(plans=f"{plan}{prompts}", gpus=0, reason=error.message))
    if not services:
        raise problems[0]
    able = [
        Candidate(service, estimates_of(service, variants, context.traffic, context.slo, its_steps))
        for service, its_steps in zip(services, simulated_together(steps), strict=True)
    ]
    return Candidates(able, refused, next(iter(problems), None))


def best_plan(context: Context, variant: str, plans: Candidates) -> Best:
    """Search plans of a variant; raises LadderSimError if none can be simulated: why the first cannot."""
    needs: list[tuple[Need, Search]] = []
    simulated: list[Tried] = []
    left_out = list(plans.refused)
    failed: list[PlanEstimate] = []
    problems = [plans.problem] if plans.problem else []
    for service, estimates in plans.ordered(variant):
        estimate = estimates[variant]
        if needs and math.isinf(estimate.gpus):
            # the first of them comes closest
            left_out.append(Tried(plans=service.plans, gpus=0, reason=_NEVER))
            continue
        search = context.search(service, variant, estimate.rate)
        fewest = min((need.gpus for need, _ in needs if need.replicas), default=None)
        try:
            if fewest is not None and (reason := _reason_against(search, estimate, fewest, failed)):
                left_out.append(Tried(plans=service.plans, gpus=0, reason=reason))
                continue
            need = search.need()
        except LadderSimError as error:
            # what has no times of steps
            problems.append(error)
            left_out.append(Tried(plans=service.plans, gpus=0, reason=error.message))
            continue
        reason = f"{', '.join(need.breaks)} on an idle replica" if not need.replicas else ""
        simulated.append(Tried(plans=service.plans, gpus=need.gpus, reason=reason))
        needs.append((need, search))
    context.progress.searched()
    if not needs:
        raise problems[0]
    need, search = min(needs, key=lambda each: _rank(each[0]))
    # limits are searched to PRECISION: of plans that carry as much, smaller replicas follow a load more closely
    alike = [
        (other, of)
        for other, of in needs
        if other.replicas and other.gpus == need.gpus and _carried(other) >= (1.0 - 2.0 * PRECISION) * _carried(need)
    ]
    need, search = min(alike, key=lambda each: each[1].service.gpus(each[0].group), default=(need, search))
    return Best(need, search.of_group(need.group), (*simulated, *left_out))


def _service(
    scenario: Scenario, plan: Plan, prefill_tp: int | None, traffic: Traffic, how: Mapping[str, Any]
) -> Service:
    """Return the service of a plan, with another tensor parallelism for prompts if there is one."""

    def of_plan(plan: Plan) -> Scenario:
        return scenario.having(plan=plan, nodes=plan.nodes(scenario.cluster.gpus_per_node))

    prefill = of_plan(replace(plan, tp=prefill_tp)) if prefill_tp else None
    return Service.for_requests(of_plan(plan), traffic, prefill=prefill, **how)


def _reason_against(search: Search, estimate: PlanEstimate, fewest: int, failed: list[PlanEstimate]) -> str:
    """Return why a plan cannot do with fewer GPUs, as far as predictions and one simulation say; empty: it may.

    `failed` are the predictions for the plans in turn that a simulation ruled out; the call notes this one.
    """
    most = search.most(fewest - 1)
    reason = AS_MANY if estimate.gpus <= fewest and search.gpus(fewest) == fewest else MORE
    if most is None or estimate.gpus > search.service.gpus(most):
        return reason
    if len(failed) >= _RULED_OUT and 0.0 < estimate.rate_per_gpu <= min(each.rate_per_gpu for each in failed):
        return TIED
    if search.breaks(search.traffic.rate, most):
        failed.append(estimate)
        return reason
    failed.clear()
    return ""


def _rank(need: Need) -> tuple[float, ...]:
    """Return a sort key: the fewest GPUs, then the highest rate; if no number suffices, the least excess."""
    if need.replicas:
        return 0, need.gpus, -_carried(need)
    assert need.outcome.slo is not None
    excesses = (idle_s / bound.seconds for bound, idle_s in zip(need.outcome.slo.bounds, need.idle_s, strict=True))
    # NaN, which no request has, is never above another
    return 1, max(0.0, *excesses)


def _carried(need: Need) -> float:
    """Return the requests per second of all groups at their limit."""
    return need.rate_limit * need.sizes.groups
