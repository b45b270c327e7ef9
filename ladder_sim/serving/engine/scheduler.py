"""What an engine runs in each step: continuous batching as vLLM 0.32.0 does it (v1/core/sched/scheduler.py).

Requests that run go first, in the order in which they were admitted: each decodes a token, or runs as much of its
prompt as the step has room for. Then waiting ones are admitted, while tokens, requests and blocks of the KV cache
allow it. If a request needs a block and none is left, the last of those that run has to start again.

All requests that decode advance together, one token at each tick, so that it is known in advance at which tick each
needs another block, and at which it ends. A step costs as much as it has such events, not as it has requests. With
drafted tokens each advances by as many as are accepted, which is drawn when it begins to decode (`speculation`).
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.kv_blocks import KvBlocks
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.steps.mix import Mix


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
    """Requests to which that step brought a token, and this one brings none: they wait, or start again."""


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
        self._rows = spec.rows
        self._lookahead = spec.speculation.lookahead if spec.speculation else 0
        # all that run may decode in one step
        self._most = min(spec.step_requests, spec.step_tokens // self._rows)

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

        # with drafted tokens: those in answers beyond one a tick, by tick
        self._beyond = np.zeros(1024 if spec.speculation else 0, np.int64)
        # answers complete with the tick before, whose requests decode once more because that is not known yet
        self._surplus: list[Answer] = []

        # when the last step that decoded had run; which of those that decode next it brought nothing, and to which it
        # brought a token though they do not decode next
        self._decoded_s = 0.0
        self._joining: dict[Answer, None] = {}
        self._left: list[Answer] = []

    def add(self, answer: Answer) -> None:
        (self._unseen if self._unpolled else self.waiting).append(answer)

    def schedule(self) -> Step | None:
        """Decide what the next step runs; None if nothing can run."""
        while True:
            preemptions, step = self.preemptions, self._schedule()
            # the only one that could run may have had to start again
            if step is not None or self.preemptions == preemptions:
                return step

    def _schedule(self) -> Step | None:
        if not self._unpolled or not self.running:
            self.waiting.extend(self._unseen)
            self._unseen, self._unpolled = [], 0
        if not self.spec.mixed_steps:
            chunks = self._run_prompts(self.spec.step_tokens, self.preemptions)
            if chunks:
                return self._step(chunks, [])
        preemptions, held = self.preemptions, self._grow()
        chunks = []
        if self.spec.mixed_steps and not held:
            chunks = self._run_prompts(self.spec.step_tokens - len(self._decoding) * self._rows, preemptions)
        return self._step(chunks, held, decodes=True)

    def complete(self, step: Step, now_s: float) -> list[Gap]:
        """Note that a step has run; returns how long requests waited for their tokens since those before."""
        for answer in step.left:
            answer.token_s = self._decoded_s
        gaps_s = [(now_s - answer.token_s, 1) for answer in step.joined]
        if step.decoding:
            if together := step.decoding - len(gaps_s):
                gaps_s.append((now_s - self._decoded_s, together))
            self._decoded_s = now_s
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
        chunks: list[_Chunk] = []
        prompt = self._prompt
        if prompt is not None and room > 0:
            tokens = min(prompt.prompt - prompt.computed, room)
            if self._make_room(prompt, self._lacks(prompt, prompt.computed + tokens)):
                chunks.append(self._run(prompt, tokens))
                room -= tokens
        goes_on = bool(chunks)
        while (
            self.preemptions == preemptions
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
        if not self.waiting or len(self.running) >= self._most:
            return None
        answer, blocks = self.waiting[0], self.blocks
        cached = blocks.cached(answer)
        # of a KV cache that has come, one token is left to run
        computed = max(len(cached) * self.spec.block_tokens, answer.received - 1)
        if whole and answer.prompt - computed > room:
            return None
        tokens, padding = min(answer.prompt - computed, room), 0
        if self.spec.pads_prompts and answer.prompt - computed == 1 and not goes_on and (self._decoding or computed):
            padding = self._rows - 1
            if tokens + padding > room:
                return None
        to_come = answer.request.gen - answer.produced - 1 + self.spec.spare_tokens
        kept = answer.prompt + math.ceil(self.spec.answer_share * to_come)
        kept = max(kept, computed + tokens + padding + self._lookahead)
        if blocks.needed(kept) - len(cached) + blocks.idle(cached) > len(blocks.free):
            return None
        self.waiting.popleft()
        blocks.share(cached)
        answer.blocks, answer.computed = cached, computed
        if self.spec.answer_share:
            answer.blocks += blocks.take(blocks.needed(kept) - len(cached))
        if not answer.received:
            answer.reused += computed
        answer.admitted, self.admissions = self.admissions, self.admissions + 1
        self.running[answer] = None
        return self._run(answer, tokens, padding)

    def _run(self, answer: Answer, tokens: int, padding: int = 0) -> "_Chunk":
        """Run tokens of a prompt, for which there is room."""
        before = answer.computed
        answer.computed += tokens
        answer.blocks += self.blocks.take(self._lacks(answer, answer.computed + padding))
        self.blocks.publish(answer, 0 if answer.received else before, answer.computed)
        self._prompt = answer if answer.computed < answer.prompt else None
        return _Chunk(answer, tokens, before, padding)

    def _lacks(self, answer: Answer, tokens: int) -> int:
        """Return the number of blocks that a prompt lacks to run up to a number of tokens."""
        return max(0, self.blocks.needed(tokens + self._lookahead) - len(answer.blocks))

    # requests that decode

    def _grow(self) -> list[Answer]:
        """Give a block to each that needs one; returns those that wait, because one before them has to start again."""
        for answer in sorted(self._growing.pop(self._tick, ()), key=attrgetter("admitted")):
            if answer.grows != self._tick:
                continue
            path, needed = answer.path, self._reads(answer)
            if path:
                needed = answer.prompt + int(path.room[self._tick - self._start(answer)])
            count = self.blocks.needed(needed) - len(answer.blocks)
            if not self._make_room(answer, count):
                return [each for each in self.running if each in self._decoding and each.admitted > answer.admitted]
            answer.blocks += self.blocks.take(count)
            self._grows_next(answer)
        return []

    def _grows_next(self, answer: Answer) -> None:
        """Note when its blocks will be full."""
        room, path = len(answer.blocks) * self.spec.block_tokens, answer.path
        if path is None:
            self._grows_at(answer, room + 1 - answer.base)
        else:
            full = int(np.searchsorted(path.room, room - answer.prompt, side="right"))
            self._grows_at(answer, self._start(answer) + full)

    def _grows_at(self, answer: Answer, tick: int) -> None:
        answer.grows = tick
        if tick <= answer.ends + (answer.path is not None and answer.path.surplus):
            self._growing[tick].append(answer)

    def _ends_at(self, answer: Answer, tick: int) -> None:
        answer.ends = tick
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
        self._grows_next(answer)
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
        answer.path = None
        answer.grows = answer.ends = -1

    def _make_room(self, answer: Answer, count: int) -> bool:
        """Make others start again until so many blocks are free; False if it is the request itself that has to."""
        while len(self.blocks.free) < count:
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

    def _step(self, chunks: list["_Chunk"], held: list[Answer], *, decodes: bool = False) -> Step | None:
        """Return the step that runs chunks of prompts and, if it `decodes`, all that decode but those `held`."""
        mix, last, decoding, joined = Mix(), list[Answer](), 0, list[Answer]()
        if decodes:
            decoding = len(self._decoding)
            if held or self._surplus:
                decoding -= sum(answer in self._decoding for answer in {*held, *self._surplus})
            if held or self._joining:
                joined = self._join(held)
            mix = self._decode_all(held)
            last = self._ended()
            self._tick += 1
        if chunks:
            mix = mix.with_prompts((chunk.tokens, chunk.before) for chunk in chunks)
            if padding := sum(chunk.padding for chunk in chunks):
                mix = mix._replace(context=mix.context + padding, drafted=mix.drafted + padding)
        done = [chunk for chunk in chunks if chunk.answer.computed == chunk.answer.prompt]
        first = [chunk.answer for chunk in done]
        last += [chunk.answer for chunk in done if not self._decode(chunk.answer, chunk.padding)]
        if not mix.decoding and not mix.prompts:
            return None
        self._unpolled = 0 if chunks else (self._unpolled + 1) % self.spec.poll_steps
        left, self._left = self._left, []
        return Step(mix, first, last, decoding, joined, left)

    def _join(self, held: list[Answer]) -> list[Answer]:
        """Return the requests that decode a token now, but not at the tick before; those held join later."""
        joined = [answer for answer in self._joining if answer not in held]
        self._left += [answer for answer in held if answer not in self._joining]
        self._joining = dict.fromkeys(answer for answer in held if answer not in self._surplus)
        return joined

    def _decode_all(self, held: list[Answer]) -> Mix:
        """Return what all that decode read, but for the requests `held`, which read the same at the next tick."""
        decoding, drafts = len(self._decoding), self._rows - 1
        context = self._base + decoding * self._tick
        if drafts and self._tick < len(self._beyond):
            context += int(self._beyond[self._tick])
        for answer in held:
            decoding -= 1
            context -= self._reads(answer)
            if answer not in self._surplus:
                self._follow(answer, self._tick, -1)
                answer.base -= 1
                self._base -= 1
                self._follow(answer, self._tick + 1)
                self._ends_at(answer, answer.ends + 1)
                self._grows_at(answer, answer.grows + 1)
        return Mix(decoding, context, drafted=decoding * drafts)

    def _ended(self) -> list[Answer]:
        """Return the answers that are complete with this tick."""
        for answer in self._surplus:
            if answer in self._decoding:
                self._end(answer)
        last, self._surplus = list[Answer](), []
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
