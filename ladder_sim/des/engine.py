"""Runs a Program event by event on simpy."""

import numpy as np

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
    if any(isinstance(value, np.ndarray) for task in program.tasks for value in (task.duration_s, task.lead_s)):
        raise ValueError("durations are arrays: this engine runs one configuration at a time; use scan.scan")
    # the fast engine, which runs by default, needs none of it
    import simpy

    environment = simpy.Environment()
    clocks = Clocks(environment, program)
    for stream, queue in enumerate(program.queues()):
        if queue:
            environment.process(drain(clocks, stream, queue))
    environment.run()
    end_s = np.array(clocks.end_s)
    unfinished = np.flatnonzero(np.isnan(end_s))
    if unfinished.size:
        raise program.explain_deadlock(unfinished.tolist())
    return Timeline(program=program, ready_s=np.array(clocks.ready_s), start_s=np.array(clocks.start_s), end_s=end_s)
