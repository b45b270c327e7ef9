"""One process runs one rank: all-reduces change nothing and take the time of a table.

Without the sums tokens are meaningless; shapes, kernels and their order are those of a real rank. A gather, a
scatter or a broadcast takes half an all-reduce: in a ring it has half the traffic and half the steps.
"""

import contextlib
import csv
import itertools
import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.system.files import read_text
from ladder_sim_runtime.comm.base import CommTimes, Communicator, Handle
from ladder_sim_runtime.comm.streams import SideStream

_FORM = 'a CSV file with the columns bytes,seconds, or JSON [{"bytes": 1024, "seconds": 1e-5}, ...]'
# far outside anything measured, near enough that latencies between the points stay finite
_LOW, _HIGH = 1e-30, 1e30


class LatencyTable:
    """Latencies of an all-reduce, interpolated linearly in the logarithms of size and time.

    Smaller messages take as long as the smallest, larger ones have the bandwidth of the largest.

    Parameters
    ----------
    points
        Message bytes and seconds.

    Examples
    --------
    >>> table = LatencyTable([(1e4, 10e-6), (1e6, 1e-3)])
    >>> [f"{table.seconds(size):.6f}" for size in (1, 1e5, 2e6)]
    ['0.000010', '0.000100', '0.002000']
    """

    def __init__(self, points: list[tuple[float, float]]) -> None:
        ordered = sorted(points)
        if not ordered or not all(_LOW < value < _HIGH for point in ordered for value in point):
            raise UsageError(
                f"an all-reduce table needs points, with bytes and seconds above 0, between {_LOW:g} and {_HIGH:g}",
                hint=_FORM,
            )
        if any(a[0] == b[0] for a, b in itertools.pairwise(ordered)):
            raise UsageError("an all-reduce table has a message size twice", hint="keep one latency per size")
        self.points = ordered
        self._sizes = [size for size, _ in ordered]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a CSV or JSON file; lines of a CSV file that start with ``#`` are comments."""
        text = read_text(path, what=_FORM, error=UsageError)
        try:
            if path.suffix.lower() == ".json":
                rows = json.loads(text)
            else:
                rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
            return cls([(float(row["bytes"]), float(row["seconds"])) for row in rows])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error):
            raise UsageError(f"{path}: not a table of all-reduce latencies", hint=f"give {_FORM}") from None

    def seconds(self, size_bytes: float) -> float:
        """Return the latency of a message, in seconds."""
        at = bisect_left(self._sizes, size_bytes)
        if at == 0:
            return self.points[0][1]
        low_size, low_s = self.points[at - 1]
        if at == len(self.points):
            return low_s * size_bytes / low_size
        high_size, high_s = self.points[at]
        share = math.log(size_bytes / low_size) / math.log(high_size / low_size)
        return math.exp(math.log(low_s) + share * math.log(high_s / low_s))


# end of a wait, spent spinning: time.sleep would overshoot
_SPIN_S = 300e-6
# A kernel that lasts as long as it is told, by a clock that does not follow the load as an SM's does. Its name says in
# a trace what it stands for.
_SLEEPS = """
extern "C" __global__ void emulated_KIND(int ticks) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        __nanosleep(100);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < ticks * 32ull);
}
"""
# step of that clock on an H100; a C int of them lasts a minute
_TICK_S = 32e-9
# of a message
_LONGEST_S = 60.0


class _Link(Communicator):
    """What links on both devices have in common."""

    name = "emulate"

    def __init__(self, size: int, table: LatencyTable, groups: int = 1) -> None:
        super().__init__(size, exchange=_Exchange(groups, self))
        # time of an all-reduce by message size
        self.table = table

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        return self.send("all_reduce", x.nbytes, blocking=blocking)

    def all_gather(self, x: Tensor) -> Tensor:
        gathered = super().all_gather(x)
        self.send("all_gather", gathered.nbytes, blocking=True).wait()
        return gathered

    def gather_rows(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        every, _ = super().gather_rows(x)
        return every, self.send("all_gather", every.nbytes, blocking=blocking)

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        part, _ = super().scatter_sum(x)
        return part, self.send("reduce_scatter", x.nbytes, blocking=blocking)

    def broadcast(self, x: Tensor) -> None:
        self.send("broadcast", x.nbytes, blocking=True).wait()

    def settings(self) -> dict[str, object]:
        return {"table": self.table.points}

    def send(self, kind: str, size_bytes: int, *, blocking: bool = False) -> Handle:
        """Queue a collective's message behind those under way."""
        raise NotImplementedError

    def _seconds(self, kind: str, size_bytes: int) -> float:
        seconds = self.table.seconds(size_bytes) * (1 if kind == "all_reduce" else 0.5)
        if seconds > _LONGEST_S:
            raise UsageError(
                f"a message of {size_bytes} bytes takes {seconds:.3g} s by the table: must be at most {_LONGEST_S:g} s",
                hint="the table's columns are in bytes and seconds; give it sizes up to those of the messages",
            )
        return seconds


class _Exchange(Communicator):
    """Groups whose messages are on a link as well; a reduce-scatter takes as long as a gather."""

    def __init__(self, size: int, link: _Link) -> None:
        super().__init__(size)
        self._link = link

    def gather_all(self, *tensors: Tensor) -> list[Tensor]:
        gathered = super().gather_all(*tensors)
        self._link.send("all_gather", sum(x.nbytes for x in gathered), blocking=True).wait()
        return gathered

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        part, _ = super().scatter_sum(x)
        return part, self._link.send("reduce_scatter", x.nbytes, blocking=blocking)


class EmulatedLink(_Link):
    """CPU: deadlines on a serial virtual link; no thread takes the core from the computation."""

    def __init__(self, size: int, table: LatencyTable, groups: int = 1) -> None:
        super().__init__(size, table, groups)
        # when the link has carried all messages so far, perf_counter seconds
        self._free_s = 0.0
        # time that messages took on the link so far
        self.busy_s = 0.0
        # time that the computation waited for them so far
        self.waited_s = 0.0

    def send(self, kind: str, size_bytes: int, *, blocking: bool = False) -> Handle:
        seconds = self._seconds(kind, size_bytes)
        self._free_s = max(time.perf_counter(), self._free_s) + seconds
        self.busy_s += seconds
        return _Deadline(self, self._free_s)

    @contextlib.contextmanager
    def watched(self) -> Iterator[CommTimes]:
        busy_s, waited_s, times = self.busy_s, self.waited_s, CommTimes()
        yield times
        times.comm_s, times.exposed_s = self.busy_s - busy_s, self.waited_s - waited_s


class _Deadline(Handle):
    def __init__(self, link: EmulatedLink, end_s: float) -> None:
        self._link, self._end_s = link, end_s

    def wait(self) -> None:
        start_s = time.perf_counter()
        if self._end_s - start_s > _SPIN_S:
            time.sleep(self._end_s - start_s - _SPIN_S)
        while time.perf_counter() < self._end_s:
            pass
        self._link.waited_s += time.perf_counter() - start_s

    def observe(self, sink: Callable[[float], None]) -> None:
        sink(self._end_s)


class EmulatedGpuLink(_Link):
    """GPU: collectives are kernels that sleep, on the streams that NCCL's would be on.

    Raises MissingDependencyError if this torch is too old to compile them.
    """

    def __init__(self, size: int, table: LatencyTable, groups: int = 1) -> None:
        if not hasattr(torch.cuda, "_compile_kernel"):
            raise MissingDependencyError(
                f"torch {torch.__version__} cannot compile the kernels of an emulated link", hint="a newer one can"
            )
        super().__init__(size, table, groups)
        self._stream = SideStream()
        self._kernels: dict[str, Callable[..., object]] = {}

    def send(self, kind: str, size_bytes: int, *, blocking: bool = False) -> Handle:
        if kind not in self._kernels:
            # NVRTC, which torch has with it: no compiler is needed
            source = _SLEEPS.replace("KIND", kind)
            self._kernels[kind] = torch.cuda._compile_kernel(source, f"emulated_{kind}")
        kernel, ticks = self._kernels[kind], round(self._seconds(kind, size_bytes) / _TICK_S)
        return self._stream.run(lambda: kernel(args=[ticks]), blocking=blocking)

    def watched(self) -> contextlib.AbstractContextManager[CommTimes]:
        return self._stream.watched()
