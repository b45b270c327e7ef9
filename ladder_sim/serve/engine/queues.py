"""Requests that wait: by arrival, or by priority."""

import heapq
from collections import deque
from typing import Literal, Protocol

from ladder_sim.serve.engine.answer import Answer

Policy = Literal["fcfs", "priority"]


class Queue(Protocol):
    """Who is admitted next, and who has to start again if there is no memory left."""

    def __len__(self) -> int: ...
    def add(self, answer: Answer) -> None:
        """Put one in that arrives."""

    def put_back(self, answer: Answer) -> None:
        """Put one in that has to start again."""

    def peek(self) -> Answer:
        """The next one."""

    def pop(self) -> Answer:
        """Take the next one out."""

    def least(self, running: dict[Answer, None]) -> Answer:
        """Of those that run, the one to start again."""


class InOrder(deque[Answer]):
    """First come, first served; who had to start again goes first."""

    add, put_back, pop = deque.append, deque.appendleft, deque.popleft

    def peek(self) -> Answer:
        return self[0]

    def least(self, running: dict[Answer, None]) -> Answer:
        return next(reversed(running))


class ByPriority:
    """By priority, then by arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Answer]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, answer: Answer) -> None:
        request = answer.request
        heapq.heappush(self._heap, (request.priority, request.arrival_s, answer.number, answer))

    put_back = add

    def peek(self) -> Answer:
        return self._heap[0][-1]

    def pop(self) -> Answer:
        return heapq.heappop(self._heap)[-1]

    def least(self, running: dict[Answer, None]) -> Answer:
        return max(running, key=lambda answer: (answer.request.priority, answer.request.arrival_s))


QUEUES: dict[Policy, type[InOrder] | type[ByPriority]] = {"fcfs": InOrder, "priority": ByPriority}
