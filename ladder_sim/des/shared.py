"""The resources that tasks of one GPU share, and how fast each task runs next to the others.

Streaming multiprocessors (SMs) are held whole: a collective keeps its own for as long as it runs, a kernel gets the
rest. A kernel loses nothing until fewer SMs are left than it needs for its full speed, then its share of them; one in
tiles also needs another wave when they no longer fit. Device memory and link bandwidth are fluid. Memory bandwidth of
which tasks need more than there is goes to the SMs that ask: a collective has its own, a kernel all. A collective also
waits for the memory at every step: while the memory is busy it takes longer, and asks for less. All collectives get the
same fraction of a link.

A task alone always runs at rate 1. Numbers may be arrays with one element per configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = float | Floats


def maximum(first: Number, second: Number) -> Number:
    """Return the larger number, element by element for arrays."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        larger: Number = np.maximum(first, second)
        return larger
    return first if first > second else second


def minimum(first: Number, second: Number) -> Number:
    """Return the smaller number, element by element for arrays."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        smaller: Number = np.minimum(first, second)
        return smaller
    return first if first < second else second


def any_true(value: "Number | bool | NDArray[np.bool_]") -> bool:
    """Whether a value is true, or not zero, in any configuration."""
    return bool(value.any()) if isinstance(value, np.ndarray) else bool(value)


def where(condition: Any, value: Any, other: Any) -> Any:
    """Return one of two values, element by element if the condition is an array."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, value, other)
    return value if condition else other


def values_of(value: Number, chosen: NDArray[np.int_]) -> Number:
    """Return the values of the chosen configurations; a number holds for all of them."""
    return value[chosen] if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """The resources that a task uses when it runs alone."""

    held_sms: Number = 0
    """SMs reserved for the task: a collective's channels."""
    tiles: Number = 0
    """Long-running thread blocks, each on an SM of its own; 0: many short ones that spread over the free SMs."""
    spare: Number = 1.0
    """Share of the SMs that a kernel can lose without slowing down."""
    scatter: Number = 0.0
    """SMs that a kernel with tiles loses beyond each one that is taken, because its tiles start in clusters."""
    memory: Number = 0.0
    """Share of the device memory's bandwidth."""
    link: float = 0.0
    """Share of the interconnect's bandwidth."""
    slowdown: Number = 0.0
    """How much longer a collective takes while kernels use all memory bandwidth, as a fraction."""

    def of(self, chosen: NDArray[np.int_]) -> "Demand":
        """Return the demand in some of the configurations that its arrays hold."""
        parts: dict[str, Any] = {name: values_of(getattr(self, name), chosen) for name in self.__slots__}
        return replace(self, **parts)

    @property
    def uses_shared(self) -> bool:
        """Whether it uses anything that is shared."""
        if self.is_collective:
            return True
        return any_true(self.tiles) or any_true(self.memory) or any_true(1.0 - self.spare)

    @property
    def is_collective(self) -> bool:
        """Whether it has SMs of its own, or uses the interconnect, where no SMs are counted for it."""
        return bool(self.link) or any_true(self.held_sms)


class Traits(NamedTuple):
    """What a demand is, whatever its numbers."""

    varies: bool
    """A number is an array."""
    is_collective: bool
    uses_shared: bool


# a point closer to the end of a wave than this share of a wave counts as the end
ROUNDING = 1e-9

# avoids a division by zero for tasks without length, seconds, or without memory traffic: far below any kernel's
TINY = 1e-18

# uses nothing that is shared
NOTHING = Demand()


def _waits(own: Demand, tasks: Sequence[Demand]) -> Number:
    """Return how many times as long a collective takes because its steps wait for the memory that other tasks use."""
    busy = sum((task.memory for task in tasks), start=0.0) - own.memory
    return 1.0 + own.slowdown * minimum(1.0, busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU's shared resources."""

    sms: int
    """Streaming multiprocessors."""
    _pairs: dict[Demand, dict[Demand, tuple[float, float]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Speeds that `pair` has computed."""
    traits: dict[Demand, Traits] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Traits of demands of plain numbers, kept because the same demands come again."""

    def rate(self, own: Demand, others: Sequence[Demand]) -> Number:
        """Return the speed of a task while `others` run, relative to running alone: in (0, 1]."""
        if not others:
            return 1.0
        tasks = [own, *others]
        if own.is_collective:
            rate: Number = 1.0 / _waits(own, tasks)
        else:
            rate = self._sm_rate(own, sum(other.held_sms for other in others))
        if any_true(own.memory):
            rate = minimum(rate, self._sms_of(own) * self._memory_per_sm(tasks) / maximum(TINY, own.memory))
        if own.link:
            rate = minimum(rate, 1.0 / max(1.0, sum(task.link for task in tasks)))
        return rate

    def _memory_per_sm(self, tasks: Sequence[Demand]) -> Number:
        """Share of the memory's bandwidth that an SM of every task can have where they need more than there is.

        Weighted max-min fairness: who needs less than that leaves the rest to the others.
        """
        needs = [task.memory / _waits(task, tasks) if task.is_collective else task.memory for task in tasks]
        sms = [self._sms_of(task) for task in tasks]
        per_sm: Number = 1.0 / sum(sms, start=0.0)

        # each round finds at least one task more that has all it needs
        for _ in tasks[1:]:
            left: Number = 1.0
            asking: Number = 0.0
            for need, own_sms in zip(needs, sms, strict=True):
                has_all: Any = (need <= per_sm * own_sms) * 1.0
                left, asking = left - has_all * need, asking + (1.0 - has_all) * own_sms
            per_sm = maximum(per_sm, left / maximum(TINY, asking))
        return per_sm

    def _sms_of(self, task: Demand) -> Number:
        """Return the SMs that ask for memory: all SMs for a kernel, as its blocks come to whichever is free."""
        return maximum(1.0, task.held_sms) if task.is_collective else float(self.sms)

    def traits_of(self, demand: Demand) -> Traits:
        """Return the traits of a demand, and keep those of plain numbers in `traits`."""
        varies = any(isinstance(getattr(demand, name), np.ndarray) for name in demand.__slots__)
        traits = Traits(varies, demand.is_collective, demand.uses_shared)
        if not varies:
            self.traits[demand] = traits
        return traits

    def pairs_of(self, collective: Demand) -> dict[Demand, tuple[float, float]]:
        """Return the speeds of kernels and of a collective next to each other, as `pair` has computed them."""
        return self._pairs.setdefault(collective, {})

    def pair(self, kernel: Demand, collective: Demand) -> tuple[float, float]:
        """Return the speeds of a kernel and a collective next to each other, all plain numbers, and keep them."""
        rates = float(self.rate(kernel, [collective])), float(self.rate(collective, [kernel]))
        self.pairs_of(collective)[kernel] = rates
        return rates

    def waves(self, tiles: Number) -> Number:
        """Return the number of rounds in which all SMs process `tiles`."""
        return maximum(1, -(-tiles // self.sms))

    def must_drain(self, collective: Demand, kernel: Demand) -> "bool | NDArray[np.bool_]":
        """Whether `kernel` leaves `collective` too few free SMs, so that it waits for the end of a wave."""
        return (kernel.tiles > 0) & (collective.held_sms > self.sms - minimum(kernel.tiles, self.sms))

    def left_in_wave(self, kernel: Demand, left_s: Number, duration_s: Number) -> Number:
        """Return the work left in the current wave of `kernel`, in seconds at rate 1; 0 between two waves."""
        wave_s = maximum(duration_s, TINY) / self.waves(kernel.tiles)
        waves_left = left_s / wave_s
        return maximum(0.0, waves_left - (waves_left + ROUNDING) // 1.0) * wave_s

    def _sm_rate(self, own: Demand, held_sms: Number) -> Number:
        # a kernel runs on at least one SM
        free = maximum(1.0, self.sms - held_sms)
        spread = minimum(1.0, free / maximum(1.0, self.sms * (1.0 - own.spare)))
        if not any_true(own.tiles):
            return spread
        whole = maximum(1.0, self.sms - held_sms * (1.0 + own.scatter))
        return minimum(spread, self.waves(own.tiles) / -(-maximum(1, own.tiles) // whole))
