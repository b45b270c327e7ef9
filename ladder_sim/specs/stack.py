"""How an inference engine runs the graph of a forward pass."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self, cast, get_args

from ladder_sim.errors import SpecError
from ladder_sim.specs.fields import Bytes, Limits, Seconds, check_fields
from ladder_sim.specs.values import choice, nonempty, real, whole
from ladder_sim.units import format_bytes, parse_quantity, quoted

AttentionKernel = Literal["flash", "math"]
# top-p: drawn from the most likely tokens, which sorts all of them
Sampling = Literal["greedy", "top-p"]
AllReduce = Literal[
    "nccl",
    "nvls",
    "nccl-symmetric",
    "one-shot",
    "two-shot",
    "push",
    "multimem",
    "symmetric-two-shot",
    "mnnvl-one-shot",
    "mnnvl-two-shot",
    "pcie-one-shot",
    "fused-norm",
    "auto",
]
# how ranks with requests of their own exchange tokens and experts' outputs; DeepEP's low-latency and normal kernels,
# TensorRT-LLM's over NVLink; auto: as SGLang's --deepep-mode auto, low latency in decode
Dispatch = Literal[
    "allgather", "all-to-all", "deepep-ll", "deepep-ht", "deepep-auto", "nvlink-one-sided", "nvlink-two-sided"
]
PrefillLogits = Literal["all", "last"]
MemoryFractionOf = Literal["total", "static", "free"]

# of a measured time
Factor = Annotated[float, Limits(0, 1000.0, above=True)]
Share = Annotated[float, Limits(0, 1)]
Tokens = Annotated[int, Limits(0, 100_000_000)]
Requests = Annotated[int, Limits(0, 1_000_000)]

# device memory in bytes from which GPUs take fields that begin with large_gpu, and below which small_gpu: vLLM 0.32.0,
# engine/arg_utils.py, get_batch_defaults; SGLang 0.5.10, server_args.py has 160 and 60
LARGE_GPU_BYTES, SMALL_GPU_BYTES = 160 * 2**30, 70 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceRule:
    """Which all-reduces an engine takes on some GPUs, by the size of the message."""

    up_to: tuple[tuple[AllReduce, float], ...]
    """In the order in which they are tried, with the largest message of each, bytes; NCCL takes what is left."""
    gpus: int = 0
    """Of the group; 0: any number."""
    compute_capability: float = 0.0
    """Of the GPUs; 0: any."""
    nvlink_domain: int = 0
    """GPUs that NVLink joins, at the least."""

    def __str__(self) -> str:
        group = f"on {self.gpus} GPUs" if self.gpus else "on other groups"
        capability = f" of compute capability {self.compute_capability}" if self.compute_capability else ""
        domain = f" in a domain of {self.nvlink_domain}" if self.nvlink_domain else ""
        sizes = "".join(f"{name} up to {format_bytes(size)}, " for name, size in self.up_to)
        return f"{group}{capability}{domain}: {sizes}nccl"

    def applies(self, gpus: int, compute_capability: float, nvlink_domain: int) -> bool:
        """Whether it is a group's."""
        return (
            self.gpus in (0, gpus)
            and self.compute_capability in (0.0, compute_capability)
            and self.nvlink_domain <= nvlink_domain
        )

    @classmethod
    def read(cls, table: object, where: str) -> Self:
        """One of a file's ``allreduce_rules``: sizes by algorithm (``multimem = "64 MiB"``; ``"<8 MiB"``: below it).

        Raises
        ------
        SpecError, UnitError, UnknownNameError
            It breaks a rule.
        """
        if not isinstance(table, dict):
            raise SpecError(f"{where} is {quoted(table)}: must be a table", hint=_RULE_FORM)
        sizes = {name: value for name, value in table.items() if name not in _RULE_KEYS}
        up_to = []
        for name, value in sizes.items():
            choice(name, f"{where}: all-reduce", get_args(AllReduce)[:-1])
            if not isinstance(value, str):
                raise SpecError(f"{where}: {name} is {quoted(value)}: must be a size with its unit", hint=_RULE_FORM)
            size = parse_quantity(value.removeprefix("<"), "bytes", name=f"{where}: {name}")
            up_to.append((cast(AllReduce, name), math.nextafter(size, 0.0) if value.startswith("<") else size))
        rule = cls(up_to=tuple(up_to), **{name: table[name] for name in _RULE_KEYS if name in table})
        if [size for _, size in up_to] != sorted({size for _, size in up_to}):
            raise SpecError(f"{where}: sizes must increase in the order in which they are tried", hint=_RULE_FORM)
        whole(rule.gpus, f"{where}: gpus", 0, 100_000)
        whole(rule.nvlink_domain, f"{where}: nvlink_domain", 0, 100_000)
        real(rule.compute_capability, f"{where}: compute_capability", 1000.0, zero=True)
        return rule


_RULE_KEYS = ("gpus", "compute_capability", "nvlink_domain")
_RULE_FORM = "vllm.toml shows the form"

# vLLM before 0.14 decides on a step when the one before has ended
_AHEAD_SINCE = {"vllm": (0, 14)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticReserve:
    """Memory that an engine leaves outside of its static share where no share is set, in bytes."""

    fixed_bytes: Bytes
    """Metadata and captured graphs."""
    token_bytes: Bytes
    """For each token of a step's budget."""
    rank_bytes: Bytes
    """For each rank of the tensor-parallel group and each pipeline stage."""
    least_bytes: Bytes
    """Reserve at the least, on GPUs of 70 GiB or more."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        check_fields(self, "static_reserve")

    def bytes_of(self, tokens: int, ranks: int, capacity_bytes: float) -> float:
        """Return the reserve of a GPU with some memory, for steps of so many tokens on so many ranks."""
        least_bytes = 0.0 if capacity_bytes < SMALL_GPU_BYTES else self.least_bytes
        return max(least_bytes, self.fixed_bytes + self.token_bytes * tokens + self.rank_bytes * ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """An inference engine's habits, as far as they change what runs on the GPU."""

    name: str
    """Catalog id."""
    attention: AttentionKernel
    """Flash: fused, over the live context; math: separate kernels over the whole static cache, KV heads expanded."""
    fused_residual_add: bool
    """Blocking variants add the all-reduced block inside the next norm's kernel; `fused_allreduce_norm` needs it."""
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
    expert_launch_s: Seconds = 0.0
    """CPU time to launch one kernel of a model with experts, seconds; 0: as long as of any other model."""
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
    fused_allreduce_norm: bool = False
    """Under all-reduce ``auto``, that kernel is the all-reduce too, as far as `fused_norm_rules` go."""
    fused_norm_rules: tuple[AllReduceRule, ...] = ()
    """All-reduces that it fuses: the first that applies; larger ones, and those on other GPUs, have a norm apart."""
    # far beyond any tensor-parallel group
    custom_allreduce_without_nvlink: Annotated[int, Limits(0, 100_000)] = 0
    """Largest group on which all-reduce ``auto`` takes the engine's own kernels where NVLink does not join all GPUs."""
    allreduce_rules: tuple[AllReduceRule, ...] = ()
    """What all-reduce ``auto`` takes, where the engine's own was not measured: the first that applies."""
    rewired_allreduce: Literal["auto", "nccl"] = "auto"
    """Algorithm of blocks' all-reduces, where `allreduce` is ``auto``, in wirings that the engine has not itself; auto:
    the engine's own."""
    allreduce_copies: Annotated[int, Limits(0, 2)] = 0
    """Copies of the message, into and out of the buffer, around an all-reduce in symmetric memory by ``auto``."""
    host_request_s: Seconds = 0.0
    """CPU time that a decode step takes longer for each request in it (scheduling, sampling, detokenising), seconds."""
    host_rank_s: Seconds = 0.0
    """CPU time that every step takes longer for each tensor-parallel rank (inputs prepared and sent), seconds."""
    frontend_s: Seconds = 0.0
    """What a server adds to a request's first token (HTTP, its text's tokens, hops between processes), seconds."""
    frontend_steps: Annotated[float, Limits(0, 1_000)] = 0.0
    """What it adds in decode steps, each as long as the request's mean time per further token."""
    frontend_token_s: Seconds = 0.0
    """What it adds for each token of the prompt, seconds."""
    sustained_share: Factor = 1.0
    """Share of the tensor cores' peak that GEMMs keep up over long prompts, limited by power; 1 or more: no limit."""
    quantize_s: Seconds = 0.0
    """What quantising the input of a GEMM at run time takes beyond one small kernel, seconds."""
    quantize_element_bytes: Annotated[float, Limits(0, 1_000)] = 3.0
    """Memory traffic that quantising one element takes as long as, bytes: 2 read and 1 written, or more."""
    dispatch: Dispatch = "allgather"
    """How tokens of data-parallel attention reach their experts: NCCL's all-gather and reduce-scatter of all tokens,
    its all-to-all of each expert's, or a kernel."""
    shared_expert_stream: bool = False
    """In decode shared experts run on a stream of their own, next to the routed ones."""
    expert_padding: Tokens = 0
    """Rows to a multiple of which an expert's tokens are padded, of every expert of a rank, in fp8 blocks on Hopper."""
    padded_share: Factor = 1.0
    """Share of the tensor cores' peak at which padded experts are multiplied."""
    fp8_kv_cache: bool = False
    """The KV cache is fp8 by default where activations have 8 bits or fewer."""
    step_tokens: Tokens = 0
    """Most tokens of one step under continuous batching, prompts' and decode's; 0: it runs static batches only."""
    large_gpu_step_tokens: Tokens = 0
    """Tokens of one step at most on GPUs of 160 GiB of memory or more; 0: as on others."""
    small_gpu_step_tokens: Tokens = 0
    """Tokens of one step at most on GPUs of less than 70 GiB; 0: as on others."""
    ampere_step_tokens: Tokens = 0
    """Tokens of one step at most on Ampere (compute capability 8.0); 0: as on others."""
    step_requests: Annotated[int, Limits(1, 1_000_000)] = 1024
    """Most requests that run at a time under continuous batching."""
    small_gpu_step_requests: Requests = 0
    """Requests that run at a time at most on GPUs of less than 70 GiB; 0: as on others."""
    ampere_step_requests: Requests = 0
    """Requests that run at a time at most on Ampere (compute capability 8.0); 0: as on others."""
    max_context: Tokens = 0
    """Tokens of the longest request that the server takes, prompt and answer; 0: the model's context."""
    prefix_cache: bool = True
    """Requests use what others that begin alike left in the KV cache."""
    mixed_steps: bool = False
    """Prompts share a step with decode; else they go first, in steps of their own."""
    memory_fraction: Share = 1.0
    """Share of the memory that an engine takes to serve; 0: what `static_reserve` leaves."""
    memory_fraction_of: MemoryFractionOf = "total"
    """Memory that the share is of: total, all of it; static, what the reserve leaves; free, what weights leave too."""
    static_reserve: StaticReserve | None = None
    """Memory outside of a static share where none is set; None: a share is always set."""
    serving_reserve_bytes: Bytes = 0.0
    """Memory of contexts, communicators, workspaces and captured graphs of an engine that serves, bytes."""
    logit_bytes: Annotated[float, Limits(0, 1_000)] = 2.0
    """Memory that choosing the next token takes for each logit of a request, bytes."""
    kv_answer_share: Share = 1.0
    """Share of its answer for which a request holds KV cache on average, as the engine admits requests."""
    engine: str = ""
    """Engine whose measured attention and all-reduces price its own, e.g. "vllm"; empty: the GPU's tables alone."""
    version: str = ""
    """Of the engine, as given after the name; empty: the newest that is known."""
    sampling: Sampling = "greedy"
    """How the next token is chosen; without measurements of that in the profile, as fast as greedily."""
    compiled_blocks: bool = False
    """Whole blocks are compiled, one-row GEMMs to reductions; so `run` measures it."""
    profile: str = ""
    """Shipped profile in which its figures are fitted to end-to-end runs; empty: no such profile."""
    note: str = ""
    """What the reader of its predictions should know."""
    source: str = ""
    """Where the figures come from."""

    @property
    def unversioned(self) -> str:
        """Catalog id without the version: "vllm" of "vllm@0.12"."""
        return self.name.partition("@")[0]

    @property
    def serves(self) -> bool:
        """It can batch continuously."""
        return self.step_tokens > 0

    @property
    def schedules_ahead(self) -> bool:
        """The next step is scheduled while one runs."""
        version = tuple(int(part) for part in self.version.split(".") if part.isdigit())
        return not version or version >= _AHEAD_SINCE.get(self.engine, (0,))

    @property
    def shares_gemms(self) -> bool:
        """No fit of its own: the GPU's tables price its GEMMs as those of every other such stack."""
        return not self.profile

    @property
    def rewired_kernel(self) -> str:
        """Algorithm of the all-reduces that other wirings have of their own; empty: they have the engine's."""
        return self.rewired_allreduce if self.allreduce == "auto" != self.rewired_allreduce else ""

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
        if self.memory_fraction == 0.0 and (self.static_reserve is None or self.memory_fraction_of != "static"):
            raise SpecError(
                f"{where}: memory_fraction is 0: must be above 0, because the stack has no static_reserve",
                hint="give the share of the memory, e.g. 0.9",
            )
