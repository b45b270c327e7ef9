"""Runs a Program event by event on simpy: one process drains each stream, and GPUs share their resources among tasks.

`simpy.Resource` is no alternative to a process for each stream: a later request that is ready could overtake an earlier
one that is blocked, which no CUDA stream allows.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ladder_sim.des.program import NO_GROUP, Program, Task
from ladder_sim.des.shared import Demand, Device
from ladder_sim.des.timeline import Timeline

if TYPE_CHECKING:
    import simpy

Events = Generator["simpy.Event", Any, None]


def run(program: Program) -> Timeline:
    """Simulate `program` from time zero.

    Raises DeadlockError if tasks wait for each other; the message names the cycle.

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


@dataclass(slots=True, eq=False)
class Running:
    """A task in progress."""

    demand: Demand
    """The resources it uses."""
    left_s: float
    """Work left at `since_s`, in seconds of running alone."""
    since_s: float
    """When `left_s` was last updated."""
    rate: float = 0.0
    """Present speed of the task, relative to running alone."""
    alarm: "simpy.Event | None" = None
    """Triggered when its work is done."""
    finish: "Callable[[simpy.Event], None] | None" = None
    """Takes it off the GPU; the first callback of the alarm."""


class SharedGpu:
    """The tasks that now run on one GPU."""

    def __init__(self, environment: "simpy.Environment", device: Device) -> None:
        self._environment = environment
        self._device = device
        self._running: list[Running] = []
        self._rates: dict[tuple[Demand, ...], tuple[float, ...]] = {}

    def start(self, demand: Demand, duration_s: float) -> "simpy.Event":
        """Put a task on the GPU. The event is triggered when its work is done."""
        task = Running(demand, duration_s, self._environment.now)

        def finish(_: "simpy.Event") -> None:
            self.release(task)

        task.finish = finish
        self._running.append(task)
        self._share()
        return cast("simpy.Event", task.alarm)

    def hold(self, demand: Demand) -> Running:
        """Hold SMs without working: a collective that waits for its peers."""
        task = Running(Demand(held_sms=demand.held_sms), inf, self._environment.now)
        self._running.append(task)
        self._share()
        return task

    def release(self, task: Running) -> None:
        self._running.remove(task)
        self._share()

    def _advance(self, task: Running) -> None:
        now_s = self._environment.now
        task.left_s -= (now_s - task.since_s) * task.rate
        task.since_s = now_s

    def _share(self) -> None:
        running = self._running
        if len(running) == 1:
            self._set_rate(running[0], 1.0)
            return
        key = tuple([task.demand for task in running])
        rates = self._rates.get(key)
        if rates is None:
            rates = self._rates[key] = tuple(
                float(self._device.rate(own, key[:index] + key[index + 1 :])) for index, own in enumerate(key)
            )
        for task, rate in zip(running, rates, strict=True):
            self._set_rate(task, rate)

    def _set_rate(self, task: Running, rate: float) -> None:
        """Set a task's rate and its alarm. Callbacks of the old alarm move to the new one."""
        if rate == task.rate or task.finish is None:
            return
        self._advance(task)
        task.rate = rate
        alarm: Any = self._environment.timeout(max(0.0, task.left_s / rate))
        if task.alarm is None:
            alarm.callbacks.append(task.finish)
        else:
            alarm.callbacks, task.alarm.callbacks = task.alarm.callbacks, []
        task.alarm = alarm


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
    environment = clocks.environment
    timeout: Any = environment.timeout
    if task.lead_s:
        yield timeout(task.lead_s)
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
