"""One rank's trace of a run on CPUs: operators of its threads, and collectives of gloo's threads or an emulated link.

Operators of vLLM and SGLang that communicate through shared memory (``_C::shm_allreduce``) are collectives themselves.
``c10d::allreduce_`` only issues; gloo's own ``gloo:all_reduce`` is the collective, with all that its thread runs. Who
waits is known from the first of these that a trace has:

- a blocking call (``async_op`` False) waits at once;
- ``wait_tensor`` waits for the oldest functional collective (DTensor, torch.compile) with a tensor of that shape;
- the first operator that reads the result waits, if not a call before it. The execution trace of
  `torch.profiler.ExecutionTraceObserver` shows what is read, by storages, because views of a tensor share its storage;
- silence of the thread that issued it, which ends soon after the collective: it waited (``Work.wait`` has no event).

No operator carries the messages of an emulated link, so `runtime/ladder_sim_runtime/trace.py` marks them with spans:
``link:all_reduce 3, 6144 bytes, 740.0 us`` issues message 3, which ends 740 us after the start of the span. In
``link:wait 3`` a thread waits for it.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import Collective, Lane
from ladder_sim.traces.kineto.annotations import Scopes
from ladder_sim.traces.kineto.draft import MIN_SILENCE_S, Draft, RankDraft, rank_draft
from ladder_sim.traces.kineto.kinds import collective_kind, kernel_kind
from ladder_sim.traces.kineto.reader import Clock, Event, KinetoFile, by_thread, in_order, read_trace, tensor_bytes

# name of the lane of collectives through shared memory
SHARED_MEMORY = "shared memory"
_GLOO = "gloo:"
_ISSUE = "c10d::"
_FUNCTIONAL = "_c10d_functional"
_FUNCTIONAL_WAIT = f"{_FUNCTIONAL}::wait_tensor"
_SHARED_MEMORY = "::shm_"
_FUNCTION = "Record function id"
# of an execution trace's tensor: its id, storage id, offset, elements, bytes per element, device
_TENSOR_FIELDS = 6
_LINK = "link:"
_MESSAGE = re.compile(_LINK + r"(\w+) (\d+), (\d+) bytes, ([\d.]+) us")
_MESSAGE_WAIT = re.compile(_LINK + r"wait (\d+)")


def communicates(file: KinetoFile) -> bool:
    """Whether a file holds collectives of CPUs."""
    marks, operators = file.events["user_annotation"], file.events["cpu_op"]
    return any(event.name.startswith((_GLOO, _LINK)) for event in marks) or any(map(_is_shared, operators))


def read_execution_trace(path: Path) -> dict[int, frozenset[int]]:
    """Return the storages that each recorded function reads, by the function's number, ``rf_id``."""
    try:
        document = json.loads(read_trace(path))
    except ValueError as error:
        raise UsageError(
            f"execution trace '{path}' cannot be read: {error}", hint="stop the observer before the process ends"
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise UsageError(
            f"execution trace '{path}' has no list 'nodes': unknown schema",
            hint="give a file of torch.profiler.ExecutionTraceObserver (schema 1.1.1-chakra)",
        )
    reads = {}
    for node in document["nodes"]:
        ids = [item["value"] for item in node.get("attrs", []) if item.get("name") == "rf_id"]
        if ids:
            reads[int(ids[0])] = frozenset(_storages(node.get("inputs", {}).get("values", [])))
    return reads


def _storages(values: Any) -> list[int]:
    if not isinstance(values, list):
        return []
    if len(values) == _TENSOR_FIELDS and isinstance(values[5], str) and isinstance(values[1], int):
        return [values[1]]
    return [storage for value in values for storage in _storages(value)]


class CpuReader:
    """Finds the ops of one rank's file; `reads` is its execution trace (`read_execution_trace`), if there is one."""

    def __init__(self, file: KinetoFile, reads: Mapping[int, frozenset[int]]) -> None:
        self.file = file
        numbers = {_number(event) for event in file.events["cpu_op"]} - {0}
        # an execution trace of the warm-up does not cover the steps
        self.storages_read = {} if numbers.isdisjoint(reads) else reads
        marks = file.events["user_annotation"]
        self.collectives = [event for event in marks if event.name.startswith(_GLOO)]
        messages = (event for event in marks if event.name.startswith(_LINK))
        # what gloo's threads run is part of the collectives; sends and receives it runs on the thread that calls
        callers = {event.thread for event in file.events["cpu_op"] if event.name.startswith(_ISSUE)}
        workers = {event.thread for event in self.collectives} - callers
        self.spans = [event for event in (*file.events["cpu_op"], *messages) if event.thread not in workers]
        self.clock = Clock(file, [*self.spans, *self.collectives])
        self.scopes = Scopes(file)
        self.notes: list[str] = []
        self.issued = self._by_issue()
        self.group, self.ranks = self._only_group()
        # collectives by gloo's thread, or the link
        self.queues: dict[Lane, list[Draft]] = defaultdict(list)

    def read(self) -> RankDraft:
        """Return all ops of the rank's CPU threads, with their dependencies."""
        drafts: list[Draft] = []
        for lane, events in by_thread(in_order(self.spans), self.file.rank):
            drafts += _Thread(self, lane).read(events)
        for queue in self.queues.values():
            drafts += _with_wake_ups(queue)
        return rank_draft(self.file, self.clock, drafts, self.notes)

    def reads(self, event: Event) -> frozenset[int]:
        """Return the storages that an operator reads."""
        return self.storages_read.get(_number(event), frozenset())

    def collective(self, event: Event) -> Draft | None:
        """Return the collective that an operator or a span issues; None if it issues none."""
        start_s = self.clock.seconds(event.start_us)
        step = self.clock.step(start_s)
        gloo = self.issued.get(_place(event))
        message = _Message.issued(event.name)
        if message is not None:
            lane = Lane(name="link", rank=self.file.rank, device=False)
            free_s = self.queues[lane][-1].end_s if self.queues[lane] else start_s
            draft = Draft(
                name=message.kind,
                kind=message.kind,
                lane=lane,
                start_s=max(start_s, free_s),
                end_s=max(start_s + message.seconds, free_s),
                step=step,
                collective=Collective(message_bytes=message.size_bytes, ranks=1),
            )
        elif gloo is not None:
            draft = self._of_group(gloo, event, f"gloo {gloo.thread}", step)
        elif _is_shared(event):
            draft = self._of_group(event, event, SHARED_MEMORY, step)
        else:
            return None
        self.queues[draft.lane].append(draft)
        return draft

    def _of_group(self, event: Event, call: Event, lane: str, step: int) -> Draft:
        return Draft(
            name=event.name,
            # the call's: gloo reduces and scatters by an all-reduce
            kind=collective_kind(call.name) or collective_kind(event.name) or "collective",
            lane=Lane(name=lane, rank=self.file.rank, device=False),
            start_s=self.clock.seconds(event.start_us),
            end_s=self.clock.seconds(event.end_us),
            step=step,
            collective=Collective(message_bytes=tensor_bytes(event.args), group=self.group, ranks=self.ranks),
            # two gloo threads may begin in the other order
            issued_s=self.clock.seconds(call.start_us),
        )

    def _only_group(self) -> tuple[str, int]:
        groups = (self.file.metadata.get("distributedInfo") or {}).get("pg_config") or []
        members = {tuple(group["ranks"]): str(group.get("pg_name", "")) for group in groups if group.get("ranks")}
        others = {ranks: name for ranks, name in members.items() if len(ranks) > 1}
        if len(others) > 1:
            self.notes.append(f"{len(others)} process groups: the trace does not say whose a collective is")
            # shared with no other rank
            return f"of rank {self.file.rank}", 0
        return next(((name, len(ranks)) for ranks, name in others.items()), ("0", self.file.world_size))

    def _by_issue(self) -> dict[tuple[Any, float], Event]:
        """Return collectives by thread and start of the operator that issued them.

        A collective was issued by the last operator numbered before it.
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


class _Message(NamedTuple):
    """A message of an emulated link."""

    number: int
    """In order of issue."""
    kind: str
    size_bytes: float
    seconds: float
    """Time from issue to end."""

    @classmethod
    def issued(cls, name: str) -> "_Message | None":
        """Return the message that a span issues; None if it issues none."""
        match = _MESSAGE.fullmatch(name)
        if match is None:
            return None
        kind, number, size, microseconds = match.groups()
        return cls(int(number), kind, float(size), float(microseconds) * 1e-6)


class _Running(NamedTuple):
    """A collective that was issued asynchronously, and that nothing waited for yet."""

    draft: Draft
    storages: frozenset[int]
    """Storages that the collective writes; empty without an execution trace."""
    tensors: Any
    """Shapes of its tensors."""
    functional: bool
    """``wait_tensor`` waits for it, and nothing else does."""


class _Thread:
    """A thread's ops: operators, calls that issue collectives, waits, and CPU time in between."""

    def __init__(self, cpu: CpuReader, lane: Lane) -> None:
        self.cpu, self.lane = cpu, lane
        self.drafts: list[Draft] = []

        # end of the last op
        self.end_s = 0.0

        # collectives whose wait is still to come
        self.running: list[_Running] = []

        # collectives that the thread now waits for
        self.due: list[Draft] = []

        # messages of an emulated link by their numbers
        self.sent: dict[int, Draft] = {}

        # functional operators by start
        self.functional: list[Event] = []

    def read(self, events: Sequence[Event]) -> list[Draft]:
        self.functional = [event for event in events if event.name.startswith(_FUNCTIONAL)]
        self.end_s = self.cpu.clock.seconds(events[0].start_us)
        for event in _outermost(events):
            self._event(event)
        if self.due:
            self._put("wait", "sync", max(self.end_s, *(draft.end_s for draft in self.due)), after=self.due)
        self._note()
        return self.drafts

    def _event(self, event: Event) -> None:
        start_s, end_s = self.cpu.clock.seconds(event.start_us), self.cpu.clock.seconds(event.end_us)
        reads = self.cpu.reads(event)
        self._await([running for running in self.running if running.storages & reads])
        if not self.due:
            self._await(self._behind_silence(start_s))
        if start_s > self.end_s:
            self._put("wait" if self.due else "host", "sync" if self.due else "host", start_s, after=self.due)
            self.due = []
        self.end_s = start_s
        collective = self.cpu.collective(event)
        link_wait = _MESSAGE_WAIT.fullmatch(event.name)
        if collective is not None:
            self._issue(event, collective, end_s, reads)
        elif link_wait is not None:
            sent = self.sent.get(int(link_wait[1]))
            self._put("wait", "sync", end_s, after=[] if sent is None else [sent])
        elif event.name == _FUNCTIONAL_WAIT and any(running.functional for running in self.running):
            self._await([self._written_to(event)])
            self._put("wait", "sync", end_s, after=self.due)
            self.due = []
        else:
            self._put(event.name, kernel_kind(event.name), end_s)
            self.drafts[-1].scope = self.cpu.scopes.around(event)

    def _await(self, awaited: Sequence[_Running]) -> None:
        """Let the next op of the thread wait for these collectives."""
        self.due += [running.draft for running in awaited]
        self.running = [running for running in self.running if running not in awaited]

    def _behind_silence(self, until_s: float) -> list[_Running]:
        """Return the collective that the thread was silent for, if any: most of the silence is before its end."""
        if self.cpu.storages_read or until_s - self.end_s < MIN_SILENCE_S:
            return []
        middle_s = (self.end_s + until_s) / 2.0
        plain = (running for running in self.running if not running.functional)
        ended = [running for running in plain if middle_s < running.draft.end_s <= until_s]
        return sorted(ended, key=lambda running: running.draft.end_s)[-1:]

    def _written_to(self, event: Event) -> _Running:
        """Return the oldest collective with the tensor shape of a wait, or else the oldest of all."""
        shapes = event.args.get("Input Dims", [])[:1]
        functional = [running for running in self.running if running.functional]
        return next((running for running in functional if running.tensors == shapes), functional[0])

    def _is_functional(self, event: Event) -> bool:
        """Whether a functional operator contains this one."""
        index = bisect_right(self.functional, event.start_us, key=lambda outer: outer.start_us) - 1
        return index >= 0 and event.end_us <= self.functional[index].end_us

    def _issue(self, event: Event, collective: Draft, end_s: float, reads: frozenset[int]) -> None:
        message = _Message.issued(event.name)
        name = event.name if message is None else message.kind
        self._put(name, "launch", min(max(self.end_s, collective.start_s), end_s) if message is None else self.end_s)
        collective.after.append(self.drafts[-1])
        if message is not None:
            self.sent[message.number] = collective
        elif "True" not in event.args.get("Concrete Inputs", []):
            # ``c10d::allreduce_(..., async_op, timeout)`` records async_op as text. The rest of a blocking call is
            # waiting, or a gloo thread that works on the same core
            self.due.append(collective)
            return
        else:
            dims = event.args.get("Input Dims", [])
            tensors = dims[0] if dims else None
            self.running.append(_Running(collective, reads, tensors, self._is_functional(event)))
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

    def _note(self) -> None:
        if self.running:
            unknown = "no execution trace of the steps shows who waits"
            why = "nothing reads their results" if self.cpu.storages_read else unknown
            self.cpu.notes.append(f"{len(self.running)} asynchronous collectives without a recorded wait: {why}")


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the outermost operators; those that contain an issue or a wait are replaced by their parts."""
    inner_us = [event.start_us for event in events if _meets(event)]
    end_us = float("-inf")
    for event in events:
        inner = bisect_left(inner_us, event.end_us) - bisect_right(inner_us, event.start_us)
        if event.start_us < end_us or (inner and not _meets(event)):
            continue
        end_us = event.end_us
        yield event


def _meets(event: Event) -> bool:
    return event.name.startswith(_ISSUE) or event.name == _FUNCTIONAL_WAIT


def _with_wake_ups(queue: list[Draft]) -> Iterator[Draft]:
    """Yield the collectives of a gloo thread or a link, each after the time until it began."""
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


def _is_shared(event: Event) -> bool:
    return _SHARED_MEMORY in event.name


def _number(event: Event) -> int:
    return int(event.args.get(_FUNCTION, 0))


def _place(event: Event) -> tuple[Any, float]:
    return event.thread, event.start_us
