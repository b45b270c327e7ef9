"""Room for the KV cache follows the engine's rule, whatever the model, the GPU and the plan."""

import dataclasses
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.closed_loop.step import simulate_request
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import kv_bytes, kv_tokens, memory_use, running_requests, weight_bytes
from ladder_sim.serving.service import scheduler_spec
from ladder_sim.specs.settings import names_by_engine
from tests.support.laws import law
from tests.support.random_scenarios import DENSE, EXPERTS, scenarios

CONTEXT = 1024
ENGINES = tuple(names_by_engine("step_requests"))


def servings() -> st.SearchStrategy[Scenario]:
    """Requests in flight under every engine."""
    return scenarios(models=DENSE + EXPERTS, stacks=ENGINES, nodes=(1,), in_flight=True)


def changed(scenario: Scenario, **figures: Any) -> Scenario:
    """The scenario with other figures of its stack, the same on every GPU."""
    return scenario.having(stack=dataclasses.replace(scenario.stack, gpu_limits=(), **figures))


def pool_bytes(scenario: Scenario) -> float:
    """Memory for the KV cache on one GPU."""
    return float(kv_tokens(scenario, CONTEXT) / CONTEXT * kv_bytes(scenario, CONTEXT))


@law(examples=1500)
@given(servings(), st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_the_kv_cache_grows_with_the_share(scenario: Scenario, one: float, other: float) -> None:
    """The KV cache grows with the engine's share of memory, and never takes more than weights leave."""
    less, more = (pool_bytes(changed(scenario, memory_fraction=share)) for share in sorted((one, other)))
    assert less <= more
    assert more <= max(0.0, scenario.cluster.gpu.hbm_bytes - weight_bytes(scenario))


@law(examples=1500)
@given(servings(), st.tuples(st.integers(64, 32768), st.integers(1, 4096)), st.data())
def test_larger_steps_leave_less_for_the_kv_cache(
    scenario: Scenario, sizes: tuple[int, int], data: st.DataObject
) -> None:
    """The KV cache never grows with the tokens of a step, nor with the requests that may run."""
    tokens, requests = sizes
    small = changed(scenario, step_tokens=tokens, step_requests=requests)
    large = changed(
        scenario,
        step_tokens=data.draw(st.integers(tokens, 65536)),
        step_requests=data.draw(st.integers(requests, 8192)),
    )
    assert pool_bytes(large) <= pool_bytes(small) * (1.0 + 1e-12)


@law(examples=1500)
@given(servings())
def test_requests_in_flight_fit_if_one_does(scenario: Scenario) -> None:
    """Requests in flight fit a GPU where the KV cache has room for one of them, and nowhere else.

    SGLang takes the share that it is given, and may find no room for activations outside of it.
    """
    used, workload = memory_use(scenario), scenario.workload
    one_has_room = float(running_requests(scenario, workload.prompt, workload.gen)) >= 1.0
    assert used.fits <= one_has_room
    if scenario.stack.memory_fraction_of != "static":
        assert used.fits == one_has_room
    assert min(used.part_bytes.values()) >= 0.0


@law(examples=150)
@given(servings(), st.integers(1, 300))
def test_no_more_requests_run_than_the_engine_admits(scenario: Scenario, most: int) -> None:
    """No more requests run at a time than max-num-seqs, max-running-requests or max-batch-size admits."""
    limited = changed(scenario, step_requests=most)
    request = simulate_request(limited, ["standard"], KernelCosts(limited, None))["standard"]
    assert request.served.running <= most * (1.0 + 1e-9)  # type: ignore[attr-defined]
    assume(memory_use(limited).fits)
    spec = scheduler_spec(limited, scenario.workload.context)
    assert spec.step_requests * limited.plan.pp <= max(most, limited.plan.pp)
