"""A FIFO stream: one simpy process drains it.

A `simpy.Resource` would not do: a later request that is ready could overtake an earlier one that is blocked, which no
CUDA stream allows.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ladder_sim.des.program import NO_GROUP, Program

if TYPE_CHECKING:
    import numpy as np
    import simpy
    from numpy.typing import NDArray


class Clocks:
    """Shared state of one run: an event per task, and when each was ready, started and ended."""

    def __init__(self, environment: "simpy.Environment", program: Program, times: "NDArray[np.float64]") -> None:
        self.environment = environment
        self.program = program
        self.ended: list[simpy.Event] = [environment.event() for _ in program.tasks]
        self.ready_s, self.start_s, self.end_s = times
        self.missing = {group: len(members) for group, members in program.groups().items()}
        self.assembled: dict[int, simpy.Event] = {group: environment.event() for group in self.missing}


def drain(clocks: Clocks, queue: Sequence[int]) -> "Generator[simpy.Event, Any, None]":
    """Run the tasks of one stream in order."""
    environment, program = clocks.environment, clocks.program
    for index in queue:
        task = program.tasks[index]
        for before in task.after:
            if not clocks.ended[before].processed:
                yield clocks.ended[before]
        clocks.ready_s[index] = environment.now
        if task.group != NO_GROUP:
            if task.lead_s:
                yield environment.timeout(task.lead_s)
            clocks.missing[task.group] -= 1
            assembled = clocks.assembled[task.group]
            if clocks.missing[task.group]:
                yield assembled
            else:
                assembled.succeed()
            clocks.start_s[index] = environment.now
            yield environment.timeout(task.duration_s)
        else:
            clocks.start_s[index] = environment.now + task.lead_s
            yield environment.timeout(task.lead_s + task.duration_s)
        clocks.end_s[index] = environment.now
        clocks.ended[index].succeed()
