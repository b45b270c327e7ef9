"""The KV cache of a replica in blocks, and which of their contents can be used again.

As vLLM 0.32.0 keeps it (v1/core/block_pool.py): blocks that nobody uses wait in one queue, from whose front they are
taken. Those whose contents can be used again go to its back, the last tokens of a request first, so that the least
recently used ones go first; all others go to its front.
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
        # nobody uses them; in the order in which they are taken
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))

        # requests that use a block, less one; only where there are several
        self._others: dict[int, int] = {}

        # contents that can be used again
        self._block_of: dict[Hashable, int] = {}

        # None: they are kept for as long as others, but nobody asks for them
        self._name_of: dict[int, Hashable | None] = {}

        # numbers of beginnings that requests may share, by that of the one without the last part, and the name of that
        # part: keys and values of a token depend on all tokens before it
        self._beginnings: dict[tuple[int, Hashable], int] = {}

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def cached(self, answer: Answer) -> list[int]:
        """Return the blocks that hold the beginning of a request; its last token must be computed in any case."""
        blocks: list[int] = []
        if self._block_of:
            for name in self._names(answer, 0, (answer.prompt - 1) // self.size):
                block = self._block_of.get(name)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def idle(self, blocks: Sequence[int]) -> int:
        return sum(block in self.free for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self.free:
                del self.free[block]
            else:
                self._others[block] = self._others.get(block, 0) + 1

    def take(self, count: int) -> list[int]:
        """Use blocks that nobody uses; what they held is gone."""
        pop = self.free.popitem
        blocks = [pop(last=False)[0] for _ in range(count)]
        if self._name_of:
            for block in blocks:
                name = self._name_of.pop(block, None)
                if name is not None:
                    del self._block_of[name]
        return blocks

    def publish(self, answer: Answer, before: int, tokens: int) -> None:
        """Let others use what a request computes of the tokens that it may share: from `before` up to `tokens`."""
        shared = min(tokens, answer.request.shared_tokens)
        if self.reuse and shared > before:
            self._keep(answer, before // self.size, shared // self.size)

    def release(self, answer: Answer, tokens: int, *, answered: bool = False) -> None:
        """Stop using a request's blocks, the first of which hold `tokens` tokens of it."""
        names, others, free = self._name_of, self._others, self.free
        if self.reuse:
            # nobody else could use these before
            start, stop = answer.request.shared_tokens // self.size, tokens // self.size
            if answered and not answer.preemptions:
                # nor can anybody later: they keep their place in the queue, without a name
                names.update(dict.fromkeys(answer.blocks[start:stop]))
            else:
                self._keep(answer, start, stop)
        blocks = answer.blocks[::-1]
        if others:
            used = {block for block in blocks if block in others}
            for block in used:
                others[block] -= 1
                if not others[block]:
                    del others[block]
            blocks = [block for block in blocks if block not in used]
        free.update(dict.fromkeys(blocks))
        for block in blocks:
            if block not in names:
                free.move_to_end(block, last=False)
        answer.blocks = []

    def _keep(self, answer: Answer, start: int, stop: int) -> None:
        """Name blocks of a request by their contents, but what another block holds already."""
        blocks, names, block_of = answer.blocks, self._name_of, self._block_of
        for block, name in zip(blocks[start:stop], self._names(answer, start, stop), strict=True):
            if name not in block_of:
                block_of[name], names[block] = block, name

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
