"""The interfaces of a rank's communication, and their smallest implementations."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

# notes how far a device's work was issued; what it returns says whether it has got there, to any thread
Mark = Callable[[], Callable[[], bool]]


class Handle(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Block what reads the tensor next until the collective is done: the CPU, or the current CUDA stream."""

    def observe(self, sink: Callable[[float], None]) -> None:
        """Call `sink` with the end of the collective in `time.perf_counter` seconds; never, if it cannot be seen."""


class Pipeline(Protocol):
    """The ranks that hold the same part of every pipeline stage, one for each stage."""

    stage: int
    """Of this process."""
    stages: int
    """Number of stages, 1 without pipeline parallelism."""

    def send(self, *tensors: Tensor) -> None:
        """Start to send tensors to the next stage, once those before have left."""

    def receive(self, x: Tensor) -> Handle:
        """Start to overwrite `x` with the next tensor that the stage before sends."""

    def share(self, x: Tensor) -> Handle:
        """Start to overwrite `x` with the last stage's."""

    def finish(self) -> None:
        """Wait until everything sent has left."""


class Exchange(Protocol):
    """The ranks at one position of every group with requests of its own; they share their experts.

    Rows are tokens.
    """

    rank: int
    """Number of this process's group."""
    size: int
    """Number of groups, 1 without attention-DP."""

    def all_gather(self, *tensors: Tensor) -> list[Tensor]:
        """Every rank's rows of some tensors; ranks have equally many."""

    def reduce_scatter(self, x: Tensor) -> tuple[Tensor, Handle]:
        """Start summing `x` over the ranks; each gets its part of the rows."""

    def all_to_all(self, x: Tensor, sent: list[int], received: list[int]) -> tuple[Tensor, Handle]:
        """Start to send so many rows to each rank, and to receive so many from each."""


class Communicator(Protocol):
    """Collectives over the ranks of one tensor-parallel group, in the order they are issued."""

    name: str
    """Of the backend."""
    rank: int
    """Of this process."""
    size: int
    """Number of ranks."""
    pipeline: Pipeline
    """Where this group's stage is among the others."""
    exchange: Exchange
    """Where this group is among those with requests of their own."""

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        """Start summing `x` over the ranks, in place; `blocking`: nothing is computed before it is waited for."""

    def all_gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`, concatenated along the last dimension."""

    def gather_rows(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        """Start to gather every rank's `x`, one after the other."""

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        """Start to sum `x` over the ranks, each of which gets an equal part of the rows."""

    def broadcast(self, x: Tensor) -> None:
        """Overwrite `x` with rank 0's."""

    def slowest(self, seconds: Tensor) -> Tensor:
        """The maximum over the ranks of all groups, element by element; called after a measurement, not in it."""

    def barrier(self) -> None:
        """Wait for every rank of all groups."""

    def replayed(self, mark: Mark) -> None:
        """A graph with this rank's collectives was started: `mark` where it ends."""

    def watched(self) -> "AbstractContextManager[Times]":
        """Measure the time of collectives meanwhile."""

    def settings(self) -> dict[str, object]:
        """What a result reports of the communication."""


class Times:
    """Seconds of collectives while they are watched; NaN: this communicator cannot see them."""

    comm_s = math.nan
    """Of the collectives."""
    exposed_s = math.nan
    """The computation waited for them."""

    def settle(self, *, replays: bool = False) -> None:
        """Count a pass to its end; called after each, `replays` if the next may replay its CUDA graph."""


class _NoCollective:
    def wait(self) -> None:
        """No-op."""

    def observe(self, sink: Callable[[float], None]) -> None:
        """No-op: no collective ran."""


# of a collective that did not have to run
DONE: Handle = _NoCollective()


class AloneInPipeline:
    """A single rank that stands for a stage, by default with all layers; nothing comes from the others."""

    def __init__(self, stage: int = 0, stages: int = 1) -> None:
        self.stage, self.stages = stage, stages

    def send(self, *tensors: Tensor) -> None:
        """No-op: there is no other stage."""

    def receive(self, x: Tensor) -> Handle:
        return DONE

    def share(self, x: Tensor) -> Handle:
        return DONE

    def finish(self) -> None:
        """No-op: nothing was sent."""


ONE_STAGE: Pipeline = AloneInPipeline()


class AloneInExchange:
    """A single rank that stands for all of an exchange: the others gather the same rows, and nothing takes time."""

    rank = 0

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def all_gather(self, *tensors: Tensor) -> list[Tensor]:
        return [x.repeat(self.size, *[1] * (x.dim() - 1)) for x in tensors]

    def reduce_scatter(self, x: Tensor) -> tuple[Tensor, Handle]:
        return x[: len(x) // self.size], DONE

    def all_to_all(self, x: Tensor, sent: list[int], received: list[int]) -> tuple[Tensor, Handle]:
        # what the others would send is not known
        return x.new_zeros((sum(received), *x.shape[1:])), DONE


ONE_GROUP: Exchange = AloneInExchange()


class Alone:
    """A single rank, with the whole model or with one shard and free communication."""

    name = "none"
    rank = 0

    def __init__(self, size: int = 1, pipeline: Pipeline = ONE_STAGE, exchange: Exchange = ONE_GROUP) -> None:
        self.size, self.pipeline, self.exchange = size, pipeline, exchange

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        return DONE

    def all_gather(self, x: Tensor) -> Tensor:
        return x.repeat(*[1] * (x.dim() - 1), self.size)

    def gather_rows(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        return x.repeat(self.size, *[1] * (x.dim() - 1)), DONE

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        return x[: len(x) // self.size], DONE

    def broadcast(self, x: Tensor) -> None:
        """No-op: this is rank 0."""

    def slowest(self, seconds: Tensor) -> Tensor:
        return seconds

    def barrier(self) -> None:
        """No-op: single rank."""

    def replayed(self, mark: Mark) -> None:
        """No-op: nobody waits for this rank."""

    def watched(self) -> AbstractContextManager[Times]:
        return nullcontext(Times())

    def settings(self) -> dict[str, object]:
        return {}
