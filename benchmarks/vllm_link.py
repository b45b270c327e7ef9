"""vLLM plug-in of a benchmark: all-reduces over a slow link.

Where `LINK_MS` is set, one over two or more ranks ends no sooner than an emulated link would carry it, which takes one
message at a time, each in so many milliseconds, gloo's own time included. Where `LINK_SPACES` is set, each rank works
in its own of those network namespaces, which a link joins (`benchmarks/link_lab.py`), and reduces through gloo.
"""

import ctypes
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from runtime.comm.base import Handle
from runtime.comm.process_group import ProcessGroup

# of Linux's sched.h
_CLONE_NEWNET = 0x40000000


class _Late(NamedTuple):
    """A collective whose message is still on the link."""

    handle: Handle
    arrives_s: float

    def wait(self) -> None:
        self.handle.wait()
        time.sleep(max(0.0, self.arrives_s - time.perf_counter()))


def register() -> None:
    """Put the link under vLLM's own all-reduces, and those of the plug-in."""
    if "LINK_SPACES" in os.environ:
        _enter(os.environ["LINK_SPACES"].split(","))
    else:
        _delay(1e-3 * float(os.environ["LINK_MS"]))


def _enter(spaces: list[str]) -> None:
    """Let workers join their namespaces before they meet."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.v1.worker.cpu_worker import CPUWorker

    init_device = CPUWorker.init_device

    def in_space(self: Any) -> None:
        with Path("/run/netns", spaces[self.local_rank]).open() as space:
            # of this thread, and of those that it starts
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot join {space.name}")
        init_device(self)

    CPUWorker.init_device = in_space
    # as between machines, which share no memory
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False


def _delay(message_s: float) -> None:
    from vllm.distributed.parallel_state import GroupCoordinator

    free_s = 0.0

    def send() -> float:
        nonlocal free_s
        free_s = max(time.perf_counter(), free_s) + message_s
        return free_s

    ours, theirs = ProcessGroup.all_reduce, GroupCoordinator._all_reduce_out_place

    def all_reduce(self: ProcessGroup, x: Tensor, *, blocking: bool = False) -> Handle:
        return _Late(ours(self, x, blocking=blocking), send())

    def all_reduce_out_place(self: Any, x: Tensor) -> Tensor:
        arrives_s = send()
        output: Tensor = theirs(self, x)
        time.sleep(max(0.0, arrives_s - time.perf_counter()))
        return output

    ProcessGroup.all_reduce = all_reduce  # type: ignore[method-assign]
    GroupCoordinator._all_reduce_out_place = all_reduce_out_place
