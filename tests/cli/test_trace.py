"""`ladder-sim trace`, command by command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ladder_sim.cli.trace import trace
from ladder_sim.des.program import NO_GROUP
from ladder_sim.errors import LadderSimError, MemoryFitError, UsageError
from ladder_sim.report.traces import trace_figure
from ladder_sim.traces import perfetto
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay
from tests.support import commands
from tests.support.trace_files import COMM, LAYERS, TraceFile, decode_graph, tensor_parallel


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace, [str(argument) for argument in arguments])


def shown(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tensor_parallel(stream=COMM).write(tmp_path / "rank0.json.gz")


def test_info_shows_ops_communication_and_what_is_missing(file: Path) -> None:
    text = shown("info", file, "--explain")
    for expected in ("ncclDevKernel_AllReduce", "exposed", "Critical path", "no trace of rank 1 of 2"):
        assert expected in text
    document = json.loads(shown("info", file, "--json"))
    assert document["schema_version"] == 2
    assert document["ranks"][0]["exposed_s"] == pytest.approx(2 * LAYERS * 60e-6)
    assert document["notes"]


def test_import_writes_what_the_others_read(file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "graph.json.gz"
    assert "Ops by time" not in shown("import", file, "--save", saved)
    assert load([saved]) == load([file])
    assert shown("replay", saved) == shown("replay", file)


def test_replay_compares_with_the_recording_and_gates(file: Path, tmp_path: Path) -> None:
    assert "error" in shown("replay", file)
    assert "change" in shown("replay", file, "--scale", "gemm=0")
    [step] = json.loads(shown("replay", file, "--json", "--scale", "gemm=0"))["steps"]
    assert step["change"] < 0
    assert step["error"] == pytest.approx(step["replayed_s"] / step["recorded_s"] - 1.0)
    # a wait that nothing explains
    late = tensor_parallel(stream=COMM)
    late.kernel("late", 9_000, 20_000, 10)
    done = run("replay", late.write(tmp_path / "late.json"), "--max-error", "0.001")
    assert isinstance(done.exception, LadderSimError)
    assert done.exception.exit_code == 1
    assert "over --max-error" in done.exception.message
    saved = tmp_path / "replayed.json"
    shown("replay", file, "--save-trace", saved, "--no-communication", "--no-launch-gaps")
    assert not any(op.communicates for op in load([saved]).ops)


def test_predict_answers_what_ladder_would_give(file: Path, tmp_path: Path) -> None:
    text = shown("predict", file, "--no-launch-gaps", "--variant", "standard,ladder")
    assert f"{LAYERS} layers, {2 * LAYERS} of {2 * LAYERS} all-reduces found" in text
    saved = tmp_path / "variants.json"
    document = json.loads(shown("predict", file, "--no-launch-gaps", "--json", "--save-trace", saved))
    assert list(document["variants"]) == ["standard", "ladder", "upper-bound"]
    assert 1.0 < document["variants"]["ladder"]["speedup"] < document["variants"]["upper-bound"]["speedup"]
    assert saved.is_file()


def test_another_interconnect_changes_the_prediction(file: Path) -> None:
    def exposed_s(*flags: str) -> float:
        document = json.loads(shown("predict", file, "--no-launch-gaps", "--json", *flags))
        exposed: float = document["variants"]["standard"]["exposed_s"]
        return exposed

    assert exposed_s("--interconnect", "l40s-pcie") > exposed_s("--interconnect", "h100-sxm") > 0
    assert exposed_s("--interconnect", "h100-sxm", "--nodes", "2") > exposed_s("--interconnect", "h100-sxm")


def test_export_writes_a_predicted_step_that_predict_reads(tmp_path: Path) -> None:
    path = tmp_path / "standard.json.gz"
    shown("export", path, "--model", "8b", "--tp", "4", "--profile", "none", "--variant", "standard")
    graph = load([path])
    assert sum(op.kind == "all_reduce" for op in graph.ops) == 64
    assert graph.ops[-1].end_s > 0
    assert "32 layers, 64 of 64 all-reduces found" in shown("predict", path)


def test_a_change_of_nothing_changes_nothing(tmp_path: Path) -> None:
    """Regression: the change was that from the recording to the replay, which leaves out gaps."""
    path = decode_graph().write(tmp_path / "rank0.json")
    for step in json.loads(shown("replay", path, "--json", "--scale", "norm=1"))["steps"]:
        assert step["change"] == 0.0
        assert step["error"] == pytest.approx(0.0, abs=0.005)
    for step in json.loads(shown("replay", path, "--json", "--drop-gaps"))["steps"]:
        assert step["change"] < -0.1
    assert "recorded and replayed" in shown("predict", path, "--explain")
    kept, dropped = (json.loads(shown("predict", path, "--json", *flag))["variants"] for flag in ((), ("--drop-gaps",)))
    assert dropped["standard"]["seconds"] < 0.9 * kept["standard"]["seconds"]
    assert dropped["ladder"]["speedup"] > kept["ladder"]["speedup"]


def test_a_part_of_a_run(tmp_path: Path) -> None:
    path = decode_graph(steps=3).write(tmp_path / "rank0.json")
    name = "execute_context_0(0)_generation_16(16) #2"
    steps = json.loads(shown("replay", path, "--json", "--step", name))["steps"]
    assert [step["name"] for step in steps] == [name]
    assert "--step" not in shown("info", path, "--step", name)
    assert f"steps: {name[:-1]}1, " in shown("info", path, "--annotation", "execute*", "--explain")
    early, whole = (json.loads(shown("info", path, "--json", *flags)) for flags in (("--to", "1ms"), ()))
    counts = [sum(row["count"] for row in document["ops"]) for document in (early, whole)]
    assert 0 < counts[0] < 0.2 * counts[1]
    done = run("info", path, "--from", "1s")
    assert isinstance(done.exception, UsageError)
    assert "nothing starts from 1 s" in done.exception.message


def test_a_run_differs_from_itself_by_nothing(file: Path) -> None:
    """Regression: both had one name, which ended as a bug."""
    assert "+0.0 %" in shown("diff", file, file)


def test_few_all_reduces_in_passes_are_warned_of(tmp_path: Path) -> None:
    trace = tensor_parallel(stream=COMM)
    for number in range(3):
        trace.kernel("convolution", 9_000 + 100 * number, 11_700 + 70 * number, 50)
        trace.all_reduce(9_010 + 100 * number, 11_750 + 70 * number, 20)
    text = shown("predict", trace.write(tmp_path / "rank0.json"))
    assert f"{2 * LAYERS} of {2 * LAYERS + 3} all-reduces" in text
    assert "Less than 90 % of the all-reduces are in passes" in text


def test_a_ladder_run_is_no_standard_run(tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    shown("export", path, "--model", "8b", "--tp", "4", "--profile", "none", "--variant", "ladder", "--gen", "2")
    # what was predicted knows its wiring, what was recorded does not
    perfetto.write({"recorded": replace(load([path]), origin=None)}, path)
    done = run("predict", path)
    assert isinstance(done.exception, UsageError)
    assert "or do not wait for them" in done.exception.message


def test_a_norm_in_an_all_reduce_stays_with_the_computation(tmp_path: Path) -> None:
    """Rewired, it is a kernel of its own again, as a prediction of the ladder has it."""
    exported = {}
    for variant in ("standard", "ladder"):
        path = tmp_path / f"{variant}.json"
        shown("export", path, "--model", "8b", "--tp", "4", "--stack", "vllm", "--gen", "2", "--variant", variant)
        exported[variant] = load([path])
    fused = [op for op in exported["standard"].ops if op.kind == "all_reduce_norm"]
    assert len(fused) == 64
    assert all(op.communicates for op in fused)
    # as if it were recorded
    perfetto.write({"standard": replace(exported["standard"], origin=None)}, tmp_path / "standard.json")
    document = json.loads(shown("predict", tmp_path / "standard.json", "--json"))
    assert document["layers"] == 32
    predicted_s = max(op.end_s for op in exported["ladder"].ops)
    assert document["variants"]["ladder"]["seconds"] == pytest.approx(predicted_s, rel=0.05)
    assert "64 all-reduces hold a norm, which stays with the computation" in shown(
        "predict", tmp_path / "standard.json", "--explain"
    )


def test_export_heeds_jitter_seed_and_memory(tmp_path: Path) -> None:
    """Regression: it took the flags of `predict` and left these out."""
    path = tmp_path / "step.json"
    command = ("export", path, "--model", "8b", "--tp", "4", "--set", "model.layers=3", "--variant", "standard")
    shown(*command)
    alone = load([path])
    written = []
    for flags in (("--set", "jitter=0.1"), ("--set", "jitter=0.1"), ("--set", "jitter=0.1", "--set", "seed=7")):
        shown(*command, *flags)
        written.append(path.read_bytes())
    graph = load([path])
    assert written[0] == written[1] != written[2]
    assert {lane.rank for lane in graph.lanes} == {0, 1, 2, 3}
    assert len(graph.ops) == 4 * len(alone.ops)
    assert sum(op.kind == "all_reduce" for op in graph.ops) == 4 * 6
    # ranks come to an all-reduce one after the other, and run it together
    reduced = [[op for op in graph.ops if op.group == group] for group in {op.group for op in graph.ops} - {NO_GROUP}]
    assert len(reduced) >= 6
    assert all(len({op.start_s for op in ops}) == 1 and len(ops) == 4 for ops in reduced)
    norms = [op.duration_s for op in graph.ops if op.name == "layer0.attn.norm"]
    assert len(set(norms)) == 4
    replayed = replay(graph)
    assert all(step.error == pytest.approx(0, abs=1e-9) for step in replayed.steps)
    assert replayed.unexplained() == []
    small = ("--set", "gpu.hbm=1GB")
    assert isinstance(run(*command, *small).exception, MemoryFitError)
    shown(*command, *small, "--set", "ignore_memory=true")


def test_names_of_a_trace_do_not_move_the_cursor(tmp_path: Path) -> None:
    """Regression: a kernel's name could clear the screen, or set the title of the window."""
    hostile = "\x1b[2J\x1b]0;own\x07\x9b31m\u202e"
    trace_file = tensor_parallel(stream=COMM)
    for event in trace_file.events:
        event["name"] = f"{hostile}{event['name']}" if event["cat"] == "kernel" else event["name"]
    trace_file.event("user_annotation", f"ProfilerStep#{hostile}", 0, 1e6, 1)
    path = trace_file.write(tmp_path / "rank0.json.gz")
    for command in (["info"], ["replay"], ["diff", str(path)], ["predict"], ["predict", "--step", "x"]):
        done = commands.run("trace", *command, str(path))
        assert (done.out + done.err).replace("\n", "").isprintable(), command
    assert r"\x1b[2J" in shown("info", path)


def test_diff_puts_two_runs_side_by_side(file: Path, tmp_path: Path) -> None:
    replayed, both = tmp_path / "replayed.json", tmp_path / "both.json"
    shown("replay", file, "--save-trace", replayed)
    text = shown("diff", file, replayed, "--save-trace", both)
    assert "rank0.json.gz" in text
    assert "exposed communication" in text
    processes = {
        event["args"]["name"]
        for event in json.loads(both.read_text())["traceEvents"]
        if event["name"] == "process_name"
    }
    assert processes == {"rank0.json.gz: rank 0", "replayed.json: rank 0"}


def test_plots_are_drawn(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "timeline.html"
    shown("predict", file, "--plot", page, "--no-launch-gaps")
    text = page.read_text(encoding="utf-8")
    for row in ("ladder, stream 7", "standard, exposed", "communication"):
        assert row in text


def test_a_timeline_has_its_streams_in_order_and_marks_iterations(tmp_path: Path) -> None:
    recorded = tensor_parallel(stream=COMM)
    recorded.step(3, 0, 20_000)
    graph = load([recorded.write(tmp_path / "rank0.json")])
    layout = trace_figure({"recorded": graph}, "run").layout
    rows = ["thread 4000", "stream 7", f"stream {COMM}", "exposed"]
    # the first of them at the top
    assert list(layout.yaxis.categoryarray) == rows[::-1]
    assert [mark.text for mark in layout.annotations] == ["ProfilerStep#3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "FILE", "--scale", "gemm"), "not KIND=FACTOR"),
        (("replay", "FILE", "--scale", "gemm=fast"), "not KIND=FACTOR"),
        (("replay", "FILE", "--tp", "4"), "need --interconnect"),
        (("predict", "FILE", "--step", "ProfilerStep#9"), "no step"),
        (("predict", "FILE", "--stream-wait", "fast"), "--stream-wait"),
        (("export", "FILE", "--phase", "training"), "unknown phase"),
        (("info", "FILE", "--plot", "timeline.gif"), "unknown extension"),
    ],
)
def test_errors_say_what_to_do(file: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(*(str(file) if argument == "FILE" else argument for argument in arguments))
    assert isinstance(done.exception, UsageError)
    assert says in done.exception.message
    assert done.exception.hint


def test_a_trace_without_blocks_is_no_traceback(tmp_path: Path) -> None:
    empty = TraceFile()
    empty.kernel("gemm", 0, 10, 10)
    done = run("predict", empty.write(tmp_path / "one.json"))
    assert isinstance(done.exception, UsageError)
    assert "no transformer blocks" in done.exception.message
