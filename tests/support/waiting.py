"""Waiting for an event. No test is about how long it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

# a deadline only ends a hang, also on a machine that is busy with something else
HANG_S = 600.0

T = TypeVar("T")


def until(event: Callable[[], T]) -> T:
    """What `event` returns, once it is true."""
    end_s = time.monotonic() + HANG_S
    while not (value := event()):
        assert time.monotonic() < end_s, "the event never came"
        time.sleep(0.02)
    return value
