"""Whether a run fits the memory of its ranks."""

import contextlib
from collections.abc import Iterator

import torch

from ladder_sim.errors import InfeasibleError
from runtime.comm.base import Alone, AloneInExchange, Communicator
from runtime.config import EngineConfig, ModelConfig
from runtime.model.decoder import Decoder
from runtime.model.layers import Layer

# share of the free memory; the rest is for what allocators waste
_USABLE = 0.95


def check_fits(
    config: ModelConfig,
    engine: EngineConfig,
    *,
    comm: Communicator,
    batch: int,
    prompt: int,
    gen: int,
    element_bytes: int,
    free_bytes: float,
) -> None:
    """Raise InfeasibleError with what would fit, if weights, cache and largest activations exceed the free memory."""
    usable = free_bytes * _USABLE
    alone = Alone(comm.size, comm.pipeline, AloneInExchange(comm.exchange.size))
    with torch.device("meta"):
        model = Decoder(config, engine, alone, positions=prompt + gen)
        cache = model.cache(batch=1)
    weights = sum(weight.numel() for weight in model.parameters()) * element_bytes
    # of one sequence: the features of the widest block, its input and its output; logits. Experts get the tokens of all
    # groups
    widest = prompt * comm.exchange.size * (max(map(_features, model.layers)) + 4 * config.hidden)
    logits = config.vocab * (prompt if engine.prefill_logits == "all" else 1)
    sequence = (cache.numel() + widest + logits) * element_bytes
    needed = weights + batch * sequence
    if needed <= usable:
        return
    largest_batch = int((usable - weights) // sequence)
    if largest_batch >= 1:
        hint = f"a batch of {largest_batch} fits"
    else:
        layers = int(config.layers * usable / (weights + sequence))
        hint = f"use more ranks with memory of their own, or a model of about {layers} layers"
    raise InfeasibleError(
        f"{needed / 1e9:.1f} GB needed per rank ({weights / 1e9:.1f} of weights, batch {batch}): "
        f"{free_bytes / 1e9:.1f} GB are free",
        hint=hint,
    )


def _features(layer: Layer) -> int:
    """Of one token inside of a feed-forward block, if this rank has all its experts."""
    mlp = layer.mlp.inputs if layer.mlp else 0
    return mlp + (layer.experts.up_LND.shape[1] * layer.experts.experts.top_k if layer.experts else 0)


def free_bytes(device: torch.device, ranks_here: int) -> float:
    """Free memory for each rank: of its GPU, or its share of the machine's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free)
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":") for line in lines)
    return float(fields["MemAvailable"].split()[0]) * 1024 / ranks_here


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Turn running out of a GPU's memory into InfeasibleError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InfeasibleError(
            f"out of memory: {str(error).splitlines()[0]}", hint="use more ranks, a smaller batch or a shorter context"
        ) from None
