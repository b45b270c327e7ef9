"""Collectives between ranks, alone: how long each takes."""

import time

import torch

from runtime.comm.base import Communicator

ELEMENT_BYTES = 4
CHAIN = 6
# collectives in a row whose mean is taken: ranks leave a barrier one after the other, and the first pays for that


def time_collective(comm: Communicator, kind: str, size_bytes: float) -> float:
    """Seconds of a collective beside which nothing runs, on the slowest rank.

    Parameters
    ----------
    comm
        The ranks.
    kind
        "all_reduce", "all_gather" or "broadcast".
    size_bytes
        Message; of an all-gather its result.
    """
    parts = comm.size if kind == "all_gather" else 1
    x = message(size_bytes / parts)
    comm.barrier()
    start_s = time.perf_counter()
    for _ in range(CHAIN):
        if kind == "all_reduce":
            comm.all_reduce(x).wait()
        elif kind == "all_gather":
            comm.all_gather(x)
        else:
            comm.broadcast(x)
    own = torch.tensor([(time.perf_counter() - start_s) / CHAIN], dtype=torch.float64)
    return float(comm.slowest(own).item())


def message(size_bytes: float) -> torch.Tensor:
    """Something to send."""
    return torch.zeros(1, max(1, round(size_bytes / ELEMENT_BYTES)))
