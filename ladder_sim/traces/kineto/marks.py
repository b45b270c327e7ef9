"""Which annotations mark the steps of a run: the profiler's, an engine's, or those that a user names."""

import fnmatch
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from ladder_sim.errors import UsageError
from ladder_sim.traces.kineto.reader import KinetoFile, Mark

# in turn: `torch.profiler.profile.step`, vLLM's model runner, TensorRT-LLM's executor
_KNOWN = ("ProfilerStep*", "execute_context_*", "[[]Executor[]] _forward_step*")
# names that an error lists
_SHOWN = 8


def step_marks(file: KinetoFile, pattern: str | None) -> list[Mark]:
    """The steps of a file: from each annotation whose name matches `pattern` to the next.

    The last step ends with its annotation, or after the usual time between two.

    Raises
    ------
    UsageError
        No annotation has such a name.
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


def _outermost(file: KinetoFile, pattern: str) -> Iterator[Mark]:
    """Annotations with such a name that are in no other of them."""
    end_us = float("-inf")
    for event in file.events["user_annotation"]:
        if event.start_us >= end_us and fnmatch.fnmatchcase(event.name, pattern):
            end_us = event.end_us
            yield Mark(event.name, event.start_us, event.end_us)


def _periods(marks: list[Mark]) -> Iterator[Mark]:
    """Marks that last until the next, with names of their own."""
    names, numbers = Counter(mark.name for mark in marks), Counter[str]()
    periods_us = [later.start_us - mark.start_us for mark, later in pairwise(marks)]
    last_us = max(marks[-1].end_us, marks[-1].start_us + median(periods_us or [0.0]))
    for mark, end_us in zip(marks, [later.start_us for later in marks[1:]] + [last_us], strict=True):
        numbers[mark.name] += 1
        name = mark.name if names[mark.name] == 1 else f"{mark.name} #{numbers[mark.name]}"
        yield Mark(name, mark.start_us, end_us)
