"""Files as they come: merged, one for each phase, with other files, by other versions and for other devices."""

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import Lane, TraceGraph, TraceOp
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from tests.support.trace_files import MAIN, TraceFile, decode_graph, tensor_parallel


def written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def content(graph: TraceGraph) -> list[tuple[str, str, float]]:
    return sorted((op.name, op.kind, round(op.duration_s, 9)) for op in graph.ops)


def test_ranks_in_one_file(tmp_path: Path) -> None:
    """Regression: their equal correlation ids were one rank's, and "the dependencies contradict each other"."""
    traces = [decode_graph(rank) for rank in range(2)]
    apart = load([trace.write(tmp_path / f"rank{rank}.json") for rank, trace in enumerate(traces)])
    events = []
    for rank, trace in enumerate(traces):
        events += [{**event, "pid": f"[TP0{rank}] {event['pid']}"} for event in trace.events]
    merged = load([written(tmp_path / "merged.json", {"schemaVersion": 1, "traceEvents": events})])
    assert {lane.rank for lane in merged.lanes} == {0, 1}
    assert content(merged) == content(apart)
    assert merged.steps == apart.steps


def test_processes_without_a_tag_are_refused(tmp_path: Path) -> None:
    first, second = tensor_parallel(), tensor_parallel()
    for event in second.events:
        event["pid"] += 1
    first.events += second.events
    with pytest.raises(UsageError, match="holds 2 processes with the same correlation ids"):
        load([first.write(tmp_path / "both.json")])


def test_ranks_by_their_files(tmp_path: Path) -> None:
    for rank in range(2):
        trace = tensor_parallel()
        trace.metadata.pop("distributedInfo")
        trace.write(tmp_path / f"1763-TP-{rank}-DECODE.trace.json")
    assert {lane.rank for lane in load([tmp_path]).lanes} == {0, 1}
    tensor_parallel().write(tmp_path / "1763-TP-0-EXTEND.trace.json")
    with pytest.raises(UsageError, match="two of the traces are of rank 0") as refused:
        load([tmp_path])
    assert refused.value.hint == f"give the files of one phase, for example {tmp_path}/*EXTEND*"


@pytest.mark.parametrize(
    ("name", "rank"),
    [("qwen_tp8_rank3.json", 3), ("rank3_tp8.json", 3), ("1763-TP-3-DECODE.trace.json", 3), ("qwen_tp8.json", 0)],
)
def test_a_rank_in_a_name(tmp_path: Path, name: str, rank: int) -> None:
    trace = tensor_parallel()
    trace.metadata.pop("distributedInfo")
    assert {lane.rank for lane in load([trace.write(tmp_path / name)]).lanes} == {rank}


def test_other_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    tensor_parallel().write(tmp_path / "rank0.json")
    stray = written(tmp_path / "server_args.json", {"tp": 8})
    assert "'server_args.json' is no trace, left out" in load([tmp_path]).notes
    with pytest.raises(UsageError, match="has no list 'traceEvents'"):
        load([stray])
    (tmp_path / "rank0.json").unlink()
    with pytest.raises(UsageError, match="has no list 'traceEvents'"):
        load([tmp_path])


def test_calls_of_any_device_count(tmp_path: Path) -> None:
    """Regression: those of category xpu_runtime vanished, and what they launched had no launch."""
    trace = decode_graph()
    graph = load([trace.write(tmp_path / "rank0.json")])
    for event in trace.events:
        event["cat"] = event["cat"].replace("cuda_", "xpu_")
    assert load([trace.write(tmp_path / "rank0.json")]) == graph


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    trace = decode_graph()
    for _ in range(3):
        trace.event("hpu_op", "gemm", 0, 10, 1)
    trace.event("python_function", "model.py(3): forward", 0, 10, MAIN)
    notes = load([trace.write(tmp_path / "rank0.json")]).notes
    assert "3 events of the unknown category 'hpu_op', left out" in notes
    assert any(note.startswith("1 Python frames (with_stack=True)") for note in notes)
    assert not any("python_function" in note for note in notes)


def test_files_of_pytorch_1_10(tmp_path: Path) -> None:
    """Regression: refused, as one without GPU events."""
    trace = tensor_parallel()
    trace.sync_events = False
    trace.step(3, 0, 20_000)
    graph = load([trace.write(tmp_path / "rank0.json")])
    former = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    for event in trace.events:
        event["cat"] = "Operator" if event["cat"] == "user_annotation" else former.get(event["cat"], event["cat"])
    assert load([trace.write(tmp_path / "rank0.json")]) == graph


def test_notes_of_all_ranks_come_once(tmp_path: Path) -> None:
    notes = load([decode_graph(rank).write(tmp_path / f"rank{rank}.json") for rank in range(2)]).notes
    assert len(notes) == 1
    other = decode_graph(1)
    other.event("hpu_op", "gemm", 0, 10, 1)
    other.write(tmp_path / "rank1.json")
    assert "rank 1: 1 events of the unknown category 'hpu_op', left out" in load([tmp_path]).notes


def test_steps_by_annotations(tmp_path: Path) -> None:
    """From one to the next; the last has no next, and what comes long behind it is no part of it."""
    trace = decode_graph(steps=3)
    marks = [event for event in trace.events if event["cat"] == "user_annotation"]
    behind = marks[-1]["ts"] + 10 * (marks[1]["ts"] - marks[0]["ts"])
    trace.kernel("late", behind, behind + 10, 5)
    trace.event("user_annotation", "forward", marks[1]["ts"] + 1, 200, MAIN)
    path = trace.write(tmp_path / "rank0.json")
    graph = load([path])
    assert graph.steps == tuple(f"execute_context_0(0)_generation_16(16) #{number}" for number in (1, 2, 3))
    counts = [sum(op.step == step and op.kind == "all_reduce" for op in graph.ops) for step in range(3)]
    assert counts == [64, 64, 64]
    assert all(op.step == -1 for op in graph.ops if op.name == "late")
    assert load([path], marks="for*").steps == ("forward",)
    with pytest.raises(UsageError, match=r"no annotation of trace 'rank0\.json' matches 'x'") as refused:
        load([path], marks="x")
    assert refused.value.hint == "annotations and NVTX ranges: 'execute_context_0(0)_generation_16(16)', 'forward'"


def test_the_last_step_is_the_last_with_anything_in_it(tmp_path: Path) -> None:
    trace = decode_graph(steps=2)
    trace.event("user_annotation", "execute_context_0(0)_generation_16(16)", 1e6, 10, MAIN)
    graph = load([trace.write(tmp_path / "rank0.json")])
    assert len(graph.steps) == 3
    assert choose_step(graph, None).steps == graph.steps[1:2]


def test_a_step_that_launches_nothing_keeps_its_cpu_threads() -> None:
    """Regression: the last step of a CPU's single rank was empty."""
    ops = tuple(
        TraceOp(name="mm", kind="gemm", lane=0, start_s=at, end_s=at + 1.0, duration_s=1.0, step=at) for at in range(2)
    )
    graph = TraceGraph(ops=ops, lanes=(Lane(name="thread 1", rank=0, device=False),), steps=("first", "last"))
    assert [op.name for op in choose_step(graph, None).ops] == ["mm"]


def test_a_file_of_one_step(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.kernel("gemm", 0, 10, 20)
    trace.step(0, 0, 100)
    assert load([trace.write(tmp_path / "rank0.json")]).steps == ("ProfilerStep#0",)
