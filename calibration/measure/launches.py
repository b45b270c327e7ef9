"""What it costs to start tiny kernels: one by one, in CUDA graphs, and on streams that wait for each other."""

import time
from collections.abc import Callable

import torch

from calibration.fit.samples import Sample
from calibration.measure.clock import clock_of

# launches in a row, whose mean is taken
LAUNCHES = 1000
# kernels that Python queues while the clock holds the GPU
QUEUED = 50


def launch(op: Sample, device: torch.device) -> Callable[[], float]:
    """Return a function that measures a launch once, in seconds per kernel or graph."""
    x = torch.zeros(1, device=device)
    if op.op == "eager_launch":
        return lambda: _repeated_s(lambda: x.add_(1.0), LAUNCHES, device) / LAUNCHES
    if op.op == "graph_launch":
        graph = _graph(x, 1)
        return lambda: _repeated_s(graph.replay, LAUNCHES, device) / LAUNCHES
    if op.op == "graph_kernel":
        graph = _graph(x, LAUNCHES)
        return lambda: _repeated_s(graph.replay, 1, device) / LAUNCHES
    return lambda: _queued_s(x, int(op.point["streams"])) / QUEUED


def _repeated_s(run: Callable[[], object], times: int, device: torch.device) -> float:
    _synchronize(device)
    start_s = time.perf_counter()
    for _ in range(times):
        run()
    _synchronize(device)
    return time.perf_counter() - start_s


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _graph(x: torch.Tensor, kernels: int) -> torch.cuda.CUDAGraph:
    # once outside the graph: CUDA loads the kernel at its first launch, which no graph can hold
    x.add_(1.0)
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog thread calls CUDA meanwhile, which a capture by default takes for an error
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(kernels):
            x.add_(1.0)
    return graph


def _queued_s(x: torch.Tensor, streams: int) -> float:
    """Seconds of tiny kernels that each wait for the one before; the streams take turns."""
    clock = clock_of(x.device)
    turns = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(streams - 1))]
    clock.hold()
    start = clock.now()
    for number in range(QUEUED):
        current, following = turns[number % streams], turns[(number + 1) % streams]
        with torch.cuda.stream(current):
            x.add_(1.0)
        if following != current:
            following.wait_stream(current)
    # a whole number of rounds ends on the stream it began on
    return clock.elapsed_s(start, clock.now())
