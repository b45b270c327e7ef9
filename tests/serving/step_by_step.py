"""A replica step by step, request by request and block by block: what `ladder_sim.serving` is compared with.

It is slow and plain: every step goes through all requests, every block holds its tokens, nothing is looked up ahead.
It has neither drafted tokens, whose cases vLLM recorded, nor pools.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ladder_sim.serving import Request
from ladder_sim.serving.engine.replica import Pace
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.steps.mix import Mix, MixTimes
from tests.support.replicas import AnswerTimes


@dataclass(eq=False)
class Sequenced:
    """A request on its way."""

    request: Request
    tokens: list[object]
    """Those of its prompt; after a new start those of its answer, too."""
    out: int = 0
    """Tokens of its answer, there or on their way."""
    computed: int = 0
    """Tokens of its prompt that are, or are about to be, in the KV cache."""
    decoded: int = 0
    """Steps that decoded it since its prompt was done."""
    blocks: list[int] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0
    preemptions: int = 0

    @property
    def prompt_done(self) -> bool:
        return self.computed == len(self.tokens)


class StepByStep:
    """One replica; `spec` as in the product."""

    def __init__(self, requests: Sequence[Request], spec: SchedulerSpec, times: MixTimes) -> None:
        self.spec, self.pace = spec, Pace(times, None)
        self.coming = deque(Sequenced(each, list(_tokens(number, each))) for number, each in enumerate(requests))
        self.all = list(self.coming)
        self.waiting, self.running = deque[Sequenced](), list[Sequenced]()
        self.free = OrderedDict.fromkeys(range(spec.kv_blocks))
        # what blocks hold, as numbers: of equal tokens after equal ones
        self.content: dict[int, int] = {}
        self.numbers: dict[tuple[int, tuple[object, ...]], int] = {}
        self.users = dict.fromkeys(self.free, 0)

    def run(self) -> list[AnswerTimes]:
        now_s, steps = 0.0, deque[tuple[Mix, list[Sequenced]]]()
        while True:
            while self.coming and self.coming[0].request.arrival_s <= now_s:
                self.waiting.append(self.coming.popleft())
            while len(steps) < 1 + self.spec.ahead and (step := self.schedule()):
                steps.append(step)
            if not steps:
                if not self.coming:
                    return [AnswerTimes(each.first_s, each.last_s, each.preemptions) for each in self.all]
                now_s = self.coming[0].request.arrival_s
                continue
            mix, served = steps.popleft()
            now_s += self.pace.seconds(mix)
            for each in served:
                each.first_s = each.first_s or now_s
            for each in [each for each in served if each.out == each.request.gen]:
                if not any(each in others for _, others in steps):
                    each.last_s = now_s
                    if each in self.running:
                        self.running.remove(each)
                        self.release(each, each.request.prompt + each.request.gen - 1)

    def schedule(self) -> tuple[Mix, list[Sequenced]] | None:
        while True:
            before = sum(each.preemptions for each in self.all)
            step = self.decide()
            if step or before == sum(each.preemptions for each in self.all):
                return step

    def decide(self) -> tuple[Mix, list[Sequenced]] | None:
        spec, reads, chunks = self.spec, dict[Sequenced, int](), dict[Sequenced, tuple[int, int]]()
        if not spec.mixed_steps:
            self.prompts(spec.step_tokens, chunks)
        preempted = False
        if not chunks:
            for each in list(self.running):
                if each in self.running and each.prompt_done and each.out < each.request.gen:
                    tokens = each.request.prompt + each.out
                    if self.needs(each, tokens) > len(self.free):
                        preempted = True
                    if self.make_room(each, tokens):
                        reads[each] = tokens
            reads = {each: tokens for each, tokens in reads.items() if each in self.running}
            if spec.mixed_steps:
                self.prompts(spec.step_tokens - len(reads), chunks, preempted=preempted)
        for each in reads:
            each.out += 1
            each.decoded += 1
        served = [*reads, *(each for each in chunks if each.prompt_done)]
        for each in served[len(reads) :]:
            each.out += 1
            each.decoded = 0
        mix = Mix.of(reads.values(), chunks.values())
        return (mix, served) if reads or chunks else None

    def prompts(self, room: int, chunks: dict[Sequenced, tuple[int, int]], *, preempted: bool = False) -> None:
        spec = self.spec
        for each in [each for each in self.running if not each.prompt_done]:
            tokens = min(len(each.tokens) - each.computed, room)
            if tokens > 0:
                preempted |= self.needs(each, each.computed + tokens) > len(self.free)
                if self.make_room(each, each.computed + tokens):
                    chunks[each] = self.compute(each, tokens)
                    room -= tokens
        while self.waiting and room > 0 and len(self.running) < min(spec.step_requests, spec.step_tokens):
            each = self.waiting[0]
            hits = self.hits(each) if spec.prefix_cache else []
            left = len(each.tokens) - len(hits) * spec.block_tokens
            if preempted or (chunks and not spec.chunked_prompts and left > room):
                return
            tokens = min(left, room)
            kept = len(each.tokens) + math.ceil(spec.answer_share * (each.request.gen - each.out - 1))
            kept = max(kept, len(each.tokens) - left + tokens)
            if -(-kept // spec.block_tokens) - len(hits) + sum(block in self.free for block in hits) > len(self.free):
                return
            self.running.append(self.waiting.popleft())
            for block in hits:
                self.users[block] += 1
                self.free.pop(block, None)
            each.blocks, each.computed = hits, len(hits) * spec.block_tokens
            self.take(each, kept if spec.answer_share else each.computed + tokens)
            chunks[each] = self.compute(each, tokens)
            room -= tokens

    def compute(self, each: Sequenced, tokens: int) -> tuple[int, int]:
        before = each.computed
        each.computed += tokens
        self.hold(each, min(each.computed, each.request.shared_tokens))
        return tokens, before

    # blocks

    def needs(self, each: Sequenced, tokens: int) -> int:
        return -(-tokens // self.spec.block_tokens) - len(each.blocks)

    def make_room(self, each: Sequenced, tokens: int) -> bool:
        while self.needs(each, tokens) > len(self.free):
            last = self.running[-1]
            self.preempt(last)
            if last is each:
                return False
        self.take(each, tokens)
        return True

    def take(self, each: Sequenced, tokens: int) -> None:
        for _ in range(self.needs(each, tokens)):
            block, _ = self.free.popitem(last=False)
            self.content.pop(block, None)
            self.users[block] = 1
            each.blocks.append(block)

    def held(self, tokens: Sequence[object]) -> list[int]:
        """Number what full blocks of these tokens hold."""
        numbers, size = [-1], self.spec.block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            key = numbers[-1], tuple(tokens[start : start + size])
            numbers.append(self.numbers.setdefault(key, len(self.numbers)))
        return numbers[1:]

    def hits(self, each: Sequenced) -> list[int]:
        blocks, block_of = list[int](), {number: block for block, number in self.content.items()}
        for number in self.held(each.tokens[:-1]):
            if number not in block_of:
                break
            blocks.append(block_of[number])
        return blocks

    def hold(self, each: Sequenced, tokens: int) -> None:
        """Note what full blocks hold, but what another one holds already."""
        if self.spec.prefix_cache:
            known, answer = set(self.content.values()), [(id(each), number) for number in range(each.out)]
            numbers = self.held([*each.tokens[: each.request.prompt], *answer][:tokens])
            for block, number in zip(each.blocks, numbers, strict=False):
                if number not in known:
                    self.content.setdefault(block, number)

    def release(self, each: Sequenced, tokens: int) -> None:
        self.hold(each, tokens)
        for block in reversed(each.blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None
                self.free.move_to_end(block, last=block in self.content)
        each.blocks = []

    def preempt(self, each: Sequenced) -> None:
        self.running.remove(each)
        each.preemptions += 1
        known = each.computed
        if each.prompt_done:
            on_their_way = self.spec.ahead if each.out == each.request.gen else min(each.decoded, self.spec.ahead)
            known = each.request.prompt + each.out - 1 - on_their_way
        self.release(each, known)
        if each.out < each.request.gen:
            each.tokens = each.tokens[: each.request.prompt] + [(id(each), number) for number in range(each.out)]
            each.computed = 0
            self.waiting.appendleft(each)


def _tokens(number: int, request: Request) -> Iterator[Any]:
    """Tokens of a prompt: equal parts of prompts after equal beginnings are equal."""
    for position in range(request.prompt):
        if position < request.shared_tokens:
            yield request.prefix[position // request.prefix_tokens], position
        else:
            yield "own", number, position
