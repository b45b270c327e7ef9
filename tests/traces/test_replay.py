"""Replay of real CUDA traces, and what it may not do to be right."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ladder_sim.des import engine
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay, simulate, to_program
from ladder_sim.traces.summary import summarize_run
from tests.conftest import DATA
from tests.support.trace_files import TraceFile, tensor_parallel

REAL = ("cuda_event_sync", "cuda_event_sync_multi_stream", "alexnet", "nccl_ddp")
BOUND = 0.05


@cache
def real(name: str) -> TraceGraph:
    return load([DATA / "traces" / f"{name}.json.gz"])


@pytest.mark.parametrize("name", REAL)
def test_each_step_is_replayed_within_the_bound_without_idle_time_of_devices(name: str) -> None:
    graph = real(name)
    steps = replay(graph).steps
    assert steps
    for step in steps:
        assert abs(step.error) < BOUND, step
    for op in graph.ops:
        assert op.lead_s == 0
        if graph.lanes[op.lane].device:
            assert op.kind not in ("host", "launch", "sync")
            assert op.duration_s <= op.end_s - op.start_s + 1e-9


@pytest.mark.parametrize("name", REAL)
def test_without_its_launches_the_device_runs_at_once(name: str) -> None:
    """The replay is not a playback of start times: cut from the CPU, a device has nothing to wait for."""
    graph = real(name)
    launches = {index for index, op in enumerate(graph.ops) if op.kind in ("launch", "host", "sync")}
    cut = replace(
        graph,
        ops=tuple(
            replace(op, after=tuple(before for before in op.after if before not in launches))
            if graph.lanes[op.lane].device
            else op
            for op in graph.ops
        ),
    )
    timeline = simulate(cut)
    device_s = max(timeline.end_s[index] for index, op in enumerate(cut.ops) if cut.lanes[op.lane].device)
    busy_s = sum(op.duration_s for op in cut.ops if cut.lanes[op.lane].device)
    assert device_s <= busy_s + 1e-9


def test_deleting_the_waits_of_collectives_changes_the_replay() -> None:
    """Ten times slower collectives delay what waits for them, unless nothing does."""
    graph = real("nccl_ddp")
    slow = replace(
        graph, ops=tuple(replace(op, duration_s=10 * op.duration_s) if op.communicates else op for op in graph.ops)
    )
    reduces = {index for index, op in enumerate(graph.ops) if op.communicates}
    free = replace(slow, ops=tuple(replace(op, after=tuple(set(op.after) - reduces)) for op in slow.ops))
    last = max(index for index, op in enumerate(graph.ops) if op.kind == "memcpy")
    assert simulate(slow).end_s[last] > simulate(free).end_s[last] + 0.01


def test_a_slower_backward_pass_delays_the_main_thread() -> None:
    """Autograd's thread and the main thread take turns: time added to one is not absorbed by the other's idling."""
    graph = real("nccl_ddp")
    lanes = {lane.name: number for number, lane in enumerate(graph.lanes)}
    backward = lanes["thread 2919752"]
    host_s = sum(op.duration_s for op in graph.ops if op.lane == backward)
    slower = replace(
        graph,
        ops=tuple(replace(op, duration_s=2 * op.duration_s) if op.lane == backward else op for op in graph.ops),
    )
    assert simulate(slower).makespan_s - simulate(graph).makespan_s == pytest.approx(host_s, rel=0.02)


def test_the_missing_rank_of_the_real_run_is_reported() -> None:
    notes = real("nccl_ddp").notes
    assert any(note.startswith("no trace of rank 1 of 2: 21 collectives") for note in notes)
    assert any("42 stream waits told from the order of calls" in note for note in notes)
    assert not any("nothing explains" in note for note in notes)


def test_both_engines_replay_alike() -> None:
    graph = real("alexnet")
    assert simulate(graph).end_s == pytest.approx(engine.run(to_program(graph)).end_s, rel=1e-12)


def test_an_unexplained_wait_is_the_largest_discrepancy(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.kernel("prompt", 0, 10, 10)
    trace.kernel("late", 10, 500, 10)
    replayed = replay(load([trace.write(tmp_path / "trace.json")]))
    worst = replayed.unexplained()[0]
    assert worst.op.name == "late"
    assert worst.seconds == pytest.approx(480e-6)
    assert replayed.steps[0].error == pytest.approx(-480 / 510, rel=0.05)


def test_summary_of_a_standard_pass(tmp_path: Path) -> None:
    """Nothing overlaps in the standard wiring: all communication is exposed."""
    summary = summarize_run(load([tensor_parallel().write(tmp_path / "trace.json")]))
    rank = summary.ranks[0]
    assert rank.comm_s == pytest.approx(6 * 60e-6)
    assert rank.exposed_s == pytest.approx(rank.comm_s)
    assert sum(summary.critical_s.values()) == pytest.approx(summary.seconds)
    assert summary.critical_s["all_reduce"] == pytest.approx(rank.comm_s)
