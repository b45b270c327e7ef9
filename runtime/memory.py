"""Whether a run fits the memory of its ranks, before it is tried."""

import os

import torch

from ladder_sim.errors import InfeasibleError
from runtime.comm.base import Alone
from runtime.config import EngineConfig, ModelConfig
from runtime.model.decoder import Decoder

# share of free memory that may be planned with; the rest is slack of allocators
_USABLE = 0.95


def weight_bytes(config: ModelConfig, engine: EngineConfig, tp: int, element_bytes: int) -> int:
    """Weights of one rank."""
    with torch.device("meta"):
        model = Decoder(config, engine, Alone(tp), positions=1)
    return sum(weight.numel() for weight in model.parameters()) * element_bytes


def cache_bytes(config: ModelConfig, tp: int, positions: int, element_bytes: int) -> int:
    """KV cache of one sequence on one rank."""
    kv_heads = max(1, config.kv_heads // tp)
    return 2 * config.layers * kv_heads * config.head_dim * positions * element_bytes


def check_fits(
    config: ModelConfig,
    engine: EngineConfig,
    *,
    tp: int,
    batch: int,
    prompt: int,
    gen: int,
    element_bytes: int,
    free_bytes: float,
) -> None:
    """Raise InfeasibleError, saying what would fit, if weights, cache and largest activations exceed `free_bytes`."""
    usable = free_bytes * _USABLE
    weights = weight_bytes(config, engine, tp, element_bytes)
    # an MLP's features, its input and its output; logits
    widest = prompt * (2 * config.intermediate // tp + 4 * config.hidden)
    logits = config.vocab * (prompt if engine.prefill_logits == "all" else 1)
    sequence = cache_bytes(config, tp, prompt + gen, element_bytes) + (widest + logits) * element_bytes
    needed = weights + batch * sequence
    if needed <= usable:
        return
    most = int((usable - weights) // sequence)
    if most >= 1:
        hint = f"a batch of {most} fits"
    else:
        layers = int(config.layers * usable / (weights + sequence))
        hint = f"use more ranks with memory of their own, or a model of about {layers} layers"
    raise InfeasibleError(
        f"{needed / 1e9:.1f} GB needed per rank ({weights / 1e9:.1f} of weights, batch {batch}): "
        f"{free_bytes / 1e9:.1f} GB are free",
        hint=hint,
    )


def free_bytes(device: torch.device, ranks_here: int) -> float:
    """Free memory for each rank: of its GPU, or its share of the machine's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free)
    pages = os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":") for line in lines)
        return float(fields["MemAvailable"].split()[0]) * 1024 / ranks_here
    except (OSError, KeyError):
        return float(pages) * os.sysconf("SC_PAGE_SIZE") / ranks_here
