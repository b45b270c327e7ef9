"""Files for Perfetto: by the format's rules, and back again."""

import json
import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim.des import engine
from ladder_sim.des.program import Program
from ladder_sim.errors import DeadlockError, UsageError
from ladder_sim.traces import perfetto
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.kineto.reader import read_document
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import from_timeline, simulate, with_times
from ladder_sim.traces.summary import summarize_run
from tests.conftest import DATA
from tests.support.strategies import damaged, programs, sharing_programs
from tests.support.trace_files import COMPUTE, tensor_parallel


def reread(graph: TraceGraph, path: Path) -> TraceGraph:
    perfetto.write({"run": graph}, path)
    return load([path])


def round_trip(program: Program, folder: Path) -> tuple[float, float]:
    """The makespan of a simulated program, and that of its exported timeline."""
    timeline = engine.run(program)
    graph = from_timeline(timeline, ["kernel"] * len(program.tasks))
    back = reread(graph, folder / "simulated.json.gz")
    assert back == graph
    assert [op.after for op in back.ops] == [task.after for task in program.tasks]
    return timeline.makespan_s, simulate(back).makespan_s


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@given(programs())
def test_a_simulated_timeline_comes_back(folder: Path, program: Program) -> None:
    simulated_s, exported_s = round_trip(program, folder)
    assert exported_s == pytest.approx(simulated_s, rel=1e-9, abs=1e-12)


@given(sharing_programs())
def test_a_timeline_of_a_shared_gpu_comes_back(folder: Path, program: Program) -> None:
    """What was shared is gone, but not what it cost."""
    simulated_s, exported_s = round_trip(program, folder)
    assert exported_s == pytest.approx(simulated_s, rel=1e-9, abs=1e-12)


def exported(*graphs: TraceGraph) -> list[dict[str, Any]]:
    document = json.loads(perfetto.to_json({f"run {number}": graph for number, graph in enumerate(graphs)}))
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def imported(tmp_path: Path, stream: int = COMPUTE) -> TraceGraph:
    return load([tensor_parallel(stream=stream).write(tmp_path / "trace.json")])


def test_events_follow_the_format(tmp_path: Path) -> None:
    """Every event has what its phase needs; slices of a thread nest or follow each other; arrows have both ends."""
    graph = imported(tmp_path, stream=20)
    events = exported(with_times(graph, simulate(graph)))
    needs = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur"},
        "M": {"name", "pid", "args"},
        "s": {"name", "cat", "pid", "tid", "ts", "id"},
        "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    }
    for event in events:
        assert needs[event["ph"]] <= set(event)
    slices: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    for queue in slices.values():
        ends = 0.0
        for event in sorted(queue, key=lambda event: event["ts"]):
            assert event["ts"] >= ends - 1e-6
            ends = event["ts"] + event["dur"]
    arrows = Counter((event["ph"], event["id"]) for event in events if event["ph"] in "sf")
    assert set(arrows.values()) == {1}
    assert {number for phase, number in arrows if phase == "s"} == {number for phase, number in arrows if phase == "f"}
    for event in events:
        if event["ph"] in "sf":
            homes = slices[event["pid"], event["tid"]]
            assert any(home["ts"] <= event["ts"] <= home["ts"] + home["dur"] for home in homes)


def test_processes_threads_and_exposed_communication_are_named(tmp_path: Path) -> None:
    events = exported(imported(tmp_path, stream=20))
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"rank 0", "thread 4000", "stream 7", "stream 20", "exposed communication"}
    exposed = [event["dur"] for event in events if event.get("cat") == "exposed"]
    assert exposed == pytest.approx([60.0] * 6)


def test_two_runs_share_a_file_but_no_process(tmp_path: Path) -> None:
    graph = imported(tmp_path)
    events = exported(graph, graph)
    assert len({event["pid"] for event in events}) == 2
    arrows = Counter(event["id"] for event in events if event["ph"] == "s")
    assert set(arrows.values()) == {1}
    path = tmp_path / "both.json"
    perfetto.write({"a": graph, "b": graph}, path)
    with pytest.raises(UsageError, match="several runs: a, b"):
        load([path])


def test_our_reader_sees_slices_as_kineto_would(tmp_path: Path) -> None:
    """An exported file is also a plain trace for other tools: kernels are kernels."""
    path = tmp_path / "run.json"
    perfetto.write({"run": imported(tmp_path)}, path)
    kept = [event for event in read_document(path)["traceEvents"] if event is not None and len(event) == 7]
    assert {event.category for event in kept} == {"kernel", "cpu_op"}


def test_an_exported_file_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    perfetto.write({"run": imported(tmp_path)}, path)
    with pytest.raises(UsageError, match="holds all ranks"):
        load([path, path])
    with pytest.raises(UsageError, match="cannot be written"):
        perfetto.write({}, tmp_path / "absent" / "run.json")


def test_a_file_without_one_of_its_ops_is_refused(tmp_path: Path) -> None:
    """The ops behind it would wait for others than they did."""
    document = json.loads(perfetto.to_json({"run": imported(tmp_path)}))
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("args", {}).get("op") != 3]
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="was changed since it was exported: an op is missing"):
        load([path])


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("start_s", float("nan"), "op 3: its times must be numbers"),
        ("duration_s", "long", "op 3: its times must be numbers"),
        ("duration_s", -1e-6, "op 3: its times must be numbers"),
        ("duration_s", 10**400, "op 3: its times must be numbers"),
        ("end_s", 0.0, "op 3: it ends before it starts"),
        ("lane", 99, "op 3: there is no lane 99"),
        ("lane", -1, "op 3: there is no lane -1"),
        ("step", 0, "op 3: there is no step 0"),
        ("after", [10_000], "op 3: it waits for an op that there is not"),
        ("after", "12", "op 3: it waits for an op that there is not"),
        ("group", "tp", "op 3: its group must be a whole number"),
        ("blocks", 0.5, "op 3: sizes must be 0 or more"),
        ("name", 7, "op 3: its name, kind, scope and group must be text"),
        ("collective", {"message_bytes": -8}, "op 3: sizes must be 0 or more"),
    ],
)
def test_a_file_whose_ops_were_edited_is_refused(tmp_path: Path, field: str, value: object, says: str) -> None:
    """Regression: such a file ended in a traceback, or in times that are no numbers."""
    document = json.loads(perfetto.to_json({"run": imported(tmp_path)}))
    drawn = (event["args"] for event in document["traceEvents"] if "args" in event)
    row = next(row for row in (*drawn, *document["ladder_sim"]["not_drawn"]) if row.get("op") == 3)
    row[field] = value
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"was changed since it was exported: {says}"):
        load([path])


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_an_exported_file_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    document = json.loads(perfetto.to_json({"run": imported(tmp_path)}))
    path = tmp_path / "x.json"
    path.write_bytes(data.draw(damaged(document)))
    try:
        graph = load([path])
    except UsageError:
        return
    summarize_run(graph)
    with suppress(DeadlockError):
        assert math.isfinite(simulate(graph).makespan_s)


def test_a_real_trace_comes_back(tmp_path: Path) -> None:
    graph = load([DATA / "traces" / "nccl_ddp.json.gz"])
    assert reread(graph, tmp_path / "real.json.gz") == graph
    assert reread(replace(graph, notes=()), tmp_path / "real.json") == replace(graph, notes=())
