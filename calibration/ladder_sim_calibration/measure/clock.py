"""Two clocks: a CPU's work is done when a call returns, a GPU's some time later.

What only CUDA has is in `CudaClock`, in `holder` and in `launches`; tests put a clock of their own in its place.
"""

import ctypes
import functools
import math
import time
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch

# a GPU is held for this long, and for so long for each launch that Python queues meanwhile: a GEMM of torch takes about
# 10 us to launch, its event a few more; doubled where that turns out to be too short
HOLD_S, LAUNCH_S = 1e-3, 20e-6
# at most, for a launch
MAX_LAUNCH_S = 1e-3
# cycles per second of the kernel that holds it; no GPU's clock is above that, so that it holds for longer if anything
CYCLES_PER_S = 2.5e9
# launches that a GPU queues, about 1000 (CUDA documents no number): beyond that Python waits. An event is one, too
DEPTH = 1000
# runs of a kernel in a row for one repeat last as long as this, so that the GPU has no pauses to cool down in, but are
# no more launches than so many
CHAIN_S, CHAIN_LAUNCHES = 2e-3, 400
# power management follows the load within tens of milliseconds, and reports clocks every 100 ms (nvidia-smi)
WARM_S = 0.2
# of nvml.h
_NVML_CLOCK_SM = 1


class Timing(NamedTuple):
    """One repeat of an op."""

    seconds: float
    alone_s: float | None = None
    """Without the op that ran at the same time."""


class Clock:
    """Takes time stamps in a device's work; this one for a CPU, whose work is done when its call returns.

    An op runs for `warm_s` seconds before it is timed: by then the device's clock has followed the load.
    """

    warm_s = 0.0

    def now(self) -> Any:
        """Return a mark of the moment at which all work issued so far is done."""
        return time.perf_counter()

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Return the seconds between two moments, once all work is done."""
        return float(end - start)

    def hold(self, launches: int) -> None:
        """Delay the device until Python has queued its launches, so that the device never waits for Python."""

    def has_held(self, start: Any) -> bool:
        """Whether the device was still held when everything after `start` was queued; else hold it for longer."""
        return True

    def chain(self, seconds: float) -> int:
        """Return how many runs of a kernel that takes `seconds` make a repeat."""
        return 1

    def frequency(self) -> float | None:
        """Return the frequency of the device's clock in MHz; None if it is not known."""
        return None


class CudaClock(Clock):
    """For work on the current stream."""

    warm_s = WARM_S

    def __init__(self) -> None:
        self._launch_s = LAUNCH_S
        self._gpu = ctypes.c_void_p()

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def hold(self, launches: int) -> None:
        torch.cuda._sleep(round((HOLD_S + launches * self._launch_s) * CYCLES_PER_S))

    def has_held(self, start: torch.cuda.Event) -> bool:
        if not start.query() or self._launch_s >= MAX_LAUNCH_S:
            return True
        self._launch_s *= 2.0
        return False

    def chain(self, seconds: float) -> int:
        return min(CHAIN_LAUNCHES, math.ceil(CHAIN_S / seconds))

    def frequency(self) -> float | None:
        if self._nvml is None:
            return None
        clock = ctypes.c_uint()
        failed = self._nvml.nvmlDeviceGetClockInfo(self._gpu, _NVML_CLOCK_SM, ctypes.byref(clock))
        return None if failed else float(clock.value)

    @cached_property
    def _nvml(self) -> ctypes.CDLL | None:
        """The driver's library; None: it is not there, or does not know this GPU."""
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        name = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
        return None if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._gpu)) else nvml


@cache
def clock_of(device: torch.device) -> Clock:
    """Return the clock that times a device's work."""
    return CudaClock() if device.type == "cuda" else Clock()


def chained(run: Callable[[], object], clock: Clock, runs: int, launches: int = 1) -> float:
    """Return the mean seconds of one of several runs in a row, behind an untimed one in which the ranks meet."""
    clock.hold(launches * (1 + runs))
    run()
    start = clock.now()
    for _ in range(runs):
        run()
    return clock.elapsed_s(start, clock.now()) / runs


def timed(run: Callable[[], object], clock: Clock, launches: int = 1, *, runs: int = 1) -> float:
    """Return the mean seconds of `run` on the device, with its number of launches, over several runs in a row."""
    while True:
        clock.hold(runs * launches)
        start = clock.now()
        # kept until the end, so that no run writes its result to where the one before wrote
        results = [run() for _ in range(runs)]
        end = clock.now()
        del results
        # of more than are queued, the last are launched while others run
        if runs * launches > DEPTH or clock.has_held(start):
            return clock.elapsed_s(start, end) / runs


DTYPE = torch.bfloat16
# numbers that are drawn; larger tensors repeat them. Odd, so that rows of a power of two do not
DRAWN = 2**22 - 1
SEED = 0


def normal(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return a tensor of normally distributed numbers, equal for equal shapes."""
    elements, drawn = math.prod(shape), _drawn(device)
    numbers = drawn[:elements].clone() if elements <= DRAWN else drawn.repeat(-(-elements // DRAWN))[:elements]
    return numbers.view(shape)


@functools.cache
def _drawn(device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(SEED)
    return torch.randn(DRAWN, generator=generator, device=device).to(DTYPE)
