"""A standard run in another wiring: what the simulator itself predicts, and answers worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ladder_sim import Scenario
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des import scan
from ladder_sim.des.shared import NOTHING
from ladder_sim.errors import UsageError
from ladder_sim.kernels import Phase
from ladder_sim.simulate import passes
from ladder_sim.traces import perfetto
from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import choose_step, step_position
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import from_timeline, replay, simulate
from ladder_sim.traces.wirings import predict_variants, rewire
from tests.support.trace_files import COMM, COMPUTE, KERNEL_US, LAYERS, REDUCE_US, TraceFile, tensor_parallel

US = 1e-6
ALIKE = {
    # the same kernels in every wiring, all ranks at the same speed
    "stack.residual_add": "apart",
    "stack.allreduce": "nccl",
    "cluster.rank_skew": "0",
}


def predicted(variant: str, phase: Phase, stack: str) -> TraceGraph:
    """Our own simulation of every layer, with nothing shared: a trace does not say what was."""
    scenario = Scenario(model="8b", tp=8, batch=4, stack=stack, variant=variant, overrides=ALIKE)
    hardware = Hardware.of(scenario)
    # at the clocks that the GPU has in standard
    hardware = replace(hardware, stack=replace(hardware.stack, sustained_rate=1.0))
    costs = KernelCosts(scenario, None, hardware)
    schedule, program = passes.simulate(scenario, phase, 1100, costs).lowered(scenario.model.layers)
    program = replace(program, device=None, tasks=tuple(task._replace(demand=NOTHING) for task in program.tasks))
    kinds = ["launch"] * (len(program.tasks) - len(schedule.ops)) + [op.kind for op in schedule.ops]
    return from_timeline(scan.run(program), kinds)


@pytest.mark.parametrize(
    ("stack", "bound"),
    [
        # replicated embedding: the wirings differ in their dependencies only
        ("gpt-fast", 1e-12),
        # in ladder another op waits for the embedding's own all-reduce, which costs one stream wait
        ("vllm", 1e-3),
    ],
)
def test_rewired_standard_is_what_the_simulator_predicts(tmp_path: Path, stack: str, bound: float) -> None:
    """Exported, read back and rewired, a simulated standard pass takes what the simulated variant takes."""
    path = tmp_path / "standard.json"
    phases: tuple[Phase, ...] = ("prefill", "decode")
    for phase in phases:
        perfetto.write({"standard": predicted("standard", phase, stack)}, path)
        standard = load([path])
        for variant in ("standard", "ladder", "hybrid-ladder:7"):
            rewired_s = simulate(rewire(standard, variant)).makespan_s
            expected_s = max(op.end_s for op in predicted(variant, phase, stack).ops)
            assert rewired_s == pytest.approx(expected_s, rel=bound), (phase, variant)


def recorded(tmp_path: Path, stream: int, *, ahead: bool = True) -> TraceGraph:
    """The pass of `tensor_parallel`; `ahead`: launched in no time, as by a CUDA graph."""
    graph = load([tensor_parallel(stream=stream).write(tmp_path / "trace.json")])
    if not ahead:
        return graph
    return replace(
        graph,
        ops=tuple(replace(op, duration_s=0.0) if op.kind in ("host", "launch") else op for op in graph.ops),
    )


def seconds(graph: TraceGraph) -> float:
    """Time from when the stream was done with what it did before the recording."""
    return replay(graph).steps[0].replayed_s


# the embedding; a block's five, of which the first has no add; add, norm and LM head
KERNELS = 1 + 5 * 2 * LAYERS - 1 + 3
BUSY_US = KERNELS * KERNEL_US


EXPOSED_US = {
    "standard": 2 * LAYERS * REDUCE_US,
    # a block lasts longer than an all-reduce; only the last is waited for, while one add runs
    "ladder": REDUCE_US - KERNEL_US,
    # the first 2 layers' all-reduces but the last, which the ladder layer's attention covers, and the final one
    "hybrid-ladder:1": (2 * LAYERS - 3) * REDUCE_US + REDUCE_US - KERNEL_US,
    "parallel": LAYERS * REDUCE_US,
    "upper-bound": 0,
}


@pytest.mark.parametrize("stream", [COMM, COMPUTE])
def test_answers_worked_out_by_hand(tmp_path: Path, stream: int) -> None:
    graph = recorded(tmp_path, stream)
    assert [forward.layers for forward in find_passes(graph)] == [LAYERS]
    for variant, exposed_us in EXPOSED_US.items():
        length_s = seconds(rewire(graph, variant, stream_wait_s=0.0))
        assert length_s == pytest.approx((BUSY_US + exposed_us) * US, rel=1e-9), variant


def test_launches_that_fall_behind_leave_nothing_to_gain(tmp_path: Path) -> None:
    """Launch-bound, a run takes as long as its launches in any wiring."""
    graph = recorded(tmp_path, COMM, ahead=False)
    slow = replace(
        graph,
        ops=tuple(replace(op, duration_s=2000 * US) if op.kind == "launch" else op for op in graph.ops),
    )
    standard, ladder = (seconds(rewire(slow, name)) for name in ("standard", "ladder"))
    assert ladder == pytest.approx(standard, rel=0.01)


def test_waiting_for_another_stream_costs_where_the_trace_shows_no_wait(tmp_path: Path) -> None:
    graph = recorded(tmp_path, COMPUTE)
    free, paid = (simulate(rewire(graph, "ladder", stream_wait_s=cost)).makespan_s for cost in (0.0, 1e-6))
    # every block but the first two waits, and both adds at the end
    assert paid - free == pytest.approx(2 * LAYERS * US, rel=0.4)
    assert simulate(rewire(graph, "standard", stream_wait_s=1e-6)).makespan_s == pytest.approx(
        simulate(graph).makespan_s
    )


def test_a_fused_add_stays_in_its_norm(tmp_path: Path) -> None:
    trace = tensor_parallel()
    trace.events = [event for event in trace.events if "CUDAFunctor_add" not in event["name"]]
    graph = load([trace.write(tmp_path / "fused.json")])
    still = replace(
        graph,
        ops=tuple(replace(op, duration_s=0.0) if op.kind in ("host", "launch") else op for op in graph.ops),
    )
    # without adds of their own the last two all-reduces are awaited by the last norm
    busy_us = (1 + 4 * 2 * LAYERS + 2) * KERNEL_US
    assert seconds(rewire(still, "ladder")) == pytest.approx((busy_us + REDUCE_US) * US, rel=1e-9)


def test_several_passes_and_an_embedding_all_reduce(tmp_path: Path) -> None:
    trace = tensor_parallel()
    trace.append(tensor_parallel(), 20_000.0)
    graph = load([trace.write(tmp_path / "twice.json")])
    assert [forward.layers for forward in find_passes(graph)] == [LAYERS, LAYERS]
    step = choose_step(graph, None)
    assert graph.steps == ("iteration 1", "iteration 2")
    assert [forward.layers for forward in find_passes(step)] == [LAYERS]


def test_no_blocks_no_rewiring(tmp_path: Path) -> None:
    trace = TraceFile()
    for number in range(6):
        trace.kernel("gemm", 100 * number, 100 * number + 5, 50)
        trace.all_reduce(100 * number + 10, 100 * number + 60, 20)
    graph = load([trace.write(tmp_path / "one.json")])
    with pytest.raises(UsageError, match="no transformer blocks found: the trace has 6 all-reduces"):
        rewire(graph, "ladder")
    with pytest.raises(UsageError, match="needs kernels that a standard run lacks, or another order of its adds"):
        rewire(graph, "desync:2")
    with pytest.raises(UsageError, match="no step 'x'"):
        choose_step(graph, "x")


def test_a_step_is_chosen_by_its_name_or_number() -> None:
    steps = ("ProfilerStep#3", "ProfilerStep#13", "a#4", "b#4", "#4")
    graph = TraceGraph(ops=(), lanes=(), steps=steps)
    assert [step_position(graph, step) for step in ("3", "13", "#4", "a#4")] == [0, 1, 4, 2]
    with pytest.raises(UsageError, match="no step '4'"):
        step_position(graph, "4")


def test_hybrid_ladder_has_no_more_layers_than_the_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 3 can be ladder"):
        rewire(recorded(tmp_path, COMM), f"hybrid-ladder:{LAYERS + 1}")


def test_variants_are_compared_with_the_recording(tmp_path: Path) -> None:
    times = predict_variants(recorded(tmp_path, COMM), ["standard", "ladder", "Ladder"])
    assert list(times) == ["standard", "ladder"]
    assert times["standard"].speedup == pytest.approx(1.0)
    wanted = (BUSY_US + 2 * LAYERS * REDUCE_US) / (BUSY_US + REDUCE_US - KERNEL_US)
    assert times["ladder"].speedup == pytest.approx(wanted, rel=1e-6)
    assert times["ladder"].comm.exposed_s == pytest.approx((REDUCE_US - KERNEL_US) * US)


def layered(attentions: Sequence[str], mlps: Sequence[str], *, awaited: bool = True) -> TraceFile:
    """A pass with these kernels in its blocks; `awaited`: the computation waits for each all-reduce."""
    trace = TraceFile()
    called = 0.0

    def run(name: str) -> None:
        nonlocal called
        trace.kernel(name, called, 10_000 + 10 * called, 40)
        called += 6

    run("embedding")
    for attention, mlp in zip(attentions, mlps, strict=True):
        for name in (attention, mlp):
            run("rms_norm_kernel")
            run(name)
            trace.wait(called, called + 1, on=COMPUTE, by=COMM)
            trace.all_reduce(called + 3, 10_000 + 10 * called, 30)
            if awaited:
                trace.wait(called + 9, called + 10, on=COMM, by=COMPUTE)
            called += 12
    run("lm_head_gemm")
    return trace


@pytest.mark.parametrize(
    ("attentions", "mlps"),
    [
        (["full_gemm", "sliding_gemm"] * 4, ["mlp_gemm"] * 8),
        (["full_gemm", *["sliding_gemm"] * 5] * 2, ["mlp_gemm"] * 12),
        (["qkv_gemm"] * 8, [*["mlp_gemm"] * 3, *["experts_gemm"] * 5]),
        (["qkv_gemm"] * 8, ["mlp_gemm", *["experts_gemm"] * 7]),
    ],
)
def test_layers_of_several_kinds_are_one_pass(tmp_path: Path, attentions: list[str], mlps: list[str]) -> None:
    """Regression: a layer had to equal the one before, so that each stretch of a kind was rewired as a model."""
    graph = load([layered(attentions, mlps).write(tmp_path / "trace.json")])
    assert [forward.layers for forward in find_passes(graph)] == [len(attentions)]


def test_reductions_of_gradients_are_no_blocks(tmp_path: Path) -> None:
    """Regression: 2 layers in data-parallel training, where nothing waits, or where half of them have no GEMM."""
    for trace in (
        layered(["qkv_gemm"] * 6, ["mlp_gemm"] * 6, awaited=False),
        layered(["convolution"] * 6, ["batch_norm"] * 6),
    ):
        with pytest.raises(UsageError, match="no transformer blocks"):
            find_passes(load([trace.write(tmp_path / "trace.json")]))
