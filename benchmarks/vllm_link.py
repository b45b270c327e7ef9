"""vLLM plug-in of a benchmark: all-reduces over a slow link.

Where `LINK_MS` is set, one over two or more ranks ends no sooner than an emulated link would carry it, which takes one
message at a time, each in so many milliseconds, gloo's own time included; so do those of compiled models. Where
`LINK_SPACES` is set, each rank works in its own of those network namespaces, which a link joins
(`benchmarks/link_lab.py`), and reduces through gloo.
"""

import ctypes
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.comm.base import Handle
from runtime.comm.process_group import ProcessGroup

# of Linux's sched.h
_CLONE_NEWNET = 0x40000000
# what they register is gone when they are
_LIBRARIES: list[torch.library.Library] = []


class _Late(NamedTuple):
    """A collective whose message is still on the link."""

    handle: Handle
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
    # loads vLLM's kernels
    import vllm._custom_ops  # noqa: F401

    free_s = 0.0
    # of tensors that are reduced, by their memory
    arrives_s: dict[int, float] = {}

    def send() -> float:
        nonlocal free_s
        free_s = max(time.perf_counter(), free_s) + message_s
        return free_s

    def reduce(kernel: Callable[..., None], shared_memory: int, x: Tensor) -> None:
        at_s = send()
        kernel(shared_memory, x)
        _sleep_until(at_s)

    def start(kernel: Callable[..., Tensor], x: Tensor, operation: str, group: Any) -> Tensor:
        at_s = send()
        output = kernel(x, operation, group)
        arrives_s[output.data_ptr()] = at_s
        return output

    def wait(kernel: Callable[..., Tensor], x: Tensor) -> Tensor:
        output = kernel(x)
        _sleep_until(arrives_s.pop(x.data_ptr()))
        return output

    _wrap("_C::shm_allreduce", reduce)
    _wrap("_c10d_functional::all_reduce_", start)
    _wrap("_c10d_functional::wait_tensor", wait)
    all_reduce = ProcessGroup.all_reduce

    def delayed(self: ProcessGroup, x: Tensor, *, blocking: bool = False) -> Handle:
        return _Late(all_reduce(self, x, blocking=blocking), send())

    ProcessGroup.all_reduce = delayed  # type: ignore[method-assign]


def _wrap(name: str, around: Callable[..., Any]) -> None:
    """Let a function that gets a kernel for CPUs and its arguments take the kernel's place, in compiled code too."""
    namespace, operation = name.split("::")
    kernel = torch.library.get_kernel(name, "CPU")
    library = torch.library.Library(namespace, "IMPL")
    library.impl(
        operation,
        lambda keys, *arguments: around(functools.partial(kernel.call_boxed, keys), *arguments),
        "CPU",
        with_keyset=True,
    )
    _LIBRARIES.append(library)


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.perf_counter()))
