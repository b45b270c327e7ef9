"""Databases of Nsight Systems say what the profiler's traces say."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.load import load
from tests.support.nsys_files import write_nsys
from tests.support.trace_files import COMM, DECODE_LAYERS, LAYERS, TraceFile, decode_graph, tensor_parallel


def content(graph: TraceGraph) -> list[tuple[object, ...]]:
    """All but names of copies and threads, in an order of its own."""
    return sorted(
        (
            graph.lanes[op.lane].rank,
            op.kind,
            round(1e9 * op.start_s),
            round(1e9 * op.duration_s),
            sorted(graph.ops[before].name for before in op.after if graph.ops[before].kind != "memcpy"),
            op.step,
        )
        for op in graph.ops
    )


def test_ranks_of_a_node_in_one_database(tmp_path: Path) -> None:
    traces = [decode_graph(rank) for rank in range(2)]
    apart = load([trace.write(tmp_path / f"rank{rank}.json") for rank, trace in enumerate(traces)])
    graph = load([write_nsys(tmp_path / "node.sqlite", traces)])
    assert content(graph) == content(apart)
    assert graph.steps == apart.steps
    assert [forward.layers for forward in find_passes(graph)] == [DECODE_LAYERS] * 2 * 3


def test_waits_and_steps_by_nvtx(tmp_path: Path) -> None:
    trace = tensor_parallel(stream=COMM)
    trace.metadata.pop("distributedInfo")
    trace.event("user_annotation", "[Executor] _forward_step 4: 0 ctx reqs, 1 gen reqs", 0, 30_000, 4000)
    kineto = load([trace.write(tmp_path / "trace.json")])
    graph = load([write_nsys(tmp_path / "trace.sqlite", [trace])])
    assert content(graph) == content(kineto)
    assert graph.steps == ("[Executor] _forward_step 4: 0 ctx reqs, 1 gen reqs",)
    assert [forward.layers for forward in find_passes(graph)] == [LAYERS]


def test_a_database_for_each_rank(tmp_path: Path) -> None:
    for rank in range(2):
        write_nsys(tmp_path / f"worker_rank{rank}.sqlite", [decode_graph(rank)])
    assert {lane.rank for lane in load([tmp_path]).lanes} == {0, 1}


def test_graphs_without_their_kernels_are_said(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "trace.sqlite", [decode_graph()])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2, 0, 1, 7, 1, 67108864000, 5, 5)")
        connection.commit()
    assert "1 CUDA graphs without their kernels: record with --cuda-graph-trace=node" in load([path]).notes


def test_only_graphs_without_their_kernels_say_how_to_record_them(tmp_path: Path) -> None:
    """Regression: predict said "0 all-reduces", and nothing of what would help."""
    trace = TraceFile()
    for number in range(3):
        trace.call("cudaGraphLaunch", 1000 * number, 8)
    path = write_nsys(tmp_path / "trace.sqlite", [trace])
    with closing(sqlite3.connect(path)) as connection:
        for number in range(3):
            start = 1_000_000 * number + 9_000
            place = f"0, 1, 7, {101 + number}, 67108864000, 5, 5"
            connection.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({start}, {start + 900_000}, {place})"
            )
        connection.commit()
    with pytest.raises(UsageError, match="the CUDA graphs were recorded without their kernels") as refused:
        find_passes(load([path]))
    assert refused.value.hint == "record with nsys profile --cuda-graph-trace=node"


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("trace.nsys-rep", b"", "is a report"),
        ("trace.sqlite", b"no database" * 100, "is no database of Nsight Systems"),
        ("trace.sqlite", b"", "it has no table StringIds"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=says) as refused:
        load([tmp_path / name])
    assert "nsys export --type sqlite" in str(refused.value.hint)


def test_a_view_is_no_table(tmp_path: Path) -> None:
    """Regression: one whose rows have no end was read for ever."""
    path = write_nsys(tmp_path / "trace.sqlite", [decode_graph()])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
        rows = "WITH RECURSIVE endless(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM endless)"
        connection.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS {rows} SELECT * FROM endless")
        connection.commit()
    with pytest.raises(UsageError, match="it has no table CUPTI_ACTIVITY_KIND_RUNTIME"):
        load([path])


def test_an_absent_or_empty_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        load([tmp_path / "trace.sqlite"])
    with pytest.raises(UsageError, match="no process that used a GPU"):
        load([write_nsys(tmp_path / "empty.sqlite", [TraceFile()])])
