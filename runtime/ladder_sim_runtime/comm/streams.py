"""Collectives on a GPU's streams: on that of the computation, or under it on one of their own."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from ladder_sim_runtime.comm.base import DONE, CommTimes, Handle


class SideStream:
    """A stream of high priority, on which collectives run in turn while the computation goes on.

    The streams wait for each other by events alone, so that CUDA graphs can capture them.
    """

    def __init__(self) -> None:
        # lower numbers first: blocks of a collective get SMs before those of a GEMM that wait for some, too
        self._stream = torch.cuda.Stream(priority=-1)
        self._times: EventTimes | None = None
        self._newest: _Running | None = None

    def run(self, issue: Callable[[], object], *, blocking: bool = False) -> Handle:
        """Issue the next collective; with `blocking` on the stream of the computation, which saves the waits."""
        if blocking:
            # one link carries them all, and a reduction has one buffer
            if self._newest is not None:
                self._newest.wait()
            with self._timed():
                issue()
            return DONE
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            with self._timed(exposed=False):
                issue()
            done = torch.cuda.Event()
            done.record()
        self._newest = _Running(done, self._times, issue)
        return self._newest

    @contextlib.contextmanager
    def watched(self) -> "Iterator[EventTimes]":
        """Measure the collectives meanwhile."""
        self._times = EventTimes()
        try:
            yield self._times
        finally:
            self._times = None

    def _timed(self, *, exposed: bool = True) -> contextlib.AbstractContextManager[None]:
        times = self._times
        return contextlib.nullcontext() if times is None else times.span(busy=True, exposed=exposed)


class EventTimes(CommTimes):
    """Times of collectives, from events around them and around the waits for them."""

    def __init__(self) -> None:
        self.comm_s = self.exposed_s = 0.0
        # of the pass, and of a pass that a graph captured, which records them again each time that it is replayed
        self._spans: list[_Span] = []
        self._captured: list[_Span] = []

    @contextlib.contextmanager
    def span(self, *, busy: bool = False, exposed: bool = False) -> Iterator[None]:
        """Measure what the current stream does meanwhile: a collective, a wait for one, or both."""
        captures = torch.cuda.is_current_stream_capturing()
        # a graph has to record external ones when it is replayed
        how = {"external": True} if captures else {}
        start, end = (torch.cuda.Event(enable_timing=True, **how) for _ in range(2))
        start.record()
        yield
        end.record()
        (self._captured if captures else self._spans).append((start, end, busy, exposed))

    def settle(self, *, replays: bool = False) -> None:
        torch.cuda.synchronize()
        # what came before a capture in the same pass warmed it up
        for start, end, busy, exposed in self._captured or self._spans:
            seconds = start.elapsed_time(end) * 1e-3
            self.comm_s += busy * seconds
            self.exposed_s += exposed * seconds
        self._spans = []
        if not replays:
            self._captured = []


# first and last event, whether a collective ran between them, and whether the computation waited
_Span = tuple[torch.cuda.Event, torch.cuda.Event, bool, bool]


class _Running(Handle):
    def __init__(self, done: torch.cuda.Event, times: EventTimes | None, issue: Callable[[], object]) -> None:
        self._done, self._times = done, times
        # it holds the tensors, whose memory the stream of the computation must not reuse yet
        self._issue: Callable[[], object] | None = issue

    def wait(self) -> None:
        if self._issue is None:
            return
        with contextlib.nullcontext() if self._times is None else self._times.span(exposed=True):
            self._done.wait()
        self._issue = None
