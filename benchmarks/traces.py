"""Reads and replays a large trace; exits with 1 if CPU time or memory exceed the limits."""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZE_MB = 100
MAX_SECONDS, MAX_BYTES = 30.0, 2e9
STEP_US = 20.0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        write(path)
        # imported after the file is written, so that the peak is the reader's
        from ladder_sim.traces.load import load
        from ladder_sim.traces.replay import replay

        start = time.process_time()
        graph = load([path])
        read_s = time.process_time() - start
        replay(graph)
        both_s = time.process_time() - start
        size_mb = path.stat().st_size / 1e6
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    read = f"{size_mb:.0f} MB, {len(graph.ops):,} ops: read in {read_s:.1f} s of CPU time (limit {MAX_SECONDS:.0f})"
    print(f"{read}, with replay {both_s:.1f} s, peak {peak_bytes / 1e9:.2f} GB (limit {MAX_BYTES / 1e9:.0f})")
    return int(read_s > MAX_SECONDS or peak_bytes > MAX_BYTES)


def write(path: Path) -> None:
    """Write a CUDA trace of operators, launches and kernels on two streams."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n')
        number = 0
        while file.tell() < SIZE_MB * 1e6:
            file.writelines(json.dumps(event) + ",\n" for event in events(number))
            number += 1
        last = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
        file.write(json.dumps(last) + "\n]}\n")


def events(number: int) -> Iterator[dict[str, Any]]:
    at, stream = STEP_US * number, 7 if number % 4 else 20
    host = {"ph": "X", "pid": 1, "tid": 1}
    shapes = {"External id": number, "Input Dims": [[1, 8192], [8192, 1024]]}
    yield {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 15, "args": shapes}
    launch = {"correlation": number, "External id": number}
    yield {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 4, "args": launch}
    kernel = {"stream": stream, "device": 0, "grid": [132, 1, 1], "block": [384, 1, 1], **launch}
    device = {"ph": "X", "pid": 0, "tid": stream, "cat": "kernel", "ts": at + 8, "dur": 10}
    yield {**device, "name": f"sm90_xmma_gemm_bf16bf16_{'x' * 400}", "args": kernel}
    flow = {"cat": "ac2g", "name": "ac2g", "id": number}
    yield {**flow, "ph": "s", "pid": 1, "tid": 1, "ts": at + 2}
    yield {**flow, "ph": "f", "bp": "e", "pid": 0, "tid": stream, "ts": at + 8}


if __name__ == "__main__":
    sys.exit(main())
