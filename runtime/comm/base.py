"""The interfaces of a rank's communication, and their smallest implementations."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


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
        """Send tensors to the next stage."""

    def receive(self, x: Tensor) -> Handle:
        """Start to overwrite `x` with the next tensor that the stage before sends."""

    def share(self, x: Tensor) -> None:
        """Overwrite `x` with the last stage's."""


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

    def all_reduce(self, x: Tensor) -> Handle:
        """Start summing `x` over the ranks, in place."""

    def all_gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`, concatenated along the last dimension."""

    def broadcast(self, x: Tensor) -> None:
        """Overwrite `x` with rank 0's."""

    def slowest(self, seconds: Tensor) -> Tensor:
        """The maximum over the ranks, element by element; called after a measurement, not in it."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def settings(self) -> dict[str, object]:
        """What a result reports of the communication."""


class _OneStage:
    """All layers are on this rank."""

    stage, stages = 0, 1

    def send(self, *tensors: Tensor) -> None:
        """Never called: no stage follows."""

    def receive(self, x: Tensor) -> Handle:
        return DONE

    def share(self, x: Tensor) -> None:
        """No-op: this is the last stage."""


ONE_STAGE: Pipeline = _OneStage()


class Alone:
    """A single rank, with the whole model or with one shard and free communication."""

    name = "none"
    rank = 0

    def __init__(self, size: int = 1, pipeline: Pipeline = ONE_STAGE) -> None:
        self.size, self.pipeline = size, pipeline

    def all_reduce(self, x: Tensor) -> Handle:
        return DONE

    def all_gather(self, x: Tensor) -> Tensor:
        return x.repeat(*[1] * (x.dim() - 1), self.size)

    def broadcast(self, x: Tensor) -> None:
        """No-op: this is rank 0."""

    def slowest(self, seconds: Tensor) -> Tensor:
        return seconds

    def barrier(self) -> None:
        """No-op: single rank."""

    def settings(self) -> dict[str, object]:
        return {}


class _NoCollective:
    def wait(self) -> None:
        """No-op."""

    def observe(self, sink: Callable[[float], None]) -> None:
        """No-op: no collective ran."""


# of a collective that did not have to run
DONE: Handle = _NoCollective()
