"""The protocol that the model talks to, and its smallest implementation."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class Handle(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Hold whoever reads the tensor next until the collective is done: the CPU, or the current CUDA stream."""

    def observe(self, sink: Callable[[float], None]) -> None:
        """Have `sink` told when the collective ended, in `time.perf_counter` seconds; never, if nobody can know."""


class Communicator(Protocol):
    """Collectives over the ranks of one tensor-parallel group, in the order they are issued."""

    name: str
    """Of the backend."""
    rank: int
    """This one."""
    size: int
    """Ranks that share the model."""

    def all_reduce(self, x: Tensor) -> Handle:
        """Start summing `x` over the ranks, in place."""

    def all_gather(self, x: Tensor) -> Tensor:
        """Every rank's `x` side by side along the last dimension."""

    def broadcast(self, x: Tensor) -> None:
        """Overwrite `x` by rank 0's."""

    def slowest(self, seconds: Tensor) -> Tensor:
        """The largest of every rank's value, element by element; after the measurement, not part of it."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def settings(self) -> dict[str, object]:
        """What a result has to say about how ranks communicated."""


class Alone:
    """One rank that has the whole model, or that pays nothing for what it does not have."""

    name = "none"
    rank = 0

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def all_reduce(self, x: Tensor) -> Handle:
        return DONE

    def all_gather(self, x: Tensor) -> Tensor:
        return x.repeat(*[1] * (x.dim() - 1), self.size)

    def broadcast(self, x: Tensor) -> None:
        """Rank 0 it is."""

    def slowest(self, seconds: Tensor) -> Tensor:
        return seconds

    def barrier(self) -> None:
        """Nobody else is there."""

    def settings(self) -> dict[str, object]:
        return {}


class _Done:
    def wait(self) -> None:
        """It is done."""

    def observe(self, sink: Callable[[float], None]) -> None:
        """It never ran."""


# a collective that nobody has to wait for
DONE: Handle = _Done()
