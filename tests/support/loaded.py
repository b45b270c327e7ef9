"""What each rank computes with checkpoints. Imports no transformers: ranks start fast."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim_runtime.assemble import load
from ladder_sim_runtime.checkpoint.files import Checkpoint
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.complete import left_padded, of_first_rank
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.generate import Generator
from ladder_sim_runtime.memory import Workload
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.ranks import on_ranks

PROMPTS = ([0, 17, 200, 31, 5, 64, 99], [0, 250, 3], [0, 88, 41, 7, 150])
GEN = 5
# model, attention and wiring of padded batches
WIRINGS = ("standard", "parallel", "ladder", "hybrid-ladder:2", "desync:2", "upper-bound")
CASES = [("llama", "flash", name) for name in WIRINGS]
CASES += [("llama", "math", "standard"), ("llama", "math", "ladder")]
CASES += [("deepseek-v3", "flash", "standard"), ("deepseek-v3", "math", "ladder")]


def model_of(folder: Path, comm: Communicator, **engine: Any) -> Decoder:
    checkpoint = Checkpoint.open(folder)
    work = Workload(batch=len(PROMPTS), prompt=max(map(len, PROMPTS)), gen=GEN, dtype=torch.float32)
    return load(checkpoint.shape, EngineConfig(**engine), comm, checkpoint.source, work, torch.device("cpu"))


def expert_degrees(config: ModelConfig, size: int) -> list[int]:
    """Degrees of expert parallelism that a model is run with: whole experts on no rank, and on every one."""
    return [1, size] if config.experts and size > 1 else [1]


def completed(model: Decoder, wiring: Wiring, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """New tokens of a batch, and the logits they were chosen from."""
    rows, pads = left_padded(prompts)
    first, logits = of_first_rank(model), []

    def pick(logits_BTV: Tensor, wiring: Wiring) -> Tensor:
        logits.append(logits_BTV[:, -1])
        return first(logits_BTV, wiring)

    generator = Generator(model, torch.tensor(rows), GEN, pad_B=torch.tensor(pads) if any(pads) else None, pick=pick)
    generator.prefill(wiring)
    for step in range(1, GEN):
        generator.decode(wiring, step)
    return generator.tokens(), torch.stack(logits, dim=1)


def compute(comm: Communicator, root: Path) -> dict[str, Any]:
    """The results that the tests check."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {"logits": {}, "greedy": {}, "padded": {}, "alone": {}}
    standard = lay_out("standard", 4)
    for folder in sorted(root.iterdir()):
        logits, greedy = results["logits"][folder.name], results["greedy"][folder.name] = {}, {}
        for ep in expert_degrees(Checkpoint.open(folder).shape, comm.size):
            model = model_of(folder, comm, prefill_logits="all", ep=ep)
            with torch.inference_mode():
                logits[ep] = model(torch.tensor([PROMPTS[0]]), standard)
            greedy[ep] = completed(model, standard, PROMPTS[:1])[0]
    for case in CASES:
        family, attention, variant = case
        model, wiring = model_of(root / family, comm, attention=attention), lay_out(variant, 4)
        results["padded"][case] = completed(model, wiring, PROMPTS)
        results["alone"][case] = [completed(model, wiring, [prompt]) for prompt in PROMPTS]
    return results


def run_ranks(size: int, root: Path) -> list[dict[str, Any]]:
    """`compute` on every rank of a degree."""
    return on_ranks(size, root.parent, compute, root)
