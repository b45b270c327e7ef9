"""What it costs to start tiny kernels: one by one, in CUDA graphs, and on streams that wait for each other."""

import time
from collections.abc import Callable

import torch

from calibration.fit.samples import Sample
from calibration.measure.clock import clock_of

# in a row; the mean is taken
KERNELS = 1000
# kernels that Python queues while the clock holds the GPU
QUEUED = 50

Seconds = Callable[[], float]


def launch(op: Sample, device: torch.device) -> Seconds:
    """What measures a launch once, in seconds per kernel or graph."""
    x = torch.zeros(1, device=device)
    if op.op == "eager_launch":
        return lambda: _back_to_back(lambda: x.add_(1.0), KERNELS, device) / KERNELS
    if op.op == "graph_launch":
        graph = _graph(x, 1)
        return lambda: _back_to_back(graph.replay, KERNELS, device) / KERNELS
    if op.op == "graph_kernel":
        graph = _graph(x, KERNELS)
        return lambda: _back_to_back(graph.replay, 1, device) / KERNELS
    return lambda: _queued(x, int(op.point["streams"])) / QUEUED


def _back_to_back(run: Callable[[], object], times: int, device: torch.device) -> float:
    _finish(device)
    start_s = time.perf_counter()
    for _ in range(times):
        run()
    _finish(device)
    return time.perf_counter() - start_s


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _graph(x: torch.Tensor, kernels: int) -> torch.cuda.CUDAGraph:
    x.add_(1.0)
    # once outside: CUDA loads the kernel at its first launch, which no graph can hold
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog thread calls CUDA meanwhile, which a capture by default takes for an error
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(kernels):
            x.add_(1.0)
    return graph


def _queued(x: torch.Tensor, streams: int) -> float:
    """Seconds of tiny kernels, each of which waits for the one before, on as many streams in turns."""
    clock = clock_of(x.device)
    own = torch.cuda.current_stream()
    turns = [own, *(torch.cuda.Stream() for _ in range(streams - 1))]
    clock.hold()
    start = clock.now()
    for number in range(QUEUED):
        here, after = turns[number % streams], turns[(number + 1) % streams]
        with torch.cuda.stream(here):
            x.add_(1.0)
        if after != here:
            after.wait_stream(here)
    # a whole number of rounds ends where it began
    return clock.elapsed_s(start, clock.now())
