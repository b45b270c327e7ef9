"""Reads the JSON that PyTorch's profiler writes, plain or gzipped, and keeps the events that say what ran.

Each event shrinks to a tuple while the file is parsed, so that one of 100 MB needs a few times its own size. Everything
else (Python frames, flow arrows, counters) is dropped: an arrow from a launch to its kernel has the launch's
correlation id, which both of its ends carry.
"""

import gzip
import json
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import ALONE

_US = 1e-6
GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
_KEPT = GPU_CATEGORIES | CALL_CATEGORIES | {"cpu_op", "user_annotation", "cuda_sync"}
_GZIP_MAGIC = b"\x1f\x8b"
_AGAIN = "record it again, and let the profiler finish writing"
_KNOWN = "give a file of torch.profiler's export_chrome_trace, or one that `ladder-sim trace export` wrote"


class Event(NamedTuple):
    """Something with a start and an end."""

    category: str
    """Kineto's name of what it is: "kernel", "cuda_runtime", "cpu_op", ..."""
    name: str
    """Of the kernel, call or operator."""
    process: Any
    """Process id; a device's number for what ran on it."""
    thread: Any
    """Thread id; a stream's number for what ran on a device."""
    start_us: float
    """As recorded, on a clock whose zero is the file's own."""
    end_us: float
    """Start and duration."""
    args: Mapping[str, Any]
    """Everything else that is known of it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Recorded:
    """What one file holds, by category, in order of time."""

    path: str
    """Where it was read."""
    metadata: dict[str, Any]
    """The file's own keys besides its events."""
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """By category."""
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    """By process and thread."""

    @property
    def rank(self) -> int:
        """Of the process that wrote it; 0 if it says none."""
        return int((self.metadata.get("distributedInfo") or {}).get("rank", 0))

    @property
    def world_size(self) -> int:
        """Processes of the run; 1 if it says none."""
        return int((self.metadata.get("distributedInfo") or {}).get("world_size", 1))

    @property
    def clock_us(self) -> float:
        """Zero of the file's clock."""
        return float(self.metadata.get("baseTimeNanoseconds", 0)) * 1e-3


def read_document(path: Path) -> dict[str, Any]:
    """Parse a trace; ``traceEvents`` holds an `Event` or thread name for each event kept, everything else as it is.

    Raises
    ------
    UsageError
        The file cannot be read, is cut off, is no JSON, or has no ``traceEvents``.
    """
    text = read_text(path)
    try:
        document = json.loads(text, object_hook=_slim)
    except json.JSONDecodeError as error:
        cut_off = text[error.pos :].strip() == "" or error.msg.startswith("Unterminated")
        what = "ends in the middle: it is cut off" if cut_off else f"is no JSON: {error.msg} at {error.pos}"
        raise UsageError(f"trace '{path}' {what}", hint=_AGAIN) from error
    except (RecursionError, TypeError) as error:
        raise UsageError(f"trace '{path}' holds events of an unknown schema: {error}", hint=_KNOWN) from error
    if isinstance(document, list):
        # Chrome's format also allows the bare list
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(f"trace '{path}' has no list 'traceEvents': unknown schema", hint=_KNOWN)
    return document


def recorded(document: dict[str, Any], path: Path) -> Recorded:
    """Sort the events of a parsed file."""
    events = document["traceEvents"]
    found = Recorded(path=str(path), metadata={key: value for key, value in document.items() if key != "traceEvents"})
    for event in events:
        if type(event) is Event:
            found.events[event.category].append(event)
        elif type(event) is tuple:
            found.thread_names[event[0], event[1]] = event[2]
    for chosen in found.events.values():
        # an outer event before those inside it
        chosen.sort(key=lambda event: (event.start_us, -event.end_us))
    return found


def read_text(path: Path) -> str:
    """A file's text, gzipped or not.

    Raises
    ------
    UsageError
        It cannot be read, or is cut off.
    """
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        return data.decode("utf-8", errors="replace")
    except (EOFError, zlib.error) as error:
        raise UsageError(f"trace '{path}' is a gzip file that is cut off or damaged: {error}", hint=_AGAIN) from error
    except OSError as error:
        raise UsageError(
            f"trace '{path}' cannot be read: {error.strerror or error}", hint="give the path of a trace file"
        ) from error


def _slim(found: dict[str, Any]) -> Any:
    """Shrink an event as soon as it is parsed."""
    phase = found.get("ph")
    if phase is None:
        return found
    if phase == "X":
        category = found.get("cat")
        if category not in _KEPT or "ts" not in found:
            return None
        start_us = found["ts"]
        return Event(
            category,
            found.get("name", ""),
            found.get("pid"),
            found.get("tid"),
            start_us,
            start_us + found.get("dur", 0),
            found.get("args") or {},
        )
    if phase == "M" and found.get("name") == "thread_name":
        return (found.get("pid"), found.get("tid"), str((found.get("args") or {}).get("name", "")))
    return None


_MARK = "ProfilerStep"


class Steps:
    """Which iteration a moment of the CPU lies in."""

    def __init__(self, recorded: Recorded, origin_us: float) -> None:
        marks = [event for event in recorded.events["user_annotation"] if event.name.startswith(_MARK)]
        self.names = tuple(event.name for event in marks)
        self.starts_s = [(event.start_us - origin_us) * 1e-6 for event in marks]
        self.ends_s = [(event.end_us - origin_us) * 1e-6 for event in marks]

    def at(self, time_s: float) -> int:
        """Position of the iteration, `ALONE` outside all of them."""
        index = bisect_right(self.starts_s, time_s) - 1
        return index if index >= 0 and time_s < self.ends_s[index] else ALONE
