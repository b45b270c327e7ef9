"""Where one CPU thread hands over to another: a forward pass on one, its backward pass on another.

A profiler does not record that a thread waits for another. It shows as silence: a thread runs no operator and makes no
call, while another that had been silent works for most of that time. The second then waits for the first, and the first
for the second; without this, the silence would count as work of the first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ladder_sim.traces.kineto.draft import Draft
from ladder_sim.traces.kineto.reader import CALL_CATEGORIES, Recorded

_US = 1e-6
# shorter ones are a thread's own
LEAST_SILENCE_S = 50e-6
# of the silence, that the other thread works
COVERED = 0.5


def hand_over(threads: Sequence[list[Draft]], recorded: Recorded, origin_us: float) -> None:
    """Add the dependencies, and take the silence out of the time that a thread works."""
    busy = _busy(recorded, origin_us)
    for queue in threads:
        spans = busy.get(queue[0].lane.name, [])
        for draft in [draft for draft in queue if draft.kind == "host" and _seconds(draft) >= LEAST_SILENCE_S]:
            silent_s, until_s = _longest_silence(spans, draft.start_s, draft.end_s)
            for other in threads:
                burst = _burst(other, silent_s, until_s) if other is not queue else []
                if burst:
                    before = replace(draft, end_s=silent_s, after=[], waits=False)
                    queue.insert(queue.index(draft), before)
                    draft.start_s, draft.waits = silent_s, True
                    draft.after.append(burst[-1])
                    _let_wait(other, burst[0], before)
                    break


def _burst(queue: list[Draft], start_s: float, end_s: float) -> list[Draft]:
    """What a thread did in between, if it took most of the time."""
    inside = queue[bisect_left(queue, start_s, key=_start) : bisect_left(queue, end_s, key=_start)]
    while inside and inside[-1].end_s > end_s:
        inside.pop()
    return inside if inside and inside[-1].end_s - inside[0].start_s >= COVERED * (end_s - start_s) else []


def _let_wait(queue: list[Draft], first: Draft, before: Draft) -> None:
    """Let a thread's time ahead of its op `first` begin when `before` ends."""
    at = queue.index(first)
    if not at or queue[at - 1].kind != "host":
        queue.insert(at, replace(before, lane=first.lane, start_s=before.end_s, end_s=first.start_s, after=[]))
        at += 1
    queue[at - 1].waits = True
    queue[at - 1].after.append(before)


def _start(draft: Draft) -> float:
    return draft.start_s


def _seconds(draft: Draft) -> float:
    return draft.end_s - draft.start_s


def _longest_silence(spans: Sequence[tuple[float, float]], start_s: float, end_s: float) -> tuple[float, float]:
    """Longest stretch in which none of the disjoint `spans` lies."""
    first = bisect_right(spans, start_s, key=lambda span: span[1])
    last = bisect_left(spans, end_s, key=lambda span: span[0])
    edges_s = [start_s, *(edge_s for span in spans[first:last] for edge_s in span), end_s]
    return max(zip(edges_s[::2], edges_s[1::2], strict=True), key=lambda gap: gap[1] - gap[0])


def _busy(recorded: Recorded, origin_us: float) -> dict[str, list[tuple[float, float]]]:
    """Stretches in which each thread runs an operator or makes a call."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in ("cpu_op", *CALL_CATEGORIES):
        for event in recorded.events[name]:
            span = ((event.start_us - origin_us) * _US, (event.end_us - origin_us) * _US)
            found.setdefault(f"thread {event.thread}", []).append(span)
    return {name: list(_union(spans)) for name, spans in found.items()}


def _union(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    spans.sort()
    start_s, end_s = spans[0]
    for start, end in spans:
        if start > end_s:
            yield start_s, end_s
            start_s, end_s = start, end
        end_s = max(end_s, end)
    yield start_s, end_s
