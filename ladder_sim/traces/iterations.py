"""Finds iterations that nothing marked: what a device runs from some point to the end, over and over."""

from bisect import bisect_right
from dataclasses import replace

from ladder_sim.traces.graph import ALONE, TraceGraph


def mark_repetitions(graph: TraceGraph) -> TraceGraph:
    """Number the iterations of a trace without marks; it stays as it is if the end of it repeats nothing.

    A period has to reach the very end of the trace. So the layers of a single forward pass are none: what follows the
    last of them, an LM head, breaks the pattern.
    """
    queues = [queue for queue, lane in zip(graph.queues(), graph.lanes, strict=True) if lane.device]
    if graph.steps or not queues:
        return graph
    queue = max(queues, key=len)
    names = [graph.ops[index].name for index in queue]
    period = _period(names)
    if not period:
        return graph
    whole = _repeated(names, period) // period
    # positions of the first op of each iteration, the first of which ends where the second begins
    firsts = [queue[len(queue) - period * (whole + 1 - number)] for number in range(whole + 1)]
    starts_s = [_launched_s(graph, first) for first in firsts]

    def step(time_s: float) -> int:
        return bisect_right(starts_s, time_s) - 1 if time_s >= starts_s[0] else ALONE

    ops = tuple(replace(op, step=step(_launched_s(graph, index))) for index, op in enumerate(graph.ops))
    return replace(graph, ops=ops, steps=tuple(f"iteration {number + 1}" for number in range(whole + 1)))


def _launched_s(graph: TraceGraph, index: int) -> float:
    """When the CPU launched an op; an op of a CPU itself, when it started."""
    op = graph.ops[index]
    launches = [graph.ops[before].start_s for before in op.after if graph.ops[before].kind == "launch"]
    return launches[0] if launches and graph.lanes[op.lane].device else op.start_s


def _period(names: list[str]) -> int:
    """Length of the shortest pattern that the list ends with twice; 0 if there is none.

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
    """Names from the end that equal the one a period before."""
    count = 0
    while count + period < len(names) and names[-1 - count] == names[-1 - count - period]:
        count += 1
    return count
