"""Real gloo ranks for tests. Its own module, so that a rank's process imports little."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ladder_sim_runtime.comm.base import ONE_STAGE, Communicator
from ladder_sim_runtime.comm.process_group import Degrees, ProcessGroup, Stages, gloo_groups
from tests.support.waiting import HANG_S


def on_ranks(
    size: int, folder: Path, compute: Callable[..., Any], *arguments: Any, stages: int = 1, groups: int = 1
) -> list[Any]:
    """What ``compute(comm, *arguments)`` returns on every rank; `compute` is a function of a module.

    The ranks are those of `stages` pipeline stages, one stage after the other, and in each of them of `groups` groups
    with requests of their own.
    """
    if size == 1:
        return [compute(Communicator(), *arguments)]
    # one process imports torch, the ranks fork from it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([compute.__module__])
    degrees = Degrees(size // stages // groups, groups, stages)
    ranks = [context.Process(target=_rank, args=(rank, degrees, folder, compute, arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(HANG_S)
        process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(rank: int, degrees: Degrees, folder: Path, compute: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    store = dist.FileStore(str(folder / "store"), degrees.ranks)
    groups = gloo_groups(store, rank, degrees, threads=1, timeout_s=HANG_S)
    pipeline = Stages(*(ProcessGroup("gloo", group) for group in groups.stages)) if groups.stages else ONE_STAGE
    exchange = ProcessGroup("gloo", groups.exchange) if groups.exchange else None
    comm = ProcessGroup("gloo", groups.tensor, pipeline=pipeline, exchange=exchange)
    torch.save(compute(comm, *arguments), folder / f"{rank}.pt")
    comm.pipeline.finish()
    comm.barrier()
