"""Passes among the messages of experts, pipeline stages and other streams, with answers worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import Cover, cover, find_passes
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay
from ladder_sim.traces.whatif import without_communication
from ladder_sim.traces.wirings import rewire
from tests.support.trace_files import BLOCK, COMM, COMPUTE, KERNEL_US, REDUCE_US, Ahead, TraceFile, tensor_parallel

US = 1e-6
LAYERS = 4
PEER, ASIDE = 22, 21
MESSAGE_US = 20


def loaded(trace: TraceFile, tmp_path: Path) -> TraceGraph:
    """The graph of a trace, launched in no time."""
    graph = load([trace.write(tmp_path / "trace.json")])
    return replace(
        graph, ops=tuple(replace(op, duration_s=0.0) if op.kind in ("host", "launch") else op for op in graph.ops)
    )


def length_us(graph: TraceGraph, variant: str = "standard") -> float:
    return replay(rewire(graph, variant, stream_wait_s=0.0)).steps[0].replayed_s / US


def one_all_reduce_a_layer(attentions: str, *, experts: bool) -> TraceFile:
    """Attention and MLP side by side, or attention and whole experts to which tokens travel."""
    ahead = Ahead()
    ahead.run("embedding")
    for attention in attentions:
        ahead.run("rms_norm_kernel", "qkv_gemm", f"flash_fwd_{attention}", "o_gemm")
        if experts:
            ahead.communicate()
            ahead.run("rms_norm_kernel", "topk_router")
            ahead.communicate("all_to_allv")
            ahead.run("experts")
            ahead.communicate("all_to_allv")
        else:
            ahead.run("up_gemm", "silu", "down_gemm")
            ahead.communicate()
        ahead.run("at::native::CUDAFunctor_add")
    ahead.run("rms_norm_kernel", "lm_head_gemm")
    return ahead.trace


@pytest.mark.parametrize("attentions", ["f" * 12, "sf" * 6, "sssf" * 4])
@pytest.mark.parametrize("experts", [False, True])
def test_layers_with_one_all_reduce_are_no_blocks(tmp_path: Path, attentions: str, experts: bool) -> None:
    """Regression: layers with two attentions in turn were taken for attention and MLP, with 1.2 times the speed."""
    with pytest.raises(UsageError, match="no transformer blocks found: the trace has"):
        find_passes(loaded(one_all_reduce_a_layer(attentions, experts=experts), tmp_path))


def test_layers_with_one_all_reduce_end_a_pass(tmp_path: Path) -> None:
    """Three layers with MLPs, then layers whose experts are reached by all-to-alls."""
    ahead = Ahead()
    ahead.run("embedding")
    for layer in range(8):
        ahead.run("rms_norm_kernel", *BLOCK["attention"])
        ahead.communicate()
        ahead.run("rms_norm_kernel")
        if layer < 3:
            ahead.run(*BLOCK["mlp"])
            ahead.communicate()
        else:
            ahead.communicate("all_to_allv")
            ahead.run("experts")
            ahead.communicate("all_to_allv")
    ahead.run("rms_norm_kernel", "lm_head_gemm")
    assert [forward.layers for forward in find_passes(loaded(ahead.trace, tmp_path))] == [3]


def stage(batches: int, *, sync_events: bool = True, peer: int = PEER) -> TraceFile:
    """A stage in the middle of a pipeline: it receives micro-batches, and sends them on."""
    ahead = Ahead(sync_events=sync_events)
    for _ in range(batches):
        ahead.communicate("recv", MESSAGE_US, stream=peer)
        for block in range(2 * LAYERS):
            if block:
                ahead.run("at::native::CUDAFunctor_add")
            ahead.run("rms_norm_kernel", *BLOCK["mlp" if block % 2 else "attention"])
            ahead.communicate()
        ahead.run("at::native::CUDAFunctor_add")
        ahead.communicate("send", MESSAGE_US, stream=peer)
    return ahead.trace


@pytest.mark.parametrize("sync_events", [True, False])
@pytest.mark.parametrize("peer", [PEER, COMM])
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_pipeline_stage(tmp_path: Path, batches: int, peer: int, sync_events: bool) -> None:
    """Regression: its layers were taken for iterations, and its micro-batches for one pass."""
    graph = loaded(stage(batches, sync_events=sync_events, peer=peer), tmp_path)
    assert graph.steps == ()
    assert [forward.layers for forward in find_passes(graph)] == [LAYERS] * batches
    # a norm, three kernels and an add for each block, and the messages
    busy_us = 2 * LAYERS * 5 * KERNEL_US + 2 * MESSAGE_US
    assert length_us(graph) == pytest.approx(batches * (busy_us + 2 * LAYERS * REDUCE_US))
    # each batch waits for its last all-reduce, while an add runs that ladder has moved there
    assert length_us(graph, "ladder") == pytest.approx(batches * (busy_us + REDUCE_US - KERNEL_US))


@pytest.mark.parametrize(("layers", "covered"), [(1, 2 * LAYERS), (2, 2 * LAYERS + 3 * 4)])
def test_passes_of_a_draft_model_are_no_iterations(tmp_path: Path, layers: int, covered: int) -> None:
    """A step of speculative decoding. Regression: the last draft was taken for the step."""
    ahead = Ahead()
    for count, reduce_us in ((LAYERS, REDUCE_US), *[(layers, MESSAGE_US)] * 3):
        ahead.run("embedding")
        for _ in range(count):
            for block in BLOCK.values():
                ahead.run("rms_norm_kernel", *block)
                ahead.communicate(duration=reduce_us)
        ahead.run("rms_norm_kernel", "lm_head_gemm", "argmax_sample")
    graph = loaded(ahead.trace, tmp_path)
    assert graph.steps == ()
    assert cover(graph) == Cover(
        layers=LAYERS, passes=1 + (covered - 2 * LAYERS) // 4, covered=covered, reduces=8 + 6 * layers
    )


def test_iterations_with_heads_of_unknown_kernels(tmp_path: Path) -> None:
    """A GEMM ahead of what an attention block has is the head of the pass before."""
    ahead = Ahead()
    for _ in range(3):
        ahead.run("unknown")
        for _ in range(LAYERS):
            for block in BLOCK.values():
                ahead.run("rms_norm_kernel", *block)
                ahead.communicate()
        ahead.run("rms_norm_kernel", "other_gemm", "unknown")
    graph = loaded(ahead.trace, tmp_path)
    assert [forward.layers for forward in find_passes(replace(graph, steps=()))] == [LAYERS] * 3
    assert len(graph.steps) == 3


@pytest.mark.parametrize("stream", [COMM, PEER])
def test_experts_behind_all_to_alls_and_an_all_reduce(tmp_path: Path, stream: int) -> None:
    """Regression: on a stream of its own the all-to-all before an all-reduce did not hold it back."""
    ahead = Ahead()
    ahead.run("embedding")
    for _ in range(LAYERS):
        ahead.run("rms_norm_kernel", *BLOCK["attention"])
        ahead.communicate()
        ahead.run("rms_norm_kernel", "topk_router")
        ahead.communicate("all_to_allv", MESSAGE_US, stream=stream)
        ahead.run("experts")
        ahead.communicate("all_to_allv", MESSAGE_US, stream=stream)
        ahead.communicate()
    ahead.run("rms_norm_kernel", "lm_head_gemm")
    graph = loaded(ahead.trace, tmp_path)
    busy_us = KERNEL_US + LAYERS * (7 * KERNEL_US + 2 * MESSAGE_US) + 2 * KERNEL_US
    assert length_us(graph) == pytest.approx(busy_us + 2 * LAYERS * REDUCE_US)
    assert length_us(graph, "ladder") == pytest.approx(busy_us + REDUCE_US)
    assert length_us(graph, "upper-bound") == pytest.approx(busy_us)


def test_layers_without_a_head_are_no_iterations(tmp_path: Path) -> None:
    trace = tensor_parallel(layers=LAYERS)
    head = next(event["ts"] for event in trace.events if event["name"] == "lm_head_gemm")
    trace.events = [event for event in trace.events if not head - 2 * KERNEL_US <= event["ts"] <= head]
    graph = loaded(trace, tmp_path)
    assert graph.steps == ()
    assert [forward.layers for forward in find_passes(graph)] == [LAYERS]


@pytest.mark.parametrize(
    ("first", "last", "layers"),
    [
        # a whole pass with the all-reduce of its embedding; cut behind an attention; cut in an MLP
        (0, 62, 6),
        (0, 58, 5),
        (0, 54, 5),
        # from the first attention on; from an MLP on; from there to an attention
        (3, 62, 6),
        (10, 62, 5),
        (10, 59, 4),
    ],
)
def test_a_layer_begins_with_its_attention(tmp_path: Path, first: int, last: int, layers: int) -> None:
    """Regression: a recording that was cut in a layer had the MLP's all-reduce for the attention's."""
    ahead = Ahead()
    ahead.run("embedding")
    ahead.communicate(duration=2 * REDUCE_US)
    for block in range(12):
        ahead.run("rms_norm_kernel", *BLOCK["mlp" if block % 2 else "attention"])
        ahead.communicate(duration=REDUCE_US / (2 if block % 2 else 1))
    ahead.run("lm_head_gemm")
    trace = ahead.trace
    starts = sorted(event["ts"] for event in trace.events if event["cat"] == "kernel")
    assert len(starts) == 63
    cut = [
        event["args"]["correlation"]
        for event in trace.events
        if event["cat"] == "kernel" and not starts[first] <= event["ts"] <= starts[last]
    ]
    trace.events = [event for event in trace.events if event["args"].get("correlation") not in cut]
    graph = loaded(trace, tmp_path)
    (forward,) = find_passes(graph)
    durations_us = [round(graph.ops[reduce].duration_s / US) for reduce in forward.reduces]
    assert durations_us == [REDUCE_US, REDUCE_US // 2] * layers


@pytest.mark.parametrize("stream", [COMM, COMPUTE])
def test_a_part_of_a_block_on_another_stream(tmp_path: Path, stream: int) -> None:
    """Shared experts begin right behind the attention's all-reduce, and take longer than what runs next to them.

    Regression: in ladder they went on waiting for that all-reduce, and without it for nothing.
    """
    shared_us = 4 * KERNEL_US + 30
    ahead = Ahead()
    ahead.run("embedding")
    for _ in range(LAYERS):
        ahead.run("rms_norm_kernel", *BLOCK["attention"])
        ahead.communicate(stream=stream)
        ahead.trace.wait(ahead.called, ahead.called + 1, on=stream, by=ASIDE)
        ahead.trace.kernel("shared_gemm", ahead.called + 3, ahead.now, shared_us, stream=ASIDE)
        ahead.called += 9
        ahead.run("rms_norm_kernel", *BLOCK["mlp"])
        ahead.trace.wait(ahead.called, ahead.called + 1, on=ASIDE, by=COMPUTE)
        ahead.called, ahead.now = ahead.called + 3, ahead.now + 30
        ahead.run("at::native::CUDAFunctor_mul")
        ahead.communicate(stream=stream)
    ahead.run("rms_norm_kernel", "lm_head_gemm")
    graph = loaded(ahead.trace, tmp_path)
    busy_us = KERNEL_US + LAYERS * (4 * KERNEL_US + shared_us + KERNEL_US) + 2 * KERNEL_US
    assert length_us(graph) == pytest.approx(busy_us + 2 * LAYERS * REDUCE_US)
    assert length_us(graph, "ladder") == pytest.approx(busy_us + REDUCE_US)
    assert length_us(graph, "parallel") == pytest.approx(busy_us + LAYERS * REDUCE_US)
    assert length_us(graph, "upper-bound") == pytest.approx(busy_us)
    assert replay(without_communication(graph)).steps[0].replayed_s / US == pytest.approx(busy_us)
