"""Make a rank's decoder on its device: check that it fits, fill it, give it prompts."""

from collections.abc import Sequence

import torch

from ladder_sim.wirings.layout import Wiring
from ladder_sim_runtime.checkpoint.weights import Source, fill, random_weights
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ExecutionConfig, ModelConfig
from ladder_sim_runtime.device import kind_of
from ladder_sim_runtime.execution import Execution
from ladder_sim_runtime.generate import Generator
from ladder_sim_runtime.memory import Workload, check_fits, default_dtype, enough_memory, free_bytes
from ladder_sim_runtime.model.decoder import Decoder

# by the names of `config.DType`
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(comm: Communicator) -> torch.device:
    """Return the device on which a rank computes: with gloo the CPU, else its GPU if it has one."""
    if comm.name != "gloo" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def assemble(
    shape: ModelConfig,
    engine: EngineConfig,
    comm: Communicator,
    *,
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    prompt: int,
    gen: int,
    seed: int,
    wirings: Sequence[Wiring] = (),
    execution: ExecutionConfig | None = None,
) -> Generator:
    """Return a generator with random weights and prompts, of one model and batch on all ranks.

    Raises what `load` raises.
    Where groups of ranks have requests of their own, each has its part of the batch.
    """
    each, wanted = batch // comm.exchange.size, execution or ExecutionConfig()
    recorded = wanted.recorded if kind_of(device).has_graphs else ()
    work = Workload(batch=each, prompt=prompt, gen=gen, dtype=dtype, wirings=wirings, recorded=recorded)
    model = load(shape, engine, comm, random_weights(seed, device), work, device)
    done = Execution.of(model, wanted)
    if done.blocks == "compiled":
        model.compile_blocks()
    with enough_memory("prompts and cache", comm.rank):
        numbers = torch.Generator(device).manual_seed(seed)
        prompt_BT = torch.randint(shape.vocab, (batch, prompt), generator=numbers, device=device)
        own_BT = prompt_BT[comm.exchange.rank * each :][:each]
        return Generator(model, own_BT, gen, execution=done)


def load(
    shape: ModelConfig, engine: EngineConfig, comm: Communicator, source: Source, work: Workload, device: torch.device
) -> Decoder:
    """Return a decoder with the weights of `source`.

    Raises InfeasibleError if it does not fit the memory with this batch and context, or runs out of it; the hint is
    what would.
    """
    ranks_here = comm.size * comm.exchange.size * comm.pipeline.stages if comm.name == "gloo" else 1
    check_fits(shape, engine, work, comm, free_bytes(device, ranks_here))
    with device, default_dtype(work.dtype), enough_memory("its weights", comm.rank):
        model = Decoder(shape, engine, comm, positions=work.prompt + work.gen).requires_grad_(False)
    fill(model, source)
    return model
