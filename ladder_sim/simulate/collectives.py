"""The collectives of a simulated pass: what each waits for, which kernels it can run next to, which one needs it."""

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from ladder_sim.des.timeline import Timeline, overlap_s
from ladder_sim.graph.ops import Op
from ladder_sim.simulate.lower import COMM, COMPUTE, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives of one name that can be hidden alike, of all layers."""

    name: str
    """As its op, without the layer, e.g. "mlp.dispatch"."""
    count: int
    """In the pass."""
    message_bytes: float
    """Message of each, bytes."""
    after: str
    """The last op whose result it waits for."""
    next_to: tuple[str, ...]
    """Kernels that can run meanwhile: issued after it, and before any that needs its result."""
    needed_by: str
    """The first kernel that does, or that of a collective behind it on the same stream; empty: the pass ends."""
    seconds: float
    """Seconds of all these collectives, hidden or not."""
    hidden_s: float
    """Part of these seconds in which kernels run."""


class _Place(NamedTuple):
    """Where a collective stands among the ops around it."""

    name: str
    after: str
    next_to: tuple[str, ...]
    needed_by: str


def collectives(schedule: Schedule, distinct: Sequence[Op], timeline: Timeline) -> list[Collective]:
    """Return a simulated pass's collectives in issue order, from arguments of `breakdown.simulated_ops`."""
    compute = timeline.busy([COMPUTE])
    launches = len(timeline.end_s) - len(schedule.layout.names)
    spans = list(zip(timeline.start_s[launches:].tolist(), timeline.end_s[launches:].tolist(), strict=True))
    repeats = schedule.layout.wiring.repeats
    # shared experts may take no time of their own, next to routed ones
    lasting = {number for number, (start_s, end_s) in enumerate(spans) if end_s > start_s}
    members: dict[_Place, list[int]] = defaultdict(list)
    for number, stream in enumerate(schedule.order.streams):
        if stream == COMM:
            members[_place(schedule, number, lasting)].append(number)
    times = {
        number: repeats.get(schedule.layout.layers[number], 1) for numbers in members.values() for number in numbers
    }
    shapes: Any = [op.shape for op in distinct]
    return [
        Collective(
            **place._asdict(),
            count=sum(times[number] for number in numbers),
            message_bytes=float(shapes[schedule.layout.same_as[numbers[0]]].message_bytes),
            seconds=sum(times[number] * (spans[number][1] - spans[number][0]) for number in numbers),
            hidden_s=sum(times[number] * overlap_s(spans[number], compute) for number in numbers),
        )
        for place, numbers in members.items()
    ]


def _place(schedule: Schedule, number: int, lasting: Set[int]) -> _Place:
    """Look for the first kernel that waits for a collective, or for one behind it on the same stream."""
    waiting, next_to = {number}, []
    needed_by = ""
    for later in range(number + 1, len(schedule.layout.names)):
        if schedule.order.streams[later] == COMM:
            waiting.add(later)
        elif not waiting.isdisjoint(schedule.layout.after[later]):
            needed_by = _name(schedule, later)
            break
        elif later in lasting:
            next_to.append(_name(schedule, later))
    after = max(schedule.layout.after[number])
    return _Place(_name(schedule, number), _name(schedule, after), tuple(next_to), needed_by)


def _name(schedule: Schedule, number: int) -> str:
    """Return an op's name without its layer."""
    name = schedule.layout.names[number]
    return name.partition(".")[2] if schedule.layout.layers[number] >= 0 else name
