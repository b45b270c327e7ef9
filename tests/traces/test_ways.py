"""Ways of writing tensor parallelism in plain PyTorch: recorded steps whose ladder was measured too."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ladder_sim.costs.estimate import memory_steps
from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import Collective, Lane, TraceGraph, TraceOp
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import GLOO_BYTE_S, GLOO_MESSAGE_S, Contention, default_contention, replay, simulate
from ladder_sim.traces.whatif import without_communication
from ladder_sim.traces.wirings import predict_variants
from tests.conftest import DATA
from tests.support.trace_files import MAIN, TraceFile

LAYERS = 6
# arguments of asynchronous and blocking calls for 8 tokens, and of what gloo's thread does
ISSUED: dict[str, Any] = {"Input Dims": [[[8, 512]], [], [], [], []], "Concrete Inputs": ["", "", "", "", "True"]}
BLOCKING: dict[str, Any] = {"Input Dims": [[[8, 512]], [], [], [], []], "Concrete Inputs": ["", "", "", "", "False"]}
REDUCED: dict[str, Any] = {"Input Dims": [[8, 512]], "Input type": ["float"]}


def recorded(way: str) -> TraceGraph:
    return choose_step(load([DATA / "traces" / "tp" / way]), None)


@pytest.mark.parametrize("way", ["hf_tp_plan", "dtensor_tp", "compiled_tp"])
def test_a_recorded_way_is_a_standard_run_of_all_its_layers(way: str) -> None:
    """Regression: the waits of functional collectives were ignored, so that the standard row was 0.8 of itself."""
    step = recorded(way)
    assert step.notes == ()
    assert [forward.layers for forward in find_passes(step)] == [LAYERS, LAYERS]
    times = predict_variants(step, ["standard", "ladder", "upper-bound"])
    assert times["standard"].speedup == 1.0
    assert times["standard"].comm.hidden_s < 0.02 * times["standard"].comm.comm_s
    assert 1.0 < times["ladder"].speedup < times["upper-bound"].speedup


def test_threads_of_gloo_do_no_work_of_their_own() -> None:
    """Regression: an all-gather's copies on gloo's thread made it a CPU thread, and its silence before them work."""
    step = recorded("hf_tp_plan")
    assert not [
        lane for lane in step.lanes if lane.name.startswith("thread") and lane.name.endswith(("21945", "21946"))
    ]
    times = predict_variants(step, ["ladder"])
    # both measured
    assert times["ladder"].speedup == pytest.approx(1.50, rel=0.1)
    alone = replay(without_communication(step)).steps[0].replayed_s
    assert replay(step).steps[0].replayed_s / alone == pytest.approx(2.54, rel=0.1)


def test_functional_collectives_are_awaited_where_they_say() -> None:
    assert predict_variants(recorded("dtensor_tp"), ["ladder"])["ladder"].speedup == pytest.approx(1.41, rel=0.1)


def test_a_compiled_step_is_rewired_as_its_ladder_was_measured() -> None:
    turns = load([DATA / "traces" / "tp" / "torch_compile_turns"])
    measured_s = [step.recorded_s for step in replay(turns).steps]
    errors = []
    for first in range(0, len(measured_s), 2):
        step = turns.of_step(first)
        times = predict_variants(step, ["standard", "ladder"], contention=default_contention(step))
        assert times["standard"].speedup == 1.0
        errors.append(times["ladder"].seconds / measured_s[first + 1] - 1.0)
    assert len(errors) == 5
    assert abs(median(errors)) < 0.1


def test_functional_waits_are_for_functional_collectives(tmp_path: Path) -> None:
    """Regression: they took asynchronous calls of the same shape that nobody waited for yet."""
    trace = TraceFile()
    trace.event("cpu_op", "aten::mm", 0, 100, MAIN)
    trace.event("cpu_op", "c10d::allreduce_", 100, 20, MAIN, **ISSUED)
    trace.event("user_annotation", "gloo:all_reduce", 120, 100, 8, **REDUCED)
    trace.event("cpu_op", "_c10d_functional::all_reduce_", 120, 30, MAIN)
    trace.event("cpu_op", "c10d::allreduce_", 125, 20, MAIN, **ISSUED)
    trace.event("user_annotation", "gloo:all_reduce", 145, 300, 9, **REDUCED)
    trace.event("cpu_op", "_c10d_functional::wait_tensor", 150, 300, MAIN, **{"Input Dims": [[8, 512]]})
    trace.event("cpu_op", "aten::add", 450, 10, MAIN)
    graph = load([trace.write(tmp_path / "rank0.json")])
    [wait] = [op for op in graph.ops if op.kind == "sync"]
    assert [graph.lanes[graph.ops[before].lane].name for before in wait.after] == ["gloo 9"]


def asynchronous(*, waits: bool, beside: bool = True) -> TraceFile:
    """Megatron's way: issue an all-reduce, compute what does not need it, wait. gloo takes 600 us of its thread 9."""
    trace = TraceFile()
    now = 0.0
    for number in range(8):
        trace.event("cpu_op", "aten::mm" if number % 2 else "aten::linear", now, 300, MAIN)
        trace.event("cpu_op", "c10d::allreduce_", now + 310, 20, MAIN, **ISSUED)
        trace.event("user_annotation", "gloo:all_reduce", now + 330, 600 if waits else 100, 9, **REDUCED)
        trace.event("cpu_op", "aten::copy_", now + 400, 10, 9)
        if beside:
            trace.event("cpu_op", "aten::mul", now + 340, 100, MAIN)
        now += 960 if waits else 460
    trace.event("cpu_op", "aten::add", now, 10, MAIN)
    return trace


def test_a_wait_without_an_event_shows_as_silence(tmp_path: Path) -> None:
    graph = load([asynchronous(waits=True).write(tmp_path / "rank0.json")])
    waits = [op for op in graph.ops if op.kind == "sync"]
    assert [graph.ops[op.after[0]].kind for op in waits] == ["all_reduce"] * 8
    assert [lane.name for lane in graph.lanes] == ["gloo 9", f"thread {MAIN}"]
    [forward] = find_passes(graph)
    assert forward.layers == 4
    # without that silence nobody is known to wait
    notes = load([asynchronous(waits=False).write(tmp_path / "rank0.json")]).notes
    assert any("asynchronous collectives without a recorded wait" in note for note in notes)


def shared_memory() -> TraceFile:
    """vLLM on CPUs: two steps of four layers, and one without requests."""
    trace = TraceFile()
    tensor: dict[str, Any] = {"Input Dims": [[], [2, 512]], "Input type": ["Scalar", "float"]}
    now = 0.0
    for step in range(2):
        first = now
        for number in range(8):
            trace.event("cpu_op", "_C::onednn_mm" if number % 2 else "aten::linear", now, 300, MAIN)
            trace.event("cpu_op", "_C::shm_allreduce", now + 300, 200, MAIN, **tensor)
            trace.event("cpu_op", "aten::mul", now + 500, 100, MAIN)
            now += 600
        trace.event("user_annotation", f"execute_context_0(0)_generation_2(2) #{step}", first, now - first, MAIN)
    trace.event("cpu_op", "aten::mul", now + 10, 10, MAIN)
    trace.event("user_annotation", "execute_context_0(0)_generation_0(0)", now, 30, MAIN)
    return trace


def test_collectives_through_shared_memory_block_and_are_work_of_the_core(tmp_path: Path) -> None:
    graph = load([shared_memory().write(tmp_path / "rank0.json")])
    step = choose_step(graph, None)
    assert sum(op.kind == "all_reduce" for op in step.ops) == 8
    assert {op.collective.message_bytes for op in step.ops if op.collective} == {2 * 512 * 4}
    assert [forward.layers for forward in find_passes(step)] == [4]
    assert replay(step).steps[0].replayed_s == pytest.approx(4.8e-3)
    times = predict_variants(step, ["standard", "ladder", "upper-bound"], contention=default_contention(step))
    assert times["standard"].speedup == 1.0
    assert times["upper-bound"].speedup == pytest.approx(1.5)
    # a core that they leave a tenth of
    assert times["ladder"].speedup < 1.04


def test_gloo_takes_time_of_the_core(tmp_path: Path) -> None:
    """Of 600 us, what it works itself; while it waits for the network, the rank computes at full speed."""
    step = load([asynchronous(waits=True, beside=False).write(tmp_path / "rank0.json")])
    free, shared = (
        predict_variants(step, ["standard", "ladder", "upper-bound"], contention=contention)
        for contention in (None, default_contention(step))
    )
    assert shared["standard"].seconds == free["standard"].seconds
    assert shared["upper-bound"].seconds == pytest.approx(free["upper-bound"].seconds)
    lost_s = shared["ladder"].seconds - free["ladder"].seconds
    assert 0.0 < lost_s <= 8 * (GLOO_MESSAGE_S + GLOO_BYTE_S * 8 * 512 * 4)


def test_what_overlapped_in_the_recording_is_not_slowed_again(tmp_path: Path) -> None:
    """Regression: a step with other messages under its computation took longer without its all-reduces."""
    trace = TraceFile()
    now = 0.0
    for number in range(8):
        trace.event("cpu_op", "c10d::allgather_", now, 20, MAIN, **ISSUED)
        trace.event("user_annotation", "gloo:all_gather", now + 20, 1000, 9, **REDUCED)
        trace.event("cpu_op", "aten::mm" if number % 2 else "aten::linear", now + 20, 1000, MAIN)
        trace.event("cpu_op", "c10d::allreduce_", now + 1100, 100, MAIN, **BLOCKING)
        trace.event("user_annotation", "gloo:all_reduce", now + 1105, 90, 8, **REDUCED)
        now += 1210
    step = load([trace.write(tmp_path / "rank0.json")])
    times = predict_variants(step, ["standard", "upper-bound"], contention=default_contention(step))
    assert times["standard"].speedup == 1.0
    # 90 us of 1.21 ms, eight times
    assert 1.05 < times["upper-bound"].speedup < 1.1


def test_a_block_ends_with_its_call_whenever_gloo_wakes_up(tmp_path: Path) -> None:
    """Regression: what ran until gloo's thread woke up counted as part of the block, so that blocks were not alike."""
    trace = TraceFile()
    now = 0.0
    for late in (False, True, False):
        trace.event("cpu_op", "aten::mm", now, 100, MAIN)
        trace.event("cpu_op", "c10d::allreduce_", now + 110, 10, MAIN, **ISSUED)
        trace.event("cpu_op", "aten::view", now + 125, 5, MAIN)
        trace.event("user_annotation", "gloo:all_reduce", now + (150 if late else 121), 600, 9, **REDUCED)
        now += 400
        trace.event("cpu_op", "aten::linear", now + 400, 100, MAIN)
        trace.event("cpu_op", "c10d::allreduce_", now + 510, 10, MAIN, **ISSUED)
        trace.event("user_annotation", "gloo:all_reduce", now + 521, 600, 9, **REDUCED)
        now += 1200
    trace.event("cpu_op", "aten::add", now, 10, MAIN)
    [forward] = find_passes(load([trace.write(tmp_path / "rank0.json")]))
    assert forward.layers == 3


@pytest.mark.parametrize(("groups", "met"), [([[0, 1], [0], [0, 1]], True), ([[0, 1], [0, 1, 2, 3]], False)])
def test_ranks_meet_where_the_group_is_known(tmp_path: Path, groups: list[list[int]], met: bool) -> None:
    files = []
    for rank in range(2):
        trace = TraceFile(rank, 2)
        config = [{"pg_name": str(number), "ranks": ranks} for number, ranks in enumerate(groups)]
        trace.metadata["distributedInfo"] |= {"pg_config": config}
        trace.event("cpu_op", "aten::mm", 0, 100 + 200 * rank, MAIN)
        trace.event("cpu_op", "c10d::allreduce_", 101 + 200 * rank, 500 - 200 * rank, MAIN, **BLOCKING)
        trace.event("user_annotation", "gloo:all_reduce", 110 + 200 * rank, 480 - 200 * rank, 9, **REDUCED)
        files.append(trace.write(tmp_path / f"rank{rank}.json"))
    graph = load(files)
    # together they begin when the second is ready
    assert [op.duration_s for op in graph.ops if op.communicates] == pytest.approx([280e-6 if met else 480e-6, 280e-6])
    assert met != any("2 process groups" in note for note in graph.notes)


def test_the_call_says_what_gloo_does(tmp_path: Path) -> None:
    """Regression: a reduce-scatter was an all-reduce, as gloo runs it, and a send hid what its thread computes."""
    trace = TraceFile()
    trace.event("cpu_op", "aten::mm", 0, 100, MAIN)
    trace.event("cpu_op", "c10d::_reduce_scatter_base_", 100, 200, MAIN, **BLOCKING)
    trace.event("user_annotation", "gloo:all_reduce", 110, 180, 9, **REDUCED)
    trace.event("cpu_op", "c10d::send", 300, 100, MAIN, **BLOCKING)
    trace.event("user_annotation", "gloo:send", 350, 60, MAIN, **REDUCED)
    trace.event("cpu_op", "aten::add", 410, 10, MAIN)
    graph = load([trace.write(tmp_path / "rank0.json")])
    assert [op.kind for op in graph.ops if op.communicates] == ["reduce_scatter", "send_recv"]
    assert {"gemm", "add"} <= {op.kind for op in graph.ops}
    assert replay(graph).steps[0].replayed_s == pytest.approx(420e-6)
    with pytest.raises(UsageError, match="without sequence parallelism"):
        find_passes(graph)


def test_thread_blocks_take_sms_of_a_gpu_and_kernels_delay_steps_through_its_memory() -> None:
    """A library's GEMM of an H100 beside an all-reduce of eight ranks that holds 12 of 132 SMs."""
    lanes = (Lane(name="compute"), Lane(name="comm"))
    kernel = TraceOp(name="gemm", kind="gemm", lane=0, blocks=132, start_s=0.0, end_s=1e-4, duration_s=1e-4)
    reduce = replace(kernel, name="reduce", kind="all_reduce", lane=1, blocks=12, duration_s=1.2e-4)
    reduce = replace(reduce, collective=Collective(ranks=8))
    contention = Contention.of_gpu("h100-sxm")
    overlap = contention.overlap
    assert overlap is not None
    steps_s = memory_steps("nccl", "all_reduce", 1, 8) * float(overlap.memory_step_s)

    def ends_us(*ops: TraceOp, by: Contention = contention) -> list[float]:
        return [1e6 * float(end_s) for end_s in simulate(TraceGraph(ops=ops, lanes=lanes), by).end_s]

    def together_us(delay: float, *, waits: float = steps_s / 1.2e-4) -> list[float]:
        kernel_us = 100.0 / (1.0 - overlap.lost * 12 / 132)
        # the collective ends last, alone again from the end of the kernel on
        return [kernel_us, 120.0 + kernel_us * (1.0 - 1.0 / (1.0 + delay * waits))]

    assert ends_us(kernel, replace(reduce, after=(0,))) == pytest.approx([100.0, 220.0])
    of_library = together_us(overlap.gemm_delay)
    assert ends_us(kernel, reduce) == pytest.approx(of_library)
    # a small grid loses as much, and one of a compiler's or of another kind delays less
    assert ends_us(replace(kernel, blocks=100), reduce) == pytest.approx(of_library)
    for other in (replace(kernel, name="triton_red_fused_mm"), replace(kernel, kind="attention")):
        assert ends_us(other, reduce) == pytest.approx(together_us(overlap.kernel_delay))
    # two ranks pass a message on less often; a collective does nothing but wait where its steps take all its time
    assert ends_us(kernel, replace(reduce, collective=Collective(ranks=2)))[1] < of_library[1]
    slow = replace(contention, overlap=replace(overlap, memory_step_s=1e-5))
    assert ends_us(kernel, reduce, by=slow) == pytest.approx(together_us(overlap.gemm_delay, waits=1.0))
    # without a recorded grid nothing is known
    assert ends_us(replace(kernel, blocks=0), reduce) == pytest.approx([100.0, 120.0])
