"""The result of a simulated run: when each task ran, when streams were busy, and the critical path.

Intervals of time are pairs of start and end, seconds. `Spans` are sorted and disjoint; `union` makes them.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.des.program import NO_GROUP, Program
from ladder_sim.des.shared import Number

Span = tuple[float, float]
Spans = list[Span]

_end = itemgetter(1)


def union(spans: Iterable[Span]) -> Spans:
    """Merge intervals that touch or overlap.

    Examples
    --------
    >>> union([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    merged: Spans = []
    for start_s, end_s in sorted(spans):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end_s, merged[-1][1]))
        else:
            merged.append((start_s, end_s))
    return merged


def subtract(spans: Spans, cover: Spans) -> Spans:
    """Return the parts of `spans` that lie outside `cover`.

    Examples
    --------
    >>> subtract([(0.0, 5.0), (7.0, 8.0)], [(1.0, 2.0), (4.0, 7.5)])
    [(0.0, 1.0), (2.0, 4.0), (7.5, 8.0)]
    """
    outside: Spans = []
    for start_s, end_s in spans:
        index = bisect_right(cover, start_s, key=_end)
        while index < len(cover) and cover[index][0] < end_s:
            if cover[index][0] > start_s:
                outside.append((start_s, cover[index][0]))
            start_s = cover[index][1]
            index += 1
        if start_s < end_s:
            outside.append((start_s, end_s))
    return outside


def overlap_s(span: Span, cover: Spans) -> float:
    """Return the length of the part of `span` that lies inside `cover`, in seconds.

    Examples
    --------
    >>> overlap_s((0.0, 5.0), [(1.0, 2.0), (4.0, 9.0)])
    2.0
    """
    start_s, end_s = span
    inside_s = 0.0
    for begin_s, stop_s in islice(cover, bisect_right(cover, start_s, key=_end), None):
        if begin_s >= end_s:
            break
        inside_s += min(end_s, stop_s) - max(start_s, begin_s)
    return inside_s


def length_s(spans: Spans) -> float:
    """Total length.

    Examples
    --------
    >>> length_s([(0.0, 2.0), (3.0, 4.0)])
    3.0
    """
    return sum(end_s - start_s for start_s, end_s in spans)


# ready, start and end of every task, seconds: numbers, or arrays where configurations differ
TaskTimes = tuple[list[Number], list[Number], list[Number]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times of every task of a program, seconds from the start."""

    program: Program
    """What ran."""
    ready_s: NDArray[np.float64]
    """First in its queue, all dependencies met and their ends noticed."""
    start_s: NDArray[np.float64]
    """First instruction: ready, lead over, all members of its group ready."""
    end_s: NDArray[np.float64]
    """Last instruction."""

    @classmethod
    def of(cls, program: Program, times: TaskTimes) -> Self:
        """Return the timeline of one configuration."""
        ready_s, start_s, end_s = (np.array(column, np.float64) for column in times)
        return cls(program=program, ready_s=ready_s, start_s=start_s, end_s=end_s)

    @property
    def makespan_s(self) -> float:
        return float(self.end_s.max(initial=0.0))

    def busy(self, streams: Iterable[int]) -> Spans:
        """Return the spans in which any task of `streams` runs."""
        chosen = set(streams)
        spans = zip(self.program.outline.streams, self.start_s.tolist(), self.end_s.tolist(), strict=True)
        return union((start_s, end_s) for stream, start_s, end_s in spans if stream in chosen)

    def critical_path(self) -> list[int]:
        """Return the tasks from first to last, each of which ended at the moment that let the next one become ready."""
        if not len(self.end_s):
            return []
        outline, costs = self.program.outline, self.program.costs
        streams, kinds, groups, befores = outline.streams, outline.kinds, outline.groups, outline.befores
        ready_s, end_s = self.ready_s.tolist(), self.end_s.tolist()
        # when tasks of other streams notice an end
        noticed_s = [end + float(costs[kind].wake_s) for end, kind in zip(end_s, kinds, strict=True)]
        path = [end_s.index(max(end_s))]
        while True:
            latest = path[-1]
            if groups[latest] != NO_GROUP:
                latest = max(outline.members[groups[latest]], key=lambda i: ready_s[i] + float(costs[kinds[i]].lead_s))
            before, own = befores[latest], streams[latest]
            if not before:
                return path[::-1]
            times_s = [end_s[each] if streams[each] == own else noticed_s[each] for each in before]
            path.append(before[times_s.index(max(times_s))])
