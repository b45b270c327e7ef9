"""What a rank communicates by; each class by itself is that of a rank alone, which stands for all others."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

# notes how far a device's work was issued; what it returns says whether it has got there, to any thread
Mark = Callable[[], Callable[[], bool]]


class Handle:
    """A collective under way; this one did not have to run."""

    def wait(self) -> None:
        """Block the tensor's next reader until the collective is done: the CPU, or the current CUDA stream."""

    def observe(self, sink: Callable[[float], None]) -> None:
        """Call `sink` with the end of the collective in `time.perf_counter` seconds; never, if it cannot be seen."""


DONE = Handle()


class Pipeline:
    """The ranks that hold the same part of every pipeline stage, one for each stage; this process is of `stage`.

    Alone, nothing comes from the other stages.
    """

    def __init__(self, stage: int = 0, stages: int = 1) -> None:
        self.stage, self.stages = stage, stages

    def send(self, *tensors: Tensor) -> None:
        """Start to send tensors to the next stage, once those before have left."""

    def receive(self, x: Tensor) -> Handle:
        """Start to overwrite `x` with the next tensor that the stage before sends."""
        return DONE

    def share(self, x: Tensor) -> Handle:
        """Start to overwrite `x` with the last stage's."""
        return DONE

    def finish(self) -> None:
        """Wait until everything sent has left."""


ONE_STAGE = Pipeline()


class CommTimes:
    """Seconds of collectives while they are watched; NaN: this communicator cannot see them."""

    comm_s = math.nan
    """Seconds of the collectives."""
    exposed_s = math.nan
    """The computation waited for them."""

    def settle(self, *, replays: bool = False) -> None:
        """Count a pass to its end; called after each, `replays` if the next may replay its CUDA graph."""


class Communicator:
    """Collectives over the ranks of one group, in the order they are issued. Rows are tokens.

    Alone, a rank has the whole model, or one shard of it and free communication: the others gather the same rows.
    `exchange` are the ranks at this position of every group with requests of its own, which share their experts; by
    default there is one such group. `name` is the backend's.
    """

    name = "none"
    rank = 0

    def __init__(self, size: int = 1, pipeline: Pipeline = ONE_STAGE, exchange: "Communicator | None" = None) -> None:
        self.size, self.pipeline = size, pipeline
        self.exchange: Communicator = exchange or (self if size == 1 else Communicator())

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        """Start summing `x` over the ranks, in place; `blocking`: nothing is computed before it is waited for."""
        return DONE

    def all_gather(self, x: Tensor) -> Tensor:
        """Return every rank's `x`, concatenated along the last dimension."""
        return x.repeat(*[1] * (x.dim() - 1), self.size)

    def gather_rows(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        """Start to gather every rank's `x`, one after the other."""
        return x.repeat(self.size, *[1] * (x.dim() - 1)), DONE

    def gather_all(self, *tensors: Tensor) -> list[Tensor]:
        """Return every rank's rows of some tensors; ranks have equally many rows."""
        return [self.gather_rows(x)[0] for x in tensors]

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        """Start to sum `x` over the ranks, each of which gets an equal part of the rows."""
        return x[: len(x) // self.size], DONE

    def swap_rows(self, x: Tensor, sent: list[int], received: list[int]) -> tuple[Tensor, Handle]:
        """Start to send so many rows to each rank, and to receive so many from each: zeros, if it is alone."""
        return x.new_zeros((sum(received), *x.shape[1:])), DONE

    def broadcast(self, x: Tensor) -> None:
        """Overwrite `x` with rank 0's."""

    def slowest(self, seconds: Tensor) -> Tensor:
        """Return the maximum over the ranks of all groups, element by element; call it after a measurement only."""
        return seconds

    def barrier(self) -> None:
        """Wait for every rank of all groups."""

    def replayed(self, mark: Mark) -> None:
        """Record that a graph with this rank's collectives was started, whose end `mark` marks."""

    def watched(self) -> AbstractContextManager[CommTimes]:
        """Measure the time of collectives meanwhile."""
        return nullcontext(CommTimes())

    def settings(self) -> dict[str, object]:
        """Return what a result reports of the communication."""
        return {}
