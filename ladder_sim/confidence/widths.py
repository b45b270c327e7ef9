"""Half-widths of intervals: from the errors of single ops, and from servings of requests in flight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ladder_sim.closed_loop.checks import ServingCheck, checks_of
from ladder_sim.simulate.request import Request
from ladder_sim.specs.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Half-widths of one variant's 90 % intervals, in the logarithm."""

    rate: float
    """Of its throughput."""
    speedup: float
    """Of its speedup over standard."""
    ttft: float
    """Of its time to first token."""


def by_op(request: Request, standard: Request) -> Widths:
    """Of single ops, to first order along the critical path.

    An error of one kind of op is one error: shared by every layer and by both variants, so that most of it cancels in a
    speedup. Those of different kinds are independent.
    """
    share, base = (
        {kind: error / float(each.request_s) for kind, error in each.breakdown.errors_s.items()}
        for each in (request, standard)
    )
    apart = (share.get(kind, 0.0) - base.get(kind, 0.0) for kind in share | base)
    rate = math.log1p(math.hypot(*share.values()))
    return Widths(rate=rate, speedup=math.log1p(math.hypot(*apart)), ttft=rate)


def by_servings(
    scenario: Scenario, of_ops: Widths, speedup: float, servings: ServingCheck, alike: Mapping[str, bool]
) -> tuple[float, float]:
    """Of rate and time to first token of requests in flight: no narrower than the ops'.

    Waiting is missed most where an engine or a GPU is another one.
    """
    tpot = servings.tpot if alike["stack"] else 0.0
    ttft = servings.ttft if alike["stack"] and alike["gpu"] else max(each.ttft for each in checks_of(scenario.model))
    return math.hypot(max(of_ops.rate, math.log1p(tpot)), speedup), max(of_ops.ttft, math.log1p(ttft))
