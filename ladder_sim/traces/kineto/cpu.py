"""One rank's trace of a run on CPUs: operators of its threads, and collectives of gloo's threads or an emulated link.

``c10d::allreduce_`` only issues; gloo's own ``gloo:all_reduce`` is the collective. That the main thread waits for it is
not recorded. A blocking call (``async_op`` False) waits at once; an asynchronous one is awaited no later than by the
first operator that reads its result, which the execution trace tells. An emulated link's messages and waits have spans
of their own (`link.py`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ladder_sim.traces.graph import Collective, Lane
from ladder_sim.traces.kineto import link
from ladder_sim.traces.kineto.draft import Draft, RankDraft, settle
from ladder_sim.traces.kineto.execution import ExecutionTrace
from ladder_sim.traces.kineto.kinds import collective_kind, element_bytes, kernel_kind
from ladder_sim.traces.kineto.reader import Event, Recorded, Steps

_US = 1e-6
_GLOO = "gloo:"
_ISSUE = "c10d::"
_FUNCTION = "Record function id"


def communicates(recorded: Recorded) -> bool:
    """Whether a file holds collectives of CPUs."""
    return any(event.name.startswith((_GLOO, link.PREFIX)) for event in recorded.events["user_annotation"])


def cpu_rank(recorded: Recorded, execution: ExecutionTrace | None) -> RankDraft:
    """The ops of one rank's file."""
    return _Cpu(recorded, execution).read()


class _Cpu:
    def __init__(self, recorded: Recorded, execution: ExecutionTrace | None) -> None:
        self.recorded = recorded
        numbers = {_number(event) for event in recorded.events["cpu_op"]} - {0}
        # one of the warm-ups says nothing of the steps
        self.execution = execution if execution is not None and not numbers.isdisjoint(execution.reads) else None
        marks = recorded.events["user_annotation"]
        self.collectives = [event for event in marks if event.name.startswith(_GLOO)]
        self.spans = [*recorded.events["cpu_op"], *(event for event in marks if event.name.startswith(link.PREFIX))]
        self.origin_us = min(event.start_us for event in (*self.spans, *self.collectives))
        self.steps = Steps(recorded, self.origin_us)
        self.notes: list[str] = []
        self.issued = self._by_issue()
        # collectives by gloo's thread, or the link
        self.queues: dict[Lane, list[Draft]] = defaultdict(list)

    def read(self) -> RankDraft:
        threads: dict[Any, list[Event]] = defaultdict(list)
        for event in sorted(self.spans, key=lambda event: (event.start_us, -event.end_us)):
            threads[event.process, event.thread].append(event)
        drafts: list[Draft] = []
        for (_, thread), events in sorted(threads.items(), key=lambda item: str(item[0])):
            drafts += _Thread(self, Lane(name=f"thread {thread}", rank=self.recorded.rank, device=False)).read(events)
        for queue in self.queues.values():
            drafts += _with_wake_ups(queue)
        settle(drafts)
        return RankDraft(
            rank=self.recorded.rank,
            drafts=drafts,
            origin_s=(self.recorded.clock_us + self.origin_us) * _US,
            host=str(self.recorded.metadata.get("host_name", "")),
            world_size=self.recorded.world_size,
            notes=self.notes,
            steps=self.steps.names,
        )

    def seconds(self, time_us: float) -> float:
        return (time_us - self.origin_us) * _US

    def reads(self, event: Event) -> frozenset[int]:
        """Storages that an operator reads."""
        if self.execution is None:
            return frozenset()
        return self.execution.reads.get(_number(event), frozenset())

    def collective(self, event: Event) -> Draft | None:
        """What an operator or a span issues, if anything."""
        found = self.issued.get(_place(event))
        step = self.steps.at(self.seconds(event.start_us))
        message = link.issued(event.name)
        if message is not None:
            lane = Lane(name=link.LANE, rank=self.recorded.rank, device=False)
            start_s = self.seconds(event.start_us)
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
        elif found is not None:
            draft = self._gloo(found, step)
        else:
            return None
        self.queues[draft.lane].append(draft)
        return draft

    def _gloo(self, event: Event, step: int) -> Draft:
        config = (self.recorded.metadata.get("distributedInfo") or {}).get("pg_config") or [{}]
        return Draft(
            name=event.name,
            kind=collective_kind(event.name) or "all_reduce",
            lane=Lane(name=f"gloo {event.thread}", rank=self.recorded.rank, device=False),
            start_s=self.seconds(event.start_us),
            end_s=self.seconds(event.end_us),
            step=step,
            collective=Collective(
                message_bytes=_bytes(event), group=str(config[0].get("pg_name", "")), ranks=self.recorded.world_size
            ),
        )

    def _by_issue(self) -> dict[tuple[Any, float], Event]:
        """Collectives by thread and start of the operator that issued them: the last one numbered before each.

        Only an execution trace makes the profiler number what it records. Without, gloo takes them up in their order.
        """
        issues = [event for event in self.recorded.events["cpu_op"] if event.name.startswith(_ISSUE)]
        collectives = sorted(self.collectives, key=lambda event: event.start_us)
        found: dict[tuple[Any, float], Event] = {}
        if any(map(_number, issues)):
            issues.sort(key=_number)
            for event in collectives:
                index = bisect_right(issues, _number(event), key=_number) - 1
                if index >= 0:
                    found[_place(issues[index])] = event
        else:
            for event in collectives:
                # one that was issued ahead of the recording is none of these
                if issues and issues[0].start_us <= event.start_us:
                    found[_place(issues.pop(0))] = event
        if len(found) < len(self.collectives):
            self.notes.append(f"{len(self.collectives) - len(found)} gloo collectives have no recorded issue, left out")
        return found


class _Thread:
    """A thread's ops: operators, calls that issue, waits, and the CPU's time between them."""

    def __init__(self, cpu: _Cpu, lane: Lane) -> None:
        self.cpu, self.lane = cpu, lane
        self.drafts: list[Draft] = []
        # of the last op
        self.end_s = 0.0
        # collectives under way, and the storages they write
        self.awaited: list[tuple[Draft, frozenset[int]]] = []
        # those that the thread waits for now
        self.due: list[Draft] = []
        # messages of an emulated link by their numbers
        self.sent: dict[int, Draft] = {}

    def read(self, events: Sequence[Event]) -> list[Draft]:
        self.end_s = self.cpu.seconds(events[0].start_us)
        outermost = list(_outermost(events))
        for event in outermost:
            self._event(event)
        if self.due:
            self._put("wait", "sync", max(self.end_s, *(draft.end_s for draft in self.due)), after=self.due)
        self._note(outermost)
        return self.drafts

    def _event(self, event: Event) -> None:
        start_s, end_s = self.cpu.seconds(event.start_us), self.cpu.seconds(event.end_us)
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
            self.drafts[-1].origin = event.name
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
            # what is left of the call is waiting, or a gloo thread at work on the same core
            self.due.append(collective)
            return
        elif self.cpu.execution is not None:
            self.awaited.append((collective, reads))
        if self.end_s < end_s:
            self._put(name, "launch", end_s)

    def _put(self, name: str, kind: str, end_s: float, after: Sequence[Draft] = ()) -> None:
        """Append an op from the end of the last one on; one that comes after another waits for it."""
        step = self.cpu.steps.at(self.end_s)
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
        rank, issues = self.cpu.recorded.rank, [event for event in events if event.name.startswith(_ISSUE)]
        if self.cpu.issued and self.cpu.execution is None and not all(map(_is_blocking, issues)):
            self.cpu.notes.append(
                f"rank {rank} has asynchronous collectives and no execution trace of its steps: who waits is not known"
            )
        elif self.awaited:
            self.cpu.notes.append(f"rank {rank}: {len(self.awaited)} collectives whose result nothing reads")


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    """Operators that are part of no other; one that issues collectives inside gives way to its parts."""
    issues_us = [event.start_us for event in events if event.name.startswith(_ISSUE)]
    end_us = float("-inf")
    for event in events:
        issues = bisect_right(issues_us, event.end_us) - bisect_right(issues_us, event.start_us)
        if event.start_us < end_us or (issues and not event.name.startswith(_ISSUE)):
            continue
        end_us = event.end_us
        yield event


def _with_wake_ups(queue: list[Draft]) -> Iterator[Draft]:
    """Collectives of a gloo thread or a link, and the time it took to take each up."""
    queue.sort(key=lambda draft: draft.start_s)
    end_s = 0.0
    for draft in queue:
        asked_s = max(end_s, *(before.end_s for before in draft.after))
        if draft.start_s > asked_s:
            yield Draft(
                name="wake up",
                kind="host",
                lane=draft.lane,
                start_s=asked_s,
                end_s=draft.start_s,
                after=draft.after,
                waits=True,
                step=draft.step,
            )
            draft.after = []
        yield draft
        end_s = draft.end_s


def _number(event: Event) -> int:
    """Of the recorded function, counted from 1; 0 if it has none."""
    return int(event.args.get(_FUNCTION, 0))


def _place(event: Event) -> tuple[Any, float]:
    """Thread and start, which tell operators apart."""
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
