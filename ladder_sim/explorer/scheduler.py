"""Schedules requests: one at a time, earliest deadline first.

Answering is pure computation, so two at once would take turns at Python's lock and both be late. What a page no longer
waits for is not computed at all.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

# deadlines of the two kinds of request
HEADLINE_S, VIEW_S = 0.1, 0.5
# pages whose latest query is remembered
_MAX_PAGES = 1000


class StaleError(Exception):
    """The page has sent another query since."""


class Scheduler:
    """Lets one request run at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        # deadline on the monotonic clock and thread of each request that waits
        self._queue: list[tuple[float, int]] = []

        # page -> query of its latest headline
        self._latest: OrderedDict[str, object] = OrderedDict()

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @contextmanager
    def headline(self, page: str | None, query: object) -> Iterator[None]:
        """Run a page's headline, whose other views follow this query from now on; None: an unknown page.

        Raises StaleError if the page has sent another query before this one could start.
        """
        if page is not None:
            with self._changed:
                self._latest[page] = query
                self._latest.move_to_end(page)
                if len(self._latest) > _MAX_PAGES:
                    self._latest.popitem(last=False)
                self._changed.notify_all()
        with self._run(page, query, HEADLINE_S):
            yield

    @contextmanager
    def view(self, page: str | None, query: object) -> Iterator[None]:
        """Run another view of a page; raises StaleError if the page's headline is about another query by then."""
        with self._run(page, query, VIEW_S):
            yield

    @contextmanager
    def _run(self, page: str | None, query: object, patience_s: float) -> Iterator[None]:
        own = time.monotonic() + patience_s, threading.get_ident()

        def is_stale() -> bool:
            return page is not None and self._latest.get(page, query) != query

        with self._changed:
            self._queue.append(own)
            self._changed.wait_for(lambda: is_stale() or (not self._busy and own == min(self._queue)))
            self._queue.remove(own)
            if is_stale():
                self._changed.notify_all()
                raise StaleError
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
