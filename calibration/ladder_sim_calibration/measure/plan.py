"""What to measure next: every op once, then the one whose median is least certain, while time is left."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ladder_sim_calibration.fit.samples import BESIDE, COORDINATES, HELD, SUSTAINED, Sample

# repeats of an op, and of one that takes long
REPEATS, MIN_REPEATS = 9, 3
# how long a GEMM runs before it counts as sustained; its repeats together take less
SUSTAINED_S = 5.0
# repeats beyond `MIN_REPEATS` are left out where a sample would take longer than this
SAMPLE_S = 2.0
WARM_UPS = 2
# collectives in a row that are timed together, after one that is not timed
CHAINED_COLLECTIVES = 6
# tiny kernels, and all-reduces, that each wait for the one before
QUEUED_KERNELS = 50
# kernels in a row, once while a part of the processor is held and once while it is not
HELD_KERNELS = 20
# runs of a kernel and a message at the same time for one repeat, roughly: each alone as well, and more kernels than the
# message lasts
OVERLAP_RUNS = 6


class Plan:
    """What is known of every op so far, from earlier `samples` on, and which op comes next.

    In the first round `ops` come in their order, each kind from small to large.
    """

    def __init__(self, ops: Iterable[Sample], samples: Iterable[Sample]) -> None:
        # one of each kind first: a short run says something of everything
        first: dict[str, Sample] = {}
        others: list[Sample] = []
        for op in ops:
            if first.setdefault(op.op, op) is not op:
                others.append(op)
        self._ops = {op.key: op for op in (*first.values(), *others)}
        self._counts: Counter[Any] = Counter()
        self._last: dict[Any, Sample] = {}

        # the largest op of each kind that was measured
        self._largest: dict[str, Sample] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Count a sample; an op that did not fit in memory is not tried again."""
        if sample.seconds is None:
            self._ops.pop(sample.key, None)
            return
        self._counts[sample.key] += 1
        self._last[sample.key] = sample
        largest = self._largest.get(sample.op)
        if largest is None or _work(largest) <= _work(sample):
            self._largest[sample.op] = sample

    @property
    def unmeasured(self) -> int:
        """Ops without a sample."""
        return sum(not self._counts[key] for key in self._ops)

    def next(self, left_s: float) -> tuple[Sample, int] | None:
        """Choose an op without a sample, else the one whose median is least certain, and how often to repeat it.

        None if no op would end within `left_s`.
        """
        choices = [(op, self._repeats(op)) for op in self._ops.values()]
        # one run more than warm-ups and repeats: the first allocates and shows whether the op fits in memory
        fitting = [(op, repeats) for op, repeats in choices if (1 + WARM_UPS + repeats) * self._expected_s(op) < left_s]
        return max(fitting, key=lambda choice: self._uncertainty(choice[0]), default=None)

    def _uncertainty(self, op: Sample) -> float:
        count = self._counts[op.key]
        return self._last[op.key].spread / math.sqrt(count) if count else math.inf

    def _repeats(self, op: Sample) -> int:
        expected_s = self._expected_s(op)
        return REPEATS if expected_s * REPEATS <= SAMPLE_S else max(MIN_REPEATS, int(SAMPLE_S / expected_s))

    def _expected_s(self, op: Sample) -> float:
        """Return the expected seconds of one repeat of an op."""
        if op.op == SUSTAINED:
            return SUSTAINED_S / MIN_REPEATS
        name, overlapped, message = op.op.partition(BESIDE)
        if message == HELD:
            return 2 * HELD_KERNELS * self._once_s(op)
        if overlapped:
            return OVERLAP_RUNS * (self._once_s(op) + self._once_s(replace(op, op=f"{message}{BESIDE}{name}")))
        return (1 + CHAINED_COLLECTIVES if "ranks" in op.point else 1) * self._once_s(op)

    def _once_s(self, op: Sample) -> float:
        """Return the seconds that an op last took, else those of the largest of its kind scaled by work, else 0."""
        known = self._last.get(op.key) or self._largest.get(op.op)
        if known is None or known.seconds is None:
            return 0.0
        return known.seconds * max(1.0, _work(op) / _work(known))


def _work(op: Sample) -> float:
    """Return a number in proportion to the time of a large op of its kind; for a prompt, its length squared."""
    own = COORDINATES[op.op.partition(BESIDE)[0]]
    sizes = ((name, size) for name, size in op.point.items() if name in own)
    work = math.prod(1.0 / size if name in ("expert_tp", "ep") else size for name, size in sizes)
    return work * op.point.get("q_len", 1.0)
