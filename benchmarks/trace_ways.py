"""`ladder-sim trace predict` of plain PyTorch, compared with real ladder runs over a waiting link. Needs root.

A small model is tensor-parallel over two gloo ranks in network namespaces (`link_lab.py`), in each of these ways:
blocking calls, asynchronous ones as Megatron issues them, functional collectives as torch.compile makes them, and
DTensor. Nothing of this project records: `torch.profiler` does. Packets are large, so that the link takes time and
hardly any of the ranks' cores, as with a network card. Standard and ladder steps take turns; every standard step is
rewired and compared with the next ladder step. Exits with 1 if the whole interval of a way's median error is beyond
the bound::

    python benchmarks/trace_ways.py [--pairs 20] [--rate 1gbit]
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.link_lab import LARGE_FRAME_BYTES, laboratory
from benchmarks.trace_rewire import judge, predicted
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay

WAYS = ("blocking", "asynchronous", "functional", "dtensor")
TURNS = ("standard", "ladder")
LAYERS, HIDDEN, TOKENS, HEADS = 6, 1024, 64, 8
WARMUPS = 4
LIMIT_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare rewired traces of plain PyTorch with measured ladder runs.")
    parser.add_argument("--pairs", type=int, default=20, help="standard and ladder steps of each way")
    parser.add_argument("--rate", default="1gbit", help="of the link")
    parser.add_argument("--record", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record[0], Path(arguments.record[1]), arguments.pairs)
        return 0
    print("| way | standard | ladder, predicted | ladder, measured | error | 90 % interval | |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with laboratory(arguments.rate, frame_bytes=LARGE_FRAME_BYTES) as lab:
        beyond = [way for way in WAYS if not compare(lab, way, arguments.pairs)]
    return int(bool(beyond))


def compare(lab: Any, way: str, pairs: int) -> bool:
    """Measure a way and print its row; returns whether its error may be within the bound."""
    with tempfile.TemporaryDirectory() as folder:
        lab.run("benchmarks.trace_ways", [f"--pairs={pairs}", "--record", way, folder], timeout_s=LIMIT_S)
        graph = load([Path(folder)])
    measured_s = np.array([step.recorded_s for step in replay(graph).steps])
    predicted_s = np.array([predicted(graph.of_step(2 * pair)) for pair in range(pairs)])
    return judge(way, measured_s[::2], predicted_s, measured_s[1::2])


def record(way: str, folder: Path, pairs: int) -> None:
    """Be one rank: write its profile."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    reduced = reducer(way)
    torch.manual_seed(rank)
    weights = [block_weights(number) for number in range(2 * LAYERS)]
    x = torch.randn(TOKENS, HIDDEN)
    with (
        torch.no_grad(),
        profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=0, warmup=WARMUPS, active=2 * pairs, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
        ) as profiler,
    ):
        for number in range(WARMUPS + 2 * pairs):
            step(TURNS[number % 2], x, weights, reduced)
            profiler.step()
    dist.barrier()
    sys.stdout.flush()
    # a process group waits for its threads in its destructor
    os._exit(0)


def block_weights(number: int) -> list[Any]:
    """Of attention at even numbers, of an MLP at odd ones: half of a layer's columns and rows."""
    import torch

    attention, mlp = [(HIDDEN, 3 * HIDDEN // 2), (HIDDEN // 2, HIDDEN)], [(HIDDEN, 2 * HIDDEN), (2 * HIDDEN, HIDDEN)]
    shapes = mlp if number % 2 else attention
    return [0.02 * torch.randn(*shape) for shape in shapes]


def block(number: int, x: Any, weights: list[Any]) -> Any:
    import torch

    y = torch.nn.functional.layer_norm(x, (HIDDEN,))
    if number % 2:
        return torch.nn.functional.silu(y @ weights[0]) @ weights[1]
    q, k, v = (part.view(1, TOKENS, HEADS // 2, -1).transpose(1, 2) for part in (y @ weights[0]).chunk(3, -1))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return attended.transpose(1, 2).reshape(TOKENS, -1) @ weights[1]


def step(wiring: str, x: Any, weights: list[Any], reduced: Callable[[Any, bool], Callable[[], Any]]) -> Any:
    """A forward pass; ladder's blocks read the residual without the output of the block before."""
    late = wiring == "ladder"
    pending: list[Callable[[], Any]] = []
    for number, own in enumerate(weights):
        if len(pending) == (2 if late else 1):
            x = x + pending.pop(0)()
        pending.append(reduced(block(number, x, own), late))
    for wait in pending:
        x = x + wait()
    return x


def reducer(way: str) -> Callable[[Any, bool], Callable[[], Any]]:
    """Starts an all-reduce that may overlap, and returns its wait."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (2,))

    def blocking(y: Any, late: bool) -> Callable[[], Any]:
        if late:
            return asynchronous(y, late)
        dist.all_reduce(y)
        return lambda: y

    def asynchronous(y: Any, _: bool) -> Callable[[], Any]:
        work = dist.all_reduce(y, async_op=True)

        def wait() -> Any:
            work.wait()
            return y

        return wait

    def functionally(y: Any, _: bool) -> Callable[[], Any]:
        pending = functional.all_reduce(y, "sum", mesh)
        return lambda: functional.wait_tensor(pending)

    def by_dtensor(y: Any, _: bool) -> Callable[[], Any]:
        whole = DTensor.from_local(y, mesh, [Partial()]).redistribute(placements=[Replicate()], async_op=True)
        return lambda: whole.to_local() + 0.0

    return dict(zip(WAYS, (blocking, asynchronous, functionally, by_dtensor), strict=True))[way]


if __name__ == "__main__":
    sys.exit(main())
