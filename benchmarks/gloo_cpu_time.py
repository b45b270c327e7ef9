"""CPU time that gloo's threads take for an all-reduce between two ranks of this machine, by message size.

python benchmarks/gloo_cpu_time.py
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = tuple(4096 * 4**power for power in range(6))
WARMUPS, REPEATS = 50, 400


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        command = [sys.executable, str(Path(__file__).resolve())]
        ranks = [subprocess.Popen([*command, str(rank), store]) for rank in range(2)]
        return max(process.wait() for process in ranks)


def measure(rank: int, store: str) -> None:
    """Be one rank; the first prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    for size_bytes in SIZES:
        x = torch.zeros(size_bytes // 4)
        for _ in range(WARMUPS):
            dist.all_reduce(x)
        threads_s = time.process_time() - time.thread_time()
        for _ in range(REPEATS):
            dist.all_reduce(x)
        threads_s = time.process_time() - time.thread_time() - threads_s
        if rank == 0:
            print(f"{size_bytes:>8} bytes: {1e6 * threads_s / REPEATS:.0f} us", flush=True)
    sys.stdout.flush()
    # a process group waits for its threads in its destructor
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), sys.argv[2])
    sys.exit(main())
