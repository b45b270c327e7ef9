"""Steps of a trace: those without marks are found by repetition, one is chosen by name, a part of them by time."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.graph import ALONE, EARLIER, REDUCES, TraceGraph

# all-reduces of two layers: a CUDA graph of fewer is a piece of a pass
_REDUCES = 4


def mark_repetitions(graph: TraceGraph) -> TraceGraph:
    """Mark the repetitions in a trace without marks as iterations.

    A trace that does not end in a repetition stays as it is.
    A repetition must last until the end of the trace. So the layers of a single forward pass are not taken for
    iterations: the LM head that follows them breaks the pattern. Those of a pass without one (a pipeline stage, a part
    of a pass) are known by the all-reduces that their blocks wait for, and so are the passes of a draft model. Where
    everything runs in CUDA graphs of several layers, each of which does the same, a graph is an iteration.
    """
    queues = [queue for queue, lane in zip(graph.queues(), graph.lanes, strict=True) if lane.device]
    if graph.steps or not queues:
        return graph
    queue = max(queues, key=len)
    replays = _replays(graph, queue)
    if replays:
        return _marked(graph, replays)
    names = [graph.ops[index].name for index in queue]
    period = _period(names)
    if not period:
        return graph
    whole = _repeated(names, period) // period
    # position of the first op of each iteration
    firsts = [queue[len(queue) - period * (whole + 1 - number)] for number in range(whole + 1)]
    marked = _marked(graph, firsts)
    return graph if _are_parts(graph, marked) else marked


def _marked(graph: TraceGraph, firsts: Sequence[int]) -> TraceGraph:
    starts_s = [_launched_s(graph, first) for first in firsts]

    def step(time_s: float) -> int:
        return bisect_right(starts_s, time_s) - 1 if time_s >= starts_s[0] else ALONE

    ops = tuple(replace(op, step=step(_launched_s(graph, index))) for index, op in enumerate(graph.ops))
    return replace(graph, ops=ops, steps=tuple(f"iteration {number + 1}" for number in range(len(firsts))))


def _replays(graph: TraceGraph, queue: Sequence[int]) -> list[int]:
    """Return the first ops of equal CUDA graphs of several layers that a stream runs alone; empty for one graph."""
    firsts: list[int] = []
    contents: list[list[str]] = []
    latest: list[int] = []
    own = [index for index in queue if graph.ops[index].kind != EARLIER]
    for index in own:
        op = graph.ops[index]
        launches = graph.launches(op)
        if not launches:
            return []
        if launches != latest:
            latest = launches
            firsts.append(index)
            contents.append([])
        contents[-1].append(op.name)
    reduces = sum(graph.ops[index].kind in REDUCES for index in own)
    alike = len(firsts) > 1 and all(content == contents[0] for content in contents)
    return firsts if alike and reduces >= _REDUCES * len(firsts) else []


def _are_parts(graph: TraceGraph, marked: TraceGraph) -> bool:
    """Whether what repeats is no iteration: layers of one pass, or passes of a draft model behind a longer one."""
    try:
        passes = find_passes(graph)
    except UsageError:
        return False
    steps = [{marked.ops[reduce].step for reduce in forward.reduces} for forward in passes]
    last = max((op.step for op in marked.ops), default=ALONE)
    longest = max(forward.layers for forward in passes)
    whole = any(forward.layers == longest and last in own for forward, own in zip(passes, steps, strict=True))
    return not whole or any(len(own) > 1 for own in steps)


def choose_step(graph: TraceGraph, step: str | None) -> TraceGraph:
    """Return the step of this name.

    By default it is the last step with a collective, or the whole trace if it has no steps. Of a predicted run the
    default is the whole: its prediction is an average over its steps. Raises UsageError if no step has this name, or it
    has no op.
    """
    position = None if step is None and graph.origin is not None else step_position(graph, step)
    chosen = graph if position is None else graph.of_step(position)
    if not chosen.ops:
        used = sorted({op.step for op in graph.ops} - {ALONE})
        names = ", ".join(graph.steps[number] for number in used)
        where = "the trace holds no op" if step is None else f"no op of the trace belongs to step '{step}'"
        raise UsageError(where, hint=f"steps with ops: {names or 'none'}")
    return chosen


def step_position(graph: TraceGraph, step: str | None) -> int | None:
    """Return the position of the step that `choose_step` takes; None for the whole trace."""
    if step is None:
        # a mark at the end of a recording may have nothing behind it, and engines mark steps without requests
        used = [op for op in graph.ops if op.communicates] or graph.ops
        last = max((op.step for op in used), default=ALONE)
        return None if last == ALONE else last
    # by its number, too: 3 for ProfilerStep#3
    named = [name for name in graph.steps if name == step] or [
        name for name in graph.steps if name.endswith(f"#{step}")
    ]
    if len(named) != 1:
        raise UsageError(
            f"no step '{step}' in the trace", hint=f"steps: {', '.join(graph.steps) or 'none; leave --step out'}"
        )
    return graph.steps.index(named[0])


def between(graph: TraceGraph, from_s: float | None, to_s: float | None) -> TraceGraph:
    """Return the ops that start in a stretch of seconds since the first op; raise UsageError if none does."""
    low_s, high_s = from_s or 0.0, float("inf") if to_s is None else to_s
    chosen = [index for index, op in enumerate(graph.ops) if low_s <= op.start_s < high_s]
    if not chosen:
        end_s = max((op.end_s for op in graph.ops), default=0.0)
        raise UsageError(
            f"nothing starts from {low_s:g} s to {high_s:g} s", hint=f"the trace lasts from 0 to {end_s:.6g} s"
        )
    return graph.keep(chosen).with_starts()


def _launched_s(graph: TraceGraph, index: int) -> float:
    op = graph.ops[index]
    launches = graph.launches(op)
    return graph.ops[launches[0]].start_s if launches and graph.lanes[op.lane].device else op.start_s


def _period(names: list[str]) -> int:
    """Return the length of the shortest pattern that ends the list twice in a row; 0 if there is none.

    Examples
    --------
    >>> _period(list("xabababc")), _period(list("wabcabcabc"))
    (0, 3)
    """
    last = len(names) - 1
    for at in range(last - 1, -1, -1):
        period = last - at
        if 2 * period > len(names):
            return 0
        if period > 1 and names[at] == names[last] and names[-period:] == names[-2 * period : -period]:
            return period
    return 0


def _repeated(names: list[str], period: int) -> int:
    """Return the number of names at the end that equal the name one period before."""
    count = 0
    while count + period < len(names) and names[-1 - count] == names[-1 - count - period]:
        count += 1
    return count
