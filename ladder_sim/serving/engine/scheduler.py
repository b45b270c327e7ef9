"""What an engine runs in each step: continuous batching as vLLM 0.32.0 does it (v1/core/sched/scheduler.py).

Requests that run go first, in the order in which they were admitted: each decodes a token, or runs as much of its
prompt as the step has room for. Then waiting ones are admitted, while tokens, requests and blocks of the KV cache
allow it. If a request needs a block and none is left, the last of those that run has to start again.

All requests that decode advance together, one token at each tick, so that it is known in advance at which tick each
needs another block, and at which it ends. They are counted by the tick, modulo the tokens of a block, at which they
need one: a step costs as much as it has requests that begin or end, and of steps that are alike `advance` takes any
number at once. With drafted tokens each request advances by as many as are accepted, which is drawn when it begins to
decode (`speculation`).
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.kv_blocks import KvBlocks
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.steps.mix import Mix
from ladder_sim.specs.workload import MAX_TOKENS


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
    mixed_steps: bool = True
    """Prompts share a step with requests that decode; else they go first, in steps of their own."""
    chunked_prompts: bool = True
    """A prompt that does not fit what is left of a step is split; else it waits, unless no step holds it whole."""
    poll_steps: int = 1
    """Decode steps from one look for new requests to the next; after a step with prompts the engine looks at once."""
    prefix_cache: bool = True
    """Requests use what others that began alike left in the KV cache."""
    ahead: bool = True
    """The next step is scheduled while one runs."""
    answer_share: float = 0.0
    """A request is admitted when there is room for this share of its answer, which it keeps; 1: none starts again."""
    frontend_s: float = 0.0
    """Time of a request outside of the engine, before its first token is there: HTTP, and the tokens of its text."""
    frontend_steps: float = 0.0
    """More of it, in decode steps."""
    frontend_token_s: float = 0.0
    """More of it for each token of its prompt."""
    speculation: Speculation | None = None
    """Requests decode drafted tokens too."""
    pads_prompts: bool = True
    """Where requests decode drafted tokens, the last token of a prompt has as many rows as a request that decodes."""
    hands_over: bool = False
    """It runs prompts only; their blocks are held until another replica has the KV cache."""
    takes_first_token: bool = False
    """From a replica that runs prompts only the first token comes too; else the last token of the prompt runs again."""

    @property
    def rows(self) -> int:
        """Tokens that a request decodes in a step, those that are rejected included."""
        return 1 + (self.speculation.drafts if self.speculation else 0)

    @property
    def spare_tokens(self) -> int:
        """Tokens for which a request may need the KV cache besides its prompt and its answer."""
        return self.speculation.spare(ahead=self.ahead) if self.speculation else 0

    def outside_s(self, answer: Answer) -> float:
        """Time of an answered request outside of the engine."""
        return self.frontend_s + self.frontend_steps * answer.tpot_s + self.frontend_token_s * answer.request.prompt

    @property
    def room(self) -> int:
        """Tokens of the longest request."""
        return self.kv_blocks * self.block_tokens - self.spare_tokens


# seconds between two tokens of a request, and how many requests waited so long
Gap = tuple[float, int]


class Step(NamedTuple):
    """A step to run."""

    mix: Mix
    """Requests that the step runs."""
    first: list[Answer]
    """Requests whose prompt ends with the step."""
    last: list[Answer]
    """Requests whose answer ends with the step."""
    decoding: int = 0
    """Requests that decode a token that is new to them: not rows of prompts, nor of answers that are complete."""
    joined: Sequence[Answer] = ()
    """Requests, of those that decode, to which the last decoding step brought nothing."""
    left: Sequence[Answer] = ()
    """Requests to which that step brought a token, and this one brings none: they start again."""

    plain: bool = False
    """Whether each request decodes a token, and no answer ends."""

    def after(self, steps: int) -> "Step":
        """Return the step after so many that are like this plain one."""
        if not steps:
            return self
        return Step(Mix(self.decoding, self.mix.context + steps * self.decoding), [], [], self.decoding, plain=True)


class Scheduler:
    """The requests of one replica."""

    def __init__(self, spec: SchedulerSpec) -> None:
        self.spec = spec
        self.blocks = KvBlocks(spec.kv_blocks, spec.block_tokens, reuse=spec.prefix_cache)
        # in order of arrival; who had to start again goes first
        self.waiting: deque[Answer] = deque()

        # those that came since the engine looked for new requests, and the steps since then; 0: it looks next
        self._unseen: list[Answer] = []
        self._unpolled = 0
        self._rows, self._mixed = spec.rows, spec.mixed_steps
        self._lookahead = spec.speculation.lookahead if spec.speculation else 0
        # all that run may decode in one step
        self._most = min(spec.step_requests, spec.step_tokens // self._rows)

        # whether nobody had to start again in the step that was decided on last
        self._settled = False

        # admitted and not yet answered, in that order
        self.running: dict[Answer, None] = {}
        self.preemptions = 0

        # the one whose prompt goes on, if any: the last of them, because it took all tokens that were left
        self._prompt: Answer | None = None

        # those that decode at the next tick, and the sum of their `base`
        self._decoding: set[Answer] = set()
        self._base = 0
        self._tick = 0
        # by tick, and the ticks in order; those that had to start again may stand there still
        self._ending: defaultdict[int, list[Answer]] = defaultdict(list)
        self._ends: list[int] = []

        # requests that need a block at every tick that leaves this rest, divided by the tokens of a block; those that
        # have room for longer join them at a tick; and the tick up to which they have their blocks. Not with drafts
        self._growing = [0] * spec.block_tokens
        self._full: defaultdict[int, list[Answer]] = defaultdict(list)
        self._grown = 0

        # with drafted tokens: those in answers beyond one a tick, by tick
        self._beyond = np.zeros(1024 if spec.speculation else 0, np.int64)
        # answers complete with the tick before, whose requests decode once more because that is not known yet
        self._surplus: list[Answer] = []

        # when the last step that decoded had run; which of those that decode next it brought nothing, and to which it
        # brought a token though they do not decode next
        self.decoded_s = 0.0
        self._joining: dict[Answer, None] = {}
        self._left: list[Answer] = []

    def add(self, answer: Answer) -> None:
        (self._unseen if self._unpolled else self.waiting).append(answer)

    def schedule(self) -> Step | None:
        """Decide what the next step runs; None if nothing can run."""
        if self._unseen and not (self._unpolled and self.running):
            self.waiting.extend(self._unseen)
            self._unseen, self._unpolled = [], 0
        chunks: Sequence[_Chunk] = ()
        before = preemptions = self.preemptions
        prompts = self._prompt is not None or self.waiting
        if prompts and not self._mixed:
            chunks = self._run_prompts(self.spec.step_tokens, preemptions)
            if chunks:
                return self._step(chunks)
            preemptions = self.preemptions
        self._grow()
        if self._mixed and (prompts or self.waiting):
            chunks = self._run_prompts(self.spec.step_tokens - len(self._decoding) * self._rows, preemptions)
        self._settled = self.preemptions == preemptions
        step = self._step(chunks, decodes=True)
        # the only one that could run may have had to start again
        return self.schedule() if step is None and self.preemptions != before else step

    def alike(self) -> int:
        """Return how many further steps are like the plain one that was decided on last, unless a request comes."""
        if not self._settled or self._prompt or self._joining or self._left or self.spec.speculation:
            return 0
        tick, free, growing = self._tick, self.blocks.free, self._growing
        while self._ends and self._ends[0] < tick:
            heappop(self._ends)
        if not self._ends:
            return 0
        most = min([self._ends[0], *self._full]) - tick
        if self._unseen:
            most = min(most, self.spec.poll_steps - self._unpolled if self._unpolled else 0)
        if together := sum(growing):
            rounds = free // together
            steps, free = rounds * len(growing), free - rounds * together
            while steps < most and (free := free - growing[(tick + steps) % len(growing)]) >= 0:
                steps += 1
            most = min(most, steps)
        return most

    def steps_to_evict(self) -> int:
        """Return how many steps that are `alike` certainly take no blocks whose contents can be used again."""
        together = sum(self._growing)
        return self.blocks.blank // together * len(self._growing) if together else MAX_TOKENS

    def advance(self, steps: int) -> None:
        """Decide on steps that are `alike`."""
        phase = self._tick % len(self._growing)
        # the blocks that each of the next steps takes; after so many, this begins again
        growth = self._growing[phase:] + self._growing[:phase]
        rounds, rest = divmod(steps, len(growth))
        self.blocks.take((rounds * sum(growth) if rounds else 0) + sum(growth[:rest]))
        self._tick += steps
        self._grown = self._tick
        self._unpolled = (self._unpolled + steps) % self.spec.poll_steps

    def complete(self, step: Step, now_s: float) -> list[Gap]:
        """Note that a step has run; returns how long requests waited for their tokens since those before."""
        for answer in step.left:
            answer.token_s = self.decoded_s
        gaps_s = [(now_s - answer.token_s, 1) for answer in step.joined]
        if together := step.decoding - len(gaps_s):
            gaps_s.append((now_s - self.decoded_s, together))
        if step.decoding:
            self.decoded_s = now_s
        for answer in step.first:
            # it may have had to start again before
            if answer.first_s:
                gaps_s.append((now_s - answer.token_s, 1))
            answer.first_s, answer.token_s = answer.first_s or now_s, now_s
        for answer in step.last:
            answer.last_s = now_s
            # it may have had to start again since, in vain
            if answer in self.running:
                del self.running[answer]
                if not self.spec.hands_over:
                    self.release(answer)
            if answer in self._decoding:
                self._end(answer)
        return gaps_s

    def release(self, answer: Answer) -> None:
        """Stop using the blocks of a request that is answered."""
        self.blocks.release(answer, answer.request.prompt + answer.request.gen - 1, answered=True)

    # prompts

    def _run_prompts(self, room: int, preemptions: int) -> list["_Chunk"]:
        """Go on with the prompt that is not done, then admit requests, unless one had to start again in this step."""
        # not list[_Chunk](), which takes microseconds
        chunks: list[_Chunk] = []
        prompt = self._prompt
        if prompt is not None and room > 0:
            tokens = min(prompt.prompt - prompt.computed, room)
            lacks = self._lacks(prompt, prompt.computed + tokens)
            if self.blocks.free >= lacks or self._make_room(prompt, lacks):
                chunks.append(self._run(prompt, tokens))
                room -= tokens
        goes_on = bool(chunks)
        while (
            self.waiting
            and self.preemptions == preemptions
            and room > 0
            and (chunk := self._admit(room, goes_on=goes_on, whole=bool(chunks) and not self.spec.chunked_prompts))
        ):
            chunks.append(chunk)
            room -= chunk.tokens + chunk.padding
        return chunks

    def _admit(self, room: int, *, goes_on: bool, whole: bool) -> "_Chunk | None":
        """Admit the next request if the KV cache holds its prompt, and run as much of it as the step has room for.

        A single token has the rows of a request that decodes, so that a CUDA graph holds the step, unless a prompt that
        was admitted before `goes_on` in it. Without room for all of these rows the request waits, as it does without
        room for its `whole` prompt.
        """
        if len(self.running) >= self._most:
            return None
        answer, blocks, spec = self.waiting[0], self.blocks, self.spec
        cached, prompt = blocks.cached(answer), answer.prompt
        # of a KV cache that has come, one token is left to run
        held = sum([each.stop - each.start for each in cached]) if cached else 0
        computed = max(held * spec.block_tokens, answer.received - 1)
        left = prompt - computed
        if whole and left > room:
            return None
        tokens, padding = min(left, room), 0
        if left == 1 and spec.pads_prompts and not goes_on and (self._decoding or computed):
            padding = self._rows - 1
            if tokens + padding > room:
                return None
        kept = max(prompt, computed + tokens + padding + self._lookahead)
        if spec.answer_share:
            to_come = answer.request.gen - answer.produced - 1 + spec.spare_tokens
            kept = max(kept, prompt + math.ceil(spec.answer_share * to_come))
        if blocks.needed(kept) - held + (blocks.idle(cached) if cached else 0) > blocks.free:
            return None
        self.waiting.popleft()
        blocks.share(cached)
        answer.named, answer.blocks, answer.computed = cached, held, computed
        if spec.answer_share:
            self._take(answer, blocks.needed(kept) - held)
        if not answer.received:
            answer.reused += computed
        self.running[answer] = None
        return self._run(answer, tokens, padding)

    def _run(self, answer: Answer, tokens: int, padding: int = 0) -> "_Chunk":
        """Run tokens of a prompt, for which there is room."""
        before = answer.computed
        answer.computed = computed = before + tokens
        if lacks := self._lacks(answer, computed + padding):
            self._take(answer, lacks)
        if answer.request.prefix:
            self.blocks.publish(answer, 0 if answer.received else before, computed)
        self._prompt = answer if computed < answer.prompt else None
        return _Chunk(answer, tokens, before, padding)

    def _lacks(self, answer: Answer, tokens: int) -> int:
        """Return the number of blocks that a prompt lacks to run up to a number of tokens."""
        return max(0, self.blocks.needed(tokens + self._lookahead) - answer.blocks)

    def _take(self, answer: Answer, count: int) -> None:
        self.blocks.take(count)
        answer.blocks += count

    # requests that decode

    def _grow(self) -> None:
        """Give a block to each that needs one; the last of those that run may have to start again for that."""
        tick, blocks = self._tick, self.blocks
        phase = tick % blocks.size
        if tick in self._full:
            for answer in self._full.pop(tick):
                if answer.full == tick:
                    self._grows(answer)
        count = self._growing[phase]
        if count <= blocks.free and self._rows == 1:
            if count:
                blocks.take(count)
        else:
            for answer in [each for each in self.running if each in self._decoding]:
                # it may have had to start again meanwhile
                if answer in self._decoding and (count := self._lacking(answer, phase)):
                    if not self._make_room(answer, count):
                        break
                    self._take(answer, count)
        self._grown = tick + 1

    def _lacking(self, answer: Answer, phase: int) -> int:
        """Return how many blocks a request lacks to decode at this tick."""
        if answer.path:
            room = answer.prompt + int(answer.path.room[self._tick - self._start(answer)])
            return max(0, self.blocks.needed(room) - answer.blocks)
        answer.blocks = self._blocks_of(answer)
        return int(answer.phase == phase)

    def _blocks_of(self, answer: Answer) -> int:
        """Return the blocks of a request that decodes without drafts: those taken together are not noted in it."""
        if answer.phase < 0:
            return answer.blocks
        return max(answer.blocks, self.blocks.needed(answer.base + self._grown - 1))

    def _grows(self, answer: Answer) -> None:
        answer.phase = answer.full % len(self._growing)
        self._growing[answer.phase] += 1

    def _ends_at(self, answer: Answer, tick: int) -> None:
        answer.ends = tick
        heappush(self._ends, tick)
        self._ending[tick].append(answer)

    def _decode(self, answer: Answer, padding: int) -> bool:
        """Let a request whose prompt is done decode from the next tick on; False if it has no further tokens."""
        steps = answer.request.gen - answer.produced - 1
        if not steps:
            return False
        answer.base = answer.prompt + self._rows - self._tick
        self._decoding.add(answer)
        self._joining[answer] = None
        self._base += answer.base
        if speculation := self.spec.speculation:
            gains = speculation.gains(answer.number, answer.request.gen)
            answer.path = speculation.path(gains, answer.produced, ahead=self.spec.ahead, padding=padding)
            steps = answer.path.steps
            self._follow(answer, self._tick)
        self._ends_at(answer, self._tick + steps - 1)
        if not speculation:
            answer.full = answer.blocks * self.spec.block_tokens + 1 - answer.base
            if answer.full < self._tick + self.spec.block_tokens:
                self._grows(answer)
            elif answer.full <= answer.ends:
                self._full[answer.full].append(answer)
        return True

    def _start(self, answer: Answer) -> int:
        """Return the tick at which a request began to decode, and later by those that it waited for."""
        return answer.prompt + self._rows - answer.base

    def _reads(self, answer: Answer) -> int:
        """Return the number of tokens that a request reads at this tick, all that it decodes included."""
        path = answer.path
        return answer.base + self._tick + (int(path.beyond[self._tick - self._start(answer)]) if path else 0)

    def _follow(self, answer: Answer, tick: int, sign: int = 1) -> None:
        """Count the tokens that a request gains from a tick on, or no longer."""
        if answer.path:
            beyond = answer.path.beyond[tick - self._start(answer) :]
            end = tick + len(beyond)
            if end > len(self._beyond):
                self._beyond = np.concatenate([self._beyond, np.zeros(end, np.int64)])
            self._beyond[tick:end] += sign * beyond

    def _end(self, answer: Answer) -> None:
        """Take a request out of those that decode; it may stand in the calendar still."""
        self._decoding.remove(answer)
        self._base -= answer.base
        self._follow(answer, self._tick, -1)
        if answer.phase >= 0:
            answer.blocks = self._blocks_of(answer)
            self._growing[answer.phase] -= 1
        answer.path = None
        answer.phase = answer.full = answer.ends = -1

    def _make_room(self, answer: Answer, count: int) -> bool:
        """Make others start again until so many blocks are free; False if it is the request itself that has to."""
        while self.blocks.free < count:
            last = next(reversed(self.running))
            self._preempt(last)
            if last is answer:
                return False
        return True

    def _preempt(self, answer: Answer) -> None:
        """Take all blocks from a request; what it has produced becomes part of its prompt."""
        del self.running[answer]
        self.preemptions += 1
        answer.preemptions += 1
        answer.received = 0
        # known by its contents
        computed = answer.computed
        if answer is self._prompt:
            self._prompt = None
        elif answer in self._decoding:
            step, path = self._tick - self._start(answer), answer.path
            # what is on its way is not
            known = int(path.known[step]) if path else max(0, step - self.spec.ahead)
            computed = answer.prompt + known
            produced = self._reads(answer) + 1 - self._rows - answer.request.prompt
            self._end(answer)
            if answer in self._joining:
                del self._joining[answer]
            else:
                self._left.append(answer)
            answer.produced = min(answer.request.gen, produced)
        else:
            answer.produced = answer.request.gen
            computed = answer.prompt - (2 if self.spec.ahead else 1)
        self.blocks.release(answer, computed)
        if answer.produced < answer.request.gen:
            self.waiting.appendleft(answer)

    # steps

    def _step(self, chunks: Sequence["_Chunk"], *, decodes: bool = False) -> Step | None:
        """Return the step that runs chunks of prompts and, if it `decodes`, all that decode."""
        first: list[Answer] = []
        last: list[Answer] = []
        joined: Sequence[Answer] = ()
        left = joined
        rows = decoding = len(self._decoding) if decodes else 0
        context, drafted = self._base + decoding * self._tick if decoding else 0, 0
        if decodes:
            if drafts := self._rows - 1:
                context += int(self._beyond[self._tick]) if self._tick < len(self._beyond) else 0
                drafted = decoding * drafts
                decoding -= sum(answer in self._decoding for answer in self._surplus)
            if self._joining:
                joined, self._joining = list(self._joining), {}
            if self._surplus or self._tick in self._ending:
                last = self._ended()
            self._tick += 1
        if not (chunks or rows):
            return None
        padded = 0
        for answer, _, _, padding in chunks:
            padded += padding
            if answer.computed == answer.prompt:
                first.append(answer)
                if not self._decode(answer, padding):
                    last.append(answer)
        mix = Mix(rows, context + padded, 0, 0, 0, drafted + padded)
        if chunks:
            mix = mix.with_prompts([chunk[1:3] for chunk in chunks])
        self._unpolled = 0 if chunks else (self._unpolled + 1) % self.spec.poll_steps
        if self._left:
            left, self._left = self._left, []
        return Step(mix, first, last, decoding, joined, left, not (chunks or last or left or drafted))

    def _ended(self) -> list[Answer]:
        """Return the answers that are complete with this tick."""
        last: list[Answer] = []
        surplus, self._surplus = self._surplus, []
        for answer in surplus:
            if answer in self._decoding:
                self._end(answer)
        for answer in self._ending.pop(self._tick, ()):
            # one that started again may stand there twice
            if answer.ends == self._tick and answer not in self._surplus:
                last.append(answer)
                if answer.path and answer.path.surplus:
                    self._surplus.append(answer)
                else:
                    self._end(answer)
        return last


class _Chunk(NamedTuple):
    """What a step runs of a prompt."""

    answer: Answer
    tokens: int
    before: int
    """Tokens of the prompt before these."""
    padding: int
    """Rows beyond these tokens, which bring none."""
