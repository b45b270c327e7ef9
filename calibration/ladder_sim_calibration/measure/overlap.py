"""One kernel next to an all-reduce or to SMs that are held, and each of them alone, in turns and by the same events."""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from ladder_sim_calibration.fit.samples import BESIDE, HELD, Sample
from ladder_sim_calibration.measure.clock import CHAIN_LAUNCHES, DTYPE, Timing, clock_of, normal, timed
from ladder_sim_calibration.measure.collectives import UNSUPPORTED
from ladder_sim_calibration.measure.kernels import kernel
from ladder_sim_calibration.measure.plan import HELD_KERNELS
from ladder_sim_calibration.measure.ranks import Ranks

# A block holds a whole SM: all the shared memory that a block can have leaves none for another. One thread asks for its
# release, and a limit of cycles ends it in any case: a second, at 2 GHz.
HOLD_SOURCE = """
extern "C" __global__ void hold(const volatile int* released, int limit) {
    const long long start = clock64();
    if (threadIdx.x == 0)
        while (!*released && clock64() - start < limit) __nanosleep(500);
    __syncthreads();
}
"""
LIMIT_CYCLES = 2_000_000_000
BLOCK = (1024, 1, 1)
# rounds of a hash, about a millisecond in which a thread needs neither memory nor Python's lock
HASH_ROUNDS = 1000


def held(count: int, device: torch.device) -> AbstractContextManager[None]:
    """Hold so many SMs, or threads, for all that is issued in the body: what a collective does, without its traffic."""
    return _held_sms(count, device) if device.type == "cuda" else _held_threads(count)


@contextmanager
def _held_sms(count: int, device: torch.device) -> Iterator[None]:
    released = torch.zeros(1, dtype=torch.int32, device=device)
    shared_bytes = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    # of high priority, as NCCL's; it has its SMs before the first kernel has been launched
    side = torch.cuda.Stream(priority=-1)
    side.wait_stream(torch.cuda.current_stream())
    kernel = _hold_kernel()
    if not hasattr(kernel, "set_shared_memory_config"):
        raise RuntimeError(f"this torch {UNSUPPORTED} kernels with so much shared memory")
    kernel.set_shared_memory_config(shared_bytes)
    kernel(grid=(count, 1, 1), block=BLOCK, args=[released, LIMIT_CYCLES], shared_mem=shared_bytes, stream=side)
    try:
        yield
    finally:
        # behind the kernels of the body
        released.fill_(1)
        side.synchronize()


@cache
def _hold_kernel() -> Any:
    # NVRTC, which torch has with it: no compiler is needed; an older torch does not pass it on
    compiled = getattr(torch.cuda, "_compile_kernel", None)
    return compiled and compiled(HOLD_SOURCE, "hold")


@contextmanager
def _held_threads(count: int) -> Iterator[None]:
    released, running = threading.Event(), threading.Barrier(count + 1)

    def spin() -> None:
        running.wait()
        while not released.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", HASH_ROUNDS)

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    running.wait()
    try:
        yield
    finally:
        released.set()
        for thread in threads:
            thread.join()


# in a row during one message: each is a launch, and so is its event
MAX_KERNELS = CHAIN_LAUNCHES // 2
# kernels run for this multiple of the message's time alone, and for `GROWTH` times longer whenever they end too soon
MARGIN, GROWTH = 2.0, 4.0


class OverlapMeasurement:
    """A kernel and an all-reduce of each group, ready to run at the same time.

    The op's point holds the kernel's coordinates, and bytes, ranks and nodes of the message.
    """

    def __init__(self, op: Sample, ranks: Ranks) -> None:
        name, _, message = op.op.partition(BESIDE)
        self._kernel_name, self._message_name = op.op, f"{message}{BESIDE}{name}"
        self._run = kernel(Sample(op=name, point=op.point, seconds=None), ranks.weights)
        self._ranks, self._group, self._clock = ranks, ranks.group(op), clock_of(ranks.device)
        self._margin = MARGIN
        self._tiny = torch.zeros(1, dtype=DTYPE, device=ranks.device)
        self._numbers = normal((max(1, round(op.point["bytes"] / DTYPE.itemsize)),), ranks.device)
        self._x = torch.empty_like(self._numbers)
        # the kernel's result needs memory as well: if there is too little, fail here and not during a message
        self._run()

    def measure(self) -> dict[str, Timing]:
        """Run the message alone, kernels and message together, and as many kernels alone; times by op.

        How many kernels outlast the message is found once, up to `MAX_KERNELS`: later repeats start from there.
        """
        _, message_alone_s = self._ends(0)
        kernel_s = timed(self._run, self._clock)
        while True:
            kernels = min(MAX_KERNELS, 1 + math.ceil(self._margin * message_alone_s / kernel_s))
            ends_s, message_s = self._ends(kernels)
            # a message needs all ranks: if one has to send another, all do
            if self._ranks.agree(fine=kernels == MAX_KERNELS or ends_s[-1] >= message_s):
                break
            self._margin *= GROWTH
        alone_s, _ = self._ends(kernels, message=False)
        # later kernels ran after the message's end
        count = max(1, sum(end_s <= message_s for end_s in ends_s))
        return {
            self._kernel_name: Timing(ends_s[count - 1] / count, alone_s[count - 1] / count),
            self._message_name: Timing(message_s, message_alone_s),
        }

    def _ends(self, kernels: int, *, message: bool = True) -> tuple[list[float], float]:
        """Return when each kernel and the message end, in seconds from the message's issue; without a message 0."""
        self._x.copy_(self._numbers)
        self._clock.hold(2 * kernels + 4)
        # the ranks meet
        dist.all_reduce(self._tiny, group=self._group)
        start = self._clock.now()
        message_end = self._send() if message else lambda: start
        ends = []
        for _ in range(kernels):
            self._run()
            ends.append(self._clock.now())
        end = message_end()
        return [self._clock.elapsed_s(start, at) for at in ends], self._clock.elapsed_s(start, end)

    def _send(self) -> Callable[[], Any]:
        """Issue the message; return a function that waits for it and returns the moment of its end."""
        if self._x.is_cuda:
            # of high priority, as NCCL's own
            side = torch.cuda.Stream(priority=-1)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                dist.all_reduce(self._x, group=self._group)
                at = self._clock.now()
            return lambda: at
        ended: list[float] = []
        work = dist.all_reduce(self._x, group=self._group, async_op=True)
        work.get_future().add_done_callback(lambda _: ended.append(self._clock.now()))

        def wait() -> float:
            work.wait()
            while not ended:
                time.sleep(0.0)
            return ended[0]

        return wait


def held_kernel(op: Sample, ranks: Ranks) -> Callable[[], dict[str, Timing]]:
    """Return a function that times one of `HELD_KERNELS` kernels in a row, with and without a hold of the processor."""
    run = kernel(Sample(op=op.op.partition(BESIDE)[0], point=op.point, seconds=None), ranks.weights)
    clock = clock_of(ranks.device)
    run()

    def measure() -> dict[str, Timing]:
        with held(int(op.point[HELD]), ranks.device):
            held_s = timed(run, clock, runs=HELD_KERNELS)
        return {op.op: Timing(held_s, timed(run, clock, runs=HELD_KERNELS))}

    return measure
