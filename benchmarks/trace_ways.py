"""`ladder-sim trace predict` of plain PyTorch, compared with real ladder runs over a waiting link. Needs root.

A small model is tensor-parallel over two gloo ranks in network namespaces (`link_lab.py`), in each of the ways of
`tp_ways.py`. Nothing of this project records: `torch.profiler` does. Packets are large, so that the link takes time and
hardly any of the ranks' cores, as with a network card. Standard and ladder steps take turns; every standard step is
rewired and compared with the next ladder step. Exits with 1 if the whole interval of a way's median error is beyond
the bound::

    python -m benchmarks.trace_ways [--pairs 20] [--rate 1gbit]
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.link_lab import LARGE_FRAME_BYTES, Laboratory, laboratory
from benchmarks.tp_ways import WAYS
from benchmarks.trace_rewire import judge, predicted
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay

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


def compare(lab: Laboratory, way: str, pairs: int) -> bool:
    """Measure a way and print its row; returns whether its error may be within the bound."""
    with tempfile.TemporaryDirectory() as folder:
        lab.run("benchmarks.trace_ways", [f"--pairs={pairs}", "--record", way, folder], timeout_s=LIMIT_S)
        graph = load([Path(folder)])
    measured_s = np.array([step.recorded_s for step in replay(graph).steps])
    predicted_s = np.array([predicted(graph.of_step(2 * pair)) for pair in range(pairs)])
    return judge(way, measured_s[::2], predicted_s, measured_s[1::2])


def record(way: str, folder: Path, pairs: int) -> None:
    """Be one rank: write its profile."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with torch.no_grad():
        standard, rewired = WAYS[way]()
        torch.testing.assert_close(rewired(1), standard())
        turns = (standard, lambda: rewired(2))
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=0, warmup=WARMUPS, active=2 * pairs, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank{dist.get_rank()}.json.gz")),
        ) as profiler:
            for number in range(WARMUPS + 2 * pairs):
                turns[number % 2]()
                profiler.step()
    dist.barrier()
    sys.stdout.flush()
    # a process group waits for its threads in its destructor
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
