"""The plan of a replica with the fewest GPUs that meet an SLO, of all that there are.

Plans come in the order of GPUs that they need at least, by predictions of requests in flight, and are searched only
if they may do with fewer than the best so far, which one simulation says.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.errors import LadderSimError
from ladder_sim.prediction import resolve_profile
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import Service
from ladder_sim.serving.sizing.search import PRECISION, Need, Points, Search
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario

# the reasons of a plan that cannot do with as few as the best, and of one with which no number can
MORE = "needs more GPUs"
_NEVER = "breaks the SLO on an idle replica"
# requests in flight that say what a replica carries at most
_LOADS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
# requests in flight are predicted within this of those that arrive at a rate, in rates and times per token
# (tests/serving/test_fleet.py)
_SLACK = 1.25
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
    """Searches that are done, and how much of this one, in points of about one size."""

    def __init__(self, searches: int, watch: Callable[[int, int], object]) -> None:
        self.left, self.points, self.watch = searches, 0, watch
        self._done = 0

    def point(self) -> None:
        """Report that one more point is about to be simulated."""
        self._done, self.points = self._done + 1, self.points + 1
        self.watch(self._done, self._done + max(1, _SEARCH_POINTS - self.points) + _SEARCH_POINTS * (self.left - 1))

    def searched(self) -> None:
        """Report that one search is done, or need not be made."""
        self.left, self.points = self.left - 1, 0


class Context(NamedTuple):
    """What searches of all variants share."""

    traffic: Traffic
    slo: SLO
    seeds: int
    points: Points
    progress: Progress

    def search(self, service: Service, variant: str, near: float | None) -> Search:
        return Search(
            service,
            variant,
            self.traffic,
            self.slo,
            seeds=self.seeds,
            near=near,
            points=self.points,
            watch=lambda text: self.progress.point(),
        )


class Estimate(NamedTuple):
    """What predictions of requests in flight say of a plan."""

    gpus: float
    """The least that carry the load; infinite: no number can."""
    excess: float
    """The plan's shortest step over the SLO's."""
    rate: float | None = None
    """Requests per second near a replica's limit; None: not predicted."""


class Best(NamedTuple):
    """What a search over plans ends with."""

    need: Need
    """Need of the best plan; where none meets the SLO, need of the one that comes closest."""
    search: Search
    """On that plan, with the group that its limit is of."""
    tried: tuple[Tried, ...]
    """The plans, those simulated first."""


def best_plan(
    context: Context, variant: str, scenario: Scenario, kinds: Sequence[tuple[Plan, int | None]], how: Mapping[str, Any]
) -> Best:
    """Search plans of a variant, and the same with prompts on replicas of a tensor parallelism, where one is given.

    Raises
    ------
    LadderSimError
        None can be simulated: why the first cannot.
    """
    needs: list[tuple[Need, Search]] = []
    simulated: list[Tried] = []
    left_out: list[Tried] = []
    estimates: list[tuple[Estimate, Service]] = []
    problems: list[LadderSimError] = []
    for plan, prefill_tp in kinds:
        try:
            service = _service(scenario, plan, prefill_tp, context.traffic, how)
            estimates.append((_estimate(service, variant, context), service))
        except LadderSimError as error:
            problems.append(error)
            prompts = f", prompts on TP {prefill_tp}" if prefill_tp else ""
            left_out.append(Tried(plans=f"{plan}{prompts}", gpus=0, reason=error.message))
            context.progress.searched()
    # plans without requests in flight go last
    for estimate, service in sorted(estimates, key=lambda each: (each[1].prefill is not None, *each[0][:2])):
        if needs and math.isinf(estimate.gpus):
            # the first of them comes closest
            left_out.append(Tried(plans=service.plans, gpus=0, reason=_NEVER))
            context.progress.searched()
            continue
        search = context.search(service, variant, estimate.rate)
        fewest = min((need.gpus for need, _ in needs if need.replicas), default=None)
        try:
            need = search.need() if fewest is None or _may_need_fewer(search, estimate.gpus, fewest) else None
        except LadderSimError as error:
            # what has no times of steps
            problems.append(error)
            left_out.append(Tried(plans=service.plans, gpus=0, reason=error.message))
            continue
        finally:
            context.progress.searched()
        if need is None:
            left_out.append(Tried(plans=service.plans, gpus=0, reason=MORE))
            continue
        reason = f"{', '.join(need.breaks)} on an idle replica" if not need.replicas else ""
        simulated.append(Tried(plans=service.plans, gpus=need.gpus, reason=reason))
        needs.append((need, search))
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


def _may_need_fewer(search: Search, least: float, gpus: int) -> bool:
    """Whether so many GPUs, or fewer, may meet the SLO: as far as predictions and one simulation say."""
    most = search.most(gpus)
    return most is not None and least <= search.service.gpus(most) and not search.breaks(search.traffic.rate, most)


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


def _estimate(service: Service, variant: str, context: Context) -> Estimate:
    """Return what predictions say of a plan.

    Its GPUs are those of one replica of each kind without predictions: steps were measured, or some replicas run
    prompts only.
    """
    scenario, traffic, spec = service.scenario, context.traffic, service.spec
    if service.steps or service.prefill:
        return Estimate(service.gpus(service.alike(1)), 0.0)
    prompt, gen = (max(1, round(each.mean)) for each in (traffic.prompt, traffic.gen))
    groups = scenario.plan.groups
    loads = groups * _LOADS[spec.step_requests >= _LOADS]
    workload = replace(scenario.workload, batch=1, concurrency=groups, prompt=prompt, gen=gen)
    profile = resolve_profile(scenario, service.profile)
    load = scenario.having(workload=workload)
    request = simulate_requests(load, {"concurrency": loads}, [variant], profile)[variant]
    token_s = np.asarray(request.decode_s) / max(1, gen - 1)
    bounds = context.slo.bounds
    bound_s = min((bound.seconds for bound in bounds if bound.metric == "tpot"), default=math.inf)
    # on an idle replica a first token takes a step, and an answer more
    excess = float(token_s[0]) / min((bound.seconds for bound in bounds if bound.metric != "itl"), default=math.inf)
    kept = token_s <= _SLACK * bound_s
    if not kept.any() or excess > _SLACK:
        return Estimate(math.inf, excess)
    rates = loads / (request.ttft_s + request.decode_s)
    gpus = math.ceil(traffic.rate / (_SLACK * float(np.max(rates[kept])))) * scenario.plan.replica_gpus
    return Estimate(gpus, excess, float(np.exp(np.interp(bound_s, token_s, np.log(rates)))))
