"""What annotations say: the steps of a run, and which modules and ranges launched an op.

Steps are marked by the profiler, an engine, or names that a user gives. Frames of PyTorch's modules (``with_stack``)
count as ranges.
"""

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import SCOPE_SEPARATOR
from ladder_sim.traces.kineto.reader import MODULE_FRAME, MODULES, Event, KinetoFile, in_order

# in turn: `torch.profiler.profile.step`, vLLM's model runner, TensorRT-LLM's executor
_KNOWN = ("ProfilerStep*", "execute_context_*", "[[]Executor[]] _forward_step*")
# names that an error lists
_SHOWN = 8


def step_marks(file: KinetoFile, pattern: str | None) -> list[Event]:
    """Return the steps of a file.

    A step lasts from an annotation whose name matches `pattern` to the next one.
    The last step ends with its annotation, or after the usual time between two. Without a pattern it is one of
    `_KNOWN`; a pattern that matches nothing is an error.
    """
    for chosen in _KNOWN if pattern is None else (pattern,):
        marks = list(_outermost(file, chosen))
        if marks:
            return list(_periods(marks))
    names = Counter(event.name for event in file.events["user_annotation"])
    if pattern is not None:
        listed = ", ".join(f"'{name}'" for name, _ in names.most_common(_SHOWN))
        raise UsageError(
            f"no annotation of trace '{file.name}' matches '{pattern}'",
            hint=f"annotations and NVTX ranges: {listed or 'none were recorded'}",
        )
    return []


def _outermost(file: KinetoFile, pattern: str) -> Iterator[Event]:
    end_us = float("-inf")
    for event in file.events["user_annotation"]:
        if event.start_us >= end_us and fnmatch.fnmatchcase(event.name, pattern):
            end_us = event.end_us
            yield event


def _periods(marks: list[Event]) -> Iterator[Event]:
    """Yield marks that last until the next one, each with a name of its own."""
    names, numbers = Counter(mark.name for mark in marks), Counter[str]()
    periods_us = [later.start_us - mark.start_us for mark, later in pairwise(marks)]
    last_us = max(marks[-1].end_us, marks[-1].start_us + median(periods_us or [0.0]))
    for mark, end_us in zip(marks, [later.start_us for later in marks[1:]] + [last_us], strict=True):
        numbers[mark.name] += 1
        name = mark.name if names[mark.name] == 1 else f"{mark.name} #{numbers[mark.name]}"
        yield mark._replace(name=name, end_us=end_us)


class Scopes:
    """The modules and annotations around a time on a thread."""

    def __init__(self, file: KinetoFile) -> None:
        marks = {mark.start_us for mark in file.marks}
        self._spans: dict[Any, list[Event]] = defaultdict(list)
        annotations = (
            event
            for event in file.events["user_annotation"]
            # of libraries, and the steps themselves
            if event.start_us not in marks and ":" not in event.name and not event.name.startswith("#")
        )
        for event in in_order((*file.events[MODULES], *annotations)):
            self._spans[event.process, event.thread].append(event)

        # of each thread: the next span to begin, and those that are open
        self._next: dict[Any, int] = defaultdict(int)
        self._open: dict[Any, list[Event]] = defaultdict(list)

    def around(self, event: Event) -> str:
        """Return the names of scopes from the outermost to the innermost; ask for one thread's times in order."""
        place = event.process, event.thread
        spans, stack = self._spans.get(place, []), self._open[place]
        while self._next[place] < len(spans) and spans[self._next[place]].start_us <= event.start_us:
            stack.append(spans[self._next[place]])
            self._next[place] += 1
        stack[:] = [span for span in stack if span.end_us > event.start_us]
        return SCOPE_SEPARATOR.join(span.name.removeprefix(MODULE_FRAME) for span in stack)
