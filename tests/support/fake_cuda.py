"""A GPU that computes nothing: its streams have clocks of their own, and wait for each other by events."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


class FakeCuda:
    """Takes the place of `torch.cuda`'s streams and events; notes what runs, where, and from when to when.

    Attributes
    ----------
    ran
        Stream and name of everything that ran, in the order of issue; waits of a stream for another are ``wait``.
    hangs
        What runs meanwhile does not end before it is over.
    """

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.compute = FakeStream(self, name="compute")
        self._streams = [self.compute]
        self._current = self.compute
        self.capturing = self.hangs = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place."""
        for name in (
            "current_stream",
            "stream",
            "synchronize",
            "_sleep",
            "_compile_kernel",
            "is_current_stream_capturing",
        ):
            patch.setattr(f"torch.cuda.{name}", getattr(self, name))
        patch.setattr("torch.cuda.Stream", self._new_stream)
        patch.setattr("torch.cuda.Event", lambda **options: FakeEvent(self, **options))

    def run(self, name: str, seconds: float) -> None:
        """A kernel on the current stream."""
        self.ran.append((self._current.name, name))
        self._current.now_s += seconds

    def current_stream(self) -> "FakeStream":
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: "FakeStream") -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def synchronize(self) -> None:
        now_s = max(stream.now_s for stream in self._streams)
        for stream in self._streams:
            stream.now_s = now_s

    def _sleep(self, cycles: int) -> None:
        self.run("sleep", cycles * 1e-9)

    def _compile_kernel(self, source: str, name: str) -> Any:
        """One that lasts as long as its argument says, in ticks of 32 ns."""
        return lambda args: self.run(name, args[0] * 32e-9)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def _new_stream(self, priority: int = 0) -> "FakeStream":
        self._streams.append(FakeStream(self, name="side", priority=priority))
        return self._streams[-1]


class FakeStream:
    """The end of what is on it."""

    def __init__(self, cuda: FakeCuda, *, name: str, priority: int = 0) -> None:
        self._cuda, self.name, self.priority = cuda, name, priority
        self.now_s = 0.0

    def wait_stream(self, other: "FakeStream") -> None:
        self._cuda.ran.append((self.name, "wait"))
        self.now_s = max(self.now_s, other.now_s)


class FakeEvent:
    """A place in a stream."""

    def __init__(self, cuda: FakeCuda, **options: Any) -> None:
        self._cuda, self._options = cuda, options
        self.at_s, self._hung = 0.0, False

    def record(self) -> None:
        self.at_s = self._cuda.current_stream().now_s
        self._hung = self._cuda.hangs

    def query(self) -> bool:
        return not (self._hung and self._cuda.hangs)

    def wait(self) -> None:
        stream = self._cuda.current_stream()
        self._cuda.ran.append((stream.name, "wait"))
        stream.now_s = max(stream.now_s, self.at_s)

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self._options["enable_timing"]
        return (end.at_s - self.at_s) * 1e3
