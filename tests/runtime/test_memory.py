"""What a run needs of memory, before it starts, and what is said when there is too little."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ladder_sim.errors import InfeasibleError
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime import device
from ladder_sim_runtime.assemble import assemble
from ladder_sim_runtime.checkpoint.tensors import LM_HEAD
from ladder_sim_runtime.checkpoint.weights import Sliceable, fill, random_weights
from ladder_sim_runtime.comm.base import Communicator, Pipeline
from ladder_sim_runtime.config import EngineConfig, ExecutionConfig, ModelConfig, Phase, Wish
from ladder_sim_runtime.memory import Workload, check_fits, enough_memory, needs
from ladder_sim_runtime.model.decoder import Decoder

pytestmark = pytest.mark.torch

DENSE = ModelConfig(layers=3, hidden=256, heads=8, kv_heads=2, head_dim=32, intermediate=1024, vocab=2048)
ROUTED = replace(DENSE, experts=4, experts_per_token=2, expert_intermediate=512)
PROMPT = 256


def peak_bytes(folder: Path, run: Callable[[], object]) -> int:
    """The most that torch's allocator holds meanwhile beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    changes = [event["args"] for event in events if event.get("name") == "[memory]"]
    before: int = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    return max(change["Total Allocated"] for change in changes) - before


@pytest.mark.parametrize(
    ("config", "engine", "variant"),
    [
        (DENSE, EngineConfig(), "standard"),
        (DENSE, EngineConfig(attention="math", prefill_logits="all"), "ladder"),
        (DENSE, EngineConfig(), "ladder:6"),
        (ROUTED, EngineConfig(), "ladder"),
        (replace(DENSE, qk_norm="all", block_norms="behind"), EngineConfig(), "ladder"),
    ],
)
def test_a_prefill_needs_what_is_planned(
    tmp_path: Path, config: ModelConfig, engine: EngineConfig, variant: str
) -> None:
    """As torch's allocator counts it; the plan was 1.7 to 5.5 times too small."""
    wirings, comm = [lay_out(variant, config.layers)], Communicator(2)
    plan = needs(config, engine, Workload(batch=1, prompt=PROMPT, gen=8, dtype=torch.float32, wirings=wirings), comm)
    model = Decoder(config, engine, comm, positions=PROMPT + 8)
    fill(model, random_weights(seed=0))
    assert plan.weights == sum(weight.nbytes for weight in model.parameters())
    tokens_BT, cache = torch.randint(config.vocab, (1, PROMPT)), model.cache(batch=1)
    with torch.inference_mode():
        used = peak_bytes(tmp_path, lambda: model(tokens_BT, wirings[0], cache=cache))
    # of experts the plan counts the worst case
    assert used <= plan.prefill * 1.02
    assert plan.prefill <= used * (1.6 if config.experts else 1.1)


@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("prefill", ["off", "on"])
def test_graphs_keep_the_largest_recorded_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefill: Wish, attention: str
) -> None:
    """One of them runs at a time: what it makes lies where that of the others did."""
    kept: list[int] = []

    class Recorder(device.Device):
        has_graphs = True
        # of anything else than that there are graphs
        has_flash_decode = False
        compiler_problem = "there is none"  # type: ignore[assignment]

        def recorded(self, step: Callable[[], None], reset: Callable[[], None]) -> Callable[[], None]:
            kept.append(peak_bytes(tmp_path, step))
            return lambda: None

    monkeypatch.setitem(device.DEVICES, "cpu", Recorder())
    # what flash attention makes of a decode step depends on the context, and is recorded by no real device
    monkeypatch.setattr("ladder_sim_runtime.execution._attention_problem", lambda model: None)
    comm, engine, batch = Communicator(2), EngineConfig(attention=attention), 2
    wirings = [lay_out(variant, DENSE.layers) for variant in ("standard", "ladder")]
    wished = ExecutionConfig(cuda_graphs="on", prefill_cuda_graphs=prefill)
    work: dict[str, Any] = {"batch": batch, "prompt": PROMPT, "gen": 8, "dtype": torch.float32, "wirings": wirings}
    generator = assemble(DENSE, engine, comm, device=torch.device("cpu"), seed=0, execution=wished, **work)
    for wiring in wirings:
        generator.prefill(wiring)
        generator.decode(wiring, 1)
    assert len(kept) == (4 if prefill == "on" else 2)
    recorded = generator.execution.recorded
    assert recorded == wished.recorded
    plan = needs(DENSE, engine, Workload(recorded=recorded, **work), comm).of_batch(batch, 1)
    # a decode step makes little, in pieces of 64 bytes
    assert max(kept) <= plan.graphs * 1.02 + 2**14
    assert plan.graphs <= max(kept) * 1.1 + 2**14
    # what is not recorded keeps nothing, and a pipeline records nothing
    assert needs(DENSE, engine, Workload(**work), comm).graphs == 0
    staged = needs(DENSE, engine, Workload(recorded=recorded, **work), Communicator(2, Pipeline(0, 2)))
    assert staged.graphs == 0


def test_weights_are_drawn_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with room for its part of a large LM head had none for the whole in float32."""
    drawn: list[int] = []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda shape, **how: drawn.append(4 * math.prod(shape)) or randn(shape, **how))
    source, shape, at = random_weights(seed=3), (20_000, 512), slice(7_000, 12_001)
    part = source(LM_HEAD, shape)[(at, slice(None))]
    assert sum(drawn) < 4 * math.prod(shape)
    assert max(drawn) <= 16 * 2**20
    whole = source(LM_HEAD, shape)[(slice(None),)]
    assert whole.shape == shape
    assert torch.equal(whole[at], part)
    assert not torch.equal(whole[:8192], whole[8192:16_384])


def test_what_did_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def source(name: str, shape: tuple[int, ...]) -> Sliceable:
        if name == LM_HEAD:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return torch.zeros(shape)

    model = Decoder(DENSE, EngineConfig(), Communicator(), positions=4)
    with pytest.raises(InfeasibleError, match=r"rank 0 ran out of memory for lm_head.weight: .*2.00 GiB") as refused:
        fill(model, source)
    assert "use more ranks" in refused.value.hint
    assert refused.value.exit_code == 3
    # a CPU's memory
    with pytest.raises(InfeasibleError, match="rank 3 ran out of memory for its cache"), enough_memory("its cache", 3):
        torch.empty(10**15)


def test_what_would_fit_does() -> None:
    """The batch that a refusal names, on a stage of a pipeline and with graphs as well."""
    cases: tuple[tuple[int, tuple[Phase, ...], str], ...] = (
        (1, (), "of a prefill, batch 1000"),
        (2, (), "of a prefill, batch 1000"),
        (1, ("prefill", "decode"), "of a prefill, .* of CUDA graphs, batch 1000"),
    )
    for stages, recorded, words in cases:
        comm = Communicator(2, Pipeline(0, stages))
        work = Workload(batch=1000, prompt=PROMPT, gen=8, dtype=torch.bfloat16, recorded=recorded)
        with pytest.raises(InfeasibleError, match=words) as refused:
            check_fits(DENSE, EngineConfig(), work, comm, 50e6)
        batch = int(refused.value.hint.split()[3])
        check_fits(DENSE, EngineConfig(), replace(work, batch=batch), comm, 50e6)
        with pytest.raises(InfeasibleError):
            check_fits(DENSE, EngineConfig(), replace(work, batch=batch + stages), comm, 50e6)


def test_a_prompt_that_no_model_has_memory_for() -> None:
    """Regression: the way out was a model of 0 layers."""
    with pytest.raises(InfeasibleError) as refused:
        check_fits(
            DENSE, EngineConfig(), Workload(batch=1, prompt=100_000, gen=8, dtype=torch.bfloat16), Communicator(), 50e6
        )
    assert refused.value.hint == "use more ranks with memory of their own, or a smaller model, or a shorter prompt"
