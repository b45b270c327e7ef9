"""What Perfetto's trace processor makes of the files for it: what it cannot place it drops, stacks or turns around."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ladder_sim import Scenario
from ladder_sim.traces import perfetto
from ladder_sim.traces.graph import Lane, TraceGraph, TraceOp
from ladder_sim.traces.load import load
from ladder_sim.traces.predicted import predicted_run
from ladder_sim.traces.replay import simulate, with_times
from ladder_sim.traces.summary import summarize_run
from ladder_sim.traces.whatif import without_launch_gaps
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.perfetto_processor import Processor, processor
from tests.support.trace_files import COMM, TraceFile, tensor_parallel

pytestmark = pytest.mark.browser

ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
THREADS = """
    select process.name, thread.name from thread join process using (upid)
    where thread.name is not null order by pid, tid
"""
SLICES = """
    select process.name, thread.name, slice.name, ts, dur, depth
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
ARROWS = """
    select extract_arg(before.arg_set_id, 'args.op'), extract_arg(op.arg_set_id, 'args.op')
    from flow join slice before on slice_out = before.id join slice op on slice_in = op.id
"""
EXPOSED = "exposed communication"


@pytest.fixture(scope="module")
def reader() -> Iterator[Processor]:
    with processor() as started:
        yield started


def assert_shown(reader: Processor, runs: dict[str, TraceGraph], file: bytes | None = None) -> None:
    """Every op that takes time stands on its thread at its time, with its arrows; so does exposed communication."""
    reader.load(file or perfetto.to_json(runs).encode())
    assert reader.query(ERRORS) == []
    ranks = [
        (f"{name}: rank {rank}" if len(runs) > 1 else f"rank {rank}", graph, rank)
        for name, graph in runs.items()
        for rank in sorted({lane.rank for lane in graph.lanes})
    ]
    assert reader.query(THREADS) == [
        (process, thread)
        for process, graph, rank in ranks
        for thread in (*(lane.name for lane in graph.lanes if lane.rank == rank), EXPOSED)
    ]
    slices = reader.query(SLICES)
    assert Counter(row for row in slices if row[1] != EXPOSED) == Counter(
        (process, graph.lanes[op.lane].name, op.name, *span, 0)
        for process, graph, rank in ranks
        for op in graph.ops
        if graph.lanes[op.lane].rank == rank and (span := drawn(op))
    )
    for process, graph, rank in ranks:
        exposed_ns = [row[4] for row in slices if row[:3] == (process, EXPOSED, EXPOSED)]
        wanted_s = next(summary.exposed_s for summary in summarize_run(graph).ranks if summary.rank == rank)
        # each end is rounded
        assert sum(exposed_ns) == pytest.approx(wanted_s * 1e9, abs=1 + len(exposed_ns))
    assert Counter(reader.query(ARROWS)) == Counter(
        (before, index)
        for graph in runs.values()
        for index, op in enumerate(graph.ops)
        for before in op.after
        if points(graph.ops[before], op)
    )


def drawn(op: TraceOp) -> tuple[int, int] | None:
    """Start and length in nanoseconds, if it has one."""
    start_ns, end_ns = round(op.start_s * 1e9), round(op.end_s * 1e9)
    return (start_ns, end_ns - start_ns) if start_ns < end_ns else None


def points(before: TraceOp, op: TraceOp) -> bool:
    """Whether an arrow leads from one op to another; a call that blocked may have begun before what it waits for."""
    start, end = drawn(before), drawn(op)
    return before.lane != op.lane and start is not None and end is not None and start[0] <= end[0]


@pytest.mark.parametrize("stack", ["gpt-fast", "vllm"])
def test_a_predicted_run(reader: Processor, stack: str) -> None:
    scenario = Scenario(model="8b", tp=4, variant="ladder", stack=stack)
    assert_shown(reader, {"predicted": predicted_run(scenario, "decode", profile="h100-sxm")})


def test_a_measured_run_beside_its_replay(reader: Processor) -> None:
    """Real times are no whole nanoseconds, and without launch gaps hundreds of ops take no time."""
    graph = load([DATA / "traces" / "nccl_ddp.json.gz"])
    faster = without_launch_gaps(graph)
    assert_shown(reader, {"recorded": graph})
    assert_shown(reader, {"recorded": graph, "replayed": with_times(faster, simulate(faster))})


def test_ranks_that_diff_puts_side_by_side(reader: Processor, tmp_path: Path) -> None:
    files = [two_ranks(rank).write(tmp_path / f"rank{rank}.json.gz") for rank in range(2)]
    recorded, replayed, both = (tmp_path / f"{name}.json" for name in ("recorded", "replayed", "both"))
    for arguments in (
        ("import", *files, "--save", recorded),
        ("replay", *files, "--save-trace", replayed, "--no-launch-gaps"),
        ("diff", recorded, replayed, "--save-trace", both),
    ):
        ran = run("trace", *map(str, arguments))
        assert ran.code == 0, ran.err
    runs = {path.name: load([path]) for path in (recorded, replayed)}
    assert {lane.rank for lane in runs["recorded.json"].lanes} == {0, 1}
    assert_shown(reader, runs, both.read_bytes())


def test_no_arrow_runs_back_in_time(reader: Processor) -> None:
    """Perfetto would turn it around."""
    assert_shown(reader, {"blocked": blocked()})
    assert reader.query(ARROWS) == [(0, 1)]


def test_ops_that_overlap_on_a_stream_are_not_lost(reader: Processor, tmp_path: Path) -> None:
    """A kernel may start before the one ahead of it on its stream has ended; a thread of Perfetto's cannot."""
    graph = blocked()
    kernel = graph.ops[1]
    early = replace(kernel, name="early", start_s=kernel.end_s - 1e-6, end_s=kernel.end_s + 2e-6, after=())
    overlapping = replace(graph, ops=(*graph.ops, early))
    reader.load(perfetto.to_json({"run": overlapping}).encode())
    assert reader.query(ERRORS) == []
    assert reader.query("select ts, dur from slice where name = 'early'") == [(30_000, 2_000)]
    path = tmp_path / "run.json"
    perfetto.write({"run": overlapping}, path)
    assert load([path]) == overlapping


def two_ranks(rank: int) -> TraceFile:
    trace = tensor_parallel(stream=COMM)
    trace.metadata["distributedInfo"]["rank"] = rank
    return trace


def blocked() -> TraceGraph:
    """A launch, a call that waits for its kernel, and the kernel."""
    call = TraceOp(name="cudaLaunchKernel", kind="launch", lane=0, start_s=0, end_s=5e-6, duration_s=5e-6)
    kernel = TraceOp(name="gemm", kind="gemm", lane=1, start_s=9e-6, end_s=3e-5, duration_s=2.1e-5, after=(0,))
    wait = TraceOp(
        name="cudaDeviceSynchronize", kind="sync", lane=0, start_s=5e-6, end_s=3.2e-5, duration_s=2e-6, after=(1,)
    )
    return TraceGraph(ops=(call, kernel, wait), lanes=(Lane(name="thread 1", device=False), Lane(name="stream 7")))
