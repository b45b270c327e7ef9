"""Runs a Program event by event on simpy."""

import numpy as np
import simpy

from ladder_sim.des.program import Program
from ladder_sim.des.stream import Clocks, drain
from ladder_sim.des.timeline import Timeline


def run(program: Program) -> Timeline:
    """Simulate `program` from time zero.

    Returns
    -------
    Timeline
        When each task was ready, started and ended, seconds.

    Raises
    ------
    DeadlockError
        Tasks wait for each other; the message names the cycle.

    Examples
    --------
    >>> from ladder_sim.des.program import Program, Stream, Task
    >>> streams = (Stream(name="compute"), Stream(name="comm"))
    >>> first = Task(name="a", stream=0, duration_s=2.0)
    >>> both = (first, Task(name="b", stream=1, duration_s=3.0, after=(0,)), Task(name="c", stream=0, duration_s=1.0))
    >>> run(Program(tasks=both, streams=streams)).makespan_s
    5.0
    """
    times = np.full((3, len(program.tasks)), np.nan)
    environment = simpy.Environment()
    clocks = Clocks(environment, program, times)
    for stream, queue in enumerate(program.queues()):
        if queue:
            environment.process(drain(clocks, stream, queue))
    environment.run()
    unfinished = np.flatnonzero(np.isnan(times[2]))
    if unfinished.size:
        raise program.explain_deadlock(unfinished.tolist())
    return Timeline(program=program, ready_s=times[0], start_s=times[1], end_s=times[2])
