"""Times of steps: against simulating each step, at the edges, idle, and on disk."""

import errno
import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.costs.fingerprint import fingerprint
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des.program import Program
from ladder_sim.errors import UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.serving import StepLimits, StepTimes
from ladder_sim.serving.steps import times as cache_module
from ladder_sim.serving.steps.grids import Grids
from ladder_sim.serving.steps.mix import Mix
from ladder_sim.serving.steps.rest import Rest
from ladder_sim.serving.steps.step_model import Attention, Mixes, StepModel, rows_of
from ladder_sim.serving.steps.times import Polyline, Surface, cached, folder
from tests.support.scenarios import with_overheads

LIMITS = StepLimits(requests=256, tokens=8192, context=8192)


def drawn(count: int, *, prompts: bool) -> Mixes:
    """Steps of all sizes within the limits."""
    random = np.random.default_rng(1)

    def between(low: float, high: Any) -> Any:
        return np.round(np.exp(random.uniform(np.log(low), np.log(high), count)))

    decoding = between(1, LIMITS.requests)
    context, nothing = between(1, LIMITS.context), np.zeros(count)
    if not prompts:
        return Mixes(decoding, decoding * context, nothing, nothing, nothing)
    chunk = np.minimum(between(4, LIMITS.tokens), LIMITS.tokens - decoding)
    several = np.minimum(between(1, 16), np.floor(chunk / 2))
    length = chunk / several
    before = np.where(random.random(count) < 0.5, 0.0, np.minimum(between(1, LIMITS.context), LIMITS.context - length))
    length += 2.0 * np.maximum(before, 0.0)
    return Mixes(decoding, decoding * context, several, chunk, chunk * length)


def scenario(**given: Any) -> Scenario:
    return Scenario(**{"model": "70b", "stack": "vllm", **given})


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


def test_steps_in_parts_are_as_simulated() -> None:
    """A step with prompts runs whole where one that decodes as many requests runs in parts: attention differs."""
    for prompts, bound in ((False, 0.01), (True, 0.04)):
        steps = drawn(300, prompts=prompts)
        assert errors(scenario(technique="token-split"), "ladder", steps, 0.0).max() < bound


def test_steps_simulated_together_take_what_each_takes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are in a period after few layers: the others go on without them."""
    chosen = list[int]()
    of = Program.of

    def spied(program: Program, left: Any) -> Program:
        chosen.append(len(left))
        return of(program, left)

    monkeypatch.setattr(Program, "of", spied)
    steps = drawn(40, prompts=True)
    model = model_of(scenario(model="405b", nodes=2), "ladder:2")
    together_s = model.seconds(steps)
    assert 0 < max(chosen, default=0) < 40
    alone_s = np.concatenate([model.seconds(rows_of(steps, np.array([number]))) for number in range(40)])
    assert together_s == pytest.approx(alone_s, rel=1e-9)


def test_drafted_tokens_are_rows_but_read_nothing() -> None:
    """Steps with as many requests as rows, but attention of those that decode."""
    given, drafted = scenario(), 3.0
    steps = drawn(300, prompts=False)
    times, model = StepTimes.of(given, "ladder", limits=LIMITS), model_of(given, "ladder")
    rows = (1.0 + drafted) * steps.decoding
    verified = steps._replace(decoding=rows)
    factor = model.kernels(steps).decode_s / model.kernels(verified).decode_s
    direct_s = model.seconds(verified, attention=Attention(factor, np.ones(300)))
    verified_s = looked_up_s(times, steps, drafted=drafted * steps.decoding) - times.host_request_s * steps.decoding
    assert np.abs(verified_s / direct_s - 1.0).max() < 0.02


@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_an_idle_system_takes_what_predict_says(variant: str) -> None:
    # the power that prompts leave to each other is another in a static batch
    given = scenario(gen=2)
    cold = with_overheads(given, sustained_rate=1.0)
    alone = predict(given, [variant], profile=cold)[variant]
    times = StepTimes.of(given, variant, profile=cold, limits=LIMITS)
    assert times.seconds(prefill=[(1024, 0)]) == pytest.approx(alone.ttft_s, rel=0.02)
    assert alone.tpot_s is not None
    assert times.seconds(decode=[1025]) - times.host_request_s == pytest.approx(alone.tpot_s, rel=0.005)


def test_a_single_token_of_a_prompt_is_decoded() -> None:
    times = StepTimes.of(scenario(), "standard", limits=LIMITS)
    assert times.seconds(decode=[700], prefill=[(1, 499)]) == times.seconds(decode=[700, 500])


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ({}, "a step of 0 requests: must be 1 to 256"),
        ({"decode": [9] * 300}, "a step of 300 requests: must be 1 to 256"),
        ({"prefill": [(5000, 0), (5000, 0)]}, "a step of 10000 tokens: must be 1 to 8192"),
        ({"decode": [9, 0]}, "decode: 0: must be 1 to 8192"),
        ({"decode": [9000]}, "decode: 9000: must be 1 to 8192"),
        ({"decode": [9.5]}, "decode: 9.5: must be a whole number"),
        ({"decode": [9, float("nan")]}, "decode: nan: must be a whole number"),
        ({"decode": "12"}, "decode: '2': must be a whole number"),
        ({"prefill": [(0, 5)]}, "prefill, new tokens: 0: must be 1"),
        ({"prefill": [(512, -1)]}, "prefill, tokens before: -1: must be 0"),
        ({"prefill": [(512, 8000)]}, "prefill, new tokens and those before: 8512: must be 1 to 8192"),
        ({"prefill": [(512,)]}, "prefill: each chunk must be two numbers"),
        ({"decode": [9], "duty": 1.5}, "duty 1.5: must be 0 to 1"),
        ({"decode": [9], "duty": float("nan")}, "duty nan: must be 0 to 1"),
    ],
)
def test_steps_that_there_are_no_times_for_are_refused(step: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=f"^{shown}") as error:
        StepTimes.of(scenario(), "standard", limits=LIMITS).seconds(**step)
    assert error.value.hint


def test_numbers_of_numpy_are_tokens() -> None:
    times = StepTimes.of(scenario(), "standard", limits=LIMITS)
    chunk = np.array([[300, 20]])
    assert times.seconds(np.array([700, 500]), chunk) == times.seconds(iter([700, 500]), iter([(300, 20)]))


@pytest.mark.parametrize("model", ["70b", "gemma-3-27b"])
def test_a_chunk_takes_at_least_as_long_as_a_token_that_reads_as_much(model: str) -> None:
    """Its share of a long prompt's attention was once less than reading the cache takes."""
    steps = model_of(scenario(model=model), "standard")
    new, before, one = np.array([2.0, 4.0, 64.0, 4096.0]), 8000.0, np.ones(4)
    chunk_s = steps.kernels(Mixes(one, one, one, new, new * (2.0 * before + new))).prompt_s
    token_s = steps.kernels(Mixes(one, before + new, 0.0 * one, 0.0 * one, 0.0 * one)).decode_s
    assert np.all(chunk_s >= token_s)
    assert np.all(np.diff(chunk_s) >= 0.0)
    assert chunk_s[-1] > 2.0 * token_s[-1]


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
    StepTimes.of(scenario(overrides={"intra.allreduce_floor": "9us"}), "ladder", limits=LIMITS)
    assert len(made) == 1


GRIDS = Grids(
    *(np.arange(float(place + 2)) for place in range(8)), *(Rest(*([np.arange(6.0)] * 3), np.ones((2, 6))),) * 2
)


@pytest.fixture
def makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], bool]:
    """Asks for the same grids; whether they had to be made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def ask() -> bool:
        made = list[bool]()
        got = cached(["times"], lambda: made.append(True) or GRIDS)  # type: ignore[func-returns-value]
        assert fingerprint(got) == fingerprint(GRIDS)
        return bool(made)

    return ask


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_made_again(makes: Callable[[], bool], data: st.DataObject) -> None:
    makes()
    assert not makes()
    (path,) = folder().iterdir()
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert makes()
    assert not makes()


def test_without_a_place_for_files_times_are_made_every_time(
    makes: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert makes()
        assert makes()
        assert not list(folder().iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert makes()
    assert makes()


def test_of_many_files_the_oldest_go(makes: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MOST_FILES", 2)
    makes()
    (first,) = folder().iterdir()
    for number in (1, 2):
        first.with_name(f"{number}.npz").write_bytes(b"")
        os.utime(first.with_name(f"{number}.npz"), (number, number))
    first.unlink()
    makes()
    assert {path.name for path in folder().iterdir()} == {first.name, "2.npz"}


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
    line = Polyline(np.array(axis, float), np.array(values, float))
    cell = bisect_right(axis, at)
    nearby = values[max(0, cell - 1) : cell + 1]
    assert min(nearby) - 1e-9 <= line.at(at) <= max(nearby) + 1e-9
    assert line.at(axis[0]) == values[0]
    assert line.at(axis[-1]) == values[-1]
    rows = np.array([values, np.array(values) + 2.0], float)
    plane = Surface(np.array([1.0, 3.0]), np.array(axis, float), rows)
    assert plane.at(2.0, at) == pytest.approx(line.at(at) + 1.0)
    assert plane.at(9.0, at) == pytest.approx(line.at(at) + 2.0)
