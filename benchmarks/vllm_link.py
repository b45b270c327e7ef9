"""vLLM plug-in of a benchmark: all-reduces over a slow link.

Where `LINK_MS` is set, one over two or more ranks ends no sooner than an emulated link would carry it, which takes one
message at a time, each in so many milliseconds, gloo's own time included; so do those of compiled models. Where
`LINK_SPACES` is set, each rank works in its own of those network namespaces, which a link joins
(`benchmarks/link_lab.py`), and reduces through gloo.
"""

import ctypes
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.library import Library

from runtime.comm.base import Handle
from runtime.comm.process_group import ProcessGroup

# of Linux's sched.h
_CLONE_NEWNET = 0x40000000
# what they register lasts as long as they
_LIBRARIES: list[Library] = []


class _Late(NamedTuple):
    """A collective whose message is still on the link."""

    handle: Any
    arrives_s: float

    def wait(self) -> None:
        self.handle.wait()
        _sleep_until(self.arrives_s)


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
    """Put the link under vLLM's own all-reduces, those of the plug-in, and those of a model that it compiles."""
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
    from vllm.distributed.parallel_state import get_tp_group

    free_s = 0.0
    # by the memory of what is reduced
    travelling: dict[int, _Late] = {}

    def send() -> float:
        nonlocal free_s
        free_s = max(time.perf_counter(), free_s) + message_s
        return free_s

    def through_memory(handle: int, x: Tensor) -> None:
        arrives_s = send()
        torch.ops._C.shm_allreduce(handle, x)
        _sleep_until(arrives_s)

    def start(x: Tensor, operation: str, group: Any) -> Tensor:
        handle = dist.all_reduce(x, group=get_tp_group().device_group, async_op=True)
        travelling[x.data_ptr()] = _Late(handle, send())
        return x

    def wait(x: Tensor) -> Tensor:
        travelling.pop(x.data_ptr()).wait()
        return x

    def shm_all_reduce(self: Any, x: Tensor, group: Any = None) -> None:
        torch.ops.ladder_sim_link.all_reduce(self.handle, x)

    all_reduce = ProcessGroup.all_reduce

    def delayed(self: ProcessGroup, x: Tensor, *, blocking: bool = False) -> Handle:
        return _Late(all_reduce(self, x, blocking=blocking), send())

    # compiled code calls operators alone
    own, functional = Library("ladder_sim_link", "DEF"), Library("_c10d_functional", "IMPL")
    own.define("all_reduce(int handle, Tensor(a!) x) -> ()")
    own.impl("all_reduce", through_memory, "CPU")
    own.impl("all_reduce", lambda handle, x: None, "Meta")
    functional.impl("all_reduce_", start, "CPU")
    functional.impl("wait_tensor", wait, "CPU")
    _LIBRARIES.extend((own, functional))
    _CPUSHMDistributed.all_reduce = shm_all_reduce
    ProcessGroup.all_reduce = delayed  # type: ignore[method-assign]


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.perf_counter()))
