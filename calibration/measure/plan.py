"""What to measure next, and how often: whatever was never measured, then what is least certain, while time is left."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from calibration.fit.samples import BESIDE, COORDINATES, Sample

# of an op, and of one that takes long
REPEATS, LEAST_REPEATS = 9, 3
WARM_UPS = 2
# collectives in a row that are timed together, behind one that is not
CHAIN = 6
# times that a kernel and a message beside each other are run for one repeat, about: each alone too, and more kernels
# than the message lasts
BESIDE_RUNS = 6
# repeats beyond `LEAST_REPEATS` end where a sample would take longer
SAMPLE_S = 2.0


class Choice(NamedTuple):
    """What comes next."""

    op: Sample
    repeats: int


class Plan:
    """What is known of every op.

    Parameters
    ----------
    ops
        What can be measured, in the order of the first round, each kind from small to large.
    samples
        What was measured before.
    """

    def __init__(self, ops: Iterable[Sample], samples: Iterable[Sample]) -> None:
        self._left = {op.key: op for op in ops}
        self._counts: Counter[Any] = Counter()
        self._last: dict[Any, Sample] = {}
        # measured of each kind
        self._largest: dict[str, Sample] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Take note of a sample; an op that did not fit the memory is not tried again."""
        if sample.seconds is None:
            self._left.pop(sample.key, None)
            return
        self._counts[sample.key] += 1
        self._last[sample.key] = sample
        largest = self._largest.get(sample.op)
        if largest is None or _work(largest) <= _work(sample):
            self._largest[sample.op] = sample

    @property
    def unmeasured(self) -> int:
        """Ops without a sample."""
        return sum(not self._counts[key] for key in self._left)

    def next(self, left_s: float) -> Choice | None:
        """An op that was never measured, else the one whose median is least certain; None: no time is left for any.

        Parameters
        ----------
        left_s
            Time that is left, seconds.
        """
        choices = [Choice(op, self._repeats(op)) for op in self._left.values()]
        # the first run of all finds out whether it fits the memory
        fitting = [one for one in choices if (1 + WARM_UPS + one.repeats) * self._expected_s(one.op) < left_s]
        return max(fitting, key=lambda one: self._uncertainty(one.op), default=None)

    def _uncertainty(self, op: Sample) -> float:
        count = self._counts[op.key]
        return self._last[op.key].spread / math.sqrt(count) if count else math.inf

    def _repeats(self, op: Sample) -> int:
        expected_s = self._expected_s(op)
        return REPEATS if expected_s * REPEATS <= SAMPLE_S else max(LEAST_REPEATS, int(SAMPLE_S / expected_s))

    def _expected_s(self, op: Sample) -> float:
        """What a repeat of the op takes."""
        name, beside, message = op.op.partition(BESIDE)
        if beside:
            return BESIDE_RUNS * (self._once_s(op) + self._once_s(replace(op, op=f"{message}{BESIDE}{name}")))
        if "ranks" in op.point:
            return (1 + CHAIN) * (2.0 if name == "send_recv" else 1.0) * self._once_s(op)
        return self._once_s(op)

    def _once_s(self, op: Sample) -> float:
        """What the op took, or the largest of its kind for each unit of work; 0 where none was measured yet."""
        known = self._last.get(op.key) or self._largest.get(op.op)
        if known is None or known.seconds is None:
            return 0.0
        return known.seconds * max(1.0, _work(op) / _work(known))


def _work(op: Sample) -> float:
    """In proportion to what a large op of its kind takes, whatever runs beside it; a prompt attends to itself."""
    own = COORDINATES[op.op.partition(BESIDE)[0]]
    return math.prod(size for name, size in op.point.items() if name in own) * op.point.get("q_len", 1.0)
