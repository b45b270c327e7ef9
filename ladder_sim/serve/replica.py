"""A replica on simpy: an engine that runs the steps that its scheduler decides on."""

import math
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

import simpy

from ladder_sim.serve.mix import Mix, MixTimes
from ladder_sim.serve.requests import Answer
from ladder_sim.serve.scheduler import Scheduler, SchedulerSpec, Step

# over how long the power limit of a GPU averages, seconds: judgement; nvidia-smi reports the last second
POWER_S = 1.0


class StepRun(NamedTuple):
    """A step that has run."""

    start_s: float
    seconds: float
    mix: Mix
    running: int
    """Requests that are admitted when it ends."""
    waiting: int
    """Those that are not."""
    kv_share: float
    """Of the KV cache, in use then."""


class Replica:
    """One copy of the model, with the requests that it was given.

    Parameters
    ----------
    env
        Simulated time.
    times
        Of its steps.
    spec
        How it schedules.
    answered
        What to do with a request that is answered.
    record
        Whether to keep every step and every request.
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
        self.env, self.times, self.answered = env, times, answered
        self.scheduler = Scheduler(spec)
        # requests that are not answered
        self.load = 0
        self.busy_s = 0.0
        # share of the KV cache that is in use, times how long
        self.kv_share_s = 0.0
        # times between two tokens, and how many requests had to wait so long
        self.gaps_s: list[tuple[float, int]] = []
        self._last_s = 0.0
        # empty unless they are kept
        self.steps: list[StepRun] = []
        self.answers: list[Answer] = []
        self._record = record

        # share of the time that prompts took lately
        self.duty = 0.0
        self._depth = 2 if spec.ahead else 1
        self._arrival = env.event()
        env.process(self._run())

    def add(self, answer: Answer) -> None:
        """Give it a request."""
        self.load += 1
        self.scheduler.add(answer)
        if self._record:
            self.answers.append(answer)
        self._wake()

    def release(self, answer: Answer) -> None:
        """Stop holding the KV cache of a prompt that another replica has now."""
        self.scheduler.release(answer)
        self._wake()

    def _wake(self) -> None:
        if not self._arrival.triggered:
            self._arrival.succeed()

    def _run(self) -> Generator[simpy.Event, object, None]:
        steps: deque[Step] = deque()
        while True:
            while len(steps) < self._depth and (step := self.scheduler.schedule()):
                steps.append(step)
            if not steps:
                self._arrival = self.env.event()
                yield self._arrival
                continue
            step = steps.popleft()
            start_s, seconds = self.env.now, self._seconds(step)
            yield self.env.timeout(seconds)
            self.scheduler.complete(step, self.env.now)
            if step.mix.decoding:
                self.gaps_s.append((self.env.now - self._last_s, step.mix.decoding))
            if step.mix.decoding or step.first:
                self._last_s = self.env.now
            self.load -= len(step.last)
            for answer in step.last:
                self.answered(answer)
            if self._record:
                scheduler = self.scheduler
                running, waiting = len(scheduler.running), len(scheduler.waiting)
                self.steps.append(StepRun(start_s, seconds, step.mix, running, waiting, self._kv_share))

    def _seconds(self, step: Step) -> float:
        """How long a step takes; it changes what the next one meets."""
        mix, of_mix = step.mix, self.times.of_mix
        seconds = of_mix(mix, self.duty)
        if mix.prompts:
            alone_s = of_mix(mix._replace(prompts=0, chunk=0, pairs=0)) if mix.decoding else 0.0
            prompts = 1.0 - alone_s / seconds
        else:
            prompts = 0.0
        seconds += self._drafting_s(mix, seconds)
        kept = math.exp(-seconds / POWER_S)
        self.duty = kept * self.duty + (1.0 - kept) * prompts
        self.busy_s += seconds
        self.kv_share_s += seconds * self._kv_share
        return seconds

    def _drafting_s(self, mix: Mix, step_s: float) -> float:
        """How long the drafter takes after a step.

        It runs over all rows of the step for the first token, and over one of each request for each of the others, as
        vLLM's does (v1/spec_decode/llm_base_proposer.py).
        """
        speculation = self.scheduler.spec.speculation
        if speculation is None or not speculation.cost:
            return 0.0
        others_s = 0.0
        if mix.decoding:
            others_s = (speculation.drafts - 1) * self.times.of_mix(Mix(mix.decoding, mix.context))
        return speculation.cost * (step_s + others_s)

    @property
    def _kv_share(self) -> float:
        blocks = self.scheduler.blocks
        return 1.0 - len(blocks.free) / blocks.count
