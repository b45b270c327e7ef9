"""Record steps with PyTorch's profiler, as `ladder-sim trace` reads them.

For code of your own::

    from ladder_sim_runtime.trace import recorded_steps

    for _ in recorded_steps("traces/standard"):
        model(tokens)
"""

import errno
import gzip
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function, schedule

from ladder_sim.errors import UsageError
from ladder_sim.system.files import locked, shown_path
from ladder_sim_runtime.comm.base import Handle
from ladder_sim_runtime.comm.emulate import EmulatedLink
from ladder_sim_runtime.comm.rendezvous import Place

# to see whether a file is complete
_TAIL_BYTES = 100


def recorded_steps(
    folder: str | Path, *, steps: int = 3, warmups: int = 1, observe_steps: bool = False
) -> Iterator[int]:
    """Count through `warmups` and `steps`; the body of each iteration is profiled as one step.

    Writes ``rankN.json.gz`` and an execution trace, ``rankN.execution.json.gz``, into `folder`, which is created if
    needed. Steps are ``ProfilerStep#W`` and so on, where ``W`` is `warmups`, 1 or more: these are not recorded, and the
    execution trace is of them. With `observe_steps` there is one of the recorded steps too: it shows which operator
    reads the result of an asynchronous gloo collective, and makes each operator about 25 us slower. Raises UsageError
    if `warmups` or `steps` is less than 1, or another process records into the folder.
    """
    if warmups < 1 or steps < 1:
        raise UsageError(
            f"{warmups} warm-ups and {steps} steps: must be 1 or more of each",
            hint="the execution trace needs a warm-up, the profile a step",
        )
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Place.from_environment()[:2]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()

    def export(done: profile) -> None:
        plain = Path(scratch, "trace.json")
        done.export_chrome_trace(str(plain))
        _pack(plain, folder / f"rank{rank}.json.gz")

    with (
        # files of two runs would be mixed
        locked(folder) if rank == 0 else nullcontext(),
        tempfile.TemporaryDirectory() as scratch,
        profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
            record_shapes=True,
            schedule=schedule(wait=0, warmup=warmups, active=steps, repeat=1),
            on_trace_ready=export,
            experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True) if cuda else None,
            acc_events=True,
        ) as profiler,
    ):
        plain = Path(scratch, "execution.json")
        observer = ExecutionTraceObserver().register_callback(str(plain))
        observer.start()
        try:
            for number in range(warmups + steps):
                if number == warmups and not dist.is_initialized():
                    profiler.add_metadata_json("distributedInfo", json.dumps({"rank": rank, "world_size": ranks}))
                yield number
                if number == (warmups + steps if observe_steps else warmups) - 1:
                    # finishes the file, which is compressed here: the observer would print that it does
                    observer.unregister_callback()
                    _pack(plain, folder / f"rank{rank}.execution.json.gz")
                profiler.step()
        finally:
            # if the caller left the loop early
            observer.unregister_callback()


def _pack(plain: Path, target: Path) -> None:
    """Compress what the profiler has written; raise UsageError if it is not all there."""
    try:
        with plain.open("rb") as source, gzip.open(target, "wb") as packed:
            source.seek(-min(_TAIL_BYTES, plain.stat().st_size), os.SEEK_END)
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(errno.EIO, f"what the profiler wrote to {plain.parent.parent} is cut off")
            source.seek(0)
            shutil.copyfileobj(source, packed)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise UsageError(
            f"'{shown_path(target)}' cannot be written: {error.strerror}",
            hint="make room, or choose other folders: the profiler writes to TMPDIR first",
        ) from None


class MarkedLink(EmulatedLink):
    """An emulated link whose messages are spans in a profiler's trace: no operator stands for them.

    ``link:all_reduce 3, 6144 bytes, 740.0 us``: message 3 is issued there and ends so long after the start of the span.
    ``link:wait 3``: the computation waits for it.
    """

    def __init__(self, link: EmulatedLink) -> None:
        super().__init__(link.size, link.table, link.exchange.size)
        self._sent = 0

    def send(self, kind: str, size_bytes: int, *, blocking: bool = False) -> Handle:
        handle = super().send(kind, size_bytes)
        self._sent += 1
        label = f"link:{kind} {self._sent}, {size_bytes} bytes"
        handle.observe(lambda end_s: _mark(f"{label}, {1e6 * (end_s - time.perf_counter()):.1f} us"))
        return _MarkedHandle(handle, self._sent)


def _mark(name: str) -> None:
    with record_function(name):
        pass


class _MarkedHandle(Handle):
    def __init__(self, inner: Handle, number: int) -> None:
        self._inner, self._number = inner, number

    def wait(self) -> None:
        with record_function(f"link:wait {self._number}"):
            self._inner.wait()

    def observe(self, sink: Callable[[float], None]) -> None:
        self._inner.observe(sink)
