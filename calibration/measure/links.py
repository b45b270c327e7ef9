"""Collectives between ranks, alone: how long each takes, and how much of a core."""

import time
from typing import NamedTuple

import torch

from runtime.comm.base import Communicator

ELEMENT_BYTES = 4
CHAIN = 6
# collectives in a row whose mean is taken: ranks leave a barrier one after the other, and the first pays for that


class CollectiveTime(NamedTuple):
    """One collective."""

    seconds: float
    # of the slowest rank
    core_share: float
    # of that time: what the threads that communicate computed meanwhile


def time_collective(comm: Communicator, kind: str, size_bytes: float) -> CollectiveTime:
    """Time a collective beside which nothing runs.

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
    x = torch.zeros(1, max(1, round(size_bytes / ELEMENT_BYTES / parts)))
    comm.barrier()
    start_s, cpu_s = time.perf_counter(), _other_threads_s()
    for _ in range(CHAIN):
        if kind == "all_reduce":
            comm.all_reduce(x).wait()
        elif kind == "all_gather":
            comm.all_gather(x)
        else:
            comm.broadcast(x)
    seconds = time.perf_counter() - start_s
    own = torch.tensor([seconds / CHAIN, (_other_threads_s() - cpu_s) / seconds], dtype=torch.float64)
    return CollectiveTime(*comm.slowest(own).tolist())


def _other_threads_s() -> float:
    """CPU time of this process that the calling thread did not take."""
    return time.process_time() - time.thread_time()
