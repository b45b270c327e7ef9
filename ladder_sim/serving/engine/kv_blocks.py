"""The KV cache of a replica in blocks, and which of their contents can be used again.

As vLLM 0.32.0 keeps it (v1/core/block_pool.py): blocks that nobody uses wait in one queue, from whose front they are
taken. Those whose contents can be used again go to its back, the last tokens of a request first, so that the least
recently used ones go first; all others go to its front. Only contents tell blocks apart: those without a name are
counted. Blocks in a row that are used and left together are kept as one run, in a tree of the parts of prompts.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Optional

from ladder_sim.serving.engine.answer import Answer


@dataclass(slots=True, eq=False)
class Part:
    """A part of prompts after one beginning: keys and values of a token depend on all tokens before it."""

    parent: Optional["Part"] = None
    name: Hashable = None
    """Key of the part in `parent.children`."""
    children: dict[Hashable, "Part"] = field(default_factory=dict)
    runs: list["Run"] = field(default_factory=list)
    """Runs of blocks that hold tokens of the part, in order."""

    def child(self, name: Hashable, *, make: bool) -> Optional["Part"]:
        """Return the part of that name after this one; None if it is missing and not to `make`."""
        child = self.children.get(name)
        if child is None and make:
            child = self.children[name] = Part(self, name)
        return child

    def held_to(self, start: int, stop: int) -> int:
        """Return the first block from `start` on that is missing; at most `stop`."""
        for run in self.runs:
            if run.start > start or start >= stop:
                break
            start = max(start, run.stop)
        return min(start, stop)

    def fill(self, start: int, stop: int) -> list["Run"]:
        """Return runs, now part of this one, of the blocks from `start` to `stop` that were missing."""
        gaps = []
        for run in self.runs:
            if run.start >= stop:
                break
            if run.start > start:
                gaps.append(Run(self, start, run.start, 1))
            start = max(start, run.stop)
        if start < stop:
            gaps.append(Run(self, start, stop, 1))
        for gap in gaps:
            insort(self.runs, gap, key=_START)
        return gaps

    def forget(self, run: "Run") -> None:
        """Remove a run, and parts of which nothing is left."""
        self.runs.remove(run)
        part = self
        while part.parent and not (part.runs or part.children):
            del part.parent.children[part.name]
            part = part.parent


@dataclass(slots=True, eq=False)
class Run:
    """Blocks in a row, numbered from the first of the prompt, that the same number of requests use."""

    part: Part | None
    """Part whose tokens the blocks hold; None: nobody asks for them."""
    start: int
    stop: int
    users: int

    def __len__(self) -> int:
        return self.stop - self.start


_START = attrgetter("start")


class Held(NamedTuple):
    """Blocks of a part that a request uses, or may use."""

    part: Part
    start: int
    stop: int

    @property
    def blocks(self) -> int:
        """Number of them."""
        return self.stop - self.start


class KvBlocks:
    """Blocks of the KV cache, each of `size` tokens.

    With `reuse` contents are kept for requests that begin alike: prefix caching.
    """

    def __init__(self, count: int, size: int, *, reuse: bool = True) -> None:
        self.count, self.size, self.reuse = count, size, reuse
        # those that nobody uses, and of these the ones in front
        self.free = self.blank = count

        # behind those: runs that nobody uses, of each the last block first
        self._queue: OrderedDict[Run, None] = OrderedDict()

        # below it: the first parts of prompts, and by number what a request that had to start again has alone
        self._root = Part()

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def cached(self, answer: Answer) -> list[Held]:
        """Return the blocks that hold the beginning of a request; its last token must be computed in any case."""
        blocks: list[Held] = []
        request = answer.request
        first = request.prefix and self._root.children.get((request.prefix_tokens, request.prefix[0]))
        if not (answer.preemptions or first):
            return blocks
        for part, start, stop in self._parts(answer, 0, (answer.prompt - 1) // self.size):
            held = part.held_to(start, stop)
            if held > start:
                blocks.append(Held(part, start, held))
            if held < stop:
                break
        return blocks

    def idle(self, blocks: Sequence[Held]) -> int:
        """Return how many of some cached blocks nobody uses."""
        return sum(
            min(run.stop, stop) - run.start
            for part, _, stop in blocks
            for run in part.runs
            if not run.users and run.start < stop
        )

    def share(self, blocks: Sequence[Held]) -> None:
        """Let one more request use cached blocks."""
        for part, _, stop in blocks:
            for number, run in enumerate(part.runs):
                if run.start >= stop:
                    break
                if run.stop > stop:
                    # the rest keeps its place in the queue
                    first = Run(part, run.start, stop, run.users)
                    run.start = stop
                    part.runs.insert(number, first)
                    run = first
                if not run.users:
                    self.free -= len(run)
                    self._queue.pop(run, None)
                run.users += 1

    def take(self, count: int) -> None:
        """Use blocks that nobody uses; what they held is gone."""
        self.free -= count
        self.blank -= count
        while self.blank < 0:
            run = next(iter(self._queue))
            self.blank += run.stop - run.start
            if self.blank > 0:
                run.stop = run.start + self.blank
                self.blank = 0
            else:
                del self._queue[run]
                if run.part:
                    run.part.forget(run)

    def publish(self, answer: Answer, before: int, tokens: int) -> None:
        """Let others use what a request computes of the tokens that it may share: from `before` up to `tokens`."""
        shared = min(tokens, answer.request.shared_tokens)
        if self.reuse and shared > before:
            self._keep(answer, before // self.size, shared // self.size)

    def release(self, answer: Answer, tokens: int, *, answered: bool = False) -> None:
        """Stop using a request's blocks, the first of which hold `tokens` tokens of it."""
        count, request = answer.blocks, answer.request
        if self.reuse:
            # nobody else could use these before
            start, stop = request.shared_tokens // self.size if request.prefix else 0, tokens // self.size
            if not answered or answer.preemptions:
                self._keep(answer, start, stop)
            elif stop > start:
                # nor can anybody later
                self._queue[Run(None, start, stop, 0)] = None
                self.free += stop - start
                count -= stop - start
        for part, start, stop in reversed(answer.named):
            count -= stop - start
            for run in reversed(part.runs):
                if start <= run.start < stop:
                    run.users -= 1
                    if not run.users:
                        self._queue[run] = None
                        self.free += len(run)
        self.blank += count
        self.free += count
        answer.blocks, answer.named = 0, []

    def _keep(self, answer: Answer, start: int, stop: int) -> None:
        """Name blocks of a request by their contents, but what another block holds already."""
        for part, first, last in self._parts(answer, start, stop, make=True):
            answer.named += [Held(part, run.start, run.stop) for run in part.fill(first, last)]

    def _parts(self, answer: Answer, start: int, stop: int, *, make: bool = False) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts of a request's blocks, each with its first block and the one after its last.

        Parts are equal for equal tokens from the first of the prompt on. The first that is missing ends them, unless it
        is to `make`.
        """
        request = answer.request
        shared = min(stop, request.shared_tokens // self.size)
        if start < shared:
            tokens, end = request.prefix_tokens, 0
            path: Part | None = self._root
            for number, name in enumerate(request.prefix, 1):
                path = path and path.child(name if number > 1 else request.first_part, make=make)
                if path is None:
                    return
                first, end = end, min(shared, number * tokens // self.size)
                if end > max(first, start):
                    yield path, max(first, start), end
                if end == shared:
                    break
        if stop > max(start, shared) and (own := self._root.child(answer.number, make=make)):
            yield own, max(start, shared), stop
