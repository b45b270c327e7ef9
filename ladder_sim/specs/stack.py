"""How an inference engine runs the graph of a forward pass."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ladder_sim.specs.values import choice, flag, nonempty, real, whole

AttentionKernel = Literal["flash", "math"]
AllReduce = Literal["nccl", "one-shot", "two-shot", "nvls", "auto"]
PrefillLogits = Literal["all", "last"]

# cost of one launch or wait
_MAX_SECONDS = 10.0
# of a measured time
_MAX_FACTOR = 1000.0
# far beyond any tensor-parallel group
_MAX_RANKS = 100_000
# memory of one device
_MAX_BYTES = 1e15


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
    """The same for ladder's deferred add."""
    cuda_graphs: bool
    """Decode is replayed as one CUDA graph."""
    prefill_cuda_graphs: bool
    """The same for prefill."""
    sharded_lm_head: bool
    """LM head split over the vocabulary, followed by an all-gather of logits; else a replica on every rank."""
    sharded_embedding: bool
    """Embedding split over the vocabulary, followed by an all-reduce; else a replica on every rank."""
    prefill_logits: PrefillLogits
    """Logits of every prompt position, or of the last only."""
    allreduce: AllReduce
    """Algorithm of the tensor-parallel all-reduce."""
    collective_launch_s: float
    """Start-up of each collective beyond its isolated latency (launch, stream synchronisation, skew), seconds."""
    stream_wait_s: float
    """Cost of a stream waiting for another stream's event, seconds."""
    eager_launch_s: float
    """CPU time to launch one kernel where no CUDA graph is used, seconds."""
    memory_overhead_bytes: float
    """Context, communicator buffers and allocator slack per GPU, bytes."""
    graph_launch_s: float = 0.0
    """CPU time from deciding to run a CUDA graph to its first kernel, seconds."""
    kernel_gap_s: float = 0.0
    """Idle time before each kernel beyond what measured kernel times hold, seconds."""
    gemv_factor: float = 1.0
    """Time of a one-row GEMM, as a multiple of the measured one."""
    gemm_factor: float = 1.0
    """The same for a memory-bound GEMM of several rows."""
    prompt_factor: float = 1.0
    """The same for a compute-bound GEMM and for attention over a prompt."""
    attention_factor: float = 1.0
    """The same for the memory traffic of decode attention."""
    small_kernel_factor: float = 1.0
    """Floor of a small kernel, as a multiple of the GPU's."""
    batched_attention_s: float = 0.0
    """Fixed time that decode attention of several sequences takes beyond one sequence's, seconds."""
    custom_allreduce_without_nvlink: int = 0
    """Largest group on which all-reduce ``auto`` takes the engine's own kernels where NVLink does not join all GPUs."""
    profile: str = ""
    """Shipped profile in which its figures are fitted to end-to-end runs; empty: no such profile."""
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
        choice(self.attention, f"{where}: attention", get_args(AttentionKernel))
        choice(self.allreduce, "all-reduce", get_args(AllReduce))
        choice(self.prefill_logits, f"{where}: prefill_logits", get_args(PrefillLogits))
        for field in fields(self):
            value, what = getattr(self, field.name), f"{where}: {field.name}"
            if field.type is bool:
                flag(value, what)
            elif field.name.endswith("_s"):
                real(value, what, _MAX_SECONDS, zero=True)
            elif field.name.endswith("_factor"):
                real(value, what, _MAX_FACTOR)
        whole(self.custom_allreduce_without_nvlink, f"{where}: custom_allreduce_without_nvlink", 0, _MAX_RANKS)
        real(self.memory_overhead_bytes, f"{where}: memory_overhead_bytes", _MAX_BYTES, zero=True)
