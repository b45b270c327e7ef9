"""Laws of the plan on which standard serves a load fastest on the same GPUs."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.best_standard import best_standard, candidates
from ladder_sim.confidence.runs import RUN_NOISE
from ladder_sim.costs.memory import memory_use
from tests.support.laws import law
from tests.support.predict_one import predict_one
from tests.support.random_scenarios import DENSE, EXPERTS, scenarios

# what runs alike differ by, as a ratio of their times
ALIKE = math.exp(RUN_NOISE)


@law(examples=40)
@given(scenario=scenarios(models=(*DENSE, *EXPERTS), in_flight=None), chosen=st.integers(0, 1000))
def test_no_plan_on_the_same_gpus_is_faster_than_the_best_standard_plan(scenario: Scenario, chosen: int) -> None:
    """Any plan with the same GPUs, load and memory is at most a run's noise faster than the best one, or that asked."""
    asked = predict(scenario, ["standard", "ladder"], ignore_memory=True)
    best = best_standard(asked.confidence)
    fastest_s = best.request_s if best else asked["standard"].request_s
    others = [plan for plan in candidates(scenario) if memory_use(scenario.having(plan=plan)).fits]
    if best:
        there = predict_one(best.scenario)
        assert (best.request_s, best.tokens_per_s) == (there.request_s, there.tokens_per_s)
        assert best.scenario == scenario.having(plan=best.scenario.plan)
        assert best.scenario.plan.gpus <= scenario.plan.gpus
        assert best.faster.value == asked["standard"].request_s / best.request_s > ALIKE
        gain = best.gain(asked["ladder"].speedup)
        assert math.isclose(gain.value, best.request_s / asked["ladder"].request_s)
        assert gain.log_width >= max(asked["ladder"].speedup.log_width, best.faster.log_width)
        # asked with the best plan, the answer is that there is no better one
        assert best_standard(there.confidence) is None
    assume(others)
    other = predict_one(scenario.having(plan=others[chosen % len(others)]))
    assert other.request_s * ALIKE**2 > fastest_s
