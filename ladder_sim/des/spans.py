"""Interval algebra: sorted, disjoint intervals of time."""

from collections.abc import Iterable

Spans = list[tuple[float, float]]


def subtract(spans: Spans, cover: Spans) -> Spans:
    """What of the disjoint, sorted `spans` lies outside the disjoint, sorted `cover`.

    Examples
    --------
    >>> subtract([(0.0, 5.0), (7.0, 8.0)], [(1.0, 2.0), (4.0, 7.5)])
    [(0.0, 1.0), (2.0, 4.0), (7.5, 8.0)]
    """
    found: Spans = []
    position = 0
    for start_s, end_s in spans:
        while position < len(cover) and cover[position][1] <= start_s:
            position += 1
        at = position
        while at < len(cover) and cover[at][0] < end_s:
            if cover[at][0] > start_s:
                found.append((start_s, cover[at][0]))
            start_s = cover[at][1]
            at += 1
        if start_s < end_s:
            found.append((start_s, end_s))
    return found


def length_s(spans: Spans) -> float:
    """Total length of disjoint intervals."""
    return sum(end_s - start_s for start_s, end_s in spans)


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge intervals that touch or overlap.

    Examples
    --------
    >>> union([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlap_s(span: tuple[float, float], cover: Iterable[tuple[float, float]]) -> float:
    """Length of `span` that the disjoint intervals of `cover` share.

    Examples
    --------
    >>> overlap_s((0.0, 5.0), [(1.0, 2.0), (4.0, 9.0)])
    2.0
    """
    start, end = span
    return sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in cover)
