"""What a trace becomes: which op, on which stream, after what."""

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay, simulate
from tests.support.nsys_files import write_nsys
from tests.support.strategies import damaged
from tests.support.trace_files import COMM, COMPUTE, MAIN, Ahead, TraceFile, tensor_parallel

US = 1e-6
OTHER = 21
Saved = Callable[[TraceFile], TraceGraph]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Writes a trace and reads it back."""
    return lambda trace: load([trace.write(tmp_path / "trace.json.gz")])


def end_us(graph: TraceGraph) -> float:
    return simulate(graph).makespan_s / US


def named(graph: TraceGraph, name: str) -> int:
    return next(index for index, op in enumerate(graph.ops) if op.name == name)


def cut(graph: TraceGraph, before: int, after: int) -> TraceGraph:
    """Without the dependency of one op on another."""
    ops = list(graph.ops)
    assert before in ops[after].after
    ops[after] = replace(ops[after], after=tuple(index for index in ops[after].after if index != before))
    return replace(graph, ops=tuple(ops))


def two_streams() -> TraceFile:
    trace = TraceFile()
    trace.kernel("first_gemm", 0, 10, 100)
    trace.wait(10, 12, on=COMPUTE, by=COMM)
    trace.kernel("second", 20, 110, 50, stream=COMM)
    trace.kernel("third", 30, 110, 20)
    return trace


def test_an_event_wait_holds_a_stream_back(saved: Saved) -> None:
    graph = saved(two_streams())
    assert [lane.name for lane in graph.lanes] == ["thread 4000", "stream 20", "stream 7"]
    first, second = named(graph, "first_gemm"), named(graph, "second")
    assert first in graph.ops[second].after
    assert graph.ops[first].kind == "gemm"
    # launched by 5, 100 long, then 50: what the kernel waited from its launch to its start is not a dependency
    assert end_us(graph) == pytest.approx(5 + 100 + 50)


@pytest.mark.parametrize("by_the_cpu", [False, True])
def test_an_event_is_behind_what_its_stream_waits_for(saved: Saved, by_the_cpu: bool) -> None:
    """Regression: an event recorded right behind a wait was that of the op before the wait."""
    trace = TraceFile()
    trace.kernel("short_gemm", 0, 10, 10)
    trace.kernel("long", 6, 12, 500, stream=COMM)
    trace.wait(20, 22, on=COMM, by=COMPUTE)
    if by_the_cpu:
        synchronized = trace.call("cudaStreamSynchronize", 30, 482)
        trace.sync("Stream Sync", 30, 482, synchronized, stream=COMPUTE)
    else:
        trace.wait(30, 32, on=COMPUTE, by=OTHER)
    trace.kernel("last", 520, 530, 50, stream=OTHER)
    graph = saved(trace)
    long, last = (named(graph, name) for name in ("long", "last"))
    waiting = next(index for index, op in enumerate(graph.ops) if op.kind == "sync") if by_the_cpu else last
    assert long in graph.ops[waiting].after


def test_each_imported_dependency_counts(saved: Saved) -> None:
    graph = saved(two_streams())
    first, second = named(graph, "first_gemm"), named(graph, "second")
    assert end_us(cut(graph, first, second)) == pytest.approx(5 + 100 + 20)
    launch = next(before for before in graph.ops[first].after if graph.ops[before].kind == "launch")
    assert end_us(cut(graph, launch, first)) == pytest.approx(100 + 50)


def test_launch_gaps_belong_to_the_thread(saved: Saved) -> None:
    """A device that waits for a slow CPU has no idle time of its own."""
    trace = TraceFile()
    for number in range(4):
        trace.kernel(f"kernel{number}", 100 * number, 100 * number + 5, 10)
    graph = saved(trace)
    assert end_us(graph) == pytest.approx(315)
    for op in graph.ops:
        assert op.lead_s == 0
        if graph.lanes[op.lane].device:
            assert op.duration_s == pytest.approx(10 * US)
    assert sum(op.duration_s for op in graph.ops if op.kind == "host") == pytest.approx(3 * 95 * US)


@pytest.mark.parametrize(
    ("name", "kind", "args"),
    [
        ("cudaStreamSynchronize", "Stream Sync", {"stream": COMPUTE}),
        ("cudaDeviceSynchronize", "Context Sync", {"stream": -1}),
    ],
)
def test_a_blocking_call_takes_no_longer_than_what_it_waits_for(
    saved: Saved, name: str, kind: str, args: dict[str, int]
) -> None:
    trace = TraceFile()
    trace.kernel("slow", 0, 5, 500)
    correlation = trace.call(name, 10, 500)
    trace.sync(kind, 10, 500, correlation, **args)
    trace.kernel("next", 520, 530, 10)
    graph = saved(trace)
    assert end_us(graph) == pytest.approx(535)
    halved = replace(
        graph, ops=tuple(replace(op, duration_s=op.duration_s / 2) if op.name == "slow" else op for op in graph.ops)
    )
    assert end_us(halved) == pytest.approx(535 - 250)


def test_a_thread_waits_for_an_event(saved: Saved) -> None:
    trace = TraceFile()
    trace.kernel("awaited", 0, 5, 100)
    record = trace.call("cudaEventRecord", 6, 1)
    trace.kernel("later", 10, 105, 300)
    correlation = trace.call("cudaEventSynchronize", 20, 90)
    trace.sync("Event Sync", 20, 90, correlation, wait_on_stream=COMPUTE, wait_on_cuda_event_record_corr_id=record)
    graph = saved(trace)
    waiting = named(graph, "cudaEventSynchronize")
    assert [graph.ops[before].name for before in graph.ops[waiting].after] == ["awaited"]
    assert graph.ops[waiting].duration_s == pytest.approx(5 * US)


def test_a_copy_to_pageable_memory_blocks(saved: Saved) -> None:
    trace = TraceFile()
    trace.kernel("producer", 0, 5, 200)
    trace.kernel("Memcpy DtoH (Device -> Pageable)", 10, 205, 10, call=210, category="gpu_memcpy")
    trace.kernel("next", 225, 235, 10)
    graph = saved(trace)
    fast = replace(graph, ops=tuple(replace(op, duration_s=0.0) if op.name == "producer" else op for op in graph.ops))
    assert end_us(graph) - end_us(fast) == pytest.approx(195)


def test_an_event_recorded_before_the_trace_is_reported(saved: Saved) -> None:
    trace = two_streams()
    for event in trace.events:
        if event["cat"] == "cuda_sync":
            event["args"]["wait_on_cuda_event_record_corr_id"] = 1
    graph = saved(trace)
    assert any("recorded outside the trace" in note for note in graph.notes)


def test_a_wait_that_the_times_contradict_is_left_out(saved: Saved) -> None:
    trace = two_streams()
    next(event for event in trace.events if event["name"] == "second")["ts"] = 60
    graph = saved(trace)
    assert any("contradict" in note for note in graph.notes)
    assert named(graph, "first_gemm") not in graph.ops[named(graph, "second")].after


def test_a_kernel_without_a_launch_is_reported(saved: Saved) -> None:
    trace = two_streams()
    trace.event("kernel", "orphan", 200, 10, COMPUTE, stream=COMPUTE, device=0, correlation=1)
    assert any("no recorded launch" in note for note in saved(trace).notes)


def two_collectives_in_a_row() -> TraceFile:
    ahead = Ahead()
    for _ in range(3):
        ahead.run("qkv_gemm")
        ahead.communicate()
        ahead.communicate("_allgather_base")
        ahead.run("up_gemm")
        ahead.communicate()
    ahead.run("lm_head_gemm")
    return ahead.trace


@pytest.mark.parametrize("recorded", [tensor_parallel, two_collectives_in_a_row])
def test_collective_waits_without_sync_events(saved: Saved, recorded: Callable[[], TraceFile]) -> None:
    """Producer and consumer of an all-reduce follow from the order of calls; the note says that it is so.

    Regression: behind two collectives in a row every op waited for the collective before its own.
    """
    trace = recorded()
    with_events = saved(trace)
    trace.events = [event for event in trace.events if event["cat"] != "cuda_sync"]
    without = saved(trace)
    assert [op.after for op in without.ops] == [op.after for op in with_events.ops]
    assert any("no cuda_sync events" in note for note in without.notes)


def test_collective_waits_whose_events_are_nameless(saved: Saved) -> None:
    """CUDA 13: who waits is recorded, but not for what; an all-reduce among the kernels waits for one beside them."""
    trace = TraceFile()
    trace.all_reduce(-80, -70, 50, stream=COMPUTE)
    trace.kernel("attention_gemm", 0, 20, 100)
    trace.wait(8, 10, on=COMPUTE, by=COMM)
    trace.all_reduce(15, 120, 200)
    trace.kernel("mlp_gemm", 30, 120, 100)
    trace.wait(38, 40, on=COMM, by=COMPUTE)
    trace.all_reduce(45, 320, 60, stream=COMPUTE)
    with_records = saved(trace)
    for event in trace.events:
        if event["cat"] == "cuda_sync":
            event["args"] |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    without = saved(trace)
    assert end_us(without) == end_us(with_records) == pytest.approx(445)
    assert [op.after for op in without.ops] == [op.after for op in with_records.ops]
    assert any("none of its cuda_sync events" in note for note in without.notes)


def test_a_launch_without_duration_behind_another_call(saved: Saved) -> None:
    """Whole microseconds, as PyTorch up to 2.2 recorded. Regression: it was taken for a part of the call before."""
    trace = TraceFile()
    trace.step(1, 0, 100)
    trace.kernel("one", 0, 10, 20)
    trace.kernel("two", 5, 30, 20, call=0)
    graph = saved(trace)
    assert [graph.ops[named(graph, name)].step for name in ("one", "two")] == [0, 0]
    assert graph.notes == ()


def test_programmatic_dependent_launch_overlaps_on_a_stream(saved: Saved) -> None:
    trace = TraceFile()
    trace.kernel("one", 0, 10, 100)
    trace.kernel("two", 10, 90, 100)
    assert end_us(saved(trace)) == pytest.approx(5 + 180)


def one_graph(*kernels: tuple[str, int, float, float]) -> TraceFile:
    """A CUDA graph, launched by 10: names, streams, starts and durations."""
    trace = TraceFile()
    correlation = trace.call("cudaGraphLaunch", 0, 10)
    for name, stream, start, duration in kernels:
        trace.event("kernel", name, start, duration, stream, stream=stream, device=0, correlation=correlation)
    return trace


def test_streams_of_a_cuda_graph_wait_for_each_other(saved: Saved) -> None:
    """Inside a graph no waits are recorded: what began when another stream's op ended had waited for it."""
    graph = saved(
        one_graph(
            ("one_gemm", COMPUTE, 20, 100),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", COMM, 120, 50),
            ("two_gemm", COMPUTE, 171, 100),
        )
    )
    assert end_us(graph) == pytest.approx(10 + 100 + 50 + 100)
    assert any("streams of a CUDA graph" in note for note in graph.notes)


def test_a_fork_inside_a_cuda_graph(saved: Saved) -> None:
    """The op that the fork was behind counts, although its own stream has begun another since.

    Regression: only the last op that had begun on each stream was asked, so that the branch began with the graph.
    """
    fork = one_graph(
        ("norm", COMPUTE, 10, 40),
        ("short_gemm", COMPUTE, 50, 100),
        ("long_gemm", COMM, 50.3, 150),
        ("join_gemm", COMPUTE, 200.3, 20),
    )
    assert end_us(saved(fork)) == pytest.approx(10 + 40 + 150 + 20)


def test_ops_inside_a_cuda_graph_have_one_clock(saved: Saved) -> None:
    """Regression: an op waited for what ended a microsecond after its start, as if a CPU had recorded one of them."""
    graph = saved(
        one_graph(("one_gemm", COMPUTE, 10, 40), ("branch_gemm", COMM, 10, 41), ("two_gemm", COMPUTE, 50, 20))
    )
    assert named(graph, "branch_gemm") not in graph.ops[named(graph, "two_gemm")].after


def test_all_streams_of_a_cuda_graph_begin_behind_the_one_it_was_put_on(saved: Saved) -> None:
    """Regression: a branch without an op of the graph ahead of it ran next to what was launched before the graph."""
    trace = TraceFile()
    trace.kernel("before", 0, 5, 95)
    correlation = trace.call("cudaGraphLaunch", 10, 10)
    for name, stream, start, duration in (("main", COMPUTE, 100, 50), ("branch", COMM, 100.3, 60)):
        trace.event("kernel", name, start, duration, stream, stream=stream, device=0, correlation=correlation)
    assert end_us(saved(trace)) == pytest.approx(5 + 95 + 60)


def test_a_thread_hands_over_to_another(saved: Saved) -> None:
    """A main thread that is silent while another works waits for it: halving that work shortens the run."""
    trace = TraceFile()
    backward = 5000
    trace.kernel("forward", 0, 5, 20)
    for number in range(10):
        trace.kernel("backward", 100 + 50 * number, 105 + 50 * number, 20, thread=backward)
    trace.kernel("optimizer", 600, 605, 20)
    graph = saved(trace)
    assert end_us(graph) == pytest.approx(625)
    lane = next(number for number, one in enumerate(graph.lanes) if one.name == f"thread {backward}")
    halved = replace(
        graph,
        ops=tuple(
            replace(op, duration_s=op.duration_s / 2) if op.lane == lane and op.kind == "host" else op
            for op in graph.ops
        ),
    )
    # nine gaps of 45 between its launches, and 95 from the hand-over to the first
    assert end_us(graph) - end_us(halved) == pytest.approx((9 * 45 + 95) / 2)


def test_steps_are_found_by_their_marks_and_by_repetition(saved: Saved) -> None:
    trace = TraceFile()
    for step in range(3):
        trace.step(step, 1000 * step, 1000)
        for number in range(4):
            trace.kernel(f"kernel{number}", 1000 * step + 100 * number, 1000 * step + 100 * number + 5, 50)
    marked = saved(trace)
    assert marked.steps == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    unmarked = saved(trace)
    assert unmarked.steps == ("iteration 1", "iteration 2", "iteration 3")
    lengths = [[round(step.recorded_s / US) for step in replay(graph).steps] for graph in (marked, unmarked)]
    assert lengths == [[355] * 3] * 2


def replayed_graphs(layers: int, replays: int) -> TraceFile:
    """CUDA graphs of some layers that run one after another, without a head, marks or waits."""
    trace = TraceFile()
    now = 400.0
    for number in range(replays):
        graph = trace.call("cudaGraphLaunch", 60.0 * number, 50)
        for _ in range(layers):
            for name in ("qkv_gemm", "flash_fwd", "o_gemm", "all_reduce", "up_gemm", "silu", "down_gemm", "all_reduce"):
                kind = "ncclDevKernel_AllReduce" if name == "all_reduce" else name
                trace.event("kernel", kind, now, 20, COMPUTE, stream=COMPUTE, device=0, correlation=graph)
                now += 20.5
        now += 8
    return trace


def test_a_cuda_graph_of_several_layers_is_an_iteration(saved: Saved) -> None:
    """Regression: replays in a row were one pass of all their layers, as long as the first launch took as well."""
    graph = saved(replayed_graphs(layers=3, replays=4))
    assert graph.steps == ("iteration 1", "iteration 2", "iteration 3", "iteration 4")
    assert [forward.layers for forward in find_passes(choose_step(graph, None))] == [3]
    # a graph of one layer is a piece of a pass, which engines compile so
    assert saved(replayed_graphs(layers=1, replays=12)).steps == ()
    # and one that does something else is another part of it
    other = replayed_graphs(layers=3, replays=4)
    other.kernel("head_gemm", 260, 400 + 3 * 8 * 20.5 + 2, 5)
    assert saved(other).steps == ()


def test_layers_are_no_iterations(saved: Saved) -> None:
    assert saved(tensor_parallel()).steps == ()


def ranks(second_host: str, shift: float) -> list[TraceFile]:
    """Two ranks that all-reduce twice; the second computes longer, and its clock may be off."""
    files = []
    for rank, work in ((0, 50), (1, 90)):
        trace = TraceFile(rank, 2, host="node0" if rank == 0 else second_host)
        trace.metadata["baseTimeNanoseconds"] += int(rank * shift * 1000)
        for turn in range(2):
            at = 200 * turn
            trace.kernel("gemm", at, at + 10, work)
            trace.all_reduce(at + 6, at + 10 + work, 130 - work, stream=COMPUTE)
        files.append(trace)
    return files


@pytest.mark.parametrize(("host", "shift"), [("node0", 0.0), ("node1", 1e6)])
def test_ranks_meet_at_collectives(tmp_path: Path, host: str, shift: float) -> None:
    paths = [trace.write(tmp_path / f"rank{number}.json") for number, trace in enumerate(ranks(host, shift))]
    graph = load(paths)
    reduces = [op for op in graph.ops if op.kind == "all_reduce"]
    assert sorted(op.group for op in reduces) == [0, 0, 1, 1]
    # the transfer starts when the slower rank is there
    assert [op.duration_s for op in reduces] == pytest.approx([40 * US] * 4)
    assert graph.notes == ()
    assert end_us(graph) == pytest.approx(340, abs=6)
    faster = replace(graph, ops=tuple(replace(op, duration_s=0.0) if op.name == "gemm" else op for op in graph.ops))
    assert end_us(graph) - end_us(faster) == pytest.approx(90, abs=6)


def test_missing_ranks_are_named_and_their_collectives_keep_their_time(tmp_path: Path) -> None:
    graph = load([ranks("node0", 0.0)[0].write(tmp_path / "rank0.json")])
    assert any("no trace of rank 1 of 2: 2 collectives" in note for note in graph.notes)
    reduces = [op for op in graph.ops if op.kind == "all_reduce"]
    assert [op.duration_s for op in reduces] == pytest.approx([80 * US] * 2)
    assert reduces[0].collective is not None
    assert reduces[0].collective.message_bytes == 4096 * 2
    assert reduces[0].collective.ranks == 2


def test_ranks_whose_recordings_are_out_of_step_do_not_meet(tmp_path: Path) -> None:
    """The n-th collective of one rank is not always the n-th of another: they have to run at the same time."""
    first, second = ranks("node0", 0.0)
    second.events = [event for event in second.events if event["ts"] >= 200]
    graph = load([first.write(tmp_path / "rank0.json"), second.write(tmp_path / "rank1.json")])
    assert {op.group for op in graph.ops} == {-1}
    assert any("3 collectives have no partner" in note for note in graph.notes)


@pytest.mark.parametrize("embedding", [False, True])
@pytest.mark.parametrize("database", [False, True])
def test_ranks_of_two_stages_without_names_of_their_groups(tmp_path: Path, embedding: bool, database: bool) -> None:
    """Regression: the n-th all-reduces of all stages were matched, ran at other times, and so met none of their own.

    In a database, whose processes share a clock, those of the later stage were even shifted to the earlier one's.
    """
    traces = []
    for rank in range(4):
        late, slow = 1000 * (rank // 2), 40 * (rank % 2)
        trace = TraceFile(rank, 4)
        if embedding and not late:
            trace.all_reduce(0, 10, 20, stream=COMPUTE, elements=64)
        for turn in range(2):
            at = late + 200 * (turn + 1)
            trace.kernel("gemm", at, at + 10, 50 + slow)
            trace.all_reduce(at + 6, at + 60 + slow, 80 - slow, stream=COMPUTE)
        for event in trace.events:
            event["args"].pop("Process Group Name", None)
        traces.append(trace)
    if database:
        graph = load([write_nsys(tmp_path / "node.sqlite", traces)])
    else:
        graph = load([trace.write(tmp_path / f"rank{rank}.json") for rank, trace in enumerate(traces)])
    reduces = [op for op in graph.ops if op.kind == "all_reduce"]
    assert sorted(round(op.duration_s / US) for op in reduces) == [20] * 2 * embedding + [40] * 8
    stages = {(op.group, graph.lanes[op.lane].rank // 2) for op in reduces}
    assert len(stages) == len({op.group for op in reduces}) == len(reduces) // 2
    assert graph.notes == ()


def test_a_rank_comes_once(tmp_path: Path) -> None:
    path = two_streams().write(tmp_path / "trace.json")
    with pytest.raises(UsageError, match="two of the traces are of rank 0"):
        load([path, path])


WHOLE = json.dumps(two_streams().document()).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(WHOLE)[:-40], "cut off or damaged"),
        (WHOLE[: len(WHOLE) // 2], "cut off"),
        (b'{"traceEvents": [1, 2,, 3]}', "is not JSON"),
        (b"", "is empty"),
        (gzip.compress(b" " * 10**6), "is empty: 1000000 blanks"),
        (b"{}", "no list 'traceEvents'"),
        (b'{"traceEvents": 3}', "no list 'traceEvents'"),
        (b"[[[]]]", "no events of calls"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "now", "dur": 1}]}', "unknown schema"),
        (b'{"traceEvents": []}', "no events of calls"),
        (b'{"ladder_sim": {"schema_version": 99}, "traceEvents": []}', "schema_version 99; this ladder-sim reads"),
        (b'{"ladder_sim": {"schema_version": 1, "runs": ["a"]}, "traceEvents": []}', "changed since"),
        (b'{"ladder_sim": {"schema_version": 1, "runs": ["a", "b"]}, "traceEvents": []}', "several runs: a, b"),
        (b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_unreadable_files_say_what_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=says) as caught:
        load([path])
    assert "trace.json" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("event", "info", "says"),
    [
        ({"ts": float("nan")}, {}, "times must be finite"),
        ({"dur": -40}, {}, "0 or longer"),
        ({"dur": float("inf")}, {}, "times must be finite"),
        ({"ts": "soon"}, {}, "unknown schema"),
        ({"name": 7}, {}, "its name must be text"),
        ({"args": [1]}, {}, "its args an object"),
        ({}, {"world_size": 10**12}, "world_size is 1000000000000: must be a whole number from 1 to 1000000"),
        ({}, {"rank": -1}, "rank is -1"),
        ({}, {"rank": "x"}, "rank is 'x'"),
    ],
)
def test_impossible_times_and_ranks_are_refused(
    tmp_path: Path, event: dict[str, object], info: dict[str, object], says: str
) -> None:
    """NaN went into --json, a negative duration into a speedup, and the list of missing ranks into all memory."""
    document = json.loads(WHOLE)
    kernel = next(entry for entry in document["traceEvents"] if entry.get("cat") == "kernel")
    kernel.update(event)
    document["distributedInfo"] = {**document.get("distributedInfo", {}), **info}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=says):
        load([path])


@given(damaged(two_streams().document()) | damaged(tensor_parallel().document()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_trace_is_seen(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    try:
        graph = load([path])
    except UsageError:
        return
    assert math.isfinite(simulate(graph).makespan_s)


def test_a_kernel_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    document = json.loads(WHOLE)
    kernel = next(entry for entry in document["traceEvents"] if entry.get("cat") == "kernel")
    document["traceEvents"].append(kernel)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="twice"):
        load([path])


def test_traces_without_gpu_events_say_what_they_hold(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.event("cpu_op", "aten::mm", 0, 10, MAIN)
    with pytest.raises(UsageError, match="operators, but neither GPU events nor collectives of CPUs"):
        load([trace.write(tmp_path / "cpu.json")])
    trace.call("cudaLaunchKernel", 0, 5)
    with pytest.raises(UsageError, match="calls of the CUDA runtime, but no GPU events"):
        load([trace.write(tmp_path / "calls.json")])
    with pytest.raises(UsageError, match="no such file"):
        load([tmp_path / "absent.json"])


def test_a_folder_of_folders_names_those_with_traces(tmp_path: Path) -> None:
    """As `trace capture` writes them, one for each variant."""
    for name in ("standard", "ladder", "other"):
        (tmp_path / name).mkdir()
    for name in ("standard", "ladder"):
        two_streams().write(tmp_path / name / "rank0.json")
    with pytest.raises(UsageError, match="no traces in the folder") as caught:
        load([tmp_path])
    assert caught.value.hint == f"give one of {tmp_path / 'ladder'}, {tmp_path / 'standard'}"


def test_a_folder_stands_for_its_traces(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no traces in the folder"):
        load([tmp_path])
    path = two_streams().write(tmp_path / "rank0.json")
    (tmp_path / "rank0.execution.json").write_text("{}")
    assert load([tmp_path]) == load([path]) == load(sorted(tmp_path.iterdir()))


def test_an_emulated_link_carries_one_message_after_the_other(tmp_path: Path) -> None:
    """Two messages issued at once: the second begins when the first ends, and the operator when the second ends."""
    trace = TraceFile()
    trace.event("cpu_op", "aten::mm", 0, 100, MAIN)
    trace.event("user_annotation", "link:all_reduce 1, 64 bytes, 500.0 us", 100, 10, MAIN)
    trace.event("user_annotation", "link:all_reduce 2, 64 bytes, 985.0 us", 115, 10, MAIN)
    trace.event("user_annotation", "link:wait 2", 130, 975, MAIN)
    trace.event("cpu_op", "aten::add", 1105, 50, MAIN)
    graph = load([trace.write(tmp_path / "rank0.json")])
    messages = [op for op in graph.ops if op.communicates]
    assert [op.duration_s for op in messages] == pytest.approx([500e-6, 500e-6])
    assert graph.ops[-1].start_s == pytest.approx(1105e-6)
    slower = replace(graph, ops=tuple(replace(op, duration_s=1e-3) if op.communicates else op for op in graph.ops))
    assert simulate(slower).makespan_s - simulate(graph).makespan_s == pytest.approx(1e-3)


def test_execution_traces_of_another_schema(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.event("cpu_op", "c10d::allreduce_", 0, 10, MAIN, **{"Record function id": 1})
    trace.event("user_annotation", "gloo:all_reduce", 5, 20, 2, **{"Record function id": 2})
    path = trace.write(tmp_path / "rank0.json")
    (tmp_path / "rank0.execution.json").write_text("{}")
    with pytest.raises(UsageError, match="no list 'nodes'"):
        load([path])


def test_collectives_meet_in_the_order_of_their_issue(tmp_path: Path) -> None:
    """On rank 1 the gloo thread of the second begins a moment before that of the first."""
    for rank, starts in enumerate(((30, 50), (32, 31))):
        trace = TraceFile(rank, world_size=2)
        for number, (start, end) in enumerate(zip(starts, (100, 70), strict=True)):
            issue = 2 * number + 1
            trace.event("cpu_op", "c10d::allreduce_", 10 * number, 5, MAIN, **{"Record function id": issue})
            trace.event(
                "user_annotation", "gloo:all_reduce", start, end - start, number, **{"Record function id": issue + 1}
            )
        trace.write(tmp_path / f"rank{rank}.json")
    graph = load([tmp_path])
    reduces = [op for op in graph.ops if op.kind == "all_reduce"]
    ends = {group: {op.end_s for op in reduces if op.group == group} for group in (0, 1)}
    assert sorted(map(len, ends.values())) == [1, 1]
    assert graph.notes == ()


@pytest.mark.parametrize(("busy", "waits"), [(False, False), (True, True)])
def test_an_asynchronous_copy_waits_only_behind_others(saved: Saved, busy: bool, waits: bool) -> None:
    """It may be over within its call by chance; behind a kernel it cannot, unless the call waits."""
    trace = TraceFile()
    trace.kernel("gemm", 0, 10, 20 if not busy else 100)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 50, 112, 1, call=65, category="gpu_memcpy")
    graph = saved(trace)
    assert any(op.kind == "sync" for op in graph.ops) == waits


def test_a_trace_in_milliseconds_is_refused(saved: Saved) -> None:
    """Regression: kernels kept a thousandth of their times, next to launches of microseconds: "0.07x"."""
    trace = TraceFile()
    for start in range(5):
        trace.kernel("gemm", 0.05 * start, 0.05 * start + 0.01, 0.03)
    with pytest.raises(UsageError, match=r"half of the kernels of a trace last less than 0\.03 us"):
        saved(trace)


@pytest.mark.parametrize(
    ("start", "lasts", "message"),
    [
        (1000.0, 1000.0, r"the shortest of 50 kernels lasts 1e\+03 us"),
        (1.0, 1000.0, r"kernels of stream 7 last 5e\+04 us together, in 1\.05e\+03 us: it runs one at a time"),
    ],
)
def test_a_trace_in_nanoseconds_is_refused(saved: Saved, start: float, lasts: float, message: str) -> None:
    """Regression: steps took seconds; with nanoseconds in durations alone a trace had "no communication"."""
    trace = TraceFile()
    for number in range(50):
        trace.kernel("gemm", start * number, start * (number + 1), lasts)
    with pytest.raises(UsageError, match=message):
        saved(trace)


def test_an_event_without_its_duration_is_refused(saved: Saved) -> None:
    """Regression: kernels without one took no time, and the answer said nothing of it."""
    trace = TraceFile()
    trace.kernel("gemm", 0, 10, 30)
    del trace.events[-1]["dur"]
    with pytest.raises(UsageError, match="has no dur: it still ran"):
        saved(trace)
