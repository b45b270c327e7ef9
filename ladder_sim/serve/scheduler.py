"""What an engine runs in each step: continuous batching as vLLM 0.32.0 does it (v1/core/sched/scheduler.py).

Requests that run go first, in the order in which they were admitted: each decodes a token, or runs as much of its
prompt as the step has room for. Then waiting ones are admitted, while tokens, requests and blocks of the KV cache
allow it. If a request needs a block and none is left, the last of those that run has to start again.

All requests that decode advance together, one token at each tick, so that it is known in advance at which tick each
needs another block, and at which it ends. A step costs as much as it has such events, not as it has requests.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from ladder_sim.serve.kv_blocks import KvBlocks
from ladder_sim.serve.mix import Mix
from ladder_sim.serve.queues import QUEUES, Policy, Queue
from ladder_sim.serve.requests import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSpec:
    """How an engine schedules."""

    step_tokens: int
    """Most new tokens of one step."""
    step_requests: int
    """Most requests that run at a time."""
    kv_blocks: int
    """Blocks of the KV cache."""
    block_tokens: int = 16
    """Tokens of each."""
    policy: Policy = "fcfs"
    """Who goes first: who came first, or by priority."""
    mixed_steps: bool = True
    """Prompts share a step with requests that decode; else they go first, in steps of their own."""
    prefix_cache: bool = True
    """Requests use what others that began alike left in the KV cache."""
    ahead: bool = True
    """The next step is scheduled while one runs."""
    whole_answers: bool = False
    """A request is admitted when there is room for its whole answer, which it keeps: none has to start again."""
    frontend_s: float = 0.0
    """Time of a request before it can be scheduled: HTTP, and the tokens of its text."""


class Step(NamedTuple):
    """A step to run."""

    mix: Mix
    """Its requests."""
    first: list[Answer]
    """Those whose prompt ends with it."""
    last: list[Answer]
    """Those whose answer ends with it."""


class Scheduler:
    """The requests of one replica.

    Parameters
    ----------
    spec
        How it schedules.
    """

    def __init__(self, spec: SchedulerSpec) -> None:
        self.spec = spec
        self.blocks = KvBlocks(spec.kv_blocks, spec.block_tokens, reuse=spec.prefix_cache)
        self.waiting: Queue = QUEUES[spec.policy]()

        # admitted and not yet answered, in that order
        self.running: dict[Answer, None] = {}
        self.admissions = self.preemptions = 0

        # the one whose prompt goes on, if any: the last of them, because it took all tokens that were left
        self._prompt: Answer | None = None

        # those that decode at the next tick, and the sum of their `base`
        self._decoding: set[Answer] = set()
        self._base = 0
        self._tick = 0
        # by tick; those that had to start again, or to wait for a tick, may stand there still
        self._growing: defaultdict[int, list[Answer]] = defaultdict(list)
        self._ending: defaultdict[int, list[Answer]] = defaultdict(list)

    def add(self, answer: Answer) -> None:
        """Take a request in that arrives."""
        self.waiting.add(answer)

    def schedule(self) -> Step | None:
        """Decide what the next step runs; None if nothing can run."""
        while True:
            preemptions, step = self.preemptions, self._schedule()
            # the only one that could run may have had to start again
            if step is not None or self.preemptions == preemptions:
                return step

    def _schedule(self) -> Step | None:
        if not self.spec.mixed_steps:
            chunks = self._run_prompts(self.spec.step_tokens, self.preemptions)
            if chunks:
                return self._step(chunks, [])
        preemptions, held = self.preemptions, self._grow()
        chunks = []
        if self.spec.mixed_steps and not held:
            chunks = self._run_prompts(self.spec.step_tokens - len(self._decoding), preemptions)
        return self._step(chunks, held, decodes=True)

    def complete(self, step: Step, now_s: float) -> None:
        """Note that a step has run."""
        for answer in step.first:
            # it may have had to start again before
            answer.first_s = answer.first_s or now_s
        for answer in step.last:
            answer.last_s = now_s
            # it may have had to start again since, in vain
            if answer in self.running:
                del self.running[answer]
                self.blocks.release(answer, answer.request.prompt + answer.request.gen - 1)

    # prompts

    def _run_prompts(self, room: int, preemptions: int) -> list["_Chunk"]:
        """Go on with the prompt that is not done, then admit requests, unless one had to start again in this step."""
        chunks: list[_Chunk] = []
        prompt = self._prompt
        if prompt is not None and room > 0:
            tokens = min(prompt.prompt - prompt.computed, room)
            if self._make_room(prompt, self.blocks.needed(prompt.computed + tokens) - len(prompt.blocks)):
                chunks.append(self._run(prompt, tokens))
                room -= tokens
        while self.preemptions == preemptions and room > 0 and (chunk := self._admit(room)):
            chunks.append(chunk)
            room -= chunk.tokens
        return chunks

    def _admit(self, room: int) -> "_Chunk | None":
        """Admit the next request, if the KV cache has room for its prompt, and run as much of it as the step has."""
        if not len(self.waiting) or len(self.running) >= self.spec.step_requests:
            return None
        answer, blocks = self.waiting.peek(), self.blocks
        cached = blocks.cached(answer)
        kept = answer.prompt + (answer.request.gen - 1 if self.spec.whole_answers else 0)
        if blocks.needed(kept) - len(cached) + blocks.idle(cached) > len(blocks.free):
            return None
        self.waiting.pop()
        blocks.share(cached)
        answer.blocks, answer.computed = cached, len(cached) * self.spec.block_tokens
        if self.spec.whole_answers:
            answer.blocks += blocks.take(blocks.needed(kept) - len(cached))
        answer.reused += answer.computed
        answer.admitted, self.admissions = self.admissions, self.admissions + 1
        self.running[answer] = None
        return self._run(answer, min(answer.prompt - answer.computed, room))

    def _run(self, answer: Answer, tokens: int) -> "_Chunk":
        """Run tokens of a prompt, for which there is room."""
        before = answer.computed
        answer.computed += tokens
        answer.blocks += self.blocks.take(max(0, self.blocks.needed(answer.computed) - len(answer.blocks)))
        self.blocks.publish(answer, before, answer.computed)
        self._prompt = answer if answer.computed < answer.prompt else None
        return _Chunk(answer, tokens, before)

    # requests that decode

    def _grow(self) -> list[Answer]:
        """Give a block to each that needs one; returns those that wait, because one before them has to start again."""
        for answer in sorted(self._growing.pop(self._tick, ()), key=_admitted):
            if answer.grows != self._tick:
                continue
            if not self._make_room(answer, 1):
                return [each for each in self._decoding if each.admitted > answer.admitted]
            answer.blocks += self.blocks.take(1)
            self._grows_at(answer, answer.grows + self.spec.block_tokens)
        return []

    def _grows_at(self, answer: Answer, tick: int) -> None:
        answer.grows = tick
        if tick <= answer.ends:
            self._growing[tick].append(answer)

    def _ends_at(self, answer: Answer, tick: int) -> None:
        answer.ends = tick
        self._ending[tick].append(answer)

    def _decode(self, answer: Answer) -> bool:
        """Let a request whose prompt is done decode from the next tick on; False if it has no further tokens."""
        further = answer.request.gen - answer.produced - 1
        if not further:
            return False
        answer.base = answer.prompt + 1 - self._tick
        self._decoding.add(answer)
        self._base += answer.base
        self._ends_at(answer, self._tick + further - 1)
        self._grows_at(answer, len(answer.blocks) * self.spec.block_tokens - answer.base + 1)
        return True

    def _end(self, answer: Answer) -> None:
        """Take a request out of those that decode; it may stand in the calendar still, even twice at one tick."""
        self._decoding.remove(answer)
        self._base -= answer.base
        answer.grows = answer.ends = -1

    def _make_room(self, answer: Answer, count: int) -> bool:
        """Make others start again until so many blocks are free; False if it is the request itself that has to."""
        while len(self.blocks.free) < count:
            least = self.waiting.least(self.running)
            self._preempt(least)
            if least is answer:
                return False
        return True

    def _preempt(self, answer: Answer) -> None:
        """Take all blocks from a request; what it has produced becomes part of its prompt."""
        del self.running[answer]
        self.preemptions += 1
        answer.preemptions += 1
        computed = answer.computed
        if answer is self._prompt:
            self._prompt = None
        else:
            answer.produced = answer.request.gen
            if answer in self._decoding:
                answer.produced = answer.base + self._tick - answer.request.prompt
                self._end(answer)
            # the last token is not in the KV cache, nor is the one before, if it is on its way, known by its contents
            computed = answer.prompt - (2 if self.spec.ahead else 1)
        self.blocks.release(answer, computed)
        if answer.produced < answer.request.gen:
            self.waiting.put_back(answer)

    # steps

    def _step(self, chunks: list["_Chunk"], held: list[Answer], *, decodes: bool = False) -> Step | None:
        """The step that runs chunks of prompts, and if it `decodes`, all that decode but those that are held."""
        mix, last = Mix(), list[Answer]()
        if decodes:
            mix = Mix(len(self._decoding), self._base + len(self._decoding) * self._tick)
            if held:
                mix = self._without(held, mix)
            for answer in self._ending.pop(self._tick, ()):
                if answer.ends == self._tick:
                    self._end(answer)
                    last.append(answer)
            self._tick += 1
        if chunks:
            mix = mix.with_prompts((chunk.tokens, chunk.before) for chunk in chunks)
        first = [chunk.answer for chunk in chunks if chunk.answer.computed == chunk.answer.prompt]
        last += [answer for answer in first if not self._decode(answer)]
        return Step(mix, first, last) if mix.decoding or mix.prompts else None

    def _without(self, held: list[Answer], mix: Mix) -> Mix:
        """A mix without some that decode: they read the same at the next tick."""
        reads = sum(answer.base + self._tick for answer in held)
        for answer in held:
            answer.base -= 1
            self._base -= 1
            self._ends_at(answer, answer.ends + 1)
            self._grows_at(answer, answer.grows + 1)
        return Mix(mix.decoding - len(held), mix.context - reads)


class _Chunk(NamedTuple):
    answer: Answer
    tokens: int
    before: int


def _admitted(answer: Answer) -> int:
    return answer.admitted
