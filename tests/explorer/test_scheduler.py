"""One question at a time: what is due first, and nothing that a page no longer waits for."""

import threading
from contextlib import AbstractContextManager

import pytest

from ladder_sim.explorer.scheduler import StaleError, Turns

PATIENCE_S = 10.0


def _ask(turn: AbstractContextManager[None], name: str, found: list[str]) -> threading.Thread:
    """A request on a thread of its own, which notes when its turn comes or that it never will."""

    def wait() -> None:
        try:
            with turn:
                found.append(name)
        except StaleError:
            found.append(f"{name} stale")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _until_waiting(turns: Turns, count: int) -> None:
    event = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if turns.waiting == count:
            return
        event.wait(0.002)
    pytest.fail("nobody waits")


def test_headlines_come_before_views_that_asked_a_little_earlier() -> None:
    turns, found = Turns(), list[str]()
    with turns.headline("a", 1):
        threads = [_ask(turns.view("b", 1), "view", found)]
        _until_waiting(turns, 1)
        threads.append(_ask(turns.headline("c", 1), "headline", found))
        _until_waiting(turns, 2)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == ["headline", "view"]


def test_a_newer_headline_drops_what_the_page_waits_for() -> None:
    turns, found = Turns(), list[str]()
    with turns.headline("a", 1):
        dropped = [_ask(turns.view("a", 1), "view", found)]
        kept = [_ask(turns.view("b", 1), "other page", found)]
        _until_waiting(turns, 2)
        kept.append(_ask(turns.headline("a", 2), "newer", found))
        dropped[0].join(PATIENCE_S)
        assert found == ["view stale"]
        _until_waiting(turns, 2)
    for thread in kept:
        thread.join(PATIENCE_S)
    assert sorted(found[1:]) == ["newer", "other page"]
    with pytest.raises(StaleError), turns.view("a", 1):
        pass


def test_the_turn_passes_on_after_an_error() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.headline(None, 1):
        raise ZeroDivisionError
    with turns.view(None, 2):
        pass
