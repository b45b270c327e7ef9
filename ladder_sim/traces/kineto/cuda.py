"""One rank's CUDA trace: calls of the CPU threads, what they enqueue, and what waits for what.

Every call that enqueues or waits becomes an op of its thread, and so does the time between two of them: that is the
only place where recorded idle time may go. A kernel starts after the call that enqueued it, the kernel before it on its
stream, and the events its stream waits for (`waits.py`). Whatever else kept it from starting is not in the graph, and
shows as an error of the replay.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ladder_sim.traces.graph import COLLECTIVES, Collective, Lane
from ladder_sim.traces.kineto.draft import Draft, RankDraft, settle
from ladder_sim.traces.kineto.kinds import element_bytes, kernel_kind
from ladder_sim.traces.kineto.reader import CALL_CATEGORIES, GPU_CATEGORIES, Event, Recorded, Steps
from ladder_sim.traces.kineto.threads import hand_over
from ladder_sim.traces.kineto.waits import Call, Waits, blocks

_US = 1e-6


def cuda_rank(recorded: Recorded) -> RankDraft:
    """The ops of one rank's file."""
    return _Cuda(recorded).read()


class _Cuda:
    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.rank = recorded.rank
        every = [event for name in CALL_CATEGORIES | GPU_CATEGORIES for event in recorded.events[name]]
        self.origin_us = min(event.start_us for event in every)
        self.steps = Steps(recorded, self.origin_us)
        self.gpu = min(
            (event.args.get("device", event.process) for name in GPU_CATEGORIES for event in recorded.events[name]),
            key=str,
        )
        self.notes: list[str] = []
        # by correlation id of the call that enqueued them
        self.device: dict[Any, list[Draft]] = defaultdict(list)
        # end of the op ahead of each on its stream
        self.free_s: dict[int, float] = {}
        self.calls: list[Call] = []

    def read(self) -> RankDraft:
        streams = self._device_ops()
        threads: dict[Any, list[Event]] = defaultdict(list)
        for name in CALL_CATEGORIES:
            for event in self.recorded.events[name]:
                threads[event.process, event.thread].append(event)
        host: list[list[Draft]] = []
        for key, events in sorted(threads.items(), key=lambda item: str(item[0])):
            queue = self._thread(key, events)
            if queue:
                host.append(queue)
        waits = Waits(self.recorded, self.calls, streams)
        waits.resolve()
        self.notes += waits.notes
        hand_over(host, self.recorded, self.origin_us)
        self._unlaunched(streams)
        drafts = [draft for queue in (*host, *streams.values()) for draft in queue]
        settle(drafts)
        clock_us = self.recorded.clock_us + self.origin_us
        return RankDraft(
            rank=self.rank,
            drafts=drafts,
            origin_s=clock_us * _US,
            host=str(self.recorded.metadata.get("host_name", "")),
            world_size=self.recorded.world_size,
            notes=self.notes,
            steps=self.steps.names,
        )

    def _seconds(self, time_us: float) -> float:
        return (time_us - self.origin_us) * _US

    def _device_ops(self) -> dict[Any, list[Draft]]:
        """Streams' ops in the order in which they ran."""
        events = [event for name in GPU_CATEGORIES for event in self.recorded.events[name]]
        streams: dict[Any, list[Draft]] = {}
        for event in sorted(events, key=lambda event: event.start_us):
            stream = (event.args.get("device", event.process), event.args.get("stream", event.thread))
            named = str(event.args.get("Collective name") or event.name)
            kind = kernel_kind(named) if event.category == "kernel" else event.category.removeprefix("gpu_")
            draft = Draft(
                name=event.name,
                kind=kind,
                lane=Lane(name=self._stream_name(*stream), rank=self.rank),
                start_s=self._seconds(event.start_us),
                end_s=self._seconds(event.end_us),
                collective=_collective(event.args) if kind in COLLECTIVES else None,
            )
            queue = streams.setdefault(stream, [])
            self.free_s[id(draft)] = queue[-1].end_s if queue else 0.0
            queue.append(draft)
            self.device[event.args.get("correlation")].append(draft)
        return streams

    def _stream_name(self, gpu: Any, stream: Any) -> str:
        """Streams of a process's second GPU may have the numbers of those on its first."""
        return f"stream {stream}" if gpu == self.gpu else f"gpu {gpu} stream {stream}"

    def _thread(self, key: tuple[Any, Any], events: Sequence[Event]) -> list[Draft]:
        """The ops of a CPU thread; none if it neither enqueues nor waits."""
        lane = Lane(name=f"thread {key[1]}", rank=self.rank, device=False)
        origins = _Innermost(event for event in self.recorded.events["cpu_op"] if (event.process, event.thread) == key)
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
            start_s, end_s = self._seconds(event.start_us), self._seconds(event.end_us)
            step = self.steps.at(start_s)
            origin = origins.at(event.start_us)
            for draft in call.enqueued:
                draft.step, draft.origin = step, origin
            if queue and start_s > queue[-1].end_s:
                queue.append(_between(idle, lane, queue[-1].end_s, start_s, step))
            idle = []
            queue += self._call(call, lane, start_s, end_s, step)
        return queue

    def _call(self, call: Call, lane: Lane, start_s: float, end_s: float, step: int) -> Iterator[Draft]:
        """A call up to the moment it enqueues, and what is left of it."""
        name = call.event.name
        blocking = blocks(name) or any("Pageable" in draft.name and "DtoH" in draft.name for draft in call.enqueued)
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

    def _enqueued_s(self, enqueued: Sequence[Draft], start_s: float, end_s: float, blocking: bool) -> float:
        """By when a call had enqueued what it did: what starts inside its call was enqueued by then."""
        if not enqueued:
            return start_s
        first = enqueued[0]
        if blocking and self.free_s[id(first)] > start_s:
            # its stream was busy, so its start says nothing
            return start_s
        return min(max(first.start_s, start_s), end_s)

    def _unlaunched(self, streams: dict[Any, list[Draft]]) -> None:
        missing = Counter(
            draft.lane.name
            for queue in streams.values()
            for draft in queue
            if not any(before.kind == "launch" for before in draft.after)
        )
        for name, number in missing.items():
            self.notes.append(
                f"{number} ops of {name} have no recorded launch: replayed as soon as their stream is free"
            )


def _between(idle: Sequence[Event], lane: Lane, start_s: float, end_s: float, step: int) -> Draft:
    """CPU time between two calls, named after the call that fills it, if one does."""
    longest = max(idle, key=lambda event: event.end_us - event.start_us, default=None)
    named = longest is not None and (longest.end_us - longest.start_us) * _US > 0.5 * (end_s - start_s)
    name = longest.name if longest is not None and named else "host"
    return Draft(name=name, kind="host", lane=lane, start_s=start_s, end_s=end_s, step=step)


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    """Calls that are not part of another one, in order of time."""
    end_us = float("-inf")
    for event in sorted(events, key=lambda event: (event.start_us, -event.end_us)):
        if event.end_us > end_us:
            end_us = event.end_us
            yield event


class _Innermost:
    """Names of the operators in which moments lie."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.edges_us: list[float] = []
        self.names: list[str] = []
        running: list[Event] = []
        for event in events:
            self._leave(running, event.start_us)
            running.append(event)
            self._set(event.start_us, event.name)
        self._leave(running, float("inf"))

    def at(self, time_us: float) -> str:
        index = bisect_right(self.edges_us, time_us) - 1
        return self.names[index] if index >= 0 else ""

    def _leave(self, running: list[Event], until_us: float) -> None:
        while running and running[-1].end_us <= until_us:
            done = running.pop()
            self._set(done.end_us, running[-1].name if running else "")

    def _set(self, time_us: float, name: str) -> None:
        self.edges_us.append(time_us)
        self.names.append(name)


def _collective(args: Mapping[str, Any]) -> Collective:
    elements = float(args.get("In msg nelems") or 0)
    return Collective(
        message_bytes=elements * element_bytes(str(args.get("dtype", ""))),
        group=str(args.get("Process Group Name", "")),
        ranks=int(args.get("Group size") or 0),
    )
