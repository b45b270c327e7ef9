"""vLLM plug-in of a benchmark: an all-reduce over two or more ranks ends no sooner than a slow link would carry it.

The link carries one message at a time, each in `LINK_MS` milliseconds, gloo's own time included.
"""

import os
import time
from typing import Any, NamedTuple

from torch import Tensor

from runtime.comm.base import Handle
from runtime.comm.process_group import ProcessGroup


class _Late(NamedTuple):
    """A collective whose message is still on the link."""

    handle: Handle
    arrives_s: float

    def wait(self) -> None:
        self.handle.wait()
        time.sleep(max(0.0, self.arrives_s - time.perf_counter()))


def register() -> None:
    """Put the link under vLLM's own all-reduces, and those of the plug-in."""
    from vllm.distributed.parallel_state import GroupCoordinator

    message_s, free_s = 1e-3 * float(os.environ["LINK_MS"]), 0.0

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
