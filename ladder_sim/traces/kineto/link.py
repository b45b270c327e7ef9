"""Messages of an emulated link: no operator carries them, so `runtime/trace.py` marks them with spans.

``link:all_reduce 3, 6144 bytes, 740.0 us`` issues message 3, which ends 740 us after the start of the span. In
``link:wait 3`` a thread waits for it.
"""

import re
from typing import NamedTuple

PREFIX = "link:"
# one lane: messages follow each other
LANE = "link"
_ISSUED = re.compile(PREFIX + r"(\w+) (\d+), (\d+) bytes, ([\d.]+) us")
_AWAITED = re.compile(PREFIX + r"wait (\d+)")


class Message(NamedTuple):
    """A message that a span issues."""

    number: int
    """In order of issue."""
    kind: str
    size_bytes: float
    seconds: float
    """Time from issue to end."""


def issued(name: str) -> Message | None:
    """The message that a span issues, if any.

    Examples
    --------
    >>> issued("link:all_reduce 3, 6144 bytes, 740.0 us").number, issued("aten::mm")
    (3, None)
    """
    match = _ISSUED.fullmatch(name)
    if match is None:
        return None
    kind, number, size, microseconds = match.groups()
    return Message(int(number), kind, float(size), float(microseconds) * 1e-6)


def awaited(name: str) -> int | None:
    """Number of the message that a span waits for, if any."""
    match = _AWAITED.fullmatch(name)
    return int(match[1]) if match else None
