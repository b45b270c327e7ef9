"""Turns an annotated StepGraph into a des.Program: ops become tasks, dependencies across streams become paid waits.

One rank stands for all: ranks that do the same work at the same speed reach every collective together, so that the
rendezvous adds nothing.
"""

from ladder_sim.costs.base import estimates
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.graph.ops import COLLECTIVE_KINDS, StepGraph
from ladder_sim.specs.stack import StackSpec

STREAMS = (Stream(name="compute"), Stream(name="comm"))
COMPUTE, COMM = range(len(STREAMS))


def lower(graph: StepGraph, stack: StackSpec) -> Program:
    """One rank's tasks in issue order.

    An op that depends on the other stream waits for its event (``stream_wait_s``); a collective also pays its start-up
    (``collective_launch_s``).

    Parameters
    ----------
    graph
        Every node has ``op`` and ``estimate``.
    stack
        Wait and launch costs.
    """
    index_of: dict[str, int] = {}
    tasks: list[Task] = []
    for op, estimate in estimates(graph):
        stream = COMM if op.stream == "comm" else COMPUTE
        after = tuple(index_of[name] for name in graph.predecessors(op.name))
        lead_s = stack.collective_launch_s if op.kind in COLLECTIVE_KINDS else 0.0
        if any(tasks[before].stream != stream for before in after):
            lead_s += stack.stream_wait_s
        index_of[op.name] = len(tasks)
        tasks.append(Task(name=op.name, stream=stream, duration_s=estimate.seconds, after=after, lead_s=lead_s))
    return Program(tasks=tuple(tasks), streams=STREAMS)
