"""The simulator's input: tasks in issue order on FIFO streams, with dependencies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_sim.des.shared import NOTHING, Demand, Device, Number, values_of
from ladder_sim.errors import DeadlockError

if TYPE_CHECKING:
    import networkx as nx

NO_GROUP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A queue that runs its tasks one at a time, in issue order."""

    name: str
    """E.g. "compute" or "comm"."""
    rank: int = 0
    """The GPU it belongs to."""


class Task(NamedTuple):
    """One kernel. A tuple, because a prediction makes hundreds of them."""

    name: str
    """For reports."""
    stream: int
    """Index of its stream."""
    duration_s: Number
    """Time it runs when alone, seconds; an array holds one value per configuration (`scan.scan`)."""
    after: tuple[int, ...] = ()
    """Tasks that must have ended before it starts."""
    lead_s: Number = 0.0
    """Time between the end of its dependencies and its start (event waits, launch), seconds; its stream is blocked."""
    demand: Demand = NOTHING
    """The resources of its GPU that it uses."""
    group: int = NO_GROUP
    """Tasks of a group start together when the last is ready: the ranks of a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Tasks in issue order: each stream runs its own tasks in this order."""

    tasks: tuple[Task, ...]
    """All ranks' tasks."""
    streams: tuple[Stream, ...]
    """The streams they run on."""
    device: Device | None = None
    """Shared by the streams of a rank; None: they share nothing."""

    def of(self, chosen: NDArray[np.int_]) -> "Program":
        """The same tasks in some of the configurations that their arrays hold."""
        demands = {task.demand: task.demand.of(chosen) for task in self.tasks}
        return replace(
            self,
            tasks=tuple(
                Task(
                    name,
                    stream,
                    values_of(duration_s, chosen),
                    after,
                    values_of(lead_s, chosen),
                    demands[demand],
                    group,
                )
                for name, stream, duration_s, after, lead_s, demand, group in self.tasks
            ),
        )

    def queues(self) -> list[list[int]]:
        """Task indices of every stream, in issue order."""
        queues: list[list[int]] = [[] for _ in self.streams]
        for index, task in enumerate(self.tasks):
            queues[task.stream].append(index)
        return queues

    def groups(self) -> dict[int, list[int]]:
        """Members of every collective group."""
        groups: dict[int, list[int]] = {}
        for index, task in enumerate(self.tasks):
            if task.group != NO_GROUP:
                groups.setdefault(task.group, []).append(index)
        return groups

    def precedence(self) -> "nx.DiGraph[int]":
        """Edges from all tasks that must end before a task starts: dependencies and the task before on its stream."""
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.tasks)))
        for queue in self.queues():
            graph.add_edges_from(pairwise(queue))
        for index, task in enumerate(self.tasks):
            graph.add_edges_from((before, index) for before in task.after)
        return graph

    def explain_deadlock(self, unfinished: Sequence[int]) -> DeadlockError:
        """Name a cycle among tasks that wait for each other (a collective waits for all its members' predecessors)."""
        import networkx as nx

        precedence = self.precedence()
        for members in self.groups().values():
            before = {p for member in members for p in precedence.predecessors(member)}
            precedence.add_edges_from((p, member) for p in before for member in members)
        try:
            cycle = nx.find_cycle(precedence.subgraph(unfinished))
        except nx.NetworkXNoCycle:
            names = ", ".join(self.tasks[index].name for index in list(unfinished)[:8])
            return DeadlockError(f"these tasks never became ready: {names}")
        chain = " -> ".join(self._label(edge[0]) for edge in cycle)
        return DeadlockError(
            f"deadlock: tasks wait for each other: {chain} -> {self._label(cycle[0][0])}",
            hint="issue every task after its dependencies",
        )

    def _label(self, index: int) -> str:
        task = self.tasks[index]
        stream = self.streams[task.stream]
        return f"{task.name} (rank {stream.rank} {stream.name})"
