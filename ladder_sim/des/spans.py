"""Intervals of time: pairs of start and end, seconds. `Spans` are sorted and disjoint; `union` makes them."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

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
    """The parts of `spans` that lie outside `cover`.

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
    """Length of the part of `span` that lies inside `cover`.

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
