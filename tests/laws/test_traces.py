"""Laws of recorded runs: what a trace lacks is said or refused, and what it holds is replayed as it ran."""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.traces import perfetto
from ladder_sim.traces.graph import KERNEL_WAIT_S
from ladder_sim.traces.load import load
from ladder_sim.traces.predicted import predicted_run
from ladder_sim.traces.replay import MAX_ERROR, replay
from ladder_sim.traces.whatif import with_gaps
from ladder_sim.traces.wirings import baseline, predict_variants
from tests.support import commands
from tests.support.laws import law
from tests.support.nsys_files import write_nsys
from tests.support.random_scenarios import scenarios
from tests.support.trace_files import COMM, MAIN, TraceFile, decode_graph, tensor_parallel, uneven_ranks

_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples, whose files have one name."""
    return tmp_path_factory.mktemp("traces")


def standard_steps() -> TraceFile:
    """Two forward passes of two streams, each a step."""
    trace = tensor_parallel(stream=COMM)
    shift = 1650.0
    trace.append(tensor_parallel(stream=COMM), shift)
    trace.step(0, 0, shift)
    trace.step(1, shift, shift)
    return trace


def gloo_steps() -> TraceFile:
    """Two steps of a CPU rank, each of six operators behind a blocking all-reduce of gloo."""
    trace = TraceFile(0, 2)
    for number in range(12):
        start = 1000.0 * number
        names = ("aten::linear", "aten::scaled_dot_product_attention", "aten::linear") if number % 2 else ("aten::mm",)
        for place, name in enumerate(names):
            trace.event("cpu_op", name, start + 150 * place, 140, MAIN)
        trace.event("cpu_op", "c10d::allreduce_", start + 500, 450, MAIN, **{"Concrete Inputs": ["False"]})
        trace.event("user_annotation", "gloo:all_reduce", start + 520, 420, 77)
    for number in range(2):
        trace.step(number, 6000.0 * number, 6000)
    return trace


WHOLE = {"standard": standard_steps, "decode": lambda: decode_graph(steps=2), "gloo": gloo_steps}


@st.composite
def thinned(draw: st.DrawFn) -> TraceFile:
    """What is left of a trace without the events of a kind, a thread, a time, or some at random."""
    trace = WHOLE[draw(st.sampled_from(sorted(WHOLE)))]()
    events = trace.events
    kinds = sorted({event["cat"] for event in events})
    threads = sorted({event["tid"] for event in events})
    gone = draw(st.sets(st.sampled_from(kinds), max_size=1))
    silent = draw(st.none() | st.sampled_from(threads))
    last = max(event["ts"] + event["dur"] for event in events)
    low, high = draw(st.just((0.0, 1.0)) | st.tuples(st.floats(0.0, 0.6), st.floats(0.4, 1.0)))
    share, at_random = draw(st.sampled_from([0.0, 0.0, 0.02, 0.5])), random.Random(draw(st.integers(0, 99)))
    instant = draw(st.sampled_from([False, False, False, True]))
    trace.events = [
        {**event, "dur": 0.0} if instant else event
        for event in events
        if event["cat"] not in gone
        and event["tid"] != silent
        and low * last <= event["ts"] <= high * last
        and at_random.random() >= share
    ]
    return trace


@law(examples=60)
@given(thinned(), st.booleans())
def test_a_partial_trace_is_answered_or_refused(folder: Path, trace: TraceFile, of_nsight: bool) -> None:
    """A trace without some of its events is answered or refused in words, and a gain needs a replay within 10 %."""
    path = folder / f"part.{'sqlite' if of_nsight else 'json'}"
    path.unlink(missing_ok=True)
    if of_nsight:
        write_nsys(path, [trace])
    else:
        trace.write(path)
    for command in ("info", "replay", "predict"):
        done = commands.run("trace", command, str(path), "--json")
        assert done.code in (0, 1, 2), (command, done)
        assert not _EXCEPTION.search(done.err), (command, done)
        if command == "predict" and done.out:
            answer = json.loads(done.out)
            passed = abs(answer["step"]["error"]) <= MAX_ERROR
            assert answer["check"]["passed"] == passed == bool(answer["variants"]) == (done.code == 0)


@st.composite
def loops(draw: st.DrawFn) -> tuple[TraceFile, float, bool]:
    """Steps of a loop as a profiler sees them, when the recording begins, and whether it has what ran by then."""
    trace = TraceFile()
    seed = random.Random(draw(st.integers(0, 10**6)))
    steps, kernels = draw(st.integers(2, 4)), draw(st.integers(5, 30))
    host_us, kernel_us = draw(st.sampled_from([0.0, 5.0, 60.0])), draw(st.sampled_from([2.0, 20.0, 200.0]))
    waits = draw(st.booleans())
    now = free = 0.0
    for number in range(steps):
        begin = now
        for place in range(kernels):
            now += seed.uniform(0.0, 2.0) * host_us
            duration = seed.uniform(0.5, 1.5) * kernel_us
            start = max(now + 5.0, free)
            trace.kernel(f"gemm{place}", now, start, duration)
            now, free = now + 5.0, start + duration
        if waits:
            called = trace.call("cudaDeviceSynchronize", now, max(free - now, 0.0) + 10.0)
            trace.sync("Context Sync", now, max(free - now, 0.0) + 10.0, called)
            now = max(now, free) + 10.0
        trace.step(number, begin, now - begin)
        now += 1.0
    return trace, draw(st.floats(0.0, 0.8)) * now, draw(st.booleans())


@law(examples=200)
@given(loops())
def test_a_replay_is_its_recording(folder: Path, case: tuple[TraceFile, float, bool]) -> None:
    """A recorded step is replayed within 1 % of its length, or 30 us, wherever in a loop the recording begins."""
    trace, begin, has_running = case
    events = [event for event in trace.events if event["ts"] >= begin]
    called = {event["args"].get("correlation") for event in events if event["cat"] == "cuda_runtime"}
    trace.events = [
        event for event in events if event["cat"] != "kernel" or has_running or event["args"]["correlation"] in called
    ]
    assume(any(event["cat"] == "kernel" for event in trace.events))
    steps = replay(with_gaps(load([trace.write(folder / "rank0.json")]))).steps
    assert steps
    for step in steps:
        assert step.replayed_s == pytest.approx(step.recorded_s, rel=0.01, abs=KERNEL_WAIT_S), step


@law(examples=40)
@given(st.lists(st.sampled_from([0, 0, 10, 40, 200]), min_size=8, max_size=8).filter(lambda extra: 0 in extra))
def test_waits_for_an_absent_rank_are_told_apart(folder: Path, extra_us: list[float]) -> None:
    """If waits for a slower rank stay, a rank's trace alone gives the gains that both traces give, within 2 %."""
    paths = [trace.write(folder / f"rank{rank}.json") for rank, trace in enumerate(uneven_ranks(extra_us))]
    both, alone = (predict_variants(load(files), ("ladder", "upper-bound")) for files in (paths, paths[:1]))
    for variant, together in both.items():
        staying = alone[variant].speedup_waits_stay
        assert staying is not None or sum(extra_us) < 40
        assert (staying or alone[variant].speedup) == pytest.approx(together.speedup, rel=0.02), variant


PREDICTED = scenarios(models=("8b", "llama-3.2-1b", "gemma-3-27b", "qwen3-30b-a3b"), in_flight=None)
WIRINGS = ("standard", "parallel", "ladder", "hybrid-ladder:3", "upper-bound")


@law(examples=25)
@given(PREDICTED, st.sampled_from(["standard", "standard", "ladder"]))
def test_a_rewired_prediction_is_the_prediction(folder: Path, scenario: Scenario, own: str) -> None:
    """A predicted trace, read back and rewired, gives the time per token and the gain of every wiring's prediction."""
    path = folder / "predicted.json.gz"
    scenario = scenario.having(variant=own)
    perfetto.write({own: predicted_run(scenario, "decode", ignore_memory=True)}, path)
    run = load([path])
    predicted, rewired = predict(scenario, WIRINGS, ignore_memory=True), predict_variants(run, WIRINGS)
    replayed = baseline(run, None)
    assert replayed.recorded_s == pytest.approx(predicted[own].tpot_s, rel=1e-6)
    assert replayed.error == pytest.approx(0.0, abs=1e-6)
    for name, prediction in predicted.items():
        assert rewired[name].seconds == pytest.approx(prediction.tpot_s, rel=1e-6), name
        gain = predicted[own].tpot_s / prediction.tpot_s
        assert rewired[name].speedup == pytest.approx(gain, rel=1e-6), name
