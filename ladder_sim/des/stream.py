"""A FIFO stream: one simpy process drains it.

A `simpy.Resource` would not do: a later request that is ready could overtake an earlier one that is blocked, which no
CUDA stream allows.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ladder_sim.des.fluid import Gpu
from ladder_sim.des.program import NO_GROUP, Program

if TYPE_CHECKING:
    import numpy as np
    import simpy
    from numpy.typing import NDArray

Steps = Generator["simpy.Event", Any, None]


class Clocks:
    """Shared state of one run: an event per task, and when each was ready, started and ended."""

    def __init__(self, environment: "simpy.Environment", program: Program, times: "NDArray[np.float64]") -> None:
        self.environment = environment
        self.program = program
        self.ended: list[simpy.Event] = [environment.event() for _ in program.tasks]
        self.ready_s, self.start_s, self.end_s = times
        self.missing = {group: len(members) for group, members in program.groups().items()}
        self.assembled: dict[int, simpy.Event] = {group: environment.event() for group in self.missing}
        device = program.device
        ranks = {stream.rank for stream in program.streams} if device else set()
        self.gpus: dict[int, Gpu] = {rank: Gpu(environment, device) for rank in ranks} if device else {}


def drain(clocks: Clocks, stream: int, queue: Sequence[int]) -> Steps:
    """Run the tasks of one stream in order."""
    environment, program = clocks.environment, clocks.program
    gpu = clocks.gpus.get(program.streams[stream].rank)
    for index in queue:
        task = program.tasks[index]
        for before in task.after:
            if not clocks.ended[before].processed:
                yield clocks.ended[before]
        clocks.ready_s[index] = environment.now
        if gpu is None and task.group == NO_GROUP:
            clocks.start_s[index] = environment.now + task.lead_s
            yield environment.timeout(float(task.lead_s + task.duration_s))
        else:
            yield from _run_shared(clocks, index, gpu)
        clocks.end_s[index] = environment.now
        clocks.ended[index].succeed()


def _run_shared(clocks: Clocks, index: int, gpu: Gpu | None) -> Steps:
    """Run a task that shares its GPU, or that meets its peers on others."""
    environment, task = clocks.environment, clocks.program.tasks[index]
    if task.lead_s:
        yield environment.timeout(float(task.lead_s))
    if gpu is not None and task.demand.held_sms:
        wait_s = gpu.drain_s(task.demand)
        if wait_s:
            yield environment.timeout(wait_s)
    if task.group != NO_GROUP:
        clocks.missing[task.group] -= 1
        assembled = clocks.assembled[task.group]
        if clocks.missing[task.group]:
            # a collective's kernel spins on its SMs until its peers are there
            held = gpu.hold(task.demand) if gpu is not None and task.demand.held_sms else None
            yield assembled
            if gpu is not None and held is not None:
                gpu.release(held)
        else:
            assembled.succeed()
    clocks.start_s[index] = environment.now
    if gpu is not None:
        yield gpu.start(task.demand, float(task.duration_s))
    else:
        yield environment.timeout(float(task.duration_s))
