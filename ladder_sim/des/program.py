"""The simulator's input: tasks in issue order on FIFO streams, with dependencies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast, overload

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
    """One kernel."""

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
    wake_s: Number = 0.0
    """Time from its end until a task of another stream that has waited for it is ready, seconds."""


class Cost(NamedTuple):
    """What tasks of one kind take, as in `Task`."""

    duration_s: Number
    lead_s: Number = 0.0
    demand: Demand = NOTHING
    wake_s: Number = 0.0


# no slots: what follows from an outline is kept in it
@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """Tasks without what they take, one entry each: programs that differ in figures only share it."""

    names: Sequence[str]
    streams: Sequence[int]
    after: Sequence[tuple[int, ...]]
    kinds: Sequence[int]
    """Tasks of one kind are on one stream and take the same."""
    groups: Sequence[int]
    in_order: dict[tuple[int, int], bool] = field(init=False, repr=False, default_factory=dict)
    """Whether tasks can be evaluated as they were issued, by streams of kernels and of collectives that share a GPU."""

    @cached_property
    def rows(self) -> Sequence[tuple[int, int, Sequence[int]]]:
        """Stream and kind of each task, and tasks of other streams that must have ended.

        Those before it on its own stream have ended when its turn comes.
        """
        streams = self.streams
        across = [
            [before for before in after if streams[before] != stream]
            for stream, after in zip(streams, self.after, strict=True)
        ]
        return list(zip(streams, self.kinds, across, strict=True))

    @cached_property
    def befores(self) -> Sequence[tuple[int, ...]]:
        """Tasks that each task waits for: its dependencies, and the task before it on its stream."""
        latest: dict[int, tuple[int]] = {}
        befores = []
        for index, (stream, after) in enumerate(zip(self.streams, self.after, strict=True)):
            befores.append((*after, *latest.get(stream, ())))
            latest[stream] = (index,)
        return befores

    @cached_property
    def kind_streams(self) -> Sequence[int]:
        return [stream for _, stream in sorted(set(zip(self.kinds, self.streams, strict=True)))]

    @cached_property
    def last_tasks(self) -> Sequence[int]:
        """Number of the last task of each stream that has any."""
        return list({stream: index for index, stream in enumerate(self.streams)}.values())

    @cached_property
    def members(self) -> Mapping[int, Sequence[int]]:
        members: dict[int, list[int]] = {}
        for index, group in enumerate(self.groups):
            if group != NO_GROUP:
                members.setdefault(group, []).append(index)
        return members


# no slots: rows are made when they are read
class Tasks(Sequence[Task]):
    """Tasks as an outline and the cost of each kind: a prediction simulates hundreds, and reads few of them."""

    def __init__(self, outline: Outline, costs: Sequence[Cost]) -> None:
        self.outline, self.costs = outline, costs

    @classmethod
    def of(cls, rows: Iterable[Task]) -> Self:
        """Return the tasks of rows, each of a kind of its own."""
        columns: Any = list(zip(*rows, strict=True)) or [()] * len(Task._fields)
        names, streams, durations_s, after, leads_s, demands, groups, wakes_s = columns
        kinds = range(len(names))
        outline = Outline(names=names, streams=streams, after=after, kinds=kinds, groups=groups)
        return cls(outline, list(map(Cost, durations_s, leads_s, demands, wakes_s)))

    @cached_property
    def _rows(self) -> Sequence[Task]:
        own, costs = self.outline, [self.costs[kind] for kind in self.outline.kinds]
        durations_s, leads_s, demands, wakes_s = (
            [cost[column] for cost in costs] for column in range(len(Cost._fields))
        )
        return list(map(Task, own.names, own.streams, durations_s, own.after, leads_s, demands, own.groups, wakes_s))

    def __len__(self) -> int:
        return len(self.outline.streams)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._rows)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        return self._rows[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Tasks in issue order: each stream runs its own tasks in this order."""

    tasks: Sequence[Task]
    """All ranks' tasks."""
    streams: tuple[Stream, ...]
    """The streams they run on."""
    device: Device | None = None
    """Shared by the streams of a rank; None: they share nothing."""

    def __post_init__(self) -> None:
        if not isinstance(self.tasks, Tasks):
            object.__setattr__(self, "tasks", Tasks.of(self.tasks))

    @property
    def outline(self) -> Outline:
        return cast(Tasks, self.tasks).outline

    @property
    def costs(self) -> Sequence[Cost]:
        """What each kind of its tasks takes."""
        return cast(Tasks, self.tasks).costs

    def of(self, chosen: NDArray[np.int_]) -> "Program":
        """Return the program in the chosen configurations only, of those that its arrays hold."""
        demands = {cost.demand: cost.demand.of(chosen) for cost in self.costs}
        costs = [
            Cost(values_of(duration_s, chosen), values_of(lead_s, chosen), demands[demand], values_of(wake_s, chosen))
            for duration_s, lead_s, demand, wake_s in self.costs
        ]
        return replace(self, tasks=Tasks(self.outline, costs))

    def queues(self) -> list[list[int]]:
        """Return the task indices of every stream, in issue order."""
        queues: list[list[int]] = [[] for _ in self.streams]
        for index, stream in enumerate(self.outline.streams):
            queues[stream].append(index)
        return queues

    def precedence(self) -> "nx.DiGraph[int]":
        """Return the graph of tasks that must end before others start: dependencies, and the previous on its stream."""
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
        for members in self.outline.members.values():
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
