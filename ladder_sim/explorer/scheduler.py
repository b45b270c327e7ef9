"""Schedules requests: one at a time, earliest deadline first.

Answering is pure computation, so two at once would take turns at Python's lock and both be late. What a page no longer
waits for is not computed at all.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# deadlines of the two kinds of request
HEADLINE_S, VIEW_S = 0.1, 0.5
# pages whose latest query is remembered
_MAX_PAGES = 1000


class StaleError(Exception):
    """The page has sent another query since."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A request in the queue."""

    page: str | None
    query: object
    deadline_s: float
    """On the monotonic clock."""
    decided: threading.Event = field(default_factory=threading.Event)
    """Set when it may start, or is stale."""
    stale: bool = False


class Scheduler:
    """Lets one request run at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._queue: list[_Request] = []

        # page -> query of its latest headline
        self._latest: OrderedDict[str, object] = OrderedDict()

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @contextmanager
    def headline(self, page: str | None, query: object) -> Iterator[None]:
        """Run a page's headline, whose other views follow this query from now on; None: an unknown page.

        Raises
        ------
        StaleError
            The page has sent another query before this one could start.
        """
        if page is not None:
            self._cancel_others(page, query)
        with self._run(page, query, HEADLINE_S):
            yield

    @contextmanager
    def view(self, page: str | None, query: object) -> Iterator[None]:
        """Run another view of a page.

        Raises
        ------
        StaleError
            The page's headline is about another query by then.
        """
        with self._lock:
            stale = page is not None and self._latest.get(page, query) != query
        if stale:
            raise StaleError
        with self._run(page, query, VIEW_S):
            yield

    def _cancel_others(self, page: str, query: object) -> None:
        with self._lock:
            self._latest[page] = query
            self._latest.move_to_end(page)
            if len(self._latest) > _MAX_PAGES:
                self._latest.popitem(last=False)
            for request in [request for request in self._queue if request.page == page and request.query != query]:
                self._queue.remove(request)
                request.stale = True
                request.decided.set()

    @contextmanager
    def _run(self, page: str | None, query: object, patience_s: float) -> Iterator[None]:
        request = _Request(page=page, query=query, deadline_s=time.monotonic() + patience_s)
        with self._lock:
            if self._busy:
                self._queue.append(request)
            else:
                self._busy = True
                request.decided.set()
        request.decided.wait()
        if request.stale:
            raise StaleError
        try:
            yield
        finally:
            self._start_next()

    def _start_next(self) -> None:
        with self._lock:
            if self._queue:
                following = min(self._queue, key=lambda request: request.deadline_s)
                self._queue.remove(following)
                following.decided.set()
            else:
                self._busy = False
