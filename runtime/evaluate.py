"""Perplexity of a checkpoint on a text under any wiring: what rewiring costs without retraining.

The text's tokens are cut into windows that overlap by one token, so that every token but the first is predicted once,
from the tokens before it in its window.

Shapes: B batch (1), T tokens of a window, V vocabulary.
"""

import math
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from runtime.assemble import TORCH_DTYPES, device_of, load
from runtime.comm.base import Communicator
from runtime.comm.process_group import Degrees
from runtime.comm.rendezvous import CommConfig, connect
from runtime.config import EngineConfig
from runtime.memory import Workload, enough_memory
from runtime.model.decoder import Decoder
from runtime.model.wiring import Wiring
from runtime.prepare import EvaluationConfig, EvaluationInput, prepare_evaluation

# positions whose logits are converted to float32 at once
_ROWS = 128


def evaluate(config: EvaluationConfig, links: CommConfig) -> Iterator[dict[str, object]]:
    """Perplexity of every checkpoint under every wiring, in turn; rank 0's counts."""
    tasks = prepare_evaluation(config)
    torch.set_num_threads(config.threads)
    comm = connect(links, Degrees(config.tp))
    for task in tasks:
        yield from _evaluate(task, config, comm)


def _evaluate(task: EvaluationInput, config: EvaluationConfig, comm: Communicator) -> Iterator[dict[str, object]]:
    checkpoint = task.checkpoint
    dtype = checkpoint.dtype if config.dtype == "auto" else config.dtype
    engine = EngineConfig(prefill_logits="all", ep=config.ep)
    work = Workload(batch=1, prompt=task.context, gen=0, dtype=TORCH_DTYPES[dtype], wirings=task.wirings)
    model = load(checkpoint.shape, engine, comm, checkpoint.source, work, device_of(comm))
    for wiring in task.wirings:
        start_s = time.perf_counter()
        nats = nats_per_token(model, wiring, task.tokens, task.context)
        yield {
            "model": str(task.folder),
            "variant": wiring.name,
            "tp": config.tp,
            "dtype": dtype,
            "tokens": len(task.tokens),
            "context": task.context,
            "nats_per_token": nats,
            "perplexity": math.exp(nats),
            "seconds": time.perf_counter() - start_s,
        }


@torch.inference_mode()
def nats_per_token(model: Decoder, wiring: Wiring, tokens: Sequence[int], context: int) -> float:
    """Mean of -log p over all tokens but the first, in nats: the logarithm of the perplexity."""
    device = model.embedding_VD.device
    total = 0.0
    with enough_memory(wiring.name, model.comm.rank):
        for first in range(0, len(tokens) - 1, context - 1):
            window_BT = torch.tensor([tokens[first : first + context]], device=device)
            total += _nats(model(window_BT[:, :-1], wiring)[0], window_BT[0, 1:])
    return total / (len(tokens) - 1)


def _nats(logits_TV: Tensor, next_T: Tensor) -> float:
    return sum(
        nn.functional.cross_entropy(rows_TV.float(), targets_T, reduction="sum").item()
        for rows_TV, targets_T in zip(logits_TV.split(_ROWS), next_T.split(_ROWS), strict=True)
    )
