"""The KV cache of a replica in blocks, and which of their contents can be used again.

As vLLM 0.32.0 keeps it (v1/core/block_pool.py): blocks that nobody uses wait in one queue, from whose front they are
taken. Those whose contents can be used again go to its back, the last tokens of a request first, so that the least
recently used ones go first; all others go to its front. Only contents tell blocks apart: those without a name are
counted.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.requests.request import Request

# blocks of one request, far more than any has: names of what only it holds are whole numbers
_MOST = 1 << 32


class KvBlocks:
    """Blocks of the KV cache, each of `size` tokens.

    With `reuse` contents are kept for requests that begin alike: prefix caching.
    """

    def __init__(self, count: int, size: int, *, reuse: bool = True) -> None:
        self.count, self.size, self.reuse = count, size, reuse
        # those that nobody uses, and of these the ones in front
        self.free = self._blank = count

        # behind those: blocks by name, and numbers of blocks that keep their place though nobody asks for them, named
        # by numbers below 0
        self._queue: OrderedDict[Hashable, int] = OrderedDict()
        self._runs = 0

        # requests that use a block with a name
        self._users: dict[Hashable, int] = {}

        # numbers of beginnings that requests may share, by that of the one without the last part, and the name of that
        # part: keys and values of a token depend on all tokens before it
        self._beginnings: dict[tuple[int, Hashable], int] = {}

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def cached(self, answer: Answer) -> list[Hashable]:
        """Return the blocks that hold the beginning of a request; its last token must be computed in any case."""
        blocks: list[Hashable] = []
        if self._users or self._queue:
            for name in self._names(answer, 0, (answer.prompt - 1) // self.size):
                if name not in self._users and name not in self._queue:
                    break
                blocks.append(name)
        return blocks

    def idle(self, blocks: Sequence[Hashable]) -> int:
        return sum(name in self._queue for name in blocks)

    def share(self, blocks: Sequence[Hashable]) -> None:
        for name in blocks:
            self.free -= self._queue.pop(name, 0)
            self._users[name] = self._users.get(name, 0) + 1

    def take(self, count: int) -> None:
        """Use blocks that nobody uses; what they held is gone."""
        self.free -= count
        self._blank -= count
        while self._blank < 0:
            name, more = self._queue.popitem(last=False)
            self._blank += more
            if self._blank > 0:
                self._queue[name] = self._blank
                self._queue.move_to_end(name, last=False)
                self._blank = 0

    def publish(self, answer: Answer, before: int, tokens: int) -> None:
        """Let others use what a request computes of the tokens that it may share: from `before` up to `tokens`."""
        shared = min(tokens, answer.request.shared_tokens)
        if self.reuse and shared > before:
            self._keep(answer, before // self.size, shared // self.size)

    def release(self, answer: Answer, tokens: int, *, answered: bool = False) -> None:
        """Stop using a request's blocks, the first of which hold `tokens` tokens of it."""
        count = answer.blocks
        if self.reuse:
            # nobody else could use these before
            start, stop = answer.request.shared_tokens // self.size, tokens // self.size
            if not answered or answer.preemptions:
                self._keep(answer, start, stop)
            elif stop > start:
                # nor can anybody later
                self._runs -= 1
                self._queue[self._runs] = stop - start
                self.free += stop - start
                count -= stop - start
        for name in reversed(answer.named):
            if name is None:
                continue
            count -= 1
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
                self._queue[name] = 1
                self.free += 1
        self._blank += count
        self.free += count
        answer.blocks, answer.named = 0, []

    def _keep(self, answer: Answer, start: int, stop: int) -> None:
        """Name blocks of a request by their contents, but what another block holds already."""
        named = answer.named
        named += [None] * (stop - len(named))
        for position, name in enumerate(self._names(answer, start, stop), start):
            if name not in self._users and name not in self._queue:
                named[position] = name
                self._users[name] = 1

    def _names(self, answer: Answer, start: int, stop: int) -> Iterator[Hashable]:
        """Yield the names of a request's blocks: equal for equal tokens from the first of the prompt on."""
        request: Request = answer.request
        shared = min(stop, request.shared_tokens // self.size)
        if start < shared:
            beginnings = self._beginnings
            parts, beginning = -1, -request.prefix_tokens
            for number in range(start, shared):
                last = ((number + 1) * self.size - 1) // request.prefix_tokens
                while parts < last:
                    parts += 1
                    beginning = beginnings.setdefault((beginning, request.prefix[parts]), len(beginnings))
                yield beginning, number
        for number in range(max(start, shared), stop):
            yield answer.number * _MOST + number
