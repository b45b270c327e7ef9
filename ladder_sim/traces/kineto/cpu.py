"""One rank's trace of a run on CPUs: operators of its threads, and collectives of gloo's threads or an emulated link.

``c10d::allreduce_`` only issues; gloo's own ``gloo:all_reduce`` is the collective. The wait of the main thread is not
recorded. A blocking call (``async_op`` False) waits at once. The result of an asynchronous call is awaited by the first
operator that reads it, if not before; the execution trace shows which one that is. Messages and waits of an emulated
link have spans of their own (`link.py`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ladder_sim.traces.graph import Collective, Lane
from ladder_sim.traces.kineto import link
from ladder_sim.traces.kineto.draft import Draft, RankDraft, rank_draft
from ladder_sim.traces.kineto.kinds import collective_kind, element_bytes, kernel_kind
from ladder_sim.traces.kineto.reader import Clock, Event, KinetoFile

_GLOO = "gloo:"
_ISSUE = "c10d::"
_FUNCTION = "Record function id"


def communicates(file: KinetoFile) -> bool:
    """Whether a file holds collectives of CPUs."""
    return any(event.name.startswith((_GLOO, link.PREFIX)) for event in file.events["user_annotation"])


class CpuReader:
    """Finds the ops of one rank's file; `reads` is its execution trace (`execution.py`), if there is one."""

    def __init__(self, file: KinetoFile, reads: Mapping[int, frozenset[int]]) -> None:
        self.file = file
        numbers = {_number(event) for event in file.events["cpu_op"]} - {0}
        # an execution trace of the warm-up does not cover the steps
        self.storages_read = {} if numbers.isdisjoint(reads) else reads
        marks = file.events["user_annotation"]
        self.collectives = [event for event in marks if event.name.startswith(_GLOO)]
        self.spans = [*file.events["cpu_op"], *(event for event in marks if event.name.startswith(link.PREFIX))]
        self.clock = Clock(file, [*self.spans, *self.collectives])
        self.notes: list[str] = []
        self.issued = self._by_issue()
        # collectives by gloo's thread, or the link
        self.queues: dict[Lane, list[Draft]] = defaultdict(list)

    def read(self) -> RankDraft:
        """All ops, with their dependencies."""
        threads: dict[Any, list[Event]] = defaultdict(list)
        for event in sorted(self.spans, key=lambda event: (event.start_us, -event.end_us)):
            threads[event.process, event.thread].append(event)
        drafts: list[Draft] = []
        for (_, thread), events in sorted(threads.items(), key=lambda item: str(item[0])):
            drafts += _Thread(self, Lane(name=f"thread {thread}", rank=self.file.rank, device=False)).read(events)
        for queue in self.queues.values():
            drafts += _with_wake_ups(queue)
        return rank_draft(self.file, self.clock, drafts, self.notes)

    def reads(self, event: Event) -> frozenset[int]:
        """The storages that an operator reads."""
        return self.storages_read.get(_number(event), frozenset())

    def collective(self, event: Event) -> Draft | None:
        """The collective that an operator or a span issues, if any."""
        start_s = self.clock.seconds(event.start_us)
        step = self.clock.step(start_s)
        gloo = self.issued.get(_place(event))
        message = link.issued(event.name)
        if message is not None:
            lane = Lane(name=link.LANE, rank=self.file.rank, device=False)
            free_s = self.queues[lane][-1].end_s if self.queues[lane] else start_s
            draft = Draft(
                name=message.kind,
                kind=message.kind,
                lane=lane,
                start_s=max(start_s, free_s),
                end_s=max(start_s + message.seconds, free_s),
                step=step,
                collective=Collective(message_bytes=message.size_bytes),
            )
        elif gloo is not None:
            draft = self._gloo(gloo, step, issued_s=start_s)
        else:
            return None
        self.queues[draft.lane].append(draft)
        return draft

    def _gloo(self, event: Event, step: int, *, issued_s: float) -> Draft:
        config = (self.file.metadata.get("distributedInfo") or {}).get("pg_config") or [{}]
        return Draft(
            name=event.name,
            kind=collective_kind(event.name) or "all_reduce",
            lane=Lane(name=f"gloo {event.thread}", rank=self.file.rank, device=False),
            start_s=self.clock.seconds(event.start_us),
            end_s=self.clock.seconds(event.end_us),
            step=step,
            collective=Collective(
                message_bytes=_bytes(event), group=str(config[0].get("pg_name", "")), ranks=self.file.world_size
            ),
            # two gloo threads may begin in the other order
            issued_s=issued_s,
        )

    def _by_issue(self) -> dict[tuple[Any, float], Event]:
        """Collectives by thread and start of the operator that issued them: the last operator numbered before each.

        The profiler numbers its records only while an execution trace is taken. Without numbers, collectives run in the
        order in which they were issued.
        """
        issues = [event for event in self.file.events["cpu_op"] if event.name.startswith(_ISSUE)]
        collectives = sorted(self.collectives, key=lambda event: event.start_us)
        issued: dict[tuple[Any, float], Event] = {}
        if any(map(_number, issues)):
            issues.sort(key=_number)
            for event in collectives:
                index = bisect_right(issues, _number(event), key=_number) - 1
                if index >= 0:
                    issued[_place(issues[index])] = event
        else:
            for event in collectives:
                # a collective that was issued before the recording began has no issue here
                if issues and issues[0].start_us <= event.start_us:
                    issued[_place(issues.pop(0))] = event
        missing = len(self.collectives) - len(issued)
        if missing:
            self.notes.append(f"{missing} gloo collectives have no recorded issue, left out")
        return issued


class _Thread:
    """A thread's ops: operators, calls that issue collectives, waits, and CPU time in between."""

    def __init__(self, cpu: CpuReader, lane: Lane) -> None:
        self.cpu, self.lane = cpu, lane
        self.drafts: list[Draft] = []

        # end of the last op
        self.end_s = 0.0

        # running collectives, and the storages they write
        self.awaited: list[tuple[Draft, frozenset[int]]] = []

        # collectives that the thread now waits for
        self.due: list[Draft] = []

        # messages of an emulated link by their numbers
        self.sent: dict[int, Draft] = {}

    def read(self, events: Sequence[Event]) -> list[Draft]:
        self.end_s = self.cpu.clock.seconds(events[0].start_us)
        outermost = list(_outermost(events))
        for event in outermost:
            self._event(event)
        if self.due:
            self._put("wait", "sync", max(self.end_s, *(draft.end_s for draft in self.due)), after=self.due)
        self._note(outermost)
        return self.drafts

    def _event(self, event: Event) -> None:
        start_s, end_s = self.cpu.clock.seconds(event.start_us), self.cpu.clock.seconds(event.end_us)
        reads = self.cpu.reads(event)
        self.due += [draft for draft, storages in self.awaited if storages & reads]
        self.awaited = [(draft, storages) for draft, storages in self.awaited if not storages & reads]
        if start_s > self.end_s:
            self._put("wait" if self.due else "host", "sync" if self.due else "host", start_s, after=self.due)
            self.due = []
        self.end_s = start_s
        collective = self.cpu.collective(event)
        number = link.awaited(event.name)
        if collective is not None:
            self._issue(event, collective, end_s, reads)
        elif number is None:
            self._put(event.name, kernel_kind(event.name), end_s)
        else:
            self._put("wait", "sync", end_s, after=[self.sent[number]] if number in self.sent else [])

    def _issue(self, event: Event, collective: Draft, end_s: float, reads: frozenset[int]) -> None:
        message = link.issued(event.name)
        name = event.name if message is None else message.kind
        self._put(name, "launch", min(max(self.end_s, collective.start_s), end_s) if message is None else self.end_s)
        collective.after.append(self.drafts[-1])
        if message is not None:
            self.sent[message.number] = collective
        elif _is_blocking(event):
            # the rest of the call is waiting, or a gloo thread that works on the same core
            self.due.append(collective)
            return
        elif self.cpu.storages_read:
            self.awaited.append((collective, reads))
        if self.end_s < end_s:
            self._put(name, "launch", end_s)

    def _put(self, name: str, kind: str, end_s: float, after: Sequence[Draft] = ()) -> None:
        """Append an op that begins at the end of the last; it waits for the ops in `after`."""
        step = self.cpu.clock.step(self.end_s)
        draft = Draft(
            name=name,
            kind=kind,
            lane=self.lane,
            start_s=self.end_s,
            end_s=end_s,
            after=list(after),
            waits=bool(after),
            step=step,
        )
        self.drafts.append(draft)
        self.end_s = end_s

    def _note(self, events: Sequence[Event]) -> None:
        rank, issues = self.cpu.file.rank, [event for event in events if event.name.startswith(_ISSUE)]
        if self.cpu.issued and not self.cpu.storages_read and not all(map(_is_blocking, issues)):
            self.cpu.notes.append(
                f"rank {rank} has asynchronous collectives and no execution trace of its steps: who waits is not known"
            )
        elif self.awaited:
            self.cpu.notes.append(f"rank {rank}: {len(self.awaited)} collectives whose result nothing reads")


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    """Operators that are not part of another; an operator that contains issues is replaced by its parts."""
    issues_us = [event.start_us for event in events if event.name.startswith(_ISSUE)]
    end_us = float("-inf")
    for event in events:
        issues = bisect_right(issues_us, event.end_us) - bisect_right(issues_us, event.start_us)
        if event.start_us < end_us or (issues and not event.name.startswith(_ISSUE)):
            continue
        end_us = event.end_us
        yield event


def _with_wake_ups(queue: list[Draft]) -> Iterator[Draft]:
    """Collectives of a gloo thread or a link, each with the time until it began."""
    queue.sort(key=lambda draft: draft.start_s)
    end_s = 0.0
    for draft in queue:
        due_s = max(end_s, *(before.end_s for before in draft.after))
        if draft.start_s > due_s:
            yield Draft(
                name="wake up",
                kind="host",
                lane=draft.lane,
                start_s=due_s,
                end_s=draft.start_s,
                after=draft.after,
                waits=True,
                step=draft.step,
            )
            draft.after = []
        yield draft
        end_s = draft.end_s


def _number(event: Event) -> int:
    """Number of the recorded function, from 1; 0 if it has none."""
    return int(event.args.get(_FUNCTION, 0))


def _place(event: Event) -> tuple[Any, float]:
    """Thread and start, which identify an operator."""
    return event.thread, event.start_us


def _is_blocking(event: Event) -> bool:
    """``c10d::allreduce_(tensors, group, op, sparse_indices, async_op, timeout)``: async_op is recorded as text."""
    return "True" not in event.args.get("Concrete Inputs", [])


def _bytes(event: Event) -> float:
    """Size of a collective's tensors, if shapes were recorded."""
    total = 0.0
    for shape, dtype in zip(event.args.get("Input Dims", []), event.args.get("Input type", []), strict=False):
        elements = 1
        for width in shape:
            if not isinstance(width, int):
                return 0.0
            elements *= width
        total += elements * element_bytes(str(dtype)) if shape else 0
    return total
