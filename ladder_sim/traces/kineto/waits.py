"""What streams and CPU threads wait for, from the calls that make them wait and the events of category ``cuda_sync``.

Traces without these events do not say which stream or event a call refers to; those of CUDA 13 say who waits, but not
for what (kineto knows ``cudaEventRecord``, and torch calls ``cudaEventRecordWithFlags``). Some waits then follow from
the order of the calls. Dependencies that the recorded times contradict are left out. The notes count both.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ladder_sim.des.timeline import Span, Spans, subtract, union
from ladder_sim.traces.graph import Lane
from ladder_sim.traces.kineto.draft import MIN_SILENCE_S, SLACK_S, Draft
from ladder_sim.traces.kineto.reader import CALLS, ROUNDED_S, Clock, Event, KinetoFile

# device and stream
StreamId = tuple[Any, Any]

_WHOLE_DEVICE = frozenset({"cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize", "cudaFree", "hipFree"})
_ONE_STREAM = frozenset({"cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize"})
_ONE_EVENT = frozenset({"cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"})
_STREAM_WAITS = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent"})
_UNSEEN = "the trace has no cuda_sync events (torch.profiler records them with enable_cuda_sync_events=True)"
_NAMELESS = "none of its cuda_sync events says where the event was recorded"
_called = itemgetter(0)
# share of the silence in which the other thread must work
MIN_COVERED = 0.5
_RECORD = "wait_on_cuda_event_record_corr_id"


def blocks(name: str) -> bool:
    """Whether a call of this name may block its CPU thread until a device is done."""
    return name in _WHOLE_DEVICE or name in _ONE_STREAM or name in _ONE_EVENT


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call of a CPU thread."""

    event: Event
    enqueued: list[Draft]
    """The ops that it put on streams."""
    wait: Draft | None = None
    """Op of the call on the thread, if it may block."""

    @property
    def correlation(self) -> Any:
        """Id that it shares with the ops that it enqueued or waited for."""
        return self.event.args.get("correlation")


class Issues:
    """PyTorch's annotations around the calls that issue a collective of NCCL, such as "nccl:all_reduce"."""

    def __init__(self, file: KinetoFile) -> None:
        self._events: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        for event in file.events["user_annotation"]:
            if event.name.startswith("nccl:"):
                self._events[event.process, event.thread].append(event)

    def around(self, call: Event) -> Event | None:
        """Return the annotation in which a call of the same thread is made; None if there is none."""
        events = self._events[call.process, call.thread]
        index = bisect_right(events, call.start_us, key=lambda event: event.start_us) - 1
        return events[index] if index >= 0 and call.start_us < events[index].end_us else None


class Waits:
    """Finds what each stream and each blocking call of one rank waits for."""

    def __init__(
        self, file: KinetoFile, issues: Issues, calls: Iterable[Call], streams: Mapping[StreamId, list[Draft]]
    ) -> None:
        self.calls = sorted(calls, key=lambda call: call.event.start_us)
        self.syncs = {event.args.get("correlation"): event for event in file.events["cuda_sync"]}
        self.called_us = {call.correlation: call.event.start_us for call in self.calls}
        # of events that streams and threads wait for; kineto writes -1 for a call that it does not know
        self.records = {sync.args[_RECORD] for sync in self.syncs.values() if sync.args.get(_RECORD, -1) != -1}
        self.queues = {stream: _Queue(queue, self.calls) for stream, queue in streams.items()}
        # stream waits inside these are NCCL's own, not the user's
        self.issues = issues
        # what streams were told to wait for, and when
        self.held: dict[StreamId, list[tuple[float, Draft]]] = defaultdict(list)
        self.counts: Counter[str] = Counter()

    @property
    def notes(self) -> list[str]:
        """Waits that were inferred or left out, counted."""
        return [f"{number} {what}" for what, number in sorted(self.counts.items())]

    def resolve(self) -> None:
        unseen: list[Call] = []
        for call in self.calls:
            name = call.event.name
            if len({draft.lane for draft in call.enqueued}) > 1:
                self._inside_graph(call.enqueued)
                self._around_graph(call)
            sync = self.syncs.get(call.correlation)
            if call.wait is not None and blocks(name):
                self._block(call, call.wait, sync)
            elif name in _STREAM_WAITS and sync is not None and self.records:
                self._stream_wait(call, sync)
            elif name in _STREAM_WAITS:
                unseen.append(call)
        if self.records:
            self.counts["stream waits without a cuda_sync event, left out"] += len(unseen)
        elif unseen:
            self._infer(unseen)
        self.counts = +self.counts

    def _block(self, call: Call, wait: Draft, sync: Event | None) -> None:
        called_us = call.event.start_us
        if call.event.name in _WHOLE_DEVICE:
            candidates = [queue.last_before(called_us) for queue in self.queues.values()]
            wait.after += [draft for draft in candidates if draft is not None and wait.can_follow(draft)]
        elif sync is not None and call.event.name in _ONE_STREAM:
            for before in self._ahead(sync, "stream", called_us):
                self._add(wait, before)
        elif sync is not None and self.records:
            self._event_wait(wait, sync, "waits of a CPU thread")
        else:
            self._block_unseen(wait, called_us)

    def _block_unseen(self, wait: Draft, called_us: float) -> None:
        """Let the call wait for the op with the latest end during it, if any."""
        candidates = [queue.last_before(called_us) for queue in self.queues.values()]
        ended = [op for op in candidates if op is not None and wait.start_s < op.end_s <= wait.end_s + SLACK_S]
        if ended:
            wait.after.append(max(ended, key=lambda draft: draft.end_s))
            self.counts[f"blocking calls matched to a stream by their time: {self._why}"] += 1

    @property
    def _why(self) -> str:
        return _NAMELESS if self.syncs else _UNSEEN

    def _stream_wait(self, call: Call, sync: Event) -> None:
        awaited = self._event_wait(self._waiting(call, sync), sync, "stream waits")
        stream = sync.args.get("device"), sync.args.get("stream")
        self.held[stream] += [(call.event.start_us, before) for before in awaited]

    def _waiting(self, call: Call, sync: Event) -> Draft | None:
        queue = self.queues.get((sync.args.get("device"), sync.args.get("stream")))
        return queue.next_after(call.event.start_us) if queue is not None else None

    def _event_wait(self, waiting: Draft | None, sync: Event, what: str) -> list[Draft]:
        """Let an op wait for an event; returns what is ahead of the event."""
        recorded_us = self.called_us.get(sync.args.get(_RECORD))
        if recorded_us is None:
            self.counts[f"{what} for an event recorded outside the trace"] += 1
            return []
        awaited = self._ahead(sync, "wait_on_stream", recorded_us)
        if waiting is not None:
            for before in awaited:
                self._add(waiting, before)
        return awaited

    def _ahead(self, sync: Event, key: str, before_us: float) -> list[Draft]:
        """Return the last op put on a stream before a time, and the ops that the stream has waited for since."""
        stream = sync.args.get("device"), sync.args.get(key)
        queue, held = self.queues.get(stream), self.held[stream]
        last = queue.last_before(before_us) if queue is not None else None
        since_us = queue.last_put_us(before_us) if queue is not None else float("-inf")
        first, stop = bisect_right(held, since_us, key=_called), bisect_left(held, before_us, key=_called)
        return [*([] if last is None else [last]), *(before for _, before in held[first:stop])]

    def _add(self, draft: Draft, before: Draft | None) -> None:
        if before is None or before.lane == draft.lane or before in draft.after:
            return
        if draft.can_follow(before):
            draft.after.append(before)
        else:
            self.counts["waits that the recorded times contradict, left out"] += 1

    def _inside_graph(self, drafts: Sequence[Draft]) -> None:
        """Infer waits inside a CUDA graph: an op waited for the op of another stream whose end ended its idling."""
        running: list[tuple[float, int, Draft]] = []

        # of each stream the last op that began, and the last that ended
        begun: dict[Lane, Draft] = {}
        ended: dict[Lane, Draft] = {}
        for number, draft in enumerate(sorted(drafts, key=lambda draft: draft.start_s)):
            # all on one clock: an op that ends later is not what it waited for
            while running and running[0][0] <= draft.start_s + ROUNDED_S:
                *_, other = heapq.heappop(running)
                ended[other.lane] = other
            own = begun.get(draft.lane)
            idle_from_s = own.end_s if own is not None else float("-inf")
            others = (other for lane, other in ended.items() if lane != draft.lane)
            latest = max(others, key=lambda other: other.end_s, default=None)
            if latest is not None and latest.end_s > idle_from_s:
                draft.after.append(latest)
                self.counts["waits between streams of a CUDA graph, told from the times of its ops"] += 1
            begun[draft.lane] = draft
            heapq.heappush(running, (draft.end_s, number, draft))

    def _around_graph(self, call: Call) -> None:
        """Let a CUDA graph's ops on other streams wait for the op ahead on its own, and the op behind wait for them."""
        own = call.enqueued[0].lane
        queue = next(queue for queue in self.queues.values() if queue.drafts[0].lane == own)
        ahead, behind = queue.last_before(call.event.start_us), queue.next_after(call.event.end_us)
        first = {draft.lane: draft for draft in reversed(call.enqueued)}
        last = {draft.lane: draft for draft in call.enqueued}
        for lane, draft in last.items():
            if lane != own:
                self._add(first[lane], ahead)
            if lane != own and behind is not None:
                self._add(behind, draft)

    def _infer(self, unseen: Sequence[Call]) -> None:
        """Infer the waits of collectives from the calls around them on the same thread."""
        waits = {id(call) for call in unseen}
        # streams that compute wait for collectives on others, also before a collective of their own
        computing = {draft.lane for call in self.calls for draft in call.enqueued if draft.collective is None}
        threads: dict[tuple[Any, Any], list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.enqueued or id(call) in waits:
                threads[call.event.process, call.event.thread].append(call)
        inferred = internal = 0
        for queue in threads.values():
            # collectives that nothing waits for yet, in order
            pending: list[Draft] = []
            for position, call in enumerate(queue):
                if call.enqueued:
                    pending += [draft for draft in call.enqueued if draft.lane not in computing]
                    continue
                sync = self.syncs.get(call.correlation)
                # no slices: a thread may make a million calls
                following = (queue[at].enqueued[0] for at in range(position + 1, len(queue)) if queue[at].enqueued)
                waiting = self._waiting(call, sync) if sync is not None else next(following, None)
                if self.issues.around(call.event) is not None:
                    internal += 1
                    continue
                before = None
                if waiting is not None and waiting.lane not in computing:
                    enqueued = (queue[at].enqueued[-1] for at in range(position - 1, -1, -1) if queue[at].enqueued)
                    # the last op that the calls ahead put on another stream
                    before = next((draft for draft in enqueued if draft.lane != waiting.lane), None)
                    if before in waiting.after and sync is None:
                        # the second wait between two collectives is that of the next op that computes, for the first
                        waiting = next((draft for draft in following if draft.lane in computing), None)
                if waiting is None:
                    continue
                if waiting.lane in computing:
                    before = pending.pop(0) if pending else None
                if before is not None and before not in waiting.after and waiting.can_follow(before):
                    waiting.after.append(before)
                    inferred += 1
        self.counts[f"stream waits told from the order of calls: {self._why}"] += inferred
        self.counts["stream waits that nothing explains, left out"] += len(unseen) - inferred - internal


class _Queue:
    """A stream's ops by the time of the call that enqueued them."""

    def __init__(self, drafts: Sequence[Draft], calls: Iterable[Call]) -> None:
        lane = drafts[0].lane
        pairs = [(call.event.start_us, draft) for call in calls for draft in call.enqueued if draft.lane == lane]
        launched = {id(draft) for _, draft in pairs}
        pairs = [(float("-inf"), draft) for draft in drafts if id(draft) not in launched] + pairs
        self.times_us = [time_us for time_us, _ in pairs]
        self.drafts = [draft for _, draft in pairs]

    def last_before(self, time_us: float) -> Draft | None:
        index = bisect_left(self.times_us, time_us) - 1
        return self.drafts[index] if index >= 0 else None

    def last_put_us(self, time_us: float) -> float:
        """Return when the last op before a time was put on the stream."""
        index = bisect_left(self.times_us, time_us) - 1
        return self.times_us[index] if index >= 0 else float("-inf")

    def next_after(self, time_us: float) -> Draft | None:
        index = bisect_left(self.times_us, time_us)
        return self.drafts[index] if index < len(self.drafts) else None


def hand_over(threads: Sequence[list[Draft]], file: KinetoFile, clock: Clock) -> None:
    """Find where one CPU thread hands over to another: a forward pass on one, its backward pass on another.

    A profiler does not record that a thread waits for another. It shows as silence: one thread runs no operator and
    makes no call, while another thread, silent before, works for most of that time. Then the second waits for the
    first, and the first for the second. Without these dependencies the silence would count as work of the first thread.
    """
    busy = _busy(file, clock)
    for queue in threads:
        spans = busy.get(queue[0].lane.name, [])
        for draft in [
            draft for draft in queue if draft.kind == "host" and draft.end_s - draft.start_s >= MIN_SILENCE_S
        ]:
            gaps = subtract([(draft.start_s, draft.end_s)], spans)
            silent_s, until_s = max(gaps, key=lambda gap: gap[1] - gap[0], default=(draft.start_s, draft.start_s))
            for other in threads:
                burst = _burst(other, silent_s, until_s) if other is not queue else []
                if burst:
                    before = replace(draft, end_s=silent_s, after=[], waits=False)
                    queue.insert(queue.index(draft), before)
                    draft.start_s, draft.waits = silent_s, True
                    draft.after.append(burst[-1])
                    _let_wait(other, burst[0], before)
                    break


def _burst(queue: list[Draft], start_s: float, end_s: float) -> list[Draft]:
    first, stop = (bisect_left(queue, time_s, key=lambda draft: draft.start_s) for time_s in (start_s, end_s))
    inside = queue[first:stop]
    while inside and inside[-1].end_s > end_s:
        inside.pop()
    return inside if inside and inside[-1].end_s - inside[0].start_s >= MIN_COVERED * (end_s - start_s) else []


def _let_wait(queue: list[Draft], first: Draft, before: Draft) -> None:
    """Let the time ahead of op `first` on its thread begin when `before` ends."""
    at = queue.index(first)
    if not at or queue[at - 1].kind != "host":
        queue.insert(at, replace(before, lane=first.lane, start_s=before.end_s, end_s=first.start_s, after=[]))
        at += 1
    queue[at - 1].waits = True
    queue[at - 1].after.append(before)


def _busy(file: KinetoFile, clock: Clock) -> dict[str, Spans]:
    spans: dict[str, list[Span]] = defaultdict(list)
    for name in ("cpu_op", CALLS):
        for event in file.events[name]:
            spans[f"thread {event.thread}"].append((clock.seconds(event.start_us), clock.seconds(event.end_us)))
    return {name: union(own) for name, own in spans.items()}
