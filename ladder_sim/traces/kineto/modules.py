"""Which modules and ranges launched what: PyTorch's frames of modules (``with_stack``) and annotations."""

from collections import defaultdict
from typing import Any

from ladder_sim.traces.graph import SCOPE_SEPARATOR
from ladder_sim.traces.kineto.reader import MODULE_FRAME, MODULES, Event, KinetoFile, in_order


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
        """Names from the outermost to the innermost; times of one thread must be asked for in order."""
        place = event.process, event.thread
        spans, stack = self._spans.get(place, []), self._open[place]
        while self._next[place] < len(spans) and spans[self._next[place]].start_us <= event.start_us:
            stack.append(spans[self._next[place]])
            self._next[place] += 1
        stack[:] = [span for span in stack if span.end_us > event.start_us]
        return SCOPE_SEPARATOR.join(span.name.removeprefix(MODULE_FRAME) for span in stack)
