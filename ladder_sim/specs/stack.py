"""How an inference engine runs the graph of a forward pass."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from ladder_sim.specs.fields import Bytes, Limits, Seconds, check_fields
from ladder_sim.specs.values import choice, nonempty

AttentionKernel = Literal["flash", "math"]
AllReduce = Literal["nccl", "one-shot", "two-shot", "nvls", "auto"]
PrefillLogits = Literal["all", "last"]

# of a measured time
Factor = Annotated[float, Limits(0, 1000.0, above=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """An inference engine's habits, as far as they change what runs on the GPU."""

    name: str
    """Catalog id."""
    attention: AttentionKernel
    """Flash: fused, over the live context; math: separate kernels over the whole static cache, KV heads expanded."""
    fused_residual_add: bool
    """Blocking variants add the all-reduced block inside the next norm's kernel."""
    fused_ladder_add: bool
    """Ladder's deferred add happens inside the next norm's kernel."""
    cuda_graphs: bool
    """Decode is replayed as one CUDA graph."""
    prefill_cuda_graphs: bool
    """Prefill is replayed as one CUDA graph."""
    sharded_lm_head: bool
    """LM head split over the vocabulary, followed by an all-gather of logits; else a replica on every rank."""
    sharded_embedding: bool
    """Embedding split over the vocabulary, followed by an all-reduce; else a replica on every rank."""
    prefill_logits: PrefillLogits
    """Logits of every prompt position, or of the last only."""
    allreduce: AllReduce
    """Algorithm of the tensor-parallel all-reduce."""
    collective_launch_s: Seconds
    """Start-up of each collective beyond its isolated latency (launch, stream synchronisation, skew), seconds."""
    stream_wait_s: Seconds
    """Cost of a stream waiting for another stream's event, seconds."""
    eager_launch_s: Seconds
    """CPU time to launch one kernel where no CUDA graph is used, seconds."""
    memory_overhead_bytes: Bytes
    """Context, communicator buffers and allocator slack per GPU, bytes."""
    graph_launch_s: Seconds = 0.0
    """CPU time from deciding to run a CUDA graph to its first kernel, seconds."""
    kernel_gap_s: Seconds = 0.0
    """Idle time before each kernel beyond what measured kernel times hold, seconds."""
    gemv_factor: Factor = 1.0
    """Time of a one-row GEMM, as a multiple of the measured one."""
    gemm_factor: Factor = 1.0
    """Time of a memory-bound GEMM of several rows, as a multiple of the measured one."""
    prompt_factor: Factor = 1.0
    """Time of a compute-bound GEMM and of attention over a prompt, as a multiple of the measured one."""
    attention_factor: Factor = 1.0
    """Time of decode attention's memory traffic, as a multiple of the measured one."""
    small_kernel_factor: Factor = 1.0
    """Floor of a small kernel, as a multiple of the GPU's."""
    batched_attention_s: Seconds = 0.0
    """Fixed time that decode attention of several sequences takes beyond one sequence's, seconds."""
    # far beyond any tensor-parallel group
    custom_allreduce_without_nvlink: Annotated[int, Limits(0, 100_000)] = 0
    """Largest group on which all-reduce ``auto`` takes the engine's own kernels where NVLink does not join all GPUs."""
    profile: str = ""
    """Shipped profile in which its figures are fitted to end-to-end runs; empty: no such profile."""
    note: str = ""
    """What the reader of its predictions should know."""
    source: str = ""
    """Where the figures come from."""

    @property
    def shares_kernels(self) -> bool:
        """No fit of its own: the GPU's tables price its kernels as those of every other such stack."""
        return not self.profile

    @property
    def static_cache(self) -> bool:
        """Attention reads the whole cache, prompt and answer, at every step."""
        return self.attention == "math"

    @property
    def stores_scores(self) -> bool:
        """Attention writes its scores to memory, and keys and values expanded to every query head."""
        return self.attention == "math"

    def __post_init__(self) -> None:
        where = f"stack '{nonempty(self.name, 'stack name')}'"
        # a flag of its own
        choice(self.allreduce, "all-reduce", get_args(AllReduce))
        check_fields(self, where)
