"""What a plan carries, by a law of its steps, before anything is simulated.

Where n requests of a replica decode, each gets a token in the time of a step that decodes them, and of the prompts that
come meanwhile: of every request one in its ``gen - 1`` steps. So

    TPOT(n) = decode(n) + n / (gen - 1) * prompt(n),    rate(n) = n / ((gen - 1) * TPOT(n))

on average. The number of others that one request meets is Poisson's, so that a percentile of TPOT is that of so many
more: of ``n + z * sqrt(n)`` by the normal distribution's z.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.requests import Requests
from ladder_sim.costs.hardware import Hardware, host_step_s
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des.shared import Floats
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.techniques import form
from ladder_sim.kernels import Phase, Sizes
from ladder_sim.prediction import resolve_profile
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import Service
from ladder_sim.simulate.passes import ForwardPass, forward_passes
from ladder_sim.simulate.together import simulate_together
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec

# the median of a Poisson number is at most so far below its mean (K. P. Choi, "On the medians of gamma distributions
# and an equation of Ramanujan", 1994)
_MEDIAN = math.log(2.0)
# requests that decode in a lane (`Requests`), on average; below one it is idle meanwhile
_LOADS = np.array([1 / 16, _MEDIAN, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
# the law is well within this of what simulations of requests that arrive say (tests/serving/test_fleet.py)
SLACK = 1.25
# of the share of the time that prompts take, which decides how long they take: each adds a digit
_ROUNDS = 4


class PlanEstimate(NamedTuple):
    """What the law says of a plan."""

    gpus: float
    """The least that carry the load, and fractions of a replica; infinite: no number can."""
    excess: float
    """The plan's shortest step over the SLO's."""
    likely: float
    """GPUs that carry the load; infinite: no number can."""
    rate: float | None = None
    """Requests per second near a replica's limit; None: there is none."""
    rate_per_gpu: float = 0.0
    """That for each of its GPUs; 0: there is none."""

    @property
    def order(self) -> tuple[float, ...]:
        """A sort key: plans that do with the fewest GPUs first, then those that carry most on these."""
        return self.likely, self.excess if math.isinf(self.likely) else 0.0, -self.rate_per_gpu


class Steps(NamedTuple):
    """Steps of a plan's loads that have the same graph."""

    loads: NDArray[np.int_]
    """Which of `_LOADS`."""
    requests: Requests
    """Requests in flight of these."""
    passes: Mapping[str, Sequence[ForwardPass]]
    """Those of `_sizes` by variant."""

    def at_own_duty(self) -> "Steps":
        """Return the steps with prompts as in `ForwardPass.at_own_duty`."""
        return self._replace(passes={name: [each.at_own_duty() for each in row] for name, row in self.passes.items()})


class _Carried(NamedTuple):
    """What a replica carries, by load."""

    decode_s: Floats
    """Seconds of a step that only decodes."""
    token_s: Floats
    """Mean time per token."""
    decoding: Floats
    """Requests of a lane that decode, and prompts that one of them meets."""
    rates: Floats
    """Requests per second."""


def steps_of(service: Service, variants: Sequence[str], traffic: Traffic) -> list[Steps]:
    """Return the steps that the law needs of a plan, before any is simulated.

    There are none where steps were measured, or some replicas run prompts only. Raises LadderSimError if the plan does
    not fit.
    """
    scenario = service.scenario
    loads = _LOADS[service.spec.step_requests >= _LOADS]
    if service.steps or service.prefill:
        return []
    costs = KernelCosts(scenario, resolve_profile(scenario, service.profile))
    steps = []
    for rows, requests in _alike(scenario, traffic, np.maximum(1.0, loads)):
        passes = forward_passes(scenario, variants, costs, _sizes(requests, scenario.stack), own_duty=False)
        steps.append(Steps(rows, requests, passes))
    return steps


def simulated_together(plans: Sequence[Sequence[Steps]]) -> list[list[Steps]]:
    """Return the steps of many plans at their own duty, simulated together."""
    simulate_together(_all_passes(plans))
    at_own_duty = [[each.at_own_duty() for each in steps] for steps in plans]
    simulate_together(_all_passes(at_own_duty))
    return at_own_duty


def _all_passes(plans: Sequence[Sequence[Steps]]) -> Iterator[ForwardPass]:
    return (each for steps in plans for few in steps for row in few.passes.values() for each in row)


def estimates_of(
    service: Service, variants: Sequence[str], traffic: Traffic, slo: SLO, steps: Sequence[Steps]
) -> dict[str, PlanEstimate]:
    """Return what the law says of a plan by its steps, by variant.

    Without steps its GPUs are those of one replica of each kind.
    """
    gpus = service.gpus(service.alike(1))
    if not steps:
        return dict.fromkeys(variants, PlanEstimate(gpus, 0.0, gpus))
    # answers of one token have no time per token
    bounds = [bound for bound in slo.bounds if bound.metric == "tpot" and traffic.gen.mean > 1.0]
    bound_s, percentile = min(((bound.seconds, bound.percentile or 50) for bound in bounds), default=(math.inf, 50))
    # on an idle replica a first token takes a step, and an answer more
    shortest_s = min((bound.seconds for bound in slo.bounds if bound.metric != "itl"), default=math.inf)
    above = NormalDist().inv_cdf(percentile / 100.0)

    def estimate(carried: _Carried) -> PlanEstimate:
        decode_s, token_s, decoding, rates = carried

        def rate_of(others: Floats) -> float:
            """Return the rate at which requests that meet so many others keep the bound; 0: none."""
            met_s = np.maximum.accumulate(np.interp(others, decoding, token_s, left=decode_s[0]))
            return float(np.exp(np.interp(bound_s, met_s, np.log(rates), left=-np.inf)))

        excess = float(decode_s[0]) / shortest_s
        if excess > SLACK or decode_s[0] > SLACK * bound_s:
            return PlanEstimate(math.inf, excess, math.inf)
        rate = max(float(rates[0]), rate_of(decoding + above * np.sqrt(decoding)))
        most = rate if above else max(rate, rate_of(np.maximum(decoding - _MEDIAN, 0.0)))
        likely = math.ceil(traffic.rate / rate) * gpus
        return PlanEstimate(traffic.rate / (SLACK * most) * gpus, excess, likely, rate, rate / gpus)

    return {name: estimate(_carried(service, name, traffic, steps)) for name in variants}


def _carried(service: Service, variant: str, traffic: Traffic, steps: Sequence[Steps]) -> _Carried:
    """Return what a replica carries with a variant, where so many requests decode in each lane on average."""
    scenario = service.scenario
    stack = Hardware.of(scenario, resolve_profile(scenario, service.profile)).stack
    groups, further = scenario.plan.groups, max(1e-9, traffic.gen.mean - 1.0)
    carried = _Carried(*np.empty((4, sum(len(each.loads) for each in steps))))
    for rows, load, passes in steps:
        decoding = load.decoding["most"] * np.minimum(1.0, _LOADS[rows])
        host_s = stack.host_request_s * load.decoding["most"] + host_step_s(scenario, stack)
        decode_s, cold_s, hot_s = (each.seconds * each.round_trips(load.lanes) + host_s for each in passes[variant])
        beside_s = decode_s if load.mixed_steps else 0.0
        cold_s, hot_s = (
            np.maximum(each - beside_s, 0.0) * load.prompt / load.chunk * decoding / further for each in (cold_s, hot_s)
        )
        prompts_s = hot_s
        for _ in range(_ROUNDS):
            prompts_s = cold_s + prompts_s / (decode_s + prompts_s) * (hot_s - cold_s)
        token_s = decode_s + prompts_s
        rates = groups * load.lanes * decoding / (further * token_s)
        for column, values in zip(carried, (decode_s, token_s, decoding, rates), strict=True):
            column[rows] = values
    return carried


def _alike(scenario: Scenario, traffic: Traffic, decoding: Floats) -> Iterator[tuple[NDArray[np.int_], Requests]]:
    """Yield the rows, and requests, of loads whose steps have the same graph."""
    inputs, lanes = PassInputs.of(scenario), scenario.plan.groups * scenario.plan.pp
    prompt, gen = (max(least, round(each.mean)) for least, each in ((1, traffic.prompt), (2, traffic.gen)))

    def requests(rows: Any) -> Requests:
        return Requests.of(scenario, concurrency=lanes * decoding[rows], prompt=prompt, gen=gen)

    forms = [
        np.broadcast_to(form(inputs, phase, sizes.tokens), len(decoding))
        for phase, sizes in _sizes(requests(slice(None)), scenario.stack)
    ]
    for alike in np.unique(forms, axis=1).T:
        rows = np.flatnonzero((np.array(forms) == alike[:, None]).all(axis=0))
        yield rows, requests(rows)


def _sizes(requests: Requests, stack: StackSpec) -> list[tuple[Phase, Sizes]]:
    """Return a step that decodes, and one that runs one prompt too while prompts take none of the time, or all."""
    single = (requests.with_prompts(stack, 1, requests.chunk, duty) for duty in (0.0, 1.0))
    return [requests.passes(stack)["most"], *single]
