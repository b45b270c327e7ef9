"""A line on stderr that says how far a long run is; only on a terminal."""

import sys
import time
from types import TracebackType
from typing import Self

_EVERY_S = 0.2


class Progress:
    """Counts points: how many are answered, how fast, and how long the rest takes.

    Parameters
    ----------
    total
        Points of the whole run.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._started_s = self._shown_s = time.monotonic()
        self._first: int | None = None
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_terminal:
            # the line goes: what follows is the answer
            sys.stderr.write("\r\x1b[K")

    def __call__(self, points: int) -> None:
        """Say that `points` are answered by now."""
        now_s = time.monotonic()
        if self._first is None:
            # a resumed run did not compute its first points, and workers need time to start
            self._first, self._started_s = points, now_s
        if not self._on_terminal or now_s - self._shown_s < _EVERY_S:
            return
        self._shown_s = now_s
        sys.stderr.write(f"\r\x1b[K{progress_text(points, self._total, points - self._first, now_s - self._started_s)}")
        sys.stderr.flush()


def progress_text(points: int, total: int, lately: int, seconds: float) -> str:
    """How far, how fast, how long still.

    Examples
    --------
    >>> progress_text(600_000, 1_000_000, 500_000, 5.0)
    ' 60 %, 600,000 of 1,000,000 points, 100,000/s, 4 s left'
    """
    done = f"{points / total:4.0%}".replace("%", " %") + f", {points:,} of {total:,} points"
    if not lately or not seconds:
        return done
    left_s = (total - points) * seconds / lately
    left = f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
    return f"{done}, {lately / seconds:,.0f}/s, {left} left"
