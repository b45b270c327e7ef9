"""Ops under construction: they refer to each other, not to positions in a graph."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from ladder_sim.errors import DeadlockError
from ladder_sim.traces.graph import ALONE, Collective, Lane, TraceGraph, TraceOp
from ladder_sim.traces.kineto.reader import Clock, KinetoFile

# the clocks of CPU and GPU differ by about a microsecond: a shorter overlap does not contradict a dependency
SLACK_S = 2e-6
# a shorter silence of a CPU thread is its own work
MIN_SILENCE_S = 50e-6


@dataclass(slots=True, kw_only=True, eq=False)
class Draft:
    """An op under construction; see `TraceOp`."""

    name: str
    kind: str
    lane: Lane
    start_s: float
    end_s: float
    after: "list[Draft]" = field(default_factory=list)
    """Ops it waits for, in addition to the one before it on its lane."""
    waits: bool = False
    """It blocked a CPU thread until `after` had ended."""
    step: int = ALONE
    group: int = ALONE
    collective: Collective | None = None
    blocks: int = 0
    scope: str = ""
    issued_s: float | None = None
    """When a collective was issued, if that is recorded: all ranks issue those of a group in the same order."""
    ready_s: float = 0.0
    """When it stopped waiting and began to work."""
    duration_s: float = 0.0
    """Time from `ready_s` to its end."""

    def can_follow(self, before: "Draft") -> bool:
        """Whether it can have waited for `before`, by the recorded times."""
        return before.end_s <= (self.end_s if self.waits else self.start_s) + SLACK_S


class RankDraft(NamedTuple):
    """The ops of one rank's file."""

    rank: int
    drafts: list[Draft]
    """Ops of the file; ops of one lane are in their order."""
    origin_s: float
    """Zero of their times on the clock of the machine."""
    host: str
    """Name of the machine."""
    world_size: int
    notes: list[str]
    """What the file does not record."""
    steps: tuple[str, ...]


def rank_draft(file: KinetoFile, clock: Clock, drafts: list[Draft], notes: list[str]) -> RankDraft:
    """Return one rank's ops, with the times at which each began to work."""
    _set_work(drafts)
    return RankDraft(
        rank=file.rank,
        drafts=drafts,
        origin_s=clock.origin_s,
        host=file.host,
        world_size=file.world_size,
        notes=notes,
        steps=clock.steps,
    )


def _set_work(drafts: Iterable[Draft]) -> None:
    """Set when each op began to work, and for how long it worked.

    A blocking call works from the end of the ops it waited for. A device op that started before the end of the op ahead
    on its stream (programmatic dependent launch) counts from that end.
    """
    front_s: dict[Lane, float] = {}
    for draft in drafts:
        lane_s = front_s.get(draft.lane, draft.start_s)
        blockers = [before.end_s for before in draft.after] if draft.waits else []
        draft.ready_s = min(max([draft.start_s, lane_s, *blockers]), max(draft.end_s, lane_s))
        draft.duration_s = max(0.0, draft.end_s - draft.ready_s)
        front_s[draft.lane] = max(draft.end_s, lane_s)


def finish(drafts: Sequence[Draft], steps: tuple[str, ...], notes: Iterable[str]) -> TraceGraph:
    """Return the trace of the ops, numbered in order of time, each after the ops it waits for."""
    ordered = _in_order(drafts)
    position = {id(draft): index for index, draft in enumerate(ordered)}
    used = sorted({draft.lane for draft in drafts}, key=lambda lane: (lane.rank, lane.device, lane.name))
    lane_of = {lane: number for number, lane in enumerate(used)}
    origin_s = min((draft.start_s for draft in drafts), default=0.0)
    return TraceGraph(
        ops=tuple(
            TraceOp(
                name=draft.name,
                kind=draft.kind,
                lane=lane_of[draft.lane],
                start_s=draft.start_s - origin_s,
                end_s=draft.end_s - origin_s,
                duration_s=draft.duration_s,
                after=tuple(sorted(position[id(before)] for before in draft.after)),
                group=draft.group,
                step=draft.step,
                collective=draft.collective,
                blocks=draft.blocks,
                scope=draft.scope,
            )
            for draft in ordered
        ),
        lanes=tuple(used),
        steps=steps,
        notes=tuple(notes),
    )


def _in_order(drafts: Sequence[Draft]) -> list[Draft]:
    last: dict[Lane, Draft] = {}
    missing: dict[int, int] = {}
    followers: dict[int, list[Draft]] = defaultdict(list)
    ticket = count()
    due: list[tuple[float, float, int, Draft]] = []
    for draft in drafts:
        before = [*draft.after, *([last[draft.lane]] if draft.lane in last else [])]
        last[draft.lane] = draft
        missing[id(draft)] = len(before)
        for awaited in before:
            followers[id(awaited)].append(draft)
        if not before:
            due.append((draft.ready_s, draft.end_s, next(ticket), draft))
    heapq.heapify(due)
    ordered = []
    while due:
        draft = heapq.heappop(due)[-1]
        ordered.append(draft)
        for follower in followers[id(draft)]:
            missing[id(follower)] -= 1
            if not missing[id(follower)]:
                heapq.heappush(due, (follower.ready_s, follower.end_s, next(ticket), follower))
    if len(ordered) < len(drafts):
        stuck = next(draft for draft in drafts if missing[id(draft)])
        raise DeadlockError(f"the trace's dependencies contradict each other at '{stuck.name}' on {stuck.lane.name}")
    return ordered
