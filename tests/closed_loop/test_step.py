"""Requests in flight through the whole simulator: limits, what their time is made of, arrays, and bad input."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict, sweep
from ladder_sim.closed_loop import loop
from ladder_sim.closed_loop.loop import ServedRequest
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.costs.memory import kv_requests
from ladder_sim.errors import MemoryFitError, UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.catalog import stack as stack_of
from tests.support.commands import run
from tests.support.predict_one import predict_one
from tests.support.scenarios import SERVING, with_overheads

STACKS = st.sampled_from(SERVING)
SPREADS = st.sampled_from([0.0, 0.1, 0.4])


def scenario(**given: Any) -> Scenario:
    return Scenario(**{"model": "8b", "tp": 2, "stack": "vllm", "concurrency": 32, **given})


@pytest.mark.parametrize("stack", SERVING)
@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_one_request_in_flight_is_a_static_batch_of_one(stack: str, variant: str) -> None:
    # the power that prompts leave to each other is another in a static batch, which prefills only once
    cold = with_overheads(scenario(stack=stack), sustained_rate=1.0)
    alone = predict_one(scenario(concurrency=1, stack=stack), variant, profile=cold)
    static = predict_one(scenario(concurrency=None, stack=stack), variant, profile=cold)
    assert alone.tpot_s is not None
    assert static.tpot_s is not None
    # a step's time is linear in its context up to the table's bends, and the CPU takes its share
    host_s = stack_of(stack).host_request_s
    assert alone.tpot_s - host_s == pytest.approx(static.tpot_s, rel=0.01)
    assert alone.load is not None
    assert alone.ttft_s - alone.load.front_end_s == pytest.approx(static.ttft_s, rel=2e-3)


@given(STACKS, st.sampled_from([1, 2, 7, 32, 300, 4000]), st.integers(1, 3000), st.integers(1, 1500), SPREADS)
def test_what_the_gpus_run_takes_as_long_as_the_request(
    stack: str, concurrency: int, prompt: int, gen: int, spread: float
) -> None:
    load = {"concurrency": concurrency, "prompt": prompt, "gen": gen}
    given = scenario(stack=stack, overrides={"workload.spread": spread}, **load)
    for prediction in predict(given, ["standard", "ladder"]).values():
        assert sum(prediction.breakdown.limits_s.values()) == pytest.approx(prediction.request_s, rel=1e-9)
        load = prediction.load
        assert load is not None
        assert 0.0 <= load.prompt_steps <= 1.0 + 1e-9
        running = load.requests_running
        assert 0.0 <= load.requests_decoding <= running <= min(concurrency, load.slots) * (1.0 + 1e-9)
        assert load.tokens_per_s_per_gpu == pytest.approx(prediction.tokens_per_s.value / 2)
        if prediction.tpot_s is not None:
            assert load.decode_step_s + load.prompts_per_token_s == pytest.approx(prediction.tpot_s)


@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_arrays_hold_what_single_predictions_give(spread: float) -> None:
    loads = list(itertools.product([1, 16, 700], [1, 900, 9000], [1, 2, 400]))
    columns = dict(zip(("concurrency", "prompt", "gen"), np.array(loads).T, strict=True))
    how = {"stack": "trtllm", "dtype": "fp8", "overrides": {"workload.spread": spread}}
    given = scenario(**how)
    variants = ["standard", "ladder"]
    together = simulate_requests(given, columns, variants, resolve_profile(given, None))
    for number, (concurrency, prompt, gen) in enumerate(loads):
        one = scenario(concurrency=concurrency, prompt=prompt, gen=gen, **how)
        for name, prediction in predict(one, variants).items():
            assert np.asarray(together[name].ttft_s)[number] == pytest.approx(prediction.ttft_s, rel=1e-6)
            assert np.asarray(together[name].request_s)[number] == pytest.approx(prediction.request_s, rel=1e-6)


def test_figures_vary_with_requests_in_flight() -> None:
    bandwidths = np.array([2e12, 3.35e12])
    given = scenario()
    request = simulate_requests(
        given, {"gpu.hbm_bandwidth_Bps": bandwidths}, ["standard"], resolve_profile(given, None)
    )["standard"]
    slow, fast = np.asarray(request.request_s)
    assert slow > 1.2 * fast


def test_figures_that_change_no_decode_step_vary_with_short_answers_in_flight() -> None:
    """Times of a front end, or of launches of prompts, are columns of their own: this raised a ValueError."""
    given = scenario(model="8b", tp=4, stack="trtllm", concurrency=8, prompt=512, gen=32)
    profile = resolve_profile(given, None)
    for name, seconds in (("stack.frontend_s", [0.0, 0.1]), ("stack.eager_launch_s", [5e-6, 50e-6])):
        few, many = np.asarray(simulate_requests(given, {name: seconds}, ["standard"], profile)["standard"].ttft_s)
        (one,) = np.asarray(simulate_requests(given, {name: seconds[:1]}, ["standard"], profile)["standard"].ttft_s)
        assert one == pytest.approx(few, rel=1e-9)
        assert many > 1.1 * few


def test_both_engines_agree() -> None:
    fast, des = (predict(scenario(), ["standard", "ladder"], engine=engine) for engine in ("fast", "des"))
    for name in fast:
        assert des[name].request_s == pytest.approx(fast[name].request_s, rel=1e-9)


def test_ladder_gains_with_requests_in_flight() -> None:
    predictions = predict(scenario(model="70b", tp=8, concurrency=64))
    assert 1.0 < predictions["ladder"].request_speedup < predictions["upper-bound"].request_speedup


def test_requests_beyond_the_kv_cache_wait() -> None:
    given = scenario(model="70b", tp=4, concurrency=400, prompt=4000, gen=500)
    room = float(kv_requests(given, 4000, 500))
    assert room < 400
    full = predict_one(given)
    assert isinstance(full.request, ServedRequest)
    # a slot stays empty until the next step is scheduled
    assert full.request.served.running == pytest.approx(room, rel=0.05)
    assert any("KV cache has room for" in text for text in full.confidence.warnings)
    # each replica has a cache of its own
    shared = {"model": "70b", "tp": 4, "dp": 2, "prompt": 4000, "gen": 500}
    fitting, waiting = (predict_one(scenario(**shared, concurrency=2 * n)) for n in (int(room), int(room) + 9))
    assert not any("KV cache" in text for text in fitting.confidence.warnings)
    assert any("KV cache of each of 2 groups has room for" in text for text in waiting.confidence.warnings)
    # those that wait take nothing from the others
    more = predict_one(scenario(model="70b", tp=4, concurrency=800, prompt=4000, gen=500))
    assert more.tpot_s == pytest.approx(full.tpot_s, rel=1e-2)
    assert more.rate == pytest.approx(full.rate, rel=2e-2)


def test_a_cache_without_room_for_one_request_is_refused() -> None:
    with pytest.raises(MemoryFitError):
        predict(scenario(model="70b", tp=1))
    assert predict_one(scenario(model="70b", tp=1), ignore_memory=True).rate > 0.0


def test_what_needs_a_static_batch_says_so() -> None:
    with pytest.raises(UsageError, match="static batches only"):
        scenario(stack="gpt-fast")
    with pytest.raises(UsageError, match="jitter is for static batches"):
        predict(scenario(), jitter=0.05)


def test_a_sweep_over_requests_in_flight_is_that_many_predictions() -> None:
    table = sweep(
        None, {"model": "8b", "tp": 2, "stack": "sglang", "concurrency": [1, 8, 64], "gen": [1, 128]}, ["ladder"]
    )
    assert set(table["batching"]) == {"continuous"}
    for row in range(len(table)):
        point = scenario(stack="sglang", concurrency=int(table["concurrency"][row]), gen=int(table["gen"][row]))
        one = predict_one(point, "ladder")
        assert table["ladder.tokens_per_s"][row] == pytest.approx(one.rate, rel=1e-6)
        assert table["ladder.speedup"][row] == pytest.approx(one.speedup.value, rel=1e-6)
        assert table["memory_bytes_per_gpu"][row] == pytest.approx(one.memory.total_bytes)


def test_explain_says_what_the_time_per_token_is_made_of() -> None:
    answered = run("predict", "--model", "8b", "--stack", "vllm", "--tp", "2", "--concurrency", "32", "--explain")
    assert answered.code == 0
    assert "; 32 in flight, " in answered.out
    assert "standard: TPOT" in answered.out
    assert "prompts of the others" in answered.out
    assert "one step with prompts" in answered.out
    assert "static" not in answered.out


def test_short_answers_after_long_prompts_share_each_step_with_a_prompt() -> None:
    """Served one by one they take 360 and 363 ms of a token; a closed form said 276 and 187."""
    where = {"cluster": "h100-pcie", "nodes": 2, "tp": 16, "concurrency": 8, "gen": 2}
    shorter, longer = (
        predict_one(scenario(prompt=prompt, overrides={"stack.frontend_steps": 0.0}, **where))
        for prompt in (4096, 8192)
    )
    assert shorter.tpot_s is not None
    assert longer.tpot_s == pytest.approx(0.363, rel=0.1)
    assert shorter.tpot_s < longer.tpot_s


def test_prompts_of_one_token_do_not_make_parts_negative() -> None:
    """A pass counted -2.2 times, so that more communication was exposed than there was."""
    given = scenario(model="llama-2-13b", cluster="h100-a3mega", stack="trtllm", concurrency=128, prompt=1, gen=16)
    ladder = predict_one(given, "ladder")
    assert min(times for _, times in ladder.request.passes) >= 0.0
    assert 0.0 <= ladder.breakdown.hidden_share <= 1.0


@pytest.mark.parametrize("model", ["8b", "70b"])
def test_communication_is_that_of_steps_with_as_many_prompts(model: str) -> None:
    """Regression: cold steps with short prompts counted as several prompts each: 13 and 8 % more all of a sudden."""
    asked: dict[str, Any] = {"model": model, "tp": 4 if model == "8b" else 8, "concurrency": 64, "gen": 128}
    # of prompts up to the first length, more than eight fill a step
    exposed_s = [predict_one(scenario(**asked, prompt=each)).breakdown.exposed_comm_s for each in (1012, 1016)]
    assert exposed_s[0] == pytest.approx(exposed_s[1], rel=0.04)


def test_a_time_to_first_token_holds_the_front_end_as_when_requests_are_served() -> None:
    def first_token(**overrides: float) -> tuple[float, float]:
        alone = predict_one(scenario(concurrency=1, stack="sglang", overrides=overrides))
        assert alone.load is not None
        return alone.ttft_s, alone.load.front_end_s

    with_it, front_end_s = first_token()
    without, none_s = first_token(**{"stack.frontend_s": 0.0})
    # what SGLang's servers were fitted to
    assert (front_end_s, none_s) == (pytest.approx(0.148), 0.0)
    assert with_it == pytest.approx(without + 0.148)


@pytest.mark.parametrize("model", ["8b", "deepseek-v2-lite", "gpt-oss-20b"])
def test_chunks_of_a_request_that_is_alone_read_those_before_them(model: str) -> None:
    """Each chunk took as long as a prompt of its length: 65,536 tokens of Llama 8B took half as long as whole."""
    long = {"model": model, "tp": 1, "cluster": "h200-sxm", "prompt": 65536, "gen": 16}
    alone, static = (predict_one(scenario(concurrency=count, **long)) for count in (1, None))
    assert alone.ttft_s > 0.95 * static.ttft_s


@pytest.mark.parametrize("gen", [2, 33])
def test_answers_of_one_in_flight_are_those_of_a_static_batch(gen: int) -> None:
    alone, static = (predict_one(scenario(concurrency=count, gen=gen)) for count in (1, None))
    assert alone.tpot_s == pytest.approx(static.tpot_s, rel=0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "8b", "tp": 1, "stack": "vllm"},
        {"model": "8b", "tp": 2, "stack": "sglang", "prompt": 4096, "gen": 32},
        {"model": "70b", "tp": 4, "pp": 2, "stack": "trtllm", "prompt": 300, "gen": 20},
    ],
)
def test_clients_behind_a_queue_that_never_empties_only_wait(fields: dict[str, Any]) -> None:
    """Regression: a million requests in flight took minutes. Next to 6,000 simulated one by one."""
    predicted = {}
    for most in (None, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            if most:
                patch.setattr(loop, "_LEAST_CLIENTS", most)
            predicted[most] = predict(Scenario(concurrency=6_000, **fields), ["standard"])["standard"]
    short, whole = predicted[None], predicted[10**9]
    assert short.tpot_s == pytest.approx(whole.tpot_s, rel=2e-3)
    assert short.ttft_s == pytest.approx(whole.ttft_s, rel=2e-3)
    million = predict(Scenario(concurrency=1_000_000, **fields), ["standard"])["standard"]
    assert million.ttft_s / short.ttft_s == pytest.approx(1_000_000 / 6_000, rel=0.3)
    assert million.rate == pytest.approx(short.rate, rel=0.02)
