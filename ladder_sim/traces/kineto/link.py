"""Messages of an emulated link: its runtime (`runtime/trace.py`) leaves spans, as no operator carries them.

``link:all_reduce 3, 6144 bytes, 740.0 us`` issues message 3, which ends so long after the span's start; ``link:wait 3``
is a thread waiting for it.
"""

import re
from typing import NamedTuple

PREFIX = "link:"
# its messages follow each other
LANE = "link"
_ISSUED = re.compile(PREFIX + r"(\w+) (\d+), (\d+) bytes, ([\d.]+) us")
_AWAITED = re.compile(PREFIX + r"wait (\d+)")


class Message(NamedTuple):
    """One of them."""

    number: int
    """In order of issue."""
    kind: str
    """Of the collective."""
    size_bytes: float
    """Carried."""
    seconds: float
    """From issue to end."""


def issued(name: str) -> Message | None:
    """The message that a span issues, if it does.

    Examples
    --------
    >>> issued("link:all_reduce 3, 6144 bytes, 740.0 us").number, issued("aten::mm")
    (3, None)
    """
    found = _ISSUED.fullmatch(name)
    if found is None:
        return None
    kind, number, size, microseconds = found.groups()
    return Message(int(number), kind, float(size), float(microseconds) * 1e-6)


def awaited(name: str) -> int | None:
    """Number of the message that a span waits for, if it does."""
    found = _AWAITED.fullmatch(name)
    return int(found[1]) if found else None
