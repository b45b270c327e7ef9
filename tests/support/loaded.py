"""What one rank computes with checkpoints; real gloo ranks for the tests. Imports no transformers: ranks fork fast."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.assemble import load
from runtime.checkpoint.files import Checkpoint
from runtime.checkpoint.save import save
from runtime.comm.base import Alone, Communicator
from runtime.comm.process_group import ProcessGroup, gloo_group
from runtime.complete import left_padded
from runtime.config import EngineConfig, read_object
from runtime.generate import Generator
from runtime.model.decoder import Decoder
from runtime.model.wiring import Wiring, lay_out
from runtime.sampling import Sampler, SamplingConfig

PROMPTS = ([0, 17, 200, 31, 5, 64, 99], [0, 250, 3], [0, 88, 41, 7, 150])
GEN = 5
CASES = [("flash", name) for name in ("standard", "parallel", "ladder", "hybrid-ladder:2", "desync:2", "upper-bound")]
CASES += [("math", "standard"), ("math", "ladder")]
# attention and wiring of padded batches
SAMPLED = SamplingConfig(temperature=1.5, top_k=50, top_p=0.9, seed=3)


def model_of(folder: Path, comm: Communicator, **engine: Any) -> Decoder:
    checkpoint = Checkpoint.open(folder)
    return load(
        checkpoint.shape,
        EngineConfig(**engine),
        comm,
        checkpoint.source,
        device=torch.device("cpu"),
        dtype=torch.float32,
        batch=len(PROMPTS),
        prompt=max(map(len, PROMPTS)),
        gen=GEN,
    )


def completed(
    model: Decoder, wiring: Wiring, prompts: Sequence[Sequence[int]], sampling: SamplingConfig
) -> tuple[Tensor, Tensor]:
    """New tokens of a batch, and the logits they were chosen from."""
    rows, pads = left_padded(prompts)
    sampler, logits = Sampler(sampling, model.comm), []

    def pick(logits_BTV: Tensor, wiring: Wiring) -> Tensor:
        logits.append(logits_BTV[:, -1])
        return sampler(logits_BTV, wiring)

    generator = Generator(model, torch.tensor(rows), GEN, pad_B=torch.tensor(pads) if any(pads) else None, pick=pick)
    generator.prefill(wiring)
    for step in range(1, GEN):
        generator.decode(wiring, step)
    return generator.tokens_BG, torch.stack(logits, dim=1)


def compute(comm: Communicator, root: Path) -> dict[str, Any]:
    """Everything that the tests of a degree look at."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"logits": {}, "greedy": {}, "padded": {}, "alone": {}}
    standard = lay_out("standard", 4)
    for folder in sorted(one for one in root.iterdir() if not one.name.startswith("saved")):
        model = model_of(folder, comm, prefill_logits="all")
        with torch.inference_mode():
            found["logits"][folder.name] = model(torch.tensor([PROMPTS[0]]), standard)
        found["greedy"][folder.name] = completed(model, standard, PROMPTS[:1], SamplingConfig())[0]
        save(model, root / f"saved-{folder.name}-{comm.size}", read_object(folder / "config.json", hint=""))
    for case in CASES:
        model, wiring = model_of(root / "llama", comm, attention=case[0]), lay_out(case[1], 4)
        found["padded"][case] = completed(model, wiring, PROMPTS, SamplingConfig())
        found["alone"][case] = [completed(model, wiring, [one], SamplingConfig()) for one in PROMPTS]
    found["sampled"] = completed(model, standard, PROMPTS, SAMPLED)[0]
    sharded = model_of(root / "qwen2-tied", comm, sharded_embedding=True, sharded_lm_head=True)
    save(sharded, root / f"saved-sharded-{comm.size}", read_object(root / "qwen2-tied" / "config.json", hint=""))
    return found


def run_ranks(size: int, root: Path) -> list[dict[str, Any]]:
    """`compute` on every rank of a degree."""
    if size == 1:
        return [compute(Alone(), root)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.loaded"])
    ranks = [context.Process(target=_rank, args=(rank, size, root)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        process.kill()
    return [torch.load(root.parent / f"found-{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(rank: int, size: int, root: Path) -> None:
    store = dist.FileStore(str(root.parent / "store"), size)
    comm = ProcessGroup("gloo", gloo_group(store, rank, size, threads=1, timeout_s=60))
    torch.save(compute(comm, root), root.parent / f"found-{rank}.pt")
    comm.barrier()
