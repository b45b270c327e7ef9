"""Passes of many plans in one go."""

import numpy as np
import pytest

from ladder_sim.closed_loop.requests import Requests
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des import scan
from ladder_sim.des.program import Program
from ladder_sim.des.timeline import TaskTimes
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import ForwardPass, forward_passes
from ladder_sim.simulate.together import simulate_together
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario

PLANS = [Plan(tp=8), Plan(tp=4), Plan(tp=4, pp=2), Plan(tp=2, pp=2), Plan(tp=1, attention_dp=8, ep=8), Plan(tp=2, ep=2)]


def passes_of(plan: Plan) -> list[ForwardPass]:
    scenario = Scenario(model="qwen3-235b-a22b", cluster="h200-sxm", stack="vllm", tp=8, concurrency=8)
    scenario = scenario.having(plan=plan)
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    load = Requests.of(scenario, concurrency=np.array([16.0, 64.0, 256.0]), prompt=1024, gen=256)
    steps = load.passes(scenario.stack)
    named = [steps[name] for name in ("most", "idle", "busy")]
    variants = ["ladder", "delayed:1", "desync:4"]
    return [each for row in forward_passes(scenario, variants, costs, named, own_duty=False).values() for each in row]


def test_passes_take_as_long_together_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: also where more periods of some configurations must be simulated than of others."""
    together = [each for plan in PLANS for each in passes_of(plan)]
    simulated: list[Program] = []
    one_by_one = scan.scan

    def counted(program: Program) -> TaskTimes:
        simulated.append(program)
        return one_by_one(program)

    monkeypatch.setattr(scan, "scan", counted)
    simulate_together(together)
    monkeypatch.undo()
    assert len(simulated) < len(together)
    for ours, alone in zip(together, [each for plan in PLANS for each in passes_of(plan)], strict=True):
        np.testing.assert_array_equal(ours.seconds, alone.seconds)
