"""One rank's CUDA trace: the calls of its CPU threads, the ops they enqueue, and the dependencies between them.

Every call that enqueues or waits becomes an op of its thread, and so does the time between two such calls. That is the
only place where recorded idle time is kept. A kernel starts after the call that enqueued it, the kernel before it on
its stream, and the events that its stream waits for (`waits.py`). Other causes of a late start are not in the graph and
show up as an error of the replay.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from ladder_sim.traces.graph import COLLECTIVES, EARLIER, KERNEL_WAIT_S, Collective, Lane
from ladder_sim.traces.kineto.annotations import Scopes
from ladder_sim.traces.kineto.draft import SLACK_S, Draft, RankDraft, rank_draft
from ladder_sim.traces.kineto.kinds import EMULATED, collective_kind, kernel_kind
from ladder_sim.traces.kineto.reader import (
    CALLS,
    GPU_CATEGORIES,
    Clock,
    Event,
    KinetoFile,
    by_thread,
    element_bytes,
    tensor_bytes,
)
from ladder_sim.traces.kineto.waits import Call, Issues, Waits, blocks, hand_over
from ladder_sim.units import format_seconds


class CudaReader:
    """Finds the ops of one rank's file."""

    def __init__(self, file: KinetoFile) -> None:
        self.file = file
        self.on_device = [event for name in GPU_CATEGORIES for event in file.events[name]]
        self.clock = Clock(file, [*self.on_device, *file.events[CALLS]])
        self.gpu = min((event.args.get("device", event.process) for event in self.on_device), key=str)

        # by the id that they share with what they launch
        self.operators = {event.args.get("External id"): event for event in file.events["cpu_op"]}

        self.issues = Issues(file)
        self.launches = {event.args.get("correlation"): event for event in file.events[CALLS]}

        # by correlation id of the call that enqueued them
        self.device: dict[Any, list[Draft]] = defaultdict(list)

        self.scopes = Scopes(file)

        # end of the op ahead of each on its stream
        self.free_s: dict[int, float] = {}
        self.calls: list[Call] = []

    def read(self) -> RankDraft:
        """Return all ops of the rank's threads and streams, with their dependencies."""
        streams = self._device_ops()
        threads = by_thread(self.file.events[CALLS], self.file.rank)
        host = [queue for lane, events in threads if (queue := self._thread(lane, events))]
        if not any(call.enqueued for call in self.calls):
            # nothing says when they were launched
            for draft in (draft for queue in streams.values() for draft in queue):
                draft.step = self.clock.step(draft.start_s)
        waits = Waits(self.file, self.issues, self.calls, streams)
        waits.resolve()
        hand_over(host, self.file, self.clock)
        notes = [*waits.notes, *_launch_notes(streams)]
        for queue in streams.values():
            notes += _begin(queue, [other for own in streams.values() for other in own])
        drafts = [draft for queue in (*host, *streams.values()) for draft in queue]
        return rank_draft(self.file, self.clock, drafts, notes)

    def _device_ops(self) -> dict[Any, list[Draft]]:
        streams: dict[Any, list[Draft]] = {}
        for event in sorted(self.on_device, key=lambda event: event.start_us):
            stream = (event.args.get("device", event.process), event.args.get("stream", event.thread))
            named = collective_kind(str(event.args.get("Collective name", "")))
            kind = named or (
                kernel_kind(event.name) if event.category == "kernel" else event.category.removeprefix("gpu_")
            )
            draft = Draft(
                name=event.name,
                kind=kind,
                lane=Lane(name=self._stream_name(*stream), rank=self.file.rank),
                start_s=self.clock.seconds(event.start_us),
                end_s=self.clock.seconds(event.end_us),
                collective=self._collective(event) if kind in COLLECTIVES else None,
                blocks=int(prod(event.args.get("grid") or [0])),
            )
            queue = streams.setdefault(stream, [])
            self.free_s[id(draft)] = queue[-1].end_s if queue else 0.0
            queue.append(draft)
            self.device[event.args.get("correlation")].append(draft)
        return streams

    def _collective(self, event: Event) -> Collective:
        """Return a collective as NCCL's metadata describes it, else with the size of its issuer's first tensor.

        PyTorch 2.2 has no metadata, but shapes in the annotation around the launch.
        """
        args = event.args
        message_bytes = float(args.get("In msg nelems") or 0) * element_bytes(str(args.get("dtype", "")))
        launch = self.launches.get(args.get("correlation"))
        issues = (self.issues.around(launch) if launch else None, self.operators.get(args.get("External id")))
        sizes = (tensor_bytes(issue.args, 1) for issue in issues if issue is not None)
        return Collective(
            message_bytes=message_bytes or next(filter(None, sizes), 0.0),
            group=str(args.get("Process Group Name", "")),
            ranks=1 if event.name.startswith(EMULATED) else int(args.get("Group size") or 0),
        )

    def _stream_name(self, gpu: Any, stream: Any) -> str:
        """Return a stream's name with its GPU: a process's second GPU may have the same stream numbers as its first."""
        return f"stream {stream}" if gpu == self.gpu else f"gpu {gpu} stream {stream}"

    def _thread(self, lane: Lane, events: Sequence[Event]) -> list[Draft]:
        queue: list[Draft] = []
        idle: list[Event] = []
        for event in _outermost(events):
            call = Call(event=event, enqueued=[])
            if call.correlation is not None:
                call.enqueued += self.device[call.correlation]
            self.calls.append(call)
            if not call.enqueued and not blocks(event.name):
                idle.append(event)
                continue
            start_s, end_s = self.clock.seconds(event.start_us), self.clock.seconds(event.end_us)
            step = self.clock.step(start_s)
            for draft in call.enqueued:
                draft.step, draft.scope = step, self.scopes.around(event)
            if queue and start_s > queue[-1].end_s:
                queue.append(_between(idle, lane, queue[-1].end_s, start_s, step))
            idle = []
            queue += self._call(call, lane, start_s, end_s, step)
        return queue

    def _call(self, call: Call, lane: Lane, start_s: float, end_s: float, step: int) -> Iterator[Draft]:
        """Yield a call until it has enqueued its ops, and the rest of the call."""
        name = call.event.name
        blocking = blocks(name) or any(self._waited(call, draft, start_s, end_s) for draft in call.enqueued)
        enqueued_s = self._enqueued_s(call.enqueued, start_s, end_s, blocking)
        if call.enqueued:
            launch = Draft(name=name, kind="launch", lane=lane, start_s=start_s, end_s=enqueued_s, step=step)
            for draft in call.enqueued:
                draft.after.append(launch)
            yield launch
        rest = Draft(name=name, kind="launch", lane=lane, start_s=enqueued_s, end_s=end_s, step=step)
        if blocking:
            rest.kind, rest.waits, rest.after = "sync", True, list(call.enqueued)
            call.wait = rest
        if blocking or enqueued_s < end_s:
            yield rest

    def _waited(self, call: Call, draft: Draft, start_s: float, end_s: float) -> bool:
        """Whether a call waited for a copy that it enqueued. No launch of a kernel waits.

        Some copies do whatever their names (hipMemcpyWithStream, cudaMemcpyAsync of pageable memory): their calls end
        behind them. So may that of an asynchronous one whose stream is idle, if it is over at once.
        """
        if draft.kind != "memcpy" or draft.end_s > end_s + SLACK_S:
            return False
        behind_others = self.free_s[id(draft)] > start_s
        return behind_others or "Async" not in call.event.name or "Pageable" in draft.name

    def _enqueued_s(self, enqueued: Sequence[Draft], start_s: float, end_s: float, blocking: bool) -> float:
        """Return when a call had enqueued its ops: an op that starts during the call was enqueued by then."""
        if not enqueued:
            return start_s
        first = enqueued[0]
        if blocking and self.free_s[id(first)] > start_s:
            # its stream was busy, so its start says nothing about the call
            return start_s
        return min(max(first.start_s, start_s), end_s)


def _begin(queue: list[Draft], others: Sequence[Draft]) -> Iterator[str]:
    """Put what a stream did when the recording began before its first op.

    That is how a trace begins within a step: the first op was launched, and no op of the device was running, but the
    stream was busy with ops that were launched before.
    """
    first = queue[0]
    ready_s = max((before.end_s for before in first.after), default=0.0)
    if first.start_s - ready_s <= KERNEL_WAIT_S:
        return
    idle_s = max([ready_s, *(min(other.end_s, first.start_s) for other in others if other.start_s < first.start_s)])
    if first.start_s - idle_s > KERNEL_WAIT_S:
        busy = Draft(name="before the recording", kind=EARLIER, lane=first.lane, start_s=idle_s, end_s=first.start_s)
        busy.after = list(first.after)
        queue.insert(0, busy)
        yield (
            f"{first.lane.name} was busy with earlier work for {format_seconds(busy.end_s - busy.start_s)} when the "
            "recording began: its first step counts from then on"
        )


def _launch_notes(streams: Mapping[Any, Sequence[Draft]]) -> Iterator[str]:
    missing = Counter(
        draft.lane.name
        for queue in streams.values()
        for draft in queue
        if not any(before.kind == "launch" for before in draft.after)
    )
    for name, number in missing.items():
        yield f"{number} ops of {name} have no recorded launch: replayed as soon as their stream is free"


def _between(idle: Sequence[Event], lane: Lane, start_s: float, end_s: float, step: int) -> Draft:
    """Return the CPU time between two calls, named after the idle call that takes most of it, if any."""
    longest = max(idle, key=lambda event: event.end_us - event.start_us, default=None)
    named = longest is not None and (longest.end_us - longest.start_us) * 1e-6 > 0.5 * (end_s - start_s)
    name = longest.name if longest is not None and named else "host"
    return Draft(name=name, kind="host", lane=lane, start_s=start_s, end_s=end_s, step=step)


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    end_us = float("-inf")
    for event in events:
        # one that takes no time may begin where another ends
        if event.end_us > end_us or event.start_us == end_us:
            end_us = event.end_us
            yield event
