"""What becomes of a request in an engine, and of all requests of a simulation."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.serving.engine.speculation import Path
from ladder_sim.serving.requests.request import Request


@dataclass(slots=True, kw_only=True, eq=False)
class Answer:
    """A request on its way through a replica; seconds since the start."""

    request: Request
    number: int
    """Requests that arrived before it."""
    first_s: float = 0.0
    """When its first token was there; 0: not yet."""
    last_s: float = 0.0
    """When the request's last token was there; 0 before that."""
    token_s: float = 0.0
    """When its latest token was there, if the last step that decoded did not bring it."""
    preemptions: int = 0
    """How often it had to start again."""
    reused: int = 0
    """Tokens that were cached when it was admitted, at any time."""
    received: int = 0
    """Tokens whose KV cache comes from another replica."""
    produced: int = 0
    """Tokens of its answer, there or on their way, when it had to start again or came from another replica."""
    blocks: int = 0
    """Number of blocks of the KV cache that the request holds; while it decodes, when it began to."""
    named: list[Any] = field(default_factory=list)
    """Those of these blocks that others may use, in order (`ladder_sim.serving.engine.kv_blocks.Held`)."""
    computed: int = 0
    """Tokens of its prompt in the KV cache, or on their way there."""
    base: int = 0
    """Tokens that a decoding request reads at a tick, less the tick."""
    full: int = -1
    """Tick at which it needs another block for the first time."""
    phase: int = -1
    """That tick, modulo the tokens of a block, once it needs a block as often as it decodes so many tokens."""
    ends: int = 0
    """Tick of its last token."""
    path: Path | None = None
    """How it grows, of one that decodes drafted tokens."""

    @property
    def prompt(self) -> int:
        """Tokens to compute before it decodes: after a new start those of its answer too."""
        return self.request.prompt + self.produced

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time of its further tokens; 0 if there are none."""
        return (self.last_s - self.first_s) / max(1, self.request.gen - 1)

    @property
    def request_s(self) -> float:
        """From its arrival to its last token."""
        return self.last_s - self.request.arrival_s


# of every request that has come
_TIMES, _COUNTS = ("arrival_s", "first_s", "last_s"), ("prompt", "gen", "preemptions", "reused")


class Answers(Sequence[Answer]):
    """What became of requests, in order of arrival: rows of two tables, as millions of objects fit no memory.

    With `record` requests are kept whole; else those of its answers have no prefix.
    """

    def __init__(self, *, record: bool = False) -> None:
        self._times, self._counts = array("d"), array("I")
        self._record = record
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._times) // len(_TIMES)

    def add(self, request: Request) -> Answer:
        """Return the answer of a request that has just come."""
        number = len(self._times) // len(_TIMES)
        self._times.extend((request.arrival_s, 0.0, 0.0))
        self._counts.extend((request.prompt, request.gen, 0, 0))
        if self._record:
            self._requests.append(request)
        return Answer(request=request, number=number)

    def note(self, answer: Answer) -> None:
        """Keep what became of a request."""
        times, counts = len(_TIMES) * answer.number, len(_COUNTS) * answer.number
        self._times[times + 1], self._times[times + 2] = answer.first_s, answer.last_s
        self._counts[counts + 2], self._counts[counts + 3] = answer.preemptions, answer.reused

    def column(self, name: str) -> Floats:
        """Return a figure of all requests."""
        names, table = (_TIMES, self._times) if name in _TIMES else (_COUNTS, self._counts)
        return np.asarray(memoryview(table))[names.index(name) :: len(names)].astype(np.float64)

    @overload
    def __getitem__(self, number: int) -> Answer: ...
    @overload
    def __getitem__(self, number: slice) -> list[Answer]: ...
    def __getitem__(self, number: int | slice) -> Answer | list[Answer]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        row: dict[str, Any] = {
            name: value
            for names, table in ((_TIMES, self._times), (_COUNTS, self._counts))
            for name, value in zip(names, table[len(names) * number : len(names) * (number + 1)], strict=True)
        }
        alone = Request(**{name: row.pop(name) for name in ("arrival_s", "prompt", "gen")})
        return Answer(request=self._requests[number] if self._record else alone, number=number, **row)
