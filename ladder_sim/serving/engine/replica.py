"""A replica on simpy: an engine that runs the steps that its scheduler decides on.

While no request comes or ends, each step takes a token of each request more than the one before it. The times of such
steps are on a line, and a replica takes them all at once.
"""

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import simpy

from ladder_sim.closed_loop.engine import POWER_S
from ladder_sim.des.shared import Floats
from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.scheduler import Gap, Scheduler, SchedulerSpec, Step
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.steps.mix import Line, Mix, MixTimes


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
        seconds, prompts = of_mix(mix, self._duty), 0.0
        if mix.prompts:
            alone_s = of_mix(Mix(mix.decoding, mix.context, 0, 0, 0, mix.drafted)) if mix.decoding else 0.0
            prompts = 1.0 - alone_s / seconds
        if self._speculation is not None:
            seconds += self._drafting_s(mix, seconds)
        self.passed(seconds, prompts)
        return seconds

    def passed(self, seconds: float, prompts: float = 0.0) -> None:
        """Note a time of which prompts took a share."""
        kept = math.exp(-seconds / POWER_S)
        self._duty = kept * self._duty + (1.0 - kept) * prompts

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


# lines of times between tokens that a replica keeps: beyond, times that differ by less than this share are joined
_MOST_LINES, _JOINED = 1 << 15, 1e-3


class Gaps:
    """Times between tokens: of each entry a line of steps, and how many requests waited for each of these."""

    def __init__(self) -> None:
        self._lines = array("d")

    def add(self, requests: int, first_s: float, more_s: float = 0.0, steps: int = 1) -> None:
        self._lines.extend((requests, first_s, more_s, steps))
        if len(self._lines) > 4 * _MOST_LINES:
            self._join()

    def columns(self) -> tuple[Floats, Floats]:
        """Return the times in seconds, and how often each occurs."""
        requests, first_s, more_s, steps = np.array(self._lines).reshape(-1, 4).T
        times = steps.astype(int)
        number = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        return np.repeat(first_s, times) + number * np.repeat(more_s, times), np.repeat(requests, times)

    def _join(self) -> None:
        """Keep the mean of times that hardly differ, so that memory is bounded and means stay as they are."""
        times_s, counts = self.columns()
        group = np.floor(np.log(times_s) / np.log1p(_JOINED)).astype(int)
        group -= group.min()
        sums, sums_s = (np.bincount(group, weights) for weights in (counts, counts * times_s))
        together = sums[sums > 0.0]
        means_s = sums_s[sums > 0.0] / together
        ones = np.ones_like(means_s)
        self._lines = array("d", np.column_stack([together, means_s, 0.0 * ones, ones]).tobytes())

    def __iter__(self) -> Iterator[Gap]:
        times_s, counts = self.columns()
        return zip(times_s.tolist(), counts.astype(int).tolist(), strict=True)


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
        self.gaps_s = Gaps()

        # empty unless they are kept
        self.steps: list[StepRun] = []
        self.answers: list[Answer] = []
        self._record = record
        self._pace = Pace(times, spec.speculation)
        self._make_scheduler()

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

    def add(self, answer: Answer) -> None:
        self._queue(answer)
        self.load += 1
        if self._record:
            self.answers.append(answer)

    def _seconds(self, mix: Mix) -> float:
        """Return the seconds of a step that begins now, or when those before it have ended."""
        seconds = self._pace.seconds(mix)
        self.busy_s += seconds
        self.kv_share_s += seconds * self.kv_share
        return seconds

    def _ended(self, step: Step, start_s: float, seconds: float, gaps_s: Iterable[Gap]) -> None:
        """Note that a step has just ended, and how long requests waited for its tokens."""
        for gap_s, count in gaps_s:
            self.gaps_s.add(count, gap_s)
        if step.last:
            self.load -= len(step.last)
            for answer in step.last:
                self.answered(answer)
        if self._record:
            self.steps.append(StepRun(start_s, seconds, step.mix, self.running, self.waiting, self.kv_share))


_NO_LINE = Line(0.0, 0.0, 0)


class Calendar:
    """When steps of replicas that run alone end; those that have been interrupted since may stand there still."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, SimulatedReplica]] = []
        self._added = 0

    def add(self, at_s: float, replica: "SimulatedReplica") -> None:
        self._added += 1
        heappush(self._ends, (at_s, self._added, replica))

    def catch_up(self, now_s: float) -> None:
        """Let replicas run what ends before a time."""
        while self._ends and self._ends[0][0] < now_s:
            heappop(self._ends)[2].catch_up(now_s)


class SimulatedReplica(Replica):
    """One whose scheduler is simulated: `ladder_sim.serving.engine.scheduler`.

    Where nothing else depends on when requests end, it runs alone: not at events of `env`, but when a request comes or
    `catch_up` is called, and its `calendar` says when that changes something.
    """

    calendar: Calendar | None = None

    def _make_scheduler(self) -> None:
        self.scheduler = Scheduler(self.spec)
        # steps decided on that have not begun; the one that runs, or steps that are alike, beginning with those
        self._depth, self._steps = 2 if self.spec.ahead else 1, list[Step]()
        self._step: Step | None = None
        self._line = _NO_LINE
        # how many of these are not decided on
        self._more = 0
        # of what runs; whether anything does; and what comes at its end
        self._start_s = self._end_s = 0.0
        self._busy = False
        self._alarm: simpy.Event | None = None

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        # the first of steps that run may have ended, and others with it been decided on
        if self.scheduler.waiting:
            self._pass_until(self.env.now)
        return len(self.scheduler.waiting)

    @property
    def kv_share(self) -> float:
        blocks = self.scheduler.blocks
        return 1.0 - blocks.free / blocks.count

    def catch_up(self, now_s: float) -> None:
        """Run what ends before a time; only where no event of `env` does that."""
        while self.calendar is not None and self._busy and self._end_s < now_s:
            self._go_on(now_s)

    def cached(self, answer: Answer) -> int:
        line, now_s = self._line, self.env.now
        if line.steps:
            # until then blocks certainly hold what they hold
            same_s = self._start_s + line.until(min(self._more, self.scheduler.steps_to_evict()))
            if now_s > same_s:
                self._pass_until(now_s)
        return sum([each.stop - each.start for each in self.scheduler.blocks.cached(answer)])

    def release(self, answer: Answer) -> None:
        """Stop holding the KV cache of a prompt that another replica has now."""
        self._interrupt()
        self.scheduler.release(answer)

    def _queue(self, answer: Answer) -> None:
        self._interrupt()
        self.scheduler.add(answer)

    def _interrupt(self) -> None:
        """Let steps that have not been decided on be other than those before them."""
        now_s = self.env.now
        self.catch_up(now_s)
        if self._line.steps:
            self._pass_until(now_s)
            line, decided = self._line, len(self._steps)
            self._more = 0
            if line.steps > decided:
                self._line = line = Line(line.first_s, line.more_s, decided)
                self._wake_at(self._start_s + line.until(decided))
        elif not self._busy:
            self._wake_at(now_s)

    def _wake_at(self, at_s: float) -> None:
        self._busy, self._end_s = True, at_s
        if self.calendar is None:
            self._alarm = self.env.timeout(max(0.0, at_s - self.env.now))
            self._alarm.callbacks.append(self._woken)
        else:
            self.calendar.add(at_s, self)

    def _woken(self, alarm: simpy.Event) -> None:
        # another one may have been set since
        if alarm is self._alarm:
            self._go_on()

    def _go_on(self, until_s: float | None = None) -> None:
        """Complete what has run, and run steps up to a time; by default up to the next event of `env`."""
        self._busy = False
        while True:
            if self._line.steps:
                self._pass(self._line.steps)
            elif step := self._step:
                self._step = None
                gaps_s = self.scheduler.complete(step, self._end_s)
                self._ended(step, self._start_s, self._end_s - self._start_s, gaps_s)
            if not self._begin(self._end_s):
                return
            # an answer that ended may have brought an event
            limit_s = self.env.peek() if until_s is None else until_s
            if self._end_s >= limit_s or (self._step and self._step.last and self.calendar is None):
                self._wake_at(self._end_s)
                return

    def _begin(self, now_s: float) -> bool:
        """Decide on further steps and begin with the next, and those that are like it; False if there is none."""
        steps = self._steps
        self._decide()
        if not steps:
            return False
        self._start_s = now_s
        if self._alike():
            self._more = self.scheduler.alike()
            line = self.times.line(steps[0].mix)
            self._line = line = Line(line.first_s, line.more_s, min(line.steps, self._more + len(steps)))
            self._end_s = now_s + line.until(line.steps)
        else:
            self._step = steps.pop(0)
            self._end_s = now_s + self._seconds(self._step.mix)
        return True

    def _decide(self) -> None:
        while len(self._steps) < self._depth and (step := self.scheduler.schedule()):
            self._steps.append(step)

    def _alike(self) -> bool:
        """Whether the next steps decode the same requests, all of which have just got a token."""
        first, last = self._steps[0], self._steps[-1]
        if not first.plain or not last.plain or (last.joined and last is not first):
            return False
        for answer in first.joined:
            if answer.token_s != self._start_s:
                return False
        return first.decoding == len(first.joined) or self.scheduler.decoded_s == self._start_s

    def _pass_until(self, now_s: float) -> None:
        """Complete steps that are alike, but the one that runs."""
        if self._line.steps:
            self._pass(min(self._line.within(now_s - self._start_s), self._line.steps - 1))

    def _pass(self, count: int) -> None:
        """Complete some of the steps that are alike."""
        if not count:
            return
        if self._record and count > 1:
            for _ in range(count):
                self._pass(1)
            return
        line, steps, share, more = self._line, self._steps, self.kv_share, self._more
        seconds, (first, *_) = line.until(count), steps
        if self._record:
            waiting = len(self.scheduler.waiting)
            self.steps.append(StepRun(self._start_s, seconds, first.mix, self.running, waiting, share))
        self.gaps_s.add(first.decoding, line.first_s, line.more_s, count)
        if more:
            many = min(count, more)
            self.scheduler.advance(many)
            self._steps, self._more = [step.after(many) for step in steps], more - many
        if count > more:
            del self._steps[: count - more]
            self._decide()
        # blocks that steps take stay in use, and are taken at an even pace
        self._note(seconds, seconds * (share + 0.5 * (1.0 - 1.0 / count) * (self.kv_share - share)))
        self._start_s += seconds
        self.scheduler.decoded_s = self._start_s
        self._line = Line(line.first_s + count * line.more_s, line.more_s, line.steps - count)

    def _note(self, seconds: float, kv_share_s: float) -> None:
        self.busy_s += seconds
        self.kv_share_s += kv_share_s
        self._pace.passed(seconds)
