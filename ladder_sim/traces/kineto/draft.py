"""Ops while they are being put together: they refer to each other instead of to positions."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from ladder_sim.errors import DeadlockError
from ladder_sim.traces.graph import ALONE, Collective, Lane, TraceGraph, TraceOp

# clocks of CPU and GPU differ by about a microsecond: an overlap shorter than this contradicts no dependency
SLACK_S = 2e-6


@dataclass(slots=True, kw_only=True, eq=False)
class Draft:
    """An op to be; see `TraceOp`."""

    name: str
    kind: str
    lane: Lane
    start_s: float
    end_s: float
    after: "list[Draft]" = field(default_factory=list)
    """Besides the one before it on its lane."""
    waits: bool = False
    """A CPU thread was blocked in it until `after` had ended."""
    origin: str = ""
    step: int = ALONE
    group: int = ALONE
    collective: Collective | None = None
    ready_s: float = 0.0
    """From when on it worked rather than waited."""
    duration_s: float = 0.0
    """From then to its end."""

    def can_follow(self, before: "Draft") -> bool:
        """Whether the recorded times allow that it waited for `before`."""
        return before.end_s <= (self.end_s if self.waits else self.start_s) + SLACK_S


class RankDraft(NamedTuple):
    """One rank's file, read."""

    rank: int
    drafts: list[Draft]
    """In any order, but each lane's in its own."""
    origin_s: float
    """Zero of its times on the clock of its machine."""
    host: str
    """Name of its machine."""
    world_size: int
    notes: list[str]
    """What the file does not say."""
    steps: tuple[str, ...]
    """Names of its iterations."""


def settle(drafts: Iterable[Draft]) -> None:
    """Work out when each op began to work, and for how long it did.

    A blocking call works from the end of what it waited for. A device op that started before the one ahead of it on its
    stream had ended (programmatic dependent launch) counts from that end.
    """
    front_s: dict[Lane, float] = {}
    for draft in drafts:
        lane_s = front_s.get(draft.lane, draft.start_s)
        blockers = [before.end_s for before in draft.after] if draft.waits else []
        draft.ready_s = min(max([draft.start_s, lane_s, *blockers]), max(draft.end_s, lane_s))
        draft.duration_s = max(0.0, draft.end_s - draft.ready_s)
        front_s[draft.lane] = max(draft.end_s, lane_s)


def finish(drafts: Sequence[Draft], steps: tuple[str, ...], notes: Iterable[str]) -> TraceGraph:
    """Number the ops so that each comes after all that it waits for, otherwise in order of time."""
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
                origin=draft.origin,
                step=draft.step,
                collective=draft.collective,
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
        for one in before:
            followers[id(one)].append(draft)
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
