"""Finds where one CPU thread hands over to another: a forward pass on one, its backward pass on another.

A profiler does not record that a thread waits for another. It shows as silence: one thread runs no operator and makes
no call, while another thread, silent before, works for most of that time. Then the second waits for the first, and the
first for the second. Without these dependencies the silence would count as work of the first thread.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ladder_sim.des.spans import Span, Spans, subtract, union
from ladder_sim.traces.kineto.draft import Draft
from ladder_sim.traces.kineto.reader import CALLS, Clock, KinetoFile

# a shorter silence is the thread's own work
MIN_SILENCE_S = 50e-6
# share of the silence in which the other thread must work
MIN_COVERED = 0.5


def hand_over(threads: Sequence[list[Draft]], file: KinetoFile, clock: Clock) -> None:
    """Add the dependencies, and take the silence out of the time that a thread works."""
    busy = _busy(file, clock)
    for queue in threads:
        spans = busy.get(queue[0].lane.name, [])
        for draft in [
            draft for draft in queue if draft.kind == "host" and draft.end_s - draft.start_s >= MIN_SILENCE_S
        ]:
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
    """The ops of a thread in between, if they take most of the time."""
    first, stop = (bisect_left(queue, time_s, key=lambda draft: draft.start_s) for time_s in (start_s, end_s))
    inside = queue[first:stop]
    while inside and inside[-1].end_s > end_s:
        inside.pop()
    return inside if inside and inside[-1].end_s - inside[0].start_s >= MIN_COVERED * (end_s - start_s) else []


def _let_wait(queue: list[Draft], first: Draft, before: Draft) -> None:
    """Let the time ahead of op `first` on its thread begin when `before` ends."""
    at = queue.index(first)
    if not at or queue[at - 1].kind != "host":
        queue.insert(at, replace(before, lane=first.lane, start_s=before.end_s, end_s=first.start_s, after=[]))
        at += 1
    queue[at - 1].waits = True
    queue[at - 1].after.append(before)


def _longest_silence(spans: Spans, start_s: float, end_s: float) -> Span:
    """The longest gap between `spans`."""
    gaps = subtract([(start_s, end_s)], spans)
    return max(gaps, key=lambda gap: gap[1] - gap[0], default=(start_s, start_s))


def _busy(file: KinetoFile, clock: Clock) -> dict[str, Spans]:
    """When each thread runs an operator or makes a call."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for name in ("cpu_op", CALLS):
        for event in file.events[name]:
            spans[f"thread {event.thread}"].append((clock.seconds(event.start_us), clock.seconds(event.end_us)))
    return {name: union(own) for name, own in spans.items()}
