"""Reads the JSON of PyTorch's profiler, plain or gzipped, and keeps the events of calls, operators and kernels.

Each event shrinks to a tuple while the file is parsed, so that a file of 100 MB needs a few times its size in memory.
Everything else (Python frames, flow arrows, counters) is dropped, and counted. The arrow from a launch to its kernel is
not needed: both carry the correlation id of the launch.
"""

import json
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_bytes
from ladder_sim.traces.graph import ALONE, Lane
from ladder_sim.units import quoted
from ladder_sim.values import whole

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
# of any device: "cuda_runtime", "cuda_driver", "xpu_runtime", ...
CALLS = "calls"
_CALL_ENDINGS = ("_runtime", "_driver")
# frames of PyTorch's modules, among those of Python
MODULES = "modules"
MODULE_FRAME = "nn.Module: "
_KEPT = GPU_CATEGORIES | {CALLS, MODULES, "cpu_op", "user_annotation", "cuda_sync"}
# what PyTorch up to 1.10 called them
_FORMER = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": CALLS,
    "Operator": "cpu_op",
}
PYTHON_FRAMES = "python_function"
# says nothing of when something ran
_DISPENSABLE = frozenset(
    {PYTHON_FRAMES, "gpu_user_annotation", "overhead", "Trace", "cpu_instant_event", "cuda_profiler_range"}
)
_US = 1e-6
# times of a file are rounded to nanoseconds, so that a call may begin just before the annotation around it
ROUNDED_S = 2e-9
# a century: clocks count from 1970
LONG_S = 100 * 365.25 * 86400
_LONG_US = LONG_S * 1e6
# kernels of traces of NVIDIA's and AMD's GPUs (tests/data/traces) last 1 us or longer, half of them more than 4 us; the
# shortest of so many lasts less than 5 us
_LEAST_US, _SHORTEST_US, _SEVERAL = 0.5, 500.0, 50
# kernels that one stream runs at a time: the next may begin before the end of the one ahead of it
_AT_A_TIME = 2.0
_ELEMENT_BYTES = {
    **dict.fromkeys(("double", "long", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "c10::half", "c10::bfloat16"), 2),
}
# ranks of a run
_MAX_RANKS = 1_000_000
# key of a parsed document: how many events of each category were dropped
_DROPPED = "ladder_sim_dropped"
# the rank in a file's name, the surest first: "tp8" is no rank, but SGLang's "TP-0" is
_RANK_IN_NAME = tuple(
    re.compile(rf"{word}(\d+)", re.IGNORECASE) for word in ("rank[-_.]?", "tp[-_.]", "(?:gpu|device)[-_.]?")
)
# unpacked; the events of such a file take several times as much memory
LIMIT_BYTES = 2**30
_AGAIN = "record it again, and let the profiler finish writing"
KNOWN = "give a file of torch.profiler's export_chrome_trace, or one that `ladder-sim trace export` wrote"


class Event(NamedTuple):
    """A stretch of time on a CPU thread or a stream."""

    category: str
    """Kineto's category: "kernel", "cuda_runtime", "cpu_op", ..."""
    name: str
    """Name of the kernel, call or operator."""
    process: Any
    """Process id, or the number of the device that it ran on."""
    thread: Any
    """Thread id, or the number of the stream that it ran on."""
    start_us: float
    """As recorded, on the clock of the file."""
    end_us: float
    """Start plus duration."""
    args: Mapping[str, Any]
    """Further properties of the event."""


def in_order(events: Iterable[Event]) -> list[Event]:
    """Return the events in order of time, an outer one before those inside it."""
    return sorted(events, key=lambda event: (event.start_us, -event.end_us))


def by_thread(events: Iterable[Event], rank: int) -> Iterator[tuple[Lane, list[Event]]]:
    """Yield the events of each CPU thread of a rank, as they come."""
    threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in events:
        threads[event.process, event.thread].append(event)
    for (_, thread), own in sorted(threads.items(), key=lambda item: str(item[0])):
        yield Lane(name=f"thread {thread}", rank=rank, device=False), own


@dataclass(slots=True, kw_only=True, eq=False)
class KinetoFile:
    """The events of one process, usually those of a file."""

    metadata: dict[str, Any]
    """Keys of the file other than the events."""
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Events by category, in order of time."""
    name: str = ""
    """Name of the file."""
    marks: Sequence[Event] = ()
    """Annotations of its steps, each until the next."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of events by category that were not kept."""
    notes: Sequence[str] = ()
    """What it does not record."""

    @property
    def rank(self) -> int:
        """Rank of the process that wrote it; if not recorded, by the name of the file; 0 if that has none."""
        in_name = (pattern.search(self.name) for pattern in _RANK_IN_NAME)
        return self._number("rank", next((int(match[1]) for match in in_name if match), 0), 0)

    @property
    def world_size(self) -> int:
        """Processes of the run; 1 if not recorded."""
        return self._number("world_size", 1, 1)

    def _number(self, name: str, default: int, minimum: int) -> int:
        info = self.metadata.get("distributedInfo") or {}
        value = info.get(name, default) if isinstance(info, dict) else info
        return whole(value, f"a trace's distributedInfo: {name}", minimum, _MAX_RANKS, hint=_AGAIN)

    @property
    def host(self) -> str:
        """Name of the machine; empty if not recorded."""
        return str(self.metadata.get("host_name", ""))


def read_document(path: Path) -> dict[str, Any]:
    """Parse a trace. In ``traceEvents`` each event that is kept becomes an `Event`, each other one None.

    Some other JSON may come back, too: `is_trace`.
    """
    text = read_trace(path)
    dropped: Counter[str] = Counter()
    try:
        document = json.loads(text, object_hook=lambda item: _slim(item, dropped))
    except json.JSONDecodeError as error:
        cut_off = text[error.pos :].strip() == "" or error.msg.startswith("Unterminated")
        what = "ends in the middle: it is cut off" if cut_off else f"is not JSON: {error.msg} at {error.pos}"
        if not text or text.isspace():
            what = f"is empty: {len(text)} blanks" if text else "is empty"
        raise UsageError(f"trace '{path}' {what}", hint=_AGAIN) from error
    except RecursionError as error:
        raise UsageError(f"trace '{path}' holds events of an unknown schema: nested too deeply", hint=KNOWN) from error
    except TypeError as error:
        raise UsageError(f"trace '{path}' holds events of an unknown schema: {error}", hint=KNOWN) from error
    if isinstance(document, list):
        # Chrome's format also allows the bare list
        document = {"traceEvents": document}
    return {**document, _DROPPED: dropped} if isinstance(document, dict) else {}


def is_trace(document: dict[str, Any]) -> bool:
    """Whether a parsed file has the events of a trace."""
    return isinstance(document.get("traceEvents"), list)


def sort_events(document: dict[str, Any], name: str) -> KinetoFile:
    """Sort the events of a parsed file of this name by category and time."""
    events = document["traceEvents"]
    file = KinetoFile(
        metadata={key: value for key, value in document.items() if key not in ("traceEvents", _DROPPED)},
        name=name,
        dropped=document.get(_DROPPED, {}),
    )
    for event in events:
        if type(event) is Event:
            file.events[event.category].append(event)
    for category, unsorted in file.events.items():
        file.events[category] = in_order(unsorted)
        _check_single(category, file.events[category])
    _check_times(file.events.get("kernel", ()))
    return file


def _check_times(kernels: Sequence[Event]) -> None:
    """Refuse kernels that no GPU runs: too short or too long, as in another unit, or many at a time on one stream."""
    if not kernels:
        return
    lasting_us = sorted(each.end_us - each.start_us for each in kernels)
    median_us, shortest_us = lasting_us[len(kernels) // 2], lasting_us[0]
    wrong = ""
    if 0.0 < median_us < _LEAST_US:
        wrong = f"half of the kernels of a trace last less than {median_us:.3g} us, and the shortest take about 1 us"
    elif len(kernels) >= _SEVERAL and shortest_us > _SHORTEST_US:
        wrong = f"the shortest of {len(kernels)} kernels lasts {shortest_us:.3g} us, and the shortest take about 1 us"
    streams: dict[tuple[Any, Any], list[float]] = {}
    for each in (kernel for kernel in kernels if kernel.thread is not None):
        busy = streams.setdefault((each.process, each.thread), [0.0, 0.0, -math.inf])
        busy[0] += each.end_us - each.start_us
        busy[1] += max(each.end_us - max(each.start_us, busy[2]), 0.0)
        busy[2] = max(busy[2], each.end_us)
    for (_, stream), (sum_us, busy_us, _) in streams.items():
        if sum_us > _AT_A_TIME * busy_us:
            wrong = (
                f"kernels of stream {stream} last {sum_us:.3g} us together, in {busy_us:.3g} us: it runs one at a time"
            )
    if wrong:
        raise UsageError(wrong, hint="its times must be microseconds, of one rank: record it again, or convert it")


def _check_single(category: str, events: Sequence[Event]) -> None:
    """Refuse kernels that are listed twice: a stream runs one at a time."""
    if category not in GPU_CATEGORIES:
        return
    seen = set()
    for event in events:
        key = (event.name, event.process, event.thread, event.start_us, event.end_us, event.args.get("correlation"))
        if event.end_us > event.start_us and key in seen:
            raise UsageError(
                f"a trace has the {category} {quoted(event.name)} at {event.start_us} us twice",
                hint="record it again, or join files only once",
            )
        seen.add(key)


def read_trace(path: Path) -> str:
    """Return a file's text, gzipped or not; raise UsageError if it cannot be read."""
    raw = read_bytes(path, what="a trace", limit_bytes=LIMIT_BYTES, unpack=True, error=UsageError)
    return raw.decode("utf-8", errors="replace")


def unread(file: KinetoFile) -> Iterator[str]:
    """Yield notes on what a file does not record, and on dropped events that may matter."""
    yield from file.notes
    frames = file.dropped.get(PYTHON_FRAMES, 0)
    if frames:
        yield f"{frames} Python frames (with_stack=True): recording them slows the CPU, so that its times are too long"
    for category, number in sorted(file.dropped.items()):
        if category not in _DISPENSABLE:
            yield f"{number} events of the unknown category '{category}', left out"


def _slim(item: dict[str, Any], dropped: Counter[str]) -> Any:
    """Shrink an event as soon as it is parsed; other objects stay as they are."""
    phase = item.get("ph")
    if phase is None:
        return item
    recorded = item.get("cat")
    category = _FORMER.get(recorded, recorded) if isinstance(recorded, str) else ""
    if category.endswith(_CALL_ENDINGS):
        category = CALLS
    elif recorded == "Operator" and str(item.get("name", "")).startswith("ProfilerStep"):
        category = "user_annotation"
    elif category == PYTHON_FRAMES and phase == "X":
        dropped[category] += 1
        category = MODULES if str(item.get("name", "")).startswith(MODULE_FRAME) else ""
    if phase != "X" or category not in _KEPT or "ts" not in item:
        if phase == "X" and category:
            dropped[category] += 1
        return None
    start_us: Any = item["ts"]
    duration_us: Any = item.get("dur")
    name, args = item.get("name", ""), item.get("args") or {}
    if duration_us is None:
        raise TypeError(f"{quoted(name)} at {quoted(start_us)} has no dur: it still ran when the recording stopped")
    if not all(isinstance(time_us, int | float) for time_us in (start_us, duration_us)):
        raise TypeError(f"{quoted(name)} at {quoted(start_us)} lasts {quoted(duration_us)}: times must be numbers")
    if not (0 <= duration_us < _LONG_US and abs(start_us) < _LONG_US):
        raise TypeError(f"{quoted(name)} at {start_us} lasts {duration_us} us: times must be finite, and 0 or longer")
    if not isinstance(name, str) or not isinstance(args, dict):
        raise TypeError(f"{quoted(name)}: its name must be text and its args an object")
    return Event(category, name, item.get("pid"), item.get("tid"), start_us, start_us + duration_us, args)


class Clock:
    """Seconds since the first event of a file, and the steps that its annotations mark."""

    def __init__(self, file: KinetoFile, events: Iterable[Event]) -> None:
        self._origin_us = min(event.start_us for event in events)
        zero_us = float(file.metadata.get("baseTimeNanoseconds", 0)) * 1e-3
        self.origin_s = (zero_us + self._origin_us) * _US
        self.steps = tuple(mark.name for mark in file.marks)
        self._starts_s = [self.seconds(mark.start_us) for mark in file.marks]
        self._ends_s = [self.seconds(mark.end_us) for mark in file.marks]

    def seconds(self, time_us: float) -> float:
        """Return a time of the file in seconds since its first event."""
        return (time_us - self._origin_us) * _US

    def step(self, time_s: float) -> int:
        """Return the position of the step at this time; `ALONE` outside all of them."""
        index = bisect_right(self._starts_s, time_s + ROUNDED_S) - 1
        return index if index >= 0 and time_s < self._ends_s[index] else ALONE


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element by PyTorch's name of its type; 1 for an unknown name."""
    return _ELEMENT_BYTES.get(dtype.lower(), 1)


def tensor_bytes(args: Mapping[str, Any], tensors: int | None = None) -> float:
    """Return the bytes of an operator's first tensors, or of all, if shapes were recorded; 0 for tensor lists.

    Examples
    --------
    >>> tensor_bytes({"Input Dims": [[], [4, 8], [2]], "Input type": ["", "c10::BFloat16", "float"]}, 1)
    64.0
    """
    sizes = []
    for shape, dtype in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False):
        if not all(isinstance(width, int) for width in shape):
            return 0.0
        if shape:
            sizes.append(float(prod(shape)) * element_bytes(str(dtype)))
    return sum(sizes[:tensors])
