"""One GPU of a simpy run: its tasks progress at rates that change whenever one starts or ends."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, cast

from ladder_sim.des.shared import Demand, Device

if TYPE_CHECKING:
    import simpy


@dataclass(slots=True, eq=False)
class Running:
    """A task in progress."""

    demand: Demand
    """The resources it uses."""
    duration_s: float
    """Its time when it runs alone."""
    left_s: float
    """Work left at `since_s`, in seconds of running alone."""
    since_s: float
    """When `left_s` was last updated."""
    rate: float = 0.0
    """Its present speed, relative to running alone."""
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
        task = Running(demand, duration_s, duration_s, self._environment.now)

        def finish(_: "simpy.Event") -> None:
            self.release(task)

        task.finish = finish
        self._running.append(task)
        self._share()
        return cast("simpy.Event", task.alarm)

    def hold(self, demand: Demand) -> Running:
        """Hold SMs without working: a collective that waits for its peers."""
        task = Running(Demand(held_sms=demand.held_sms), inf, inf, self._environment.now)
        self._running.append(task)
        self._share()
        return task

    def release(self, task: Running) -> None:
        """Take a task off the GPU."""
        self._running.remove(task)
        self._share()

    def drain_s(self, collective: Demand) -> float:
        """How long a collective that is ready now waits for SMs: until the end of the running kernel's wave."""
        for task in self._running:
            if self._device.must_drain(collective, task.demand):
                self._advance(task)
                return float(self._device.left_in_wave(task.demand, task.left_s, task.duration_s)) / task.rate
        return 0.0

    def _advance(self, task: Running) -> None:
        now_s = self._environment.now
        task.left_s -= (now_s - task.since_s) * task.rate
        task.since_s = now_s

    def _share(self) -> None:
        """Update the rates of all tasks."""
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
