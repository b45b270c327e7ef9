"""One question at a time: what is due first, and nothing that a page no longer waits for."""

import threading
from contextlib import AbstractContextManager

import pytest

from ladder_sim.explorer.worker import Scheduler, StaleError
from tests.support.waiting import HANG_S, until


def _ask(turn: AbstractContextManager[None], name: str, order: list[str]) -> threading.Thread:
    """A request on a thread of its own, which notes when its turn comes or that it never will."""

    def wait() -> None:
        try:
            with turn:
                order.append(name)
        except StaleError:
            order.append(f"{name} stale")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _until_waiting(scheduler: Scheduler, count: int) -> None:
    until(lambda: scheduler.queued == count)


def test_headlines_come_before_views_that_asked_a_little_earlier() -> None:
    scheduler, order = Scheduler(), list[str]()
    with scheduler.headline("a", 1):
        threads = [_ask(scheduler.view("b", 1), "view", order)]
        _until_waiting(scheduler, 1)
        threads.append(_ask(scheduler.headline("c", 1), "headline", order))
        _until_waiting(scheduler, 2)
    for thread in threads:
        thread.join(HANG_S)
    assert order == ["headline", "view"]


def test_a_newer_headline_drops_what_the_page_waits_for() -> None:
    scheduler, order = Scheduler(), list[str]()
    with scheduler.headline("a", 1):
        dropped = [_ask(scheduler.view("a", 1), "view", order)]
        kept = [_ask(scheduler.view("b", 1), "other page", order)]
        _until_waiting(scheduler, 2)
        kept.append(_ask(scheduler.headline("a", 2), "newer", order))
        dropped[0].join(HANG_S)
        assert order == ["view stale"]
        _until_waiting(scheduler, 2)
    for thread in kept:
        thread.join(HANG_S)
    assert sorted(order[1:]) == ["newer", "other page"]
    with pytest.raises(StaleError), scheduler.view("a", 1):
        pass


def test_the_turn_passes_on_after_an_error() -> None:
    scheduler = Scheduler()
    with pytest.raises(ZeroDivisionError), scheduler.headline(None, 1):
        raise ZeroDivisionError
    with scheduler.view(None, 2):
        pass
