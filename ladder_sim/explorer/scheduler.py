"""Who is answered next.

Answers compute and do nothing else, so two at once would take turns at Python's lock and both be late. One is computed
at a time, that which is due first; what a page no longer waits for is not computed at all.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# after which an answer is due
HEADLINE_S, VIEW_S = 0.1, 0.5
# whose question is remembered
_MOST_PAGES = 1000


class StaleError(Exception):
    """The page has asked something else since."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A question that is not yet answered."""

    page: str | None
    query: object
    due_s: float
    """On the monotonic clock."""
    called: threading.Event = field(default_factory=threading.Event)
    stale: bool = False


class Turns:
    """Hands out turns, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: list[_Waiting] = []
        # page -> query of its newest headline
        self._asked: OrderedDict[str, object] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Questions whose turn has not come."""
        return len(self._waiting)

    @contextmanager
    def headline(self, page: str | None, query: object) -> Iterator[None]:
        """A turn for a page's headline, whose other views follow this query from now on; None: an unknown page.

        Raises
        ------
        StaleError
            The page has asked for another headline before the turn came.
        """
        if page is not None:
            self._forget_others(page, query)
        with self._turn(page, query, HEADLINE_S):
            yield

    @contextmanager
    def view(self, page: str | None, query: object) -> Iterator[None]:
        """A turn for another view of a page.

        Raises
        ------
        StaleError
            The page's headline is about another query by then.
        """
        with self._lock:
            stale = page is not None and self._asked.get(page, query) != query
        if stale:
            raise StaleError
        with self._turn(page, query, VIEW_S):
            yield

    def _forget_others(self, page: str, query: object) -> None:
        with self._lock:
            self._asked[page] = query
            self._asked.move_to_end(page)
            if len(self._asked) > _MOST_PAGES:
                self._asked.popitem(last=False)
            for one in [one for one in self._waiting if one.page == page and one.query != query]:
                self._waiting.remove(one)
                one.stale = True
                one.called.set()

    @contextmanager
    def _turn(self, page: str | None, query: object, patience_s: float) -> Iterator[None]:
        own = _Waiting(page=page, query=query, due_s=time.monotonic() + patience_s)
        with self._lock:
            if self._busy:
                self._waiting.append(own)
            else:
                self._busy = True
                own.called.set()
        own.called.wait()
        if own.stale:
            raise StaleError
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                following = min(self._waiting, key=lambda one: one.due_s)
                self._waiting.remove(following)
                following.called.set()
            else:
                self._busy = False
