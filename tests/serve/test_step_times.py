"""Times of steps: against simulating each step, at the edges, idle, and on disk."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.step_times import LIMITS, drawn
from ladder_sim import Scenario, predict
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.errors import UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.serve import StepTimes
from ladder_sim.serve import cache as cache_module
from ladder_sim.serve.grids import Grids
from ladder_sim.serve.lookup import Axis, Grid
from ladder_sim.serve.mix import Mix
from ladder_sim.serve.steps import Attention, Mixes, StepModel


def scenario(**given: Any) -> Scenario:
    return Scenario.of(**{"model": "70b", "stack": "vllm", **given})


def looked_up_s(times: StepTimes, steps: Mixes, duty: float = 0.0, drafted: Any = 0.0) -> Any:
    rows = np.column_stack([*steps, np.broadcast_to(drafted, len(steps.chunk))]).tolist()
    return np.array([times.of_mix(Mix(*row), duty) for row in rows])


def model_of(given: Scenario, variant: str) -> StepModel:
    return StepModel(scenario=given, variant=variant, costs=KernelCosts(given, resolve_profile(given, None)))


def errors(given: Scenario, variant: str, steps: Mixes, duty: float) -> Any:
    """Of times looked up, relative to steps simulated one by one."""
    times = StepTimes.of(given, variant, limits=LIMITS)
    direct_s = model_of(given, variant).seconds(steps, duty=np.full(len(steps.chunk), duty))
    return np.abs(looked_up_s(times, steps, duty) / (direct_s + times.host_request_s * steps.decoding) - 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"model": "8b", "tp": 1, "stack": "sglang"},
        {"cluster": "l40s-pcie"},
        {"model": "405b", "nodes": 2},
        {"cluster": "b200-sxm", "stack": "trtllm", "dtype": "fp8"},
        {"model": "gemma-3-27b"},
        {"model": "qwen3-235b-a22b"},
        {"model": "qwen3-30b-a3b", "tp": 1, "attention_dp": 8, "ep": 8, "concurrency": 8},
        {"tp": 4, "pp": 2},
    ],
    ids=[
        "70b",
        "8b on one GPU",
        "70b over PCIe",
        "405b on two nodes",
        "launched one by one",
        "windows",
        "experts",
        "attention DP",
        "stages",
    ],
)
def test_steps_are_as_simulated(given: dict[str, Any], prompts: bool) -> None:
    steps = drawn(2000, prompts=prompts)
    for duty in (0.0, 1.0):
        for variant in ("standard", "ladder"):
            assert errors(scenario(**given), variant, steps, duty).max() < 0.02


def test_drafted_tokens_are_rows_but_read_nothing() -> None:
    """Steps with as many requests as rows, but attention of those that decode."""
    given, drafted = scenario(), 3.0
    steps = drawn(300, prompts=False)
    times, model = StepTimes.of(given, "ladder", limits=LIMITS), model_of(given, "ladder")
    rows = (1.0 + drafted) * steps.decoding
    verified = steps._replace(decoding=rows)
    factor = model.kernels(steps).decode_s / model.kernels(verified).decode_s
    direct_s = model.seconds(verified, attention=Attention(factor, np.ones(300), np.ones(300)))
    verified_s = looked_up_s(times, steps, drafted=drafted * steps.decoding) - times.host_request_s * steps.decoding
    assert np.abs(verified_s / direct_s - 1.0).max() < 0.02


@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_an_idle_system_takes_what_predict_says(variant: str) -> None:
    # the power that prompts leave to each other is another in a static batch
    given = scenario(overrides={"stack.sustained_share": 1.0}, gen=2)
    alone = predict(given, variant)
    times = StepTimes.of(given, variant, limits=LIMITS)
    assert times.seconds(prefill=[(1024, 0)]) == pytest.approx(alone.ttft_s, rel=0.02)
    assert alone.tpot_s is not None
    assert times.seconds(decode=[1025]) - times.host_request_s == pytest.approx(alone.tpot_s, rel=0.005)


def test_a_single_token_of_a_prompt_is_decoded() -> None:
    times = StepTimes.of(scenario(), "standard", limits=LIMITS)
    assert times.seconds(decode=[700], prefill=[(1, 499)]) == times.seconds(decode=[700, 500])


@pytest.mark.parametrize(
    ("decode", "prefill", "shown"),
    [((), (), "0 requests"), ([9] * 300, (), "300 requests"), ((), [(9000, 0)], "9000 tokens")],
)
def test_steps_beyond_the_limits_are_refused(
    decode: Sequence[int], prefill: Sequence[tuple[int, int]], shown: str
) -> None:
    with pytest.raises(UsageError, match=f"a step of {shown}: must be 1 to"):
        StepTimes.of(scenario(), "standard", limits=LIMITS).seconds(decode, prefill)


def test_static_batches_have_no_steps_of_mixed_requests() -> None:
    with pytest.raises(UsageError, match="runs static batches only"):
        StepTimes.of(scenario(stack="gpt-fast"))


def test_stages_of_a_pipeline_run_as_many_steps() -> None:
    """Each takes its way through all of them, or as long as the slowest needs for all: that of the LM head."""
    decode = {"decode": [1024] * 64}
    one_s, two_s = (
        StepTimes.of(scenario(tp=4, **stages), "standard", limits=LIMITS).seconds(**decode)
        for stages in ({}, {"pp": 2})
    )
    assert one_s < two_s < 1.1 * one_s


def test_a_second_call_reads_the_first_one_s_file(monkeypatch: pytest.MonkeyPatch) -> None:
    first = StepTimes.of(scenario(prompt=100), "ladder", limits=LIMITS).seconds(decode=[900] * 7, prefill=[(300, 50)])
    made = list[str]()
    make = Grids.of

    def counted(*args: Any) -> Grids:
        made.append(args[1])
        return make(*args)

    monkeypatch.setattr(Grids, "of", counted)
    # the requests of a scenario change nothing
    again = StepTimes.of(scenario(prompt=200, gen=7), "ladder", limits=LIMITS)
    assert (made, again.seconds(decode=[900] * 7, prefill=[(300, 50)])) == ([], first)
    for path in cache_module.folder().iterdir():
        path.write_bytes(b"damaged")
    damaged = StepTimes.of(scenario(), "ladder", limits=LIMITS)
    assert (made, damaged.seconds(decode=[900] * 7, prefill=[(300, 50)])) == (["ladder"], first)
    StepTimes.of(scenario(overrides={"intra.latency": "9us"}), "ladder", limits=LIMITS)
    assert len(made) == 2


def test_how_unevenly_tokens_choose_experts_counts() -> None:
    """Its times were once those of whichever came first."""
    usual, even = (
        StepTimes.of(scenario(model="qwen3-30b-a3b", tp=1, attention_dp=8, ep=8, concurrency=8, **given), limits=LIMITS)
        for given in ({}, {"imbalance": "balanced"})
    )
    assert even.seconds(decode=[1024] * 64) < 0.99 * usual.seconds(decode=[1024] * 64)


AXES = st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True).map(sorted)


@given(AXES, st.data())
def test_no_value_lies_outside_those_next_to_it(axis: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(-9, 9), min_size=len(axis), max_size=len(axis)))
    at = data.draw(st.floats(-10, 1010))
    line = Grid([Axis(np.array(axis, float))], np.array(values, float))
    cell, _ = line.axes[0].place(at)
    nearby = values[cell : cell + 2]
    assert min(nearby) - 1e-9 <= line.at(at) <= max(nearby) + 1e-9
    assert line.at(axis[0]) == values[0]
    assert line.at(axis[-1]) == values[-1]
    rows = np.array([values, np.array(values) + 2.0], float)
    plane = Grid([Axis(np.array([1.0, 3.0])), *line.axes], rows)
    assert plane.at(2.0, at) == pytest.approx(line.at(at) + 1.0)
