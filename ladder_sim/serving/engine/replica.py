"""A replica on simpy: an engine that runs the steps that its scheduler decides on."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import simpy

from ladder_sim.closed_loop.engine import POWER_S
from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.scheduler import Gap, Scheduler, SchedulerSpec, Step
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.steps.mix import Mix, MixTimes


class StepRun(NamedTuple):
    """A step that has run."""

    start_s: float
    seconds: float
    mix: Mix
    running: int
    """Requests that are admitted when it ends."""
    waiting: int
    """Requests that wait when the step ends."""
    kv_share: float
    """Share of the KV cache that is in use when the step ends."""


class Pace:
    """How long the steps of an engine take, one after the other, and its drafter, if it has one."""

    def __init__(self, times: MixTimes, speculation: Speculation | None) -> None:
        self._times, self._speculation = times, speculation
        # share of the time that prompts took lately
        self._duty = 0.0

    def seconds(self, mix: Mix) -> float:
        """Return the seconds of a step; the call changes what the next step meets."""
        of_mix = self._times.of_mix
        seconds = of_mix(mix, self._duty)
        if mix.prompts:
            alone_s = of_mix(mix._replace(prompts=0, chunk=0, pairs=0)) if mix.decoding else 0.0
            prompts = 1.0 - alone_s / seconds
        else:
            prompts = 0.0
        seconds += self._drafting_s(mix, seconds)
        kept = math.exp(-seconds / POWER_S)
        self._duty = kept * self._duty + (1.0 - kept) * prompts
        return seconds

    def _drafting_s(self, mix: Mix, step_s: float) -> float:
        """Return the seconds that the drafter takes after a step.

        It runs over all rows of the step for the first token, and over one of each request for each of the others, as
        vLLM's does (v1/spec_decode/llm_base_proposer.py).
        """
        speculation = self._speculation
        if speculation is None or not speculation.cost:
            return 0.0
        others_s = 0.0
        if mix.decoding:
            others_s = (speculation.drafts - 1) * self._times.of_mix(Mix(mix.decoding, mix.context))
        return speculation.cost * (step_s + others_s)


class Replica(ABC):
    """One copy of the model, with the requests that it was given; each is passed to `answered` at its end.

    With `record` it keeps every step and every request.
    """

    def __init__(
        self,
        env: simpy.Environment,
        times: MixTimes,
        spec: SchedulerSpec,
        answered: Callable[[Answer], object],
        *,
        record: bool = False,
    ) -> None:
        self.env, self.times, self.spec, self.answered = env, times, spec, answered
        # requests that are not answered
        self.load = 0
        self.busy_s = 0.0
        # share of the KV cache that is in use, times how long
        self.kv_share_s = 0.0
        self.gaps_s: list[Gap] = []

        # empty unless they are kept
        self.steps: list[StepRun] = []
        self.answers: list[Answer] = []
        self._record = record
        self._pace = Pace(times, spec.speculation)
        self._arrival = env.event()
        self._make_scheduler()
        env.process(self._run())

    @abstractmethod
    def _make_scheduler(self) -> None: ...

    @property
    @abstractmethod
    def running(self) -> int:
        """Requests that are admitted."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that wait for a place in the batch."""

    @property
    @abstractmethod
    def kv_share(self) -> float:
        """Of the KV cache, in use."""

    @abstractmethod
    def cached(self, answer: Answer) -> int:
        """Return the blocks of the KV cache that hold the beginning of a request."""

    @abstractmethod
    def _queue(self, answer: Answer) -> None:
        """Let a request wait for admission."""

    @abstractmethod
    def _run(self) -> Generator[simpy.Event, object, None]:
        """Run steps for ever; with nothing to run, wait for `_next_arrival`."""

    def add(self, answer: Answer) -> None:
        self.load += 1
        self._queue(answer)
        if self._record:
            self.answers.append(answer)
        self._wake()

    def _wake(self) -> None:
        if not self._arrival.triggered:
            self._arrival.succeed()

    def _next_arrival(self) -> simpy.Event:
        self._arrival = self.env.event()
        return self._arrival

    def _seconds(self, mix: Mix) -> float:
        """Return the seconds of a step that begins now, or when those before it have ended."""
        seconds = self._pace.seconds(mix)
        self.busy_s += seconds
        self.kv_share_s += seconds * self.kv_share
        return seconds

    def _ended(self, step: Step, start_s: float, seconds: float, gaps_s: Iterable[Gap]) -> None:
        """Note that a step has just ended, and how long requests waited for its tokens."""
        self.gaps_s += gaps_s
        self.load -= len(step.last)
        for answer in step.last:
            self.answered(answer)
        if self._record:
            self.steps.append(StepRun(start_s, seconds, step.mix, self.running, self.waiting, self.kv_share))


class SimulatedReplica(Replica):
    """One whose scheduler is simulated: `ladder_sim.serving.engine.scheduler`."""

    def _make_scheduler(self) -> None:
        self.scheduler = Scheduler(self.spec)

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def kv_share(self) -> float:
        blocks = self.scheduler.blocks
        return 1.0 - len(blocks.free) / blocks.count

    def cached(self, answer: Answer) -> int:
        return len(self.scheduler.blocks.cached(answer))

    def release(self, answer: Answer) -> None:
        """Stop holding the KV cache of a prompt that another replica has now."""
        self.scheduler.release(answer)
        self._wake()

    def _queue(self, answer: Answer) -> None:
        self.scheduler.add(answer)

    def _run(self) -> Generator[simpy.Event, object, None]:
        depth, steps = 2 if self.spec.ahead else 1, deque[Step]()
        while True:
            while len(steps) < depth and (step := self.scheduler.schedule()):
                steps.append(step)
            if not steps:
                yield self._next_arrival()
                continue
            step = steps.popleft()
            start_s, seconds = self.env.now, self._seconds(step.mix)
            yield self.env.timeout(seconds)
            gaps_s = self.scheduler.complete(step, self.env.now)
            self._ended(step, start_s, seconds, gaps_s)
