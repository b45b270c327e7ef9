"""Simulations of a search: how many are done, and a journal of them from which a killed search goes on."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder_sim.serve.sizing.capacity import Points
from ladder_sim.system.journal import Journal

# points of one search, about: of a limit and of replicas
_SEARCH_POINTS = 12


@contextmanager
def kept_points(path: Path | None, fingerprint: str, *, resume: bool) -> Iterator[Points]:
    """Points in memory, and in a journal next to a file until all is done."""
    if path is None:
        yield {}
        return
    journal = Journal(path=path, fingerprint=fingerprint)
    with journal.locked():
        done = len(journal.done()) if resume else 0
        known = dict(json.loads(chunk) for chunk in journal.chunks()) if done else {}
        with journal.appending(done) as append:
            yield _Kept(known, append)
        journal.drop()


class _Kept(dict[str, Any]):
    """Points of which each further one is written down."""

    def __init__(self, known: Mapping[str, Any], append: Callable[[bytes, int], None]) -> None:
        super().__init__(known)
        self._append = append

    def __setitem__(self, key: str, value: Any) -> None:
        self._append(f"{json.dumps([key, value])}\n".encode(), 1)
        super().__setitem__(key, value)


class Progress:
    """Searches that are done, and how much of this one, in points of about one size."""

    def __init__(self, searches: int, watch: Callable[[int, int], object]) -> None:
        self.left, self.points, self.watch = searches, 0, watch
        self._done = 0

    def point(self) -> None:
        """One more is about to be simulated."""
        self._done, self.points = self._done + 1, self.points + 1
        self.watch(self._done, self._done + max(1, _SEARCH_POINTS - self.points) + _SEARCH_POINTS * (self.left - 1))

    def searched(self) -> None:
        """One search is done, or need not be made."""
        self.left, self.points = self.left - 1, 0
