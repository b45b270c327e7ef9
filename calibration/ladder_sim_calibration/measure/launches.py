"""What it costs to start kernels: those of the runtime one by one, CUDA graphs, streams that wait for each other."""

import time
from collections.abc import Callable
from typing import Any

import torch

from ladder_sim.wirings.layout import lay_out
from ladder_sim_calibration.fit.samples import Sample
from ladder_sim_calibration.measure.clock import clock_of, timed
from ladder_sim_calibration.measure.plan import QUEUED_KERNELS
from ladder_sim_runtime.assemble import assemble
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model.kernels import observed

# of a tensor whose kernels take as long as any kernel does at least
TINY_ELEMENTS = 1
# launches in a row, whose mean is taken
LAUNCHES = 1000
# a decoder whose kernels end sooner than Python launches the next ones
TINY_MODEL = ModelConfig(
    layers=8, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=512, vocab=512, norm_eps=1e-5, rope_theta=1e4
)
PROMPT, STEPS = 8, 8


def launch(op: Sample, device: torch.device) -> Callable[[], float]:
    """Return a function that measures a launch once, in seconds per kernel or graph."""
    if op.op == "eager_launch":
        return _eager(device)
    x = torch.zeros(TINY_ELEMENTS, device=device)
    if op.op == "graph_launch":
        graph = _graph(x, 1)
        return lambda: _repeated_s(graph.replay, LAUNCHES, device) / LAUNCHES
    if op.op == "graph_kernel":
        graph = _graph(x, LAUNCHES)
        return lambda: _repeated_s(graph.replay, 1, device) / LAUNCHES
    return lambda: _queued_s(x, int(op.point["streams"])) / QUEUED_KERNELS


def _eager(device: torch.device) -> Callable[[], float]:
    """Decode steps of the runtime, per kernel in the simulator's sense, which may be several launches."""
    # as engines run: decode attention of GPUs is for 16 bits
    generator = assemble(
        TINY_MODEL,
        EngineConfig(),
        Communicator(),
        device=device,
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
        batch=1,
        prompt=PROMPT,
        gen=1 + STEPS,
        seed=0,
    )
    wiring = lay_out("standard", TINY_MODEL.layers, ())
    kinds: list[str] = []

    def count(kind: str, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        # in no graph: a part of the kernel before
        if kind != "positions":
            kinds.append(kind)
        return kernel(*arguments)

    def steps() -> None:
        for step in range(1, 1 + STEPS):
            generator.decode(wiring, step)

    def measure() -> float:
        generator.prefill(wiring)
        if not kinds:
            with observed(count):
                steps()
            generator.prefill(wiring)
        return _repeated_s(steps, 1, device) / len(kinds)

    return measure


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
    """Return the seconds of tiny kernels that each wait for the one before; the streams take turns."""
    turns = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(streams - 1))]

    def run() -> None:
        for number in range(QUEUED_KERNELS):
            current, following = turns[number % streams], turns[(number + 1) % streams]
            with torch.cuda.stream(current):
                x.add_(1.0)
            if following != current:
                following.wait_stream(current)

    # a whole number of rounds ends on the stream it began on; a wait records an event, too
    return timed(run, clock_of(x.device), launches=3 * QUEUED_KERNELS)
