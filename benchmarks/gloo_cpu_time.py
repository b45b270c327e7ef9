"""What an all-reduce of gloo takes of the core on which its rank computes meanwhile, by message size. Needs root.

Two ranks in network namespaces (`link_lab.py`), each on a core of its own, multiply matrices and reduce every seventh
product, or none, in turns. Shown is the median difference in CPU time for each message, with its quartiles: that of
gloo's threads, and what the products lose with their caches. Calls that issue an all-reduce are not counted, because
traces show them.

    python -m benchmarks.gloo_cpu_time
"""

import os
import statistics
import sys
import time

from benchmarks.link_lab import LARGE_FRAME_BYTES, laboratory

RATE, LIMIT_S = "1gbit", 600.0
WARMUPS, ROUNDS = 4, 24
# messages are rows of float32; products last longer than the message before
WIDTH, ROWS = 1024, (1, 4, 16, 64, 256)
MESSAGES, PRODUCTS = 12, 6


def main() -> None:
    if "--rank" in sys.argv:
        measure()
    with laboratory(RATE, frame_bytes=LARGE_FRAME_BYTES) as lab:
        lab.run("benchmarks.gloo_cpu_time", ["--rank"], timeout_s=LIMIT_S)


def measure() -> None:
    """Be one rank; the first prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = [torch.randn(WIDTH, WIDTH) for _ in range(MESSAGES)]

    def busy_s(rows: int, reduced: bool) -> float:
        x, work = torch.randn(rows, WIDTH), None
        dist.barrier()
        begun_s, issuing_s = time.process_time(), 0.0
        for number, weight in enumerate(weights):
            y = x @ weight
            if work is not None:
                work.wait()
            if reduced:
                issued_s = time.thread_time()
                work = dist.all_reduce(y, async_op=True)
                issuing_s += time.thread_time() - issued_s
            for other in range(PRODUCTS):
                x @ weights[(number + other) % MESSAGES]
        if work is not None:
            work.wait()
        return (time.process_time() - begun_s - issuing_s) / MESSAGES

    for rows in ROWS:
        lost_us = [1e6 * (busy_s(rows, True) - busy_s(rows, False)) for _ in range(WARMUPS + ROUNDS)]
        if dist.get_rank() == 0:
            low, middle, high = statistics.quantiles(lost_us[WARMUPS:], n=4)
            print(f"{4 * WIDTH * rows:>8} bytes: {middle:.0f} us ({low:.0f} to {high:.0f})", flush=True)
    dist.barrier()
    sys.stdout.flush()
    # a process group waits for its threads in its destructor
    os._exit(0)


if __name__ == "__main__":
    main()
