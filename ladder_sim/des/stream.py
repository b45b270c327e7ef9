"""A FIFO stream: one simpy process drains it.

`simpy.Resource` is no alternative: a later request that is ready could overtake an earlier one that is blocked, which
no CUDA stream allows.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ladder_sim.des.fluid import SharedGpu
from ladder_sim.des.program import NO_GROUP, Program, Task

if TYPE_CHECKING:
    import simpy

Events = Generator["simpy.Event", Any, None]


class Clocks:
    """State of one run: when each task was ready, started and ended, and events that other streams wait for."""

    def __init__(self, environment: "simpy.Environment", program: Program) -> None:
        self.environment = environment
        self.program = program
        tasks = program.tasks
        # earlier tasks of the same stream have ended when its turn comes, so it need not wait for them
        self.waits = [
            [before for before in task.after if tasks[before].stream != task.stream or before >= index]
            for index, task in enumerate(tasks)
        ]
        self.ended: dict[int, simpy.Event] = {before: environment.event() for waits in self.waits for before in waits}
        self.ready_s, self.start_s, self.end_s = ([float("nan")] * len(tasks) for _ in range(3))
        self.missing = {group: len(members) for group, members in program.outline.members.items()}
        self.assembled: dict[int, simpy.Event] = {group: environment.event() for group in self.missing}
        device = program.device
        ranks = {stream.rank for stream in program.streams} if device else set()
        self.gpus: dict[int, SharedGpu] = {rank: SharedGpu(environment, device) for rank in ranks} if device else {}


def drain(clocks: Clocks, stream: int, queue: Sequence[int]) -> Events:
    """Run the tasks of one stream in order."""
    # names are looked up once, because the loop runs for every task; the engine has checked that times are numbers
    environment, tasks = clocks.environment, clocks.program.tasks
    timeout: Any = environment.timeout
    waits, ended, ready, start, end = clocks.waits, clocks.ended, clocks.ready_s, clocks.start_s, clocks.end_s
    gpu = clocks.gpus.get(clocks.program.streams[stream].rank)
    for index in queue:
        task = tasks[index]
        for before in waits[index]:
            if not ended[before].processed:
                yield ended[before]
            noticed_s = float(end[before] + tasks[before].wake_s)
            if noticed_s > environment.now:
                yield timeout(noticed_s - environment.now)
        ready[index] = now_s = environment.now
        if task.group == NO_GROUP and (gpu is None or not task.demand.uses_shared):
            start[index] = float(now_s + task.lead_s)
            yield timeout(task.lead_s + task.duration_s)
        else:
            yield from _run_shared(clocks, index, task, gpu)
        end[index] = environment.now
        if index in ended:
            ended[index].succeed()


def _run_shared(clocks: Clocks, index: int, task: Task, gpu: SharedGpu | None) -> Events:
    """Run a task that shares its GPU, or that waits for its peers on other GPUs."""
    environment = clocks.environment
    timeout: Any = environment.timeout
    if task.lead_s:
        yield timeout(task.lead_s)
    if gpu is not None and task.demand.is_collective:
        wait_s = gpu.drain_s(task.demand)
        if wait_s:
            yield timeout(wait_s)
    if task.group != NO_GROUP:
        clocks.missing[task.group] -= 1
        assembled = clocks.assembled[task.group]
        if clocks.missing[task.group]:
            # a collective's kernel spins on its SMs until its peers are ready
            held = gpu.hold(task.demand) if gpu is not None and task.demand.is_collective else None
            yield assembled
            if gpu is not None and held is not None:
                gpu.release(held)
        else:
            assembled.succeed()
    clocks.start_s[index] = environment.now
    if gpu is not None:
        yield gpu.start(task.demand, float(task.duration_s))
    else:
        yield timeout(task.duration_s)
