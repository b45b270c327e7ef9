"""Writes traces as torch.profiler does, for tests that know what is in them. Times in microseconds."""

import gzip
import json
from collections.abc import Sequence
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
        return self.collective("allreduce", called, start, duration, stream=stream, elements=elements)

    def collective(
        self, name: str, called: float, start: float, duration: float, *, stream: int = COMM, elements: int = 4096
    ) -> int:
        """NCCL's kernel for a collective with this name in its metadata."""
        kernel = "AllReduce_Sum_bf16_RING_LL" if name == "allreduce" else "SendRecv"
        return self.kernel(
            f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)",
            called,
            start,
            duration,
            stream=stream,
            **{
                "Collective name": name,
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

    def append(self, later: "TraceFile", shift: float) -> None:
        """Add the events of another trace some time later: its launches follow the first ones, its kernels theirs."""
        for event in later.events:
            event["ts"] += shift
            for key in ("correlation", "wait_on_cuda_event_record_corr_id"):
                if key in event["args"]:
                    event["args"][key] += 10_000
        self.events += later.events

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


class Ahead:
    """A pass that is launched far ahead: every op begins when what it waits for ends."""

    def __init__(self, *, sync_events: bool = True) -> None:
        self.trace = TraceFile(0, 2, sync_events=sync_events)
        # the kernels start late, so that everything is launched before
        self.called, self.now = 0.0, 10_000.0
        self.trace.event("cpu_op", "aten::add", 0, 1, MAIN)

    def run(self, *names: str) -> None:
        """Kernels that compute, one after another."""
        for name in names:
            self.trace.kernel(name, self.called, self.now, KERNEL_US)
            self.called, self.now = self.called + 6, self.now + KERNEL_US

    def communicate(self, collective: str = "allreduce", duration: float = REDUCE_US, *, stream: int = COMM) -> None:
        """A collective behind what was computed, which what follows waits for."""
        if stream != COMPUTE:
            self.trace.wait(self.called, self.called + 1, on=COMPUTE, by=stream)
        self.trace.collective(collective, self.called + 3, self.now, duration, stream=stream)
        self.now += duration
        if stream != COMPUTE:
            self.trace.wait(self.called + 9, self.called + 10, on=stream, by=COMPUTE)
        self.called += 12


def tensor_parallel(*, stream: int = COMM, layers: int = LAYERS) -> TraceFile:
    """A forward pass in the standard wiring, launched far ahead: each block is five kernels and an all-reduce.

    Every kernel takes `KERNEL_US`, every all-reduce `REDUCE_US`. On the compute stream itself if `stream` is `COMPUTE`.
    """
    ahead = Ahead()
    ahead.run("embedding")
    for block in range(2 * layers):
        if block:
            ahead.run("at::native::CUDAFunctor_add")
        ahead.run("rms_norm_kernel", *BLOCK["mlp" if block % 2 else "attention"])
        ahead.communicate(stream=stream)
    ahead.run("at::native::CUDAFunctor_add", "rms_norm_kernel", "lm_head_gemm")
    return ahead.trace


def uneven_ranks(extra_us: Sequence[float]) -> tuple[TraceFile, TraceFile]:
    """A pass on two ranks; each block takes the second so much longer, and the first waits in the all-reduce behind."""
    ranks = []
    for rank in range(2):
        ahead = Ahead()
        ahead.trace.metadata["distributedInfo"]["rank"] = rank
        ahead.run("embedding")
        for block, late_us in enumerate(extra_us):
            ahead.run("rms_norm_kernel", *BLOCK["mlp" if block % 2 else "attention"][:-1])
            own_us = KERNEL_US + late_us * rank
            ahead.trace.kernel(BLOCK["mlp" if block % 2 else "attention"][-1], ahead.called, ahead.now, own_us)
            ahead.called, ahead.now = ahead.called + 6, ahead.now + own_us
            ahead.communicate(duration=REDUCE_US + late_us * (1 - rank))
        ahead.run("rms_norm_kernel", "lm_head_gemm")
        ranks.append(ahead.trace)
    return ranks[0], ranks[1]


# a decode step of vLLM: kernels of a layer between its all-reduces, and of the head; names and microseconds
NORM = ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)", 2.5)
ATTENTION = (
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 6.0),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", 2.0),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", 2.0),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>>(flash::Flash_fwd_params)", 6.0),
    ("nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT", 4.0),
)
MLP = (
    ("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", 10.0),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>", 2.5),
    ("nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT", 7.0),
)
HEAD = (
    NORM,
    ("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", 60.0),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>", 9.0),
)
CUSTOM_REDUCE = ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", 9.0, COMPUTE)
DECODE_LAYERS, DECODE_GAP_US = 32, 1.0


def decode_graph(
    rank: int = 0,
    *,
    steps: int = 3,
    reduce: tuple[tuple[str, float, int], ...] = (CUSTOM_REDUCE,),
    norms: bool = True,
    copy_back: tuple[str, ...] = ("cudaMemcpyAsync", "cudaEventSynchronize"),
) -> TraceFile:
    """Decode steps of `DECODE_LAYERS` layers, each one CUDA graph; the CPU waits for the tokens of each.

    Parameters
    ----------
    rank
        Of two.
    steps
        How many.
    reduce
        Name, microseconds and stream of the kernels of an all-reduce.
    norms
        Whether each block begins with a norm.
    copy_back
        The calls that copy the tokens and wait for them; one does both.
    """
    trace = TraceFile(rank, 2, sync_events=False)
    begin = 0.0
    for _ in range(steps):
        trace.event("user_annotation", "execute_context_0(0)_generation_16(16)", begin, 300, MAIN)
        trace.kernel("Memcpy HtoD (Pinned -> Device)", begin, begin + 8, 1.2, category="gpu_memcpy")
        graph = trace.call("cudaGraphLaunch", begin + 60, 180)
        now = begin + 120

        def run(name: str, duration: float, correlation: int, stream: int = COMPUTE) -> None:
            nonlocal now
            trace.event("kernel", name, now, duration, stream, stream=stream, device=0, correlation=correlation)
            now += duration + DECODE_GAP_US

        for block in range(2 * DECODE_LAYERS):
            for name, duration in ((NORM,) if norms else ()) + (MLP if block % 2 else ATTENTION):
                run(name, duration, graph)
            for name, duration, stream in reduce:
                run(name, duration, graph, stream)
        for number, (name, duration) in enumerate(HEAD):
            run(name, duration, trace.call("cudaLaunchKernel", begin + 260 + 8 * number, 5))
        copied = now + 1.5
        last = copied + 4 - begin - 300
        copy = trace.call(copy_back[0], begin + 300, last if len(copy_back) == 1 else 6)
        trace.event(
            "gpu_memcpy", "Memcpy DtoH (Device -> Host)", now, 1.5, COMPUTE, stream=COMPUTE, device=0, correlation=copy
        )
        for name in copy_back[1:]:
            trace.call(name, begin + 310, last - 10)
        begin = copied + 150
    return trace
