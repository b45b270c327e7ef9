"""Records a small tensor-parallel forward pass on two CPU ranks: `python trace_capture.py RANK FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from ladder_sim_runtime.trace import recorded_steps

LAYERS, HIDDEN, TOKENS, STEPS = 3, 256, 64, 2


def block(x: torch.Tensor, weight: torch.Tensor, number: int) -> torch.Tensor:
    y = torch.nn.functional.layer_norm(x, (HIDDEN,))
    q = y @ weight
    return torch.softmax(q @ q.T, -1) @ q if number % 2 == 0 else torch.nn.functional.silu(q) @ weight


def standard(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for number, weight in enumerate(weights):
        y = block(x, weight, number)
        dist.all_reduce(y)
        x = x + y
    return x


def ladder(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    pending: list[tuple[dist.Work, torch.Tensor]] = []
    for number, weight in enumerate(weights):
        if len(pending) == 2:
            x = joined(x, *pending.pop(0))
        y = block(x, weight, number)
        pending.append((dist.all_reduce(y, async_op=True), y))
    for work, y in pending:
        x = joined(x, work, y)
    return x


def joined(x: torch.Tensor, work: dist.Work, y: torch.Tensor) -> torch.Tensor:
    work.wait()
    return x + y


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    weights = [torch.randn(HIDDEN, HIDDEN) * 0.01 for _ in range(2 * LAYERS)]
    x = torch.randn(TOKENS, HIDDEN)
    for name, forward, observe_steps in (
        ("standard", standard, True),
        ("ladder", ladder, True),
        ("standard-unobserved", standard, False),
        ("ladder-unobserved", ladder, False),
    ):
        forward(x, weights)
        for _ in recorded_steps(folder / name, steps=STEPS, observe_steps=observe_steps):
            forward(x, weights)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
