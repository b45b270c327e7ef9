"""A line on stderr that says how far a long run is; only on a terminal."""

import sys
import time
from types import TracebackType
from typing import Self

# between two updates
EVERY_S = 0.2


class StatusLine:
    """A line that is written over and over, and gone at the end; if not `wanted`, another rank shows one."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._on_terminal = wanted and sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_terminal:
            # what follows is the answer
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, text: str) -> None:
        """Write the line, unless that was done just now."""
        now_s = time.monotonic()
        if self._on_terminal and now_s - self._shown_s >= EVERY_S:
            self._shown_s = now_s
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if self._on_terminal:
            sys.stderr.write(f"\r\x1b[K{text}\n")
            sys.stderr.flush()


class Progress(StatusLine):
    """Counts what is done, e.g. "points", how fast, and how long the rest takes.

    `total` is that of the whole run, unless a call says otherwise.
    """

    def __init__(self, total: int, what: str, *, wanted: bool = True) -> None:
        super().__init__(wanted=wanted)
        self._total, self._what = total, what
        self._started_s = self._shown_s
        self._first: int | None = None

    def __call__(self, done: int, total: int | None = None) -> None:
        """Say how much is done by now, of how much."""
        self._total = total or self._total
        now_s = time.monotonic()
        if self._first is None:
            # a resumed run did not compute its first points, and workers need time to start
            self._first, self._started_s = done, now_s
        self.show(progress_text(done, self._total, self._what, done - self._first, now_s - self._started_s))


def progress_text(done: int, total: int, what: str, lately: int, seconds: float) -> str:
    """Return how far a job is, how fast it goes, and how long it still takes.

    Examples
    --------
    >>> progress_text(600_000, 1_000_000, "points", 500_000, 5.0)
    ' 60 %, 600,000 of 1,000,000 points, 100,000/s, 4 s left'
    >>> progress_text(12, 60, "requests", 6, 30.0)
    ' 20 %, 12 of 60 requests, 4 min left'
    """
    text = f"{done / total:4.0%}".replace("%", " %") + f", {done:,} of {total:,} {what}"
    if not lately or not seconds:
        return text
    left_s = (total - done) * seconds / lately
    rate = f", {lately / seconds:,.0f}/s" if lately > seconds else ""
    return f"{text}{rate}, {f'{left_s:.0f} s' if left_s < 120 else f'{left_s / 60:.0f} min'} left"
