"""Writes traces as torch.profiler does, for tests that know what is in them. Times in microseconds."""

import gzip
import json
from pathlib import Path
from typing import Any

PROCESS, MAIN = 4000, 4000
# stream numbers, as CUPTI gives them
COMPUTE, COMM = 7, 20


class TraceFile:
    """One rank's trace under construction."""

    def __init__(self, rank: int = 0, world_size: int = 1, *, sync_events: bool = True, host: str = "node0") -> None:
        self.events: list[dict[str, Any]] = []
        self.sync_events = sync_events
        self.correlation = 100
        self.metadata: dict[str, Any] = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "host_name": host,
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        }

    def event(self, category: str, name: str, start: float, duration: float, thread: Any, **args: Any) -> None:
        process = 0 if category in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync") else PROCESS
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    def call(self, name: str, start: float, duration: float, *, thread: int = MAIN) -> int:
        """A call of the CUDA runtime; returns its correlation id."""
        self.correlation += 1
        self.event("cuda_runtime", name, start, duration, thread, correlation=self.correlation)
        return self.correlation

    def kernel(
        self,
        name: str,
        called: float,
        start: float,
        duration: float,
        *,
        stream: int = COMPUTE,
        call: float = 5,
        thread: int = MAIN,
        category: str = "kernel",
        **args: Any,
    ) -> int:
        """A kernel and its launch."""
        launch = "cudaLaunchKernel" if category == "kernel" else "cudaMemcpyAsync"
        correlation = self.call(launch, called, call, thread=thread)
        self.event(category, name, start, duration, stream, stream=stream, device=0, correlation=correlation, **args)
        return correlation

    def all_reduce(
        self, called: float, start: float, duration: float, *, stream: int = COMM, elements: int = 4096
    ) -> int:
        """NCCL's kernel for one."""
        return self.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            called,
            start,
            duration,
            stream=stream,
            **{
                "Collective name": "allreduce",
                "In msg nelems": elements,
                "dtype": "BFloat16",
                "Group size": 2,
                "Process Group Name": "0",
            },
        )

    def wait(self, recorded: float, called: float, *, on: int, by: int) -> None:
        """Record an event on stream `on`, and let stream `by` wait for it."""
        record = self.call("cudaEventRecord", recorded, 1)
        waiting = self.call("cudaStreamWaitEvent", called, 1)
        self.sync(
            "Stream Wait Event",
            called,
            1,
            waiting,
            stream=by,
            wait_on_stream=on,
            wait_on_cuda_event_record_corr_id=record,
        )

    def sync(self, kind: str, start: float, duration: float, correlation: int, **args: Any) -> None:
        if self.sync_events:
            self.event(
                "cuda_sync", kind, start, duration, -1, cuda_sync_kind=kind, device=0, correlation=correlation, **args
            )

    def step(self, number: int, start: float, duration: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", start, duration, MAIN)

    def document(self) -> dict[str, Any]:
        return {**self.metadata, "traceEvents": self.events}

    def write(self, path: Path) -> Path:
        text = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


# kernels of a transformer block, behind its add and norm
BLOCK = {"attention": ("qkv_gemm", "flash_fwd", "o_gemm"), "mlp": ("up_gemm", "silu", "down_gemm")}
KERNEL_US, REDUCE_US = 40, 60
LAYERS = 3
PER_BLOCK = 5


def tensor_parallel(*, stream: int = COMM, layers: int = LAYERS) -> TraceFile:
    """A forward pass in the standard wiring, launched far ahead: each block is five kernels and an all-reduce.

    Every kernel takes `KERNEL_US`, every all-reduce `REDUCE_US`. On the compute stream itself if `stream` is `COMPUTE`.
    """
    trace = TraceFile(0, 2)
    called, now = 0.0, 10_000.0

    def run(name: str) -> None:
        nonlocal called, now
        trace.kernel(name, called, now, KERNEL_US)
        called, now = called + 6, now + KERNEL_US

    trace.event("cpu_op", "aten::add", 0, 1, MAIN)
    # the kernels start late, so that everything is launched before
    run("embedding")
    for block in range(2 * layers):
        if block:
            run("at::native::CUDAFunctor_add")
        run("rms_norm_kernel")
        for name in BLOCK["mlp" if block % 2 else "attention"]:
            run(name)
        if stream != COMPUTE:
            trace.wait(called, called + 1, on=COMPUTE, by=stream)
        trace.all_reduce(called + 3, now, REDUCE_US, stream=stream)
        now += REDUCE_US
        if stream != COMPUTE:
            trace.wait(called + 9, called + 10, on=stream, by=COMPUTE)
        called += 12
    for name in ("at::native::CUDAFunctor_add", "rms_norm_kernel", "lm_head_gemm"):
        run(name)
    return trace
