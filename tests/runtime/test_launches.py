"""What a GPU is given to run: launches in order, by stream, with waits and graphs, at TP 8 in a fake process group."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime import device
from ladder_sim_runtime.assemble import TORCH_DTYPES, assemble
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.comm.process_group import ProcessGroup
from ladder_sim_runtime.comm.streams import SideStream
from ladder_sim_runtime.config import EngineConfig, ExecutionConfig, ModelConfig
from ladder_sim_runtime.execution import Execution
from ladder_sim_runtime.generate import Generator
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.launches import install
from tests.support.watched import engine_of

pytestmark = pytest.mark.torch

TP, LAYERS = 8, 4
# two heads of each rank share a KV head
SHAPE = ModelConfig(layers=LAYERS, hidden=64, heads=16, kv_heads=8, head_dim=16, intermediate=128, vocab=64)
GRAPHS = ExecutionConfig(cuda_graphs="auto", prefill_cuda_graphs="auto")


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=TP)
    yield dist.group.WORLD
    dist.destroy_process_group()


def generator(group: Any, engine: EngineConfig, execution: ExecutionConfig | None = None) -> Generator:
    comm = ProcessGroup("fake", group, stream=SideStream())
    cpu, workload = torch.device("cpu"), {"batch": 2, "prompt": 6, "gen": 4, "seed": 0}
    return assemble(SHAPE, engine, comm, device=cpu, dtype=torch.bfloat16, execution=execution, **workload)


# of a layer, after the norm of its MLP's input and up to the next one: fused kernels, and torch's that are one kernel
GPT_FAST = """mm, fused activate, mm, all-reduce,
    fused add_norm, mm, fused rotated_and_kept, fused expanded, bmm, fused weights, bmm, _to_copy, mm, all-reduce,
    fused add_norm"""
VLLM = """mm, fused activate, mm, all-reduce,
    fused add_norm, mm, fused rotated_and_kept, _flash_attention_forward, mm, all-reduce,
    fused add_norm"""


@pytest.mark.parametrize(
    ("stack", "variant", "layer", "kernels"),
    [
        ("gpt-fast", "standard", GPT_FAST, 13),
        ("vllm", "standard", VLLM, 9),
        # its adds are kernels of their own
        ("gpt-fast", "ladder", GPT_FAST.replace("fused add_norm", "add, fused norm"), 15),
        ("vllm", "ladder", VLLM, 9),
        ("sglang", "ladder", VLLM, 9),
        ("trtllm", "standard", VLLM, 9),
    ],
)
def test_a_decode_step_launches_few_kernels_in_order(
    monkeypatch: pytest.MonkeyPatch, group: Any, stack: str, variant: str, layer: str, kernels: int
) -> None:
    cuda, launches, graphs = install(monkeypatch)
    wiring, expected = lay_out(variant, LAYERS), [name.strip() for name in layer.split(",")]
    assert sum(name != "all-reduce" for name in expected) == kernels
    engine = engine_of(catalog.stack(stack))
    run = generator(group, engine)
    with launches:
        run.prefill(wiring)
        cuda.ran.clear()
        run.decode(wiring, 1)
    names = [name for _, name in cuda.ran if name != "wait"]
    first = names.index("fused activate") - 1
    for _ in range(LAYERS - 1):
        assert names[first:][: len(expected)] == expected
        first += len(expected)

    # nothing is left to compute under the last message
    under = 2 * LAYERS - 1 if variant == "ladder" else 0
    counts = Counter(cuda.ran)
    assert counts["side", "all-reduce"] == under == counts["side", "wait"] == counts["compute", "wait"]
    assert counts["compute", "all-reduce"] == 2 * LAYERS - under + engine.sharded_embedding

    recorded = generator(group, engine, GRAPHS)
    eager, cuda.ran = cuda.ran, []
    with launches:
        recorded.prefill(wiring)
        for step in (1, 2, 3):
            cuda.ran.clear()
            recorded.decode(wiring, step)
    # the step as it is eager, but for what happens around it
    captured = graphs[-1]
    assert captured == eager[: len(captured)]
    # the first one keeps their memory
    assert len(graphs) == 3
    assert [name for _, name in cuda.ran] == ["graph", "copy_"]
    recorded.forget()
    with launches:
        recorded.decode(wiring, 3)
    assert graphs[-1] == captured


def test_logits_of_last_tokens_are_one_product_that_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one sequence it was a batched product, for which torch copies weights of bf16 on CPUs."""
    cuda, launches, _ = install(monkeypatch)
    last_tokens, weight_VD = [torch.zeros(batch, 5, 8)[:, -1:] for batch in (1, 2)], torch.zeros(16, 8)
    with launches, torch.inference_mode():
        shapes = [kernels.lm_head(last_B1D, weight_VD).shape for last_B1D in last_tokens]
    assert shapes == [(1, 1, 16), (2, 1, 16)]
    assert cuda.ran == [("compute", "mm")] * 2


def test_graphs_that_have_not_ended_are_counted(monkeypatch: pytest.MonkeyPatch, group: Any) -> None:
    cuda, launches, _ = install(monkeypatch)
    run, wiring = generator(group, EngineConfig(), GRAPHS), lay_out("ladder", LAYERS)
    comm: Any = run.model.comm
    with launches:
        run.prefill(wiring)
        run.decode(wiring, 1)
        assert comm.replays() == (2, 2)
        cuda.hangs = True
        for step in (2, 3):
            run.decode(wiring, step)
        assert comm.replays() == (4, 2)
        cuda.hangs = False
    assert comm.replays() == (4, 4)


@pytest.mark.parametrize(("pads", "window"), [((0, 0), 0), ((2, 0), 0), ((0, 3), 4)])
def test_decode_attention_of_gpus_computes_what_that_of_cpus_does(
    monkeypatch: pytest.MonkeyPatch, pads: tuple[int, int], window: int
) -> None:
    """Lengths, padding and windows as FlashAttention takes them, over its own order of the cache."""

    def logits() -> Any:
        shape = replace(SHAPE, sliding_window=window)
        model = Decoder(shape, EngineConfig(), Communicator(), positions=10).to(torch.float16)
        fill(model, random_weights(seed=0))
        cache, pad_B = model.cache(2), torch.tensor(pads) if any(pads) else None
        tokens_BT, wiring = torch.arange(18).view(2, 9) % 64, lay_out("standard", LAYERS)
        parts = [model(tokens_BT[:, :5], wiring, cache=cache, pad_B=pad_B)]
        for t in range(5, 9):
            now = {"position_T": torch.tensor([t]), "context": t + 1}
            parts.append(model(tokens_BT[:, t : t + 1], wiring, cache=cache, pad_B=pad_B, **now))
        return torch.cat(parts, dim=1)

    with torch.inference_mode():
        expected = logits()
        _, launches, _ = install(monkeypatch)
        with launches:
            # a few roundings of logits up to 2
            assert torch.allclose(logits(), expected, atol=1e-2)


def decoder(kind: str = "bf16", **shape: Any) -> Decoder:
    with torch.device("meta"):
        return Decoder(replace(SHAPE, **shape), EngineConfig(), Communicator(), positions=4).to(TORCH_DTYPES[kind])


def test_what_is_done_is_what_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    every = ExecutionConfig(cuda_graphs="auto", prefill_cuda_graphs="auto", compile="auto")
    on_cpu = Execution.of(decoder(), every)
    assert (on_cpu.decode, on_cpu.prefill, on_cpu.blocks, on_cpu.kernels) == ("eager",) * 4
    assert on_cpu.missing == ("CUDA graphs need a GPU", "blocks are compiled by default on GPUs alone")
    with pytest.raises(MissingDependencyError, match="CUDA graphs need a GPU"):
        Execution.of(decoder(), ExecutionConfig(cuda_graphs="on"))

    install(monkeypatch)
    monkeypatch.setitem(device.DEVICES, "meta", device.DEVICES["cpu"])
    full = Execution.of(decoder(), every)
    assert full == Execution(decode="CUDA graphs", prefill="CUDA graphs", blocks="compiled", kernels="fused")
    # flash attention of another type than its kernels have grows with the context
    wide = Execution.of(decoder("fp32"), every)
    assert (wide.decode, wide.prefill) == ("eager", "CUDA graphs")
    assert "bf16 or fp16" in wide.missing[0]
    with pytest.raises(UsageError, match="grow with the context"):
        Execution.of(decoder("fp32"), ExecutionConfig(cuda_graphs="on"))


def test_without_a_compiler_operators_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("Failed to find C compiler.\nMore about it")

    monkeypatch.setattr("torch.compile", no_compiler)
    gpu = device.Cuda()
    monkeypatch.setitem(device.DEVICES, "meta", gpu)
    done = Execution.of(decoder(), ExecutionConfig(cuda_graphs="auto", compile="auto"))
    assert (done.decode, done.blocks, done.kernels) == ("CUDA graphs", "eager", "eager")
    assert done.missing == ("nothing can be compiled: Failed to find C compiler.",)
    assert gpu.fused(no_compiler) is no_compiler
    with pytest.raises(MissingDependencyError, match="C compiler"):
        Execution.of(decoder(), ExecutionConfig(compile="on"))


VARIANTS = ("standard", "ladder", "parallel", "desync:2", "delayed:1", "track:2", "drop:2", "partial:50", "farskip:own")


@pytest.mark.parametrize("order", [1, -1])
def test_compiled_blocks_are_those_of_every_wiring_in_any_order(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    """Nothing is left out of a graph, and no wiring adds to those that are there."""
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append("".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward

    compiled = torch.compile
    monkeypatch.setattr("torch.compile", lambda block, **options: compiled(block, backend=backend, **options))
    model = Decoder(SHAPE, EngineConfig(attention="math"), Communicator(2), positions=10)
    fill(model, random_weights(seed=0))
    tokens_BT, cache = torch.arange(12).view(2, 6), model.cache(2)

    def logits(variant: str) -> list[Any]:
        wiring = lay_out(variant, LAYERS)
        now = {"position_T": torch.tensor([6]), "context": 7}
        return [model(tokens_BT, wiring, cache=cache), model(tokens_BT[:, :1], wiring, cache=cache, **now)]

    with torch.inference_mode():
        eager = {variant: logits(variant) for variant in VARIANTS}
        for layer in model.layers:
            layer.compile_by(device.kind_of(cache).compiled)
        for variant in VARIANTS[::order]:
            assert all(map(torch.equal, logits(variant), eager[variant])), variant
    # attention, MLP and both, of a prompt and of one token
    assert len(graphs) == 6


def test_flash_attention_compiles_for_prompts_of_several_lengths() -> None:
    torch._dynamo.reset()
    model, wiring = Decoder(SHAPE, EngineConfig(), Communicator(2), positions=10), lay_out("ladder", LAYERS)
    fill(model, random_weights(seed=0))

    def logits() -> list[Any]:
        return [model(torch.arange(tokens).view(1, -1), wiring, cache=model.cache(1)) for tokens in (5, 6, 7)]

    with torch.inference_mode():
        eager = logits()
        for layer in model.layers:
            layer.compile_by(lambda block: torch.compile(block, backend="eager", fullgraph=True))
        assert all(map(torch.equal, logits(), eager))


def test_nothing_is_compiled_for_each_number_of_tokens_of_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many of them torch would give up."""
    cuda, launches, _ = install(monkeypatch)
    chosen = torch.tensor([[0, 1], [1, 2], [1, 3]])
    with launches:
        kernels.run_experts(
            torch.ones(3, 8), torch.ones(3, 2), chosen, torch.ones(4, 12, 8), torch.ones(4, 8, 6), 0, "silu", True
        )
    names = [name for _, name in cuda.ran]
    assert names.count("mm") == 8
    assert not any(name.startswith("fused") for name in names)
