"""Continue prompts with a checkpoint, one batch, each token the most likely one.

Shapes: B batch, T prompt tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ladder_sim.wirings.layout import Wiring
from ladder_sim_runtime.assemble import TORCH_DTYPES, device_of, load
from ladder_sim_runtime.checkpoint.prompts import prepare_completion
from ladder_sim_runtime.comm.process_group import Degrees
from ladder_sim_runtime.comm.rendezvous import connect
from ladder_sim_runtime.config import CommConfig, CompletionConfig, EngineConfig
from ladder_sim_runtime.generate import Generator, Pick
from ladder_sim_runtime.memory import Workload, enough_memory
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder


def complete(config: CompletionConfig, links: CommConfig) -> list[list[int]]:
    """Return the new tokens of each prompt, without the one that ends its text; the same on every rank."""
    task = prepare_completion(config)
    torch.set_num_threads(config.threads)
    comm = connect(links, Degrees(config.tp, pp=config.pp))
    device, checkpoint = device_of(comm), task.checkpoint
    dtype = TORCH_DTYPES[checkpoint.dtype if config.dtype == "auto" else config.dtype]
    work = Workload(
        batch=len(task.prompts), prompt=max(map(len, task.prompts)), gen=task.gen, dtype=dtype, wirings=[task.wiring]
    )
    model = load(checkpoint.shape, EngineConfig(ep=config.ep), comm, checkpoint.source, work, device)
    with enough_memory(task.wiring.name, comm.rank):
        rows = new_tokens(model, task.wiring, task.prompts, task.gen, task.ends)
    return [row[: next((at for at, token in enumerate(row) if token in task.ends), len(row))] for row in rows]


def new_tokens(
    model: Decoder, wiring: Wiring, prompts: Sequence[Sequence[int]], gen: int, ends: frozenset[int]
) -> list[list[int]]:
    """Run steps until every sequence has `gen` tokens or all have ended."""
    rows, pads = left_padded(prompts)
    device = model.embedding_VD.device
    pad_B = torch.tensor(pads, device=device) if any(pads) else None
    generator = Generator(model, torch.tensor(rows, device=device), gen, pad_B=pad_B, pick=of_first_rank(model))
    generator.prefill(wiring)
    for step in range(1, gen):
        if ends and all(ends.intersection(row[:step]) for row in generator.tokens().tolist()):
            return [row[:step] for row in generator.tokens().tolist()]
        generator.decode(wiring, step)
    tokens: list[list[int]] = generator.tokens().tolist()
    return tokens


def of_first_rank(model: Decoder) -> Pick:
    """Pick rank 0's most likely token, so that all ranks stop at the same one despite different rounding."""

    def pick(logits_BTV: Tensor, _wiring: Wiring) -> Tensor:
        token_B = kernels.greedy(logits_BTV)
        if model.comm.size > 1:
            model.comm.broadcast(token_B)
        return token_B

    return pick


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Return prompts padded to equal length on the left, and each padding: tokens 0, which nothing attends to."""
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    return [[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)], pads
