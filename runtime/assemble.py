"""Make a rank's decoder on its device: check that it fits, fill it, give it prompts."""

import contextlib
from collections.abc import Iterator

import torch

from runtime.checkpoint.weights import Source, fill, random_weights
from runtime.comm.base import Communicator
from runtime.config import EngineConfig, ModelConfig
from runtime.generate import Generator
from runtime.memory import check_fits, enough_memory, free_bytes
from runtime.model.decoder import Decoder

# by the names of config.DTYPES
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(comm: Communicator) -> torch.device:
    """Where a rank computes: with gloo on the CPU, else on its GPU if it has one."""
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
    cuda_graphs: bool = False,
    compiled: bool = False,
) -> Generator:
    """A generator with random weights and prompts, of one model and batch on all ranks; raises as `load`.

    Where groups of ranks have requests of their own, each has its part of the batch.
    """
    weights, each = random_weights(seed, device), batch // comm.exchange.size
    model = load(shape, engine, comm, weights, device=device, dtype=dtype, batch=each, prompt=prompt, gen=gen)
    if compiled:
        for layer in model.layers:
            layer.compile()
    with enough_memory():
        numbers = torch.Generator(device).manual_seed(seed)
        prompt_BT = torch.randint(shape.vocab, (batch, prompt), generator=numbers, device=device)
        own_BT = prompt_BT[comm.exchange.rank * each :][:each]
        return Generator(model, own_BT, gen, cuda_graphs=cuda_graphs)


def load(
    shape: ModelConfig,
    engine: EngineConfig,
    comm: Communicator,
    source: Source,
    *,
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    prompt: int,
    gen: int,
) -> Decoder:
    """A decoder with the weights of `source`.

    Raises
    ------
    InfeasibleError
        It does not fit the memory with this batch and context; the hint is what would.
    """
    ranks_here = comm.size * comm.exchange.size * comm.pipeline.stages if comm.name == "gloo" else 1
    check_fits(
        shape,
        engine,
        comm=comm,
        batch=batch,
        prompt=prompt,
        gen=gen,
        element_bytes=dtype.itemsize,
        free_bytes=free_bytes(device, ranks_here),
    )
    with enough_memory():
        with device, _default_dtype(dtype):
            model = Decoder(shape, engine, comm, positions=prompt + gen).requires_grad_(False)
        fill(model, source)
        return model


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
