"""The resources that tasks of one GPU share, and how fast each task runs next to the others.

Streaming multiprocessors (SMs) are held whole: a collective keeps its own for as long as it runs, and a kernel loses
so many for each of them. A collective goes through the device memory step by step, and every step takes longer while
kernels run: then the collective takes longer, and asks for less. Device memory and link bandwidth are fluid. Memory
bandwidth of which tasks need more than there is goes to the SMs that ask: a collective has its own, a kernel all. All
collectives get the same fraction of a link.

A task alone always runs at rate 1. Numbers may be arrays with one element per configuration: `maximum`, `where` and the
other functions above the resources compute with both, and everything that prices uses them.
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


def number(value: Any) -> Number:
    """Return a plain number instead of a numpy scalar, which is slow to compute with."""
    return value if isinstance(value, np.ndarray) and value.ndim else float(value)


def values_of(value: Number, chosen: NDArray[np.int_]) -> Number:
    """Return the values of the chosen configurations; a number holds for all of them."""
    return value[chosen] if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """The resources that a task uses when it runs alone."""

    held_sms: Number = 0
    """SMs reserved for the task: a collective's channels."""
    lost: Number = 0.0
    """SMs that a kernel loses for each one that is held: a part of one, or several."""
    memory: Number = 0.0
    """Share of the device memory's bandwidth."""
    link: float = 0.0
    """Share of the interconnect's bandwidth."""
    waits: Number = 0.0
    """Share of a collective's time alone in which its steps wait for the device memory, one after another."""
    delay: Number = 0.0
    """How much longer such a step takes while a kernel runs, in multiples of its time alone."""

    def of(self, chosen: NDArray[np.int_]) -> "Demand":
        """Return the demand in some of the configurations that its arrays hold."""
        parts: dict[str, Any] = {name: values_of(getattr(self, name), chosen) for name in self.__slots__}
        return replace(self, **parts)

    @property
    def uses_shared(self) -> bool:
        """Whether it shares anything with others, or slows them."""
        if self.is_collective:
            return True
        return any_true(self.memory) or any_true(self.lost) or any_true(self.delay)

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


# avoids a division by zero for tasks without memory traffic: far below any kernel's
TINY = 1e-18

# uses nothing that is shared
NOTHING = Demand()


def _stretch(own: Demand, tasks: Sequence[Demand]) -> Number:
    """Return how many times as long a collective takes because kernels delay its steps through the memory."""
    return 1.0 + own.waits * sum((task.delay for task in tasks), start=0.0)


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
            rate: Number = 1.0 / _stretch(own, tasks)
        else:
            held_sms = sum((other.held_sms for other in others), start=0.0)
            # a kernel runs on at least one SM
            rate = maximum(1.0, self.sms - own.lost * held_sms) / self.sms
        if any_true(own.memory):
            rate = minimum(rate, self._sms_of(own) * self._memory_per_sm(tasks) / maximum(TINY, own.memory))
        if own.link:
            rate = minimum(rate, 1.0 / max(1.0, sum(task.link for task in tasks)))
        return rate

    def _memory_per_sm(self, tasks: Sequence[Demand]) -> Number:
        """Share of the memory's bandwidth that an SM of every task can have where they need more than there is.

        Weighted max-min fairness: who needs less than that leaves the rest to the others.
        """
        needs = [task.memory / _stretch(task, tasks) if task.is_collective else task.memory for task in tasks]
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
        held, lost, memory, link, delay = demand.held_sms, demand.lost, demand.memory, demand.link, demand.delay
        if np.ndarray in map(type, (held, lost, memory, link, demand.waits, delay)):
            return Traits(varies=True, is_collective=demand.is_collective, uses_shared=demand.uses_shared)
        # of plain numbers, several times as fast
        is_collective = bool(link or held)
        traits = Traits(False, is_collective, is_collective or bool(memory or lost or delay))
        self.traits[demand] = traits
        return traits

    def pairs_of(self, collective: Demand) -> dict[Demand, tuple[float, float]]:
        """Return the speeds of kernels and of a collective next to each other, as `pair` has computed them."""
        return self._pairs.setdefault(collective, {})

    def pair(self, kernel: Demand, collective: Demand) -> tuple[float, float]:
        """Return the speeds of a kernel and a collective next to each other, all plain numbers, and keep them."""
        # `rate` of two tasks, written out: several times as fast
        needs, memory, held_sms, waits, delay = map(
            float, (kernel.memory, collective.memory, collective.held_sms, collective.waits, collective.delay)
        )
        sms, lost = float(self.sms), float(kernel.lost)
        stretch = 1.0 + waits * (float(kernel.delay) + delay)
        rate, its_rate = max(1.0, sms - lost * held_sms) / sms, 1.0 / stretch
        if needs or memory:
            its_sms = max(1.0, held_sms)
            its_needs = memory / stretch
            per_sm = 1.0 / (sms + its_sms)
            has_all, it_has_all = needs <= per_sm * sms, its_needs <= per_sm * its_sms
            # both have all that they need, or one leaves the rest to the other
            if not (has_all and it_has_all):
                left = 1.0 - (needs if has_all else its_needs if it_has_all else 0.0)
                asking = (0.0 if has_all else sms) + (0.0 if it_has_all else its_sms)
                per_sm = max(per_sm, left / asking)
                rate = min(rate, sms * per_sm / max(TINY, needs)) if needs else rate
                its_rate = min(its_rate, its_sms * per_sm / max(TINY, memory)) if memory else its_rate
        if collective.link:
            its_rate = min(its_rate, 1.0 / max(1.0, collective.link + kernel.link))
        rates = rate, its_rate
        self.pairs_of(collective)[kernel] = rates
        return rates
