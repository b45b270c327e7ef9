"""Record what a rank does, kernel by kernel and collective by collective, as the JSON lines of docs/runtime.md."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.comm.base import Communicator, Handle

SCHEMA_VERSION = 1

# a moment: seconds on a CPU, an event in the current stream of a GPU
Stamp = float | torch.cuda.Event


class Recorder:
    """Kernels and collectives in issue order, with the times at which they began and ended.

    Hand it to `kernels.observed`, and the communicator that `communicator` returns to the model.
    """

    def __init__(self, *, cuda: bool = False) -> None:
        self._cuda = cuda
        self._entries: list[dict[str, Any]] = []
        self._tags: dict[str, object] = {}
        self._place: tuple[int, str] = (-1, "start")
        self._zero: Stamp = self.now()
        if cuda:
            torch.cuda.synchronize()

    def tag(self, **tags: object) -> None:
        """Fields of every entry that follows, such as the variant and the phase."""
        self._tags = tags

    def communicator(self, inner: Communicator) -> Communicator:
        """The same communicator, recorded."""
        return RecordedCommunicator(inner, self)

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        entry = self.enter(kind, tensors)
        result = run(*args)
        entry["end_s"] = self.now()
        return result

    def place(self, layer: int, part: str) -> None:
        self._place = (layer, part)

    def enter(self, op: str, tensors: list[Tensor]) -> dict[str, Any]:
        """Append an entry that begins now."""
        layer, part = self._place
        entry = {
            **self._tags,
            "layer": layer,
            "part": part,
            "op": op,
            "shapes": [list(x.shape) for x in tensors],
            "dtypes": [str(x.dtype).removeprefix("torch.") for x in tensors],
            "start_s": self.now(),
            "end_s": None,
        }
        self._entries.append(entry)
        return entry

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every entry, times in seconds since the recording began."""
        if self._cuda:
            torch.cuda.synchronize()
        for entry in self._entries:
            yield {key: self._seconds(value) if key.endswith("_s") else value for key, value in entry.items()}

    def save(self, file: Path, header: dict[str, object]) -> None:
        """Write a header line and a line per entry."""
        with file.open("w", encoding="utf-8") as lines:
            for line in ({"schema_version": SCHEMA_VERSION, **header}, *self.entries()):
                lines.write(json.dumps(line) + "\n")

    def now(self) -> Stamp:
        """The present moment."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, stamp: Stamp | None) -> float | None:
        if stamp is None:
            return None
        if isinstance(stamp, float):
            return stamp - self._zero if isinstance(self._zero, float) else None
        return float(self._zero.elapsed_time(stamp)) * 1e-3 if isinstance(self._zero, torch.cuda.Event) else None


class RecordedCommunicator:
    """A communicator that enters what it does into a recording."""

    def __init__(self, inner: Communicator, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder
        self.name, self.rank, self.size = inner.name, inner.rank, inner.size

    def all_reduce(self, x: Tensor) -> Handle:
        entry = self._recorder.enter("all_reduce", [x])
        entry["bytes"] = x.nbytes
        return _RecordedHandle(self._inner.all_reduce(x), entry, self._recorder)

    def all_gather(self, x: Tensor) -> Tensor:
        entry = self._recorder.enter("all_gather", [x])
        entry["bytes"] = x.nbytes * self.size
        every = self._inner.all_gather(x)
        entry["end_s"] = self._recorder.now()
        return every

    def broadcast(self, x: Tensor) -> None:
        entry = self._recorder.enter("broadcast", [x])
        entry["bytes"] = x.nbytes
        self._inner.broadcast(x)
        entry["end_s"] = self._recorder.now()

    def slowest(self, seconds: Tensor) -> Tensor:
        return self._inner.slowest(seconds)

    def barrier(self) -> None:
        self._inner.barrier()

    def settings(self) -> dict[str, object]:
        return self._inner.settings()


class _RecordedHandle:
    def __init__(self, inner: Handle, entry: dict[str, Any], recorder: Recorder) -> None:
        self._inner, self._entry, self._recorder = inner, entry, recorder
        inner.observe(self._ended)

    def wait(self) -> None:
        self._entry["wait_start_s"] = self._recorder.now()
        self._inner.wait()
        self._entry["wait_end_s"] = self._recorder.now()

    def observe(self, sink: Callable[[float], None]) -> None:
        self._inner.observe(sink)

    def _ended(self, at_s: float) -> None:
        self._entry["end_s"] = at_s
