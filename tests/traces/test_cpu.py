"""Traces of CPU ranks, recorded here and now: code of its own on gloo, and the runtime on an emulated link."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch.profiler import ExecutionTraceObserver
from typer.testing import CliRunner

from ladder_sim.cli.trace import trace
from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay, simulate, with_times
from ladder_sim.traces.summary import summarize_run
from ladder_sim.traces.wirings import predict_variants
from ladder_sim_runtime.trace import recorded_steps
from tests.conftest import REPO
from tests.support.trace_capture import LAYERS, STEPS
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.torch

REDUCES = 2 * LAYERS * STEPS
SMALL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captured")
    script = REPO / "tests" / "support" / "trace_capture.py"
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), folder], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in ranks:
        _, complaints = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, complaints
    return folder


def paced(graph: TraceGraph) -> TraceGraph:
    """The run with 10 ms for every message and 1 ms for all else: what overlaps depends on the order alone."""
    ops = (replace(op, duration_s=10e-3 if op.communicates else 1e-3, lead_s=0.0) for op in graph.ops)
    even = replace(graph, ops=tuple(ops))
    return with_times(even, simulate(even))


def read(folder: Path, name: str, *, ranks: int = 2) -> TraceGraph:
    return load([folder / name / f"rank{rank}.json.gz" for rank in range(ranks)])


@pytest.mark.parametrize("name", ["standard", "ladder", "standard-unobserved"])
def test_every_all_reduce_is_issued_awaited_met_and_replayed(captured: Path, name: str) -> None:
    graph = read(captured, name)
    reduces = [index for index, op in enumerate(graph.ops) if op.kind == "all_reduce"]
    assert len(reduces) == 2 * REDUCES
    assert graph.notes == ()
    assert len({graph.ops[index].group for index in reduces}) == REDUCES
    awaited = {before for op in graph.ops if op.kind == "sync" for before in op.after}
    assert awaited == set(reduces)
    sizes = {op.collective.message_bytes for op in graph.ops if op.collective is not None}
    assert sizes == {64 * 256 * 4.0}
    assert all(step.name.startswith("ProfilerStep") for step in replay(graph).steps)


def test_only_ladder_overlaps(captured: Path) -> None:
    hidden_s = {name: summarize_run(paced(read(captured, name))).ranks[0].hidden_s for name in ("standard", "ladder")}
    assert hidden_s["standard"] == 0.0
    assert hidden_s["ladder"] > 0.0


def test_without_an_execution_trace_asynchronous_waits_are_unknown(captured: Path) -> None:
    """One of the warm-ups lies there, which says nothing of the steps."""
    assert (captured / "ladder-unobserved" / "rank1.execution.json.gz").exists()
    graph = read(captured, "ladder-unobserved")
    assert any("no execution trace" in note for note in graph.notes)
    assert sum(op.kind == "all_reduce" for op in graph.ops) == 2 * REDUCES


def test_one_rank_alone_replays_and_says_so(captured: Path) -> None:
    graph = read(captured, "standard", ranks=1)
    assert any("no trace of rank 1 of 2" in note for note in graph.notes)
    assert len(replay(graph).steps) == STEPS


def test_slower_all_reduces_lengthen_the_step(captured: Path) -> None:
    graph = paced(choose_step(read(captured, "standard"), None))
    slower = replace(
        graph, ops=tuple(replace(op, duration_s=op.duration_s + 0.01) if op.communicates else op for op in graph.ops)
    )
    longer_s = simulate(slower).makespan_s - simulate(graph).makespan_s
    assert longer_s == pytest.approx(2 * LAYERS * 0.01)


def test_a_standard_run_is_rewired(captured: Path) -> None:
    step = choose_step(read(captured, "standard"), None)
    assert [forward.layers for forward in find_passes(step)] == [LAYERS, LAYERS]
    slow = replace(step, ops=tuple(replace(op, duration_s=1e-3) if op.communicates else op for op in step.ops))
    times = predict_variants(slow, ["standard", "ladder", "upper-bound"])
    assert times["standard"].speedup == pytest.approx(1.0)
    assert 1.0 < times["ladder"].speedup <= times["upper-bound"].speedup * (1 + 1e-9)


def test_a_captured_run_is_replayed_and_rewired(tmp_path: Path) -> None:
    """The whole way on one machine: measure and record the runtime, then ask the standard trace what ladder gives."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "link.csv").write_text("bytes,seconds\n1,250e-6\n1e9,250.001e-6\n")
    options = f"--model {tmp_path}/config.json --tp 4 --emulate {tmp_path}/link.csv --variant standard,hybrid-ladder:2"
    workload = "--prompt 8 --gen 4 --warmups 0 --repeats 1"
    done = CliRunner().invoke(trace, ["capture", str(tmp_path / "run"), *options.split(), *workload.split()])
    assert done.exit_code == 0, repr(done.exception)
    folders = [tmp_path / "run" / name for name in ("standard", "hybrid-ladder-2")]
    standard, hybrid = map(load, ([folder] for folder in folders))
    for folder in folders:
        # the execution trace of the warm-ups, a prefill and a decode step
        nodes = json.loads(gzip.decompress((folder / "rank0.execution.json.gz").read_bytes()))["nodes"]
        assert sum(node["name"].startswith("link:all_reduce") for node in nodes) == 8 * 2
    for graph in (standard, hybrid):
        assert graph.notes == ()
        assert len(graph.steps) == 1 + 3
        assert len(replay(graph).steps) == len(graph.steps)
        assert sum(op.kind == "all_reduce" for op in graph.ops) == 8 * 4
    times = predict_variants(choose_step(paced(standard), None), ["standard", "ladder", "upper-bound"])
    assert times["ladder"].comm.hidden_s > times["standard"].comm.hidden_s
    assert 1.0 < times["ladder"].speedup <= times["upper-bound"].speedup * (1 + 1e-9)
    # two of four layers hide theirs
    assert summarize_run(paced(standard)).ranks[0].hidden_s == 0.0
    assert summarize_run(paced(hybrid)).ranks[0].hidden_s > 0.0


@pytest.mark.parametrize(("warmups", "steps"), [(0, 1), (1, 0)])
def test_a_recording_has_a_warm_up_and_a_step(tmp_path: Path, warmups: int, steps: int) -> None:
    with pytest.raises(UsageError, match=f"{warmups} warm-ups and {steps} steps: must be 1 or more"):
        next(recorded_steps(tmp_path, warmups=warmups, steps=steps))


@pytest.mark.parametrize("left_at", [0, 1])
def test_a_loop_left_early_is_observed_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_at: int) -> None:
    """In a warm-up or in a step; a loop that raises lets go of its generator in the same way."""
    observers: list[ExecutionTraceObserver] = []

    class Kept(ExecutionTraceObserver):
        def __init__(self) -> None:
            super().__init__()
            # so that no destructor hides what is left behind
            observers.append(self)

    monkeypatch.setattr("ladder_sim_runtime.trace.ExecutionTraceObserver", Kept)
    for number in recorded_steps(tmp_path, observe_steps=True):
        if number == left_at:
            break
    assert [observer.is_registered for observer in observers] == [False]
