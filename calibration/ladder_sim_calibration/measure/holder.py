"""Holds a part of the processor while kernels run next to it: SMs of a GPU, threads of a CPU.

That is what a collective does to a kernel, without its traffic.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch

from ladder_sim_calibration.measure.collectives import UNSUPPORTED

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
    """Hold so many SMs, or threads, for all that is issued in the body."""
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
