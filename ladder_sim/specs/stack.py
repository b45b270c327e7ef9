"""How an inference engine runs the graph of a forward pass."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self, cast, get_args

from ladder_sim.errors import SpecError
from ladder_sim.units import format_bytes, parse_quantity, quoted
from ladder_sim.values import Bytes, Limits, Seconds, check_fields, choice, nonempty, real, whole

AttentionKernel = Literal["flash", "math"]
# top-k: drawn from the 200 most likely tokens; top-p: from as few as have 95 % together, which sorts all of them
Sampling = Literal["greedy", "top-k", "top-p"]
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
# "compiled": by torch.compile, which leaves ladder's deferred adds apart
ResidualAdd = Literal["apart", "compiled", "fused"]
CudaGraphs = Literal["off", "decode", "all"]
MemoryFractionOf = Literal["total", "static", "free"]

Share = Annotated[float, Limits(0, 1)]
Tokens = Annotated[int, Limits(0, 100_000_000)]
Requests = Annotated[int, Limits(0, 1_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceRule:
    """Which all-reduces an engine takes on some GPUs, by the size of the message."""

    up_to: tuple[tuple[AllReduce, float], ...]
    """In the order in which they are tried, with the largest message of each, bytes; NCCL takes what is left."""
    gpus: int = 0
    """Number of GPUs of the group; 0: any."""
    compute_capability: float = 0.0
    """Compute capability of the GPUs; 0: any."""
    nvlink_domain: int = 0
    """Least number of GPUs that NVLink joins."""

    def __str__(self) -> str:
        group = f"on {self.gpus} GPUs" if self.gpus else "on other groups"
        capability = f" of compute capability {self.compute_capability}" if self.compute_capability else ""
        domain = f" in a domain of {self.nvlink_domain}" if self.nvlink_domain else ""
        sizes = "".join(f"{name} up to {format_bytes(size)}, " for name, size in self.up_to)
        return f"{group}{capability}{domain}: {sizes}nccl"

    def applies(self, gpus: int, compute_capability: float, nvlink_domain: int) -> bool:
        return (
            self.gpus in (0, gpus)
            and self.compute_capability in (0.0, compute_capability)
            and self.nvlink_domain <= nvlink_domain
        )

    @classmethod
    def read(cls, table: object, where: str) -> Self:
        """Return one of a file's ``allreduce_rules``: sizes by algorithm, e.g. ``multimem = "64 MiB"``."""
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
class OwnAllReduce:
    """What all-reduce ``auto`` takes: an engine's own kernels, as far as they go."""

    rules: tuple[AllReduceRule, ...] = ()
    """Algorithms by size where the engine's own were not measured: the first rule that applies."""
    fused_norm_rules: tuple[AllReduceRule, ...] = ()
    """All-reduces fused with the add and norm behind them: the first rule that applies; others have a norm apart."""
    # far beyond any tensor-parallel group
    gpus_without_nvlink: Annotated[int, Limits(0, 100_000)] = 0
    """Largest group that takes the engine's own kernels where neither NVLink nor a mesh joins all GPUs."""
    symmetric_copies: Annotated[int, Limits(0, 2)] = 0
    """Copies of the message, into and out of the buffer, around an all-reduce in symmetric memory."""
    nccl: str = ""
    """Version of NCCL, where it is stated."""
    source: str = ""
    """Where the figures come from."""

    def __post_init__(self) -> None:
        check_fields(self, "own_allreduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Limits of a step on some GPUs, where they are not the stack's."""

    compute_capability: Annotated[float, Limits(0, 1000.0)] = 0.0
    """Compute capability of the GPUs; 0: any."""
    least_memory_bytes: Bytes = 0.0
    """Least memory of the GPUs, bytes."""
    below_memory_bytes: Bytes = 0.0
    """Memory that the GPUs have less than, bytes; 0: any."""
    step_tokens: Tokens = 0
    """Most tokens of one step; 0: as on other GPUs."""
    step_requests: Requests = 0
    """Most requests that run at a time; 0: as on other GPUs."""

    def __post_init__(self) -> None:
        check_fields(self, "gpu_limits")

    def __str__(self) -> str:
        capability = f" of compute capability {self.compute_capability}" if self.compute_capability else ""
        least = f", from {format_bytes(self.least_memory_bytes)} on" if self.least_memory_bytes else ""
        below = f", below {format_bytes(self.below_memory_bytes)}" if self.below_memory_bytes else ""
        limits = {"tokens": self.step_tokens, "requests": self.step_requests}
        return (
            f"on GPUs{capability}{least}{below}: {', '.join(f'{each} {name}' for name, each in limits.items() if each)}"
        )

    def applies(self, compute_capability: float, memory_bytes: float) -> bool:
        below_bytes = self.below_memory_bytes or math.inf
        return (
            self.compute_capability in (0.0, compute_capability)
            and self.least_memory_bytes <= memory_bytes < below_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """An inference engine's habits, as far as they change what runs on the GPU."""

    name: str
    """Catalog id."""
    attention: AttentionKernel
    """Flash: fused, over the live context; math: separate kernels over the whole static cache, KV heads expanded."""
    residual_add: ResidualAdd
    """Kernel of a block's add: apart, its own; compiled, the next norm's in blocking variants; fused, that in all."""
    cuda_graphs: CudaGraphs
    """Passes that are replayed as one CUDA graph: none, decode steps, or prefills as well."""
    vocab_parallel: bool
    """Embedding and LM head are split over the vocabulary, which takes an all-reduce and an all-gather of logits."""
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
    python_launch_s: Seconds = 0.0
    """CPU time to launch one kernel where `cuda_graphs` is off and Python runs the model's modules, seconds; 0: as
    `eager_launch_s`."""
    memory_overhead_bytes: Bytes
    """Context, communicator buffers and allocator slack per GPU, bytes."""
    own_allreduce: OwnAllReduce = OwnAllReduce()
    """What all-reduce ``auto`` takes."""
    rewired_allreduce: Literal["auto", "nccl"] = "auto"
    """Algorithm of blocks' all-reduces, where `allreduce` is ``auto``, in wirings that the engine has not itself; auto:
    the engine's own."""
    host_request_s: Seconds = 0.0
    """CPU time that a decode step takes longer for each request in it (scheduling, sampling, detokenising), seconds."""
    host_rank_s: Seconds = 0.0
    """CPU time that every step takes longer for each tensor-parallel rank (inputs prepared and sent), seconds."""
    host_state_s: Seconds = 0.0
    """CPU time between two steps of models with recurrent states whose prefixes are cached; above 0 no step of these
    models is scheduled ahead, seconds."""
    frontend_s: Seconds = 0.0
    """What a server adds to a request's first token (HTTP, its text's tokens, hops between processes), seconds."""
    frontend_steps: Annotated[float, Limits(0, 1_000)] = 0.0
    """What it adds in decode steps, each as long as the request's mean time per further token."""
    frontend_token_s: Seconds = 0.0
    """What it adds for each token of the prompt, seconds."""
    quantize_s: Seconds = 0.0
    """What quantising the input of a GEMM at run time takes beyond one small kernel, seconds."""
    quantize_element_bytes: Annotated[float, Limits(0, 1_000)] = 3.0
    """Memory traffic that quantising one element takes as long as, bytes: 2 read and 1 written, or more."""
    # GEMMs of 1,088 and 4,096 tokens by a 32B model's weights on one H200, cuBLAS, 4 s of each, random operands: after
    # the first second bf16 runs at 605 and 674 TFLOP/s, fp8 at 1,106 and 1,201, in the first 20 ms at 732 and 800,
    # 1,334 and 1,454. The power limit (690 of 700 W) brings the clock to 1,350 to 1,485 MHz. Tables of GEMMs are cold
    # runs. Taken over to other GPUs
    sustained_rate: Annotated[float, Limits(0.01, 1)] = 0.83
    """Share of their cold rate that GEMMs keep up over long prompts, limited by power; 1: no limit."""
    dispatch: Dispatch = "allgather"
    """How tokens of data-parallel attention reach their experts: NCCL's all-gather and reduce-scatter of all tokens,
    its all-to-all of each expert's, or a kernel."""
    fused_qk_norm: bool = False
    """One kernel normalises each head of queries and keys and rotates them."""
    shared_expert_stream: bool = False
    """In decode shared experts run on a stream of their own, next to the routed ones."""
    padded_share: Share = 0.0
    """Share of peak at which padded experts in fp8 blocks are multiplied on Hopper; 0: experts are not padded."""
    nvidia_only: bool = False
    """Whether the engine runs on NVIDIA GPUs alone, which state a compute capability."""
    fp8_kv_cache: bool = False
    """The KV cache is fp8 by default where activations have 8 bits or fewer."""
    step_tokens: Tokens = 0
    """Most tokens of one step under continuous batching, prompts' and decode's; 0: it runs static batches only."""
    step_requests: Annotated[int, Limits(1, 1_000_000)] = 1024
    """Most requests that run at a time."""
    gpu_limits: tuple[GpuLimits, ...] = ()
    """Limits of a step on some GPUs: the first that apply, unless a limit is set by hand."""
    max_context: Tokens = 0
    """Tokens of the longest request that the server takes, prompt and answer; 0: the model's context."""
    poll_steps: Annotated[int, Limits(1, 1_000)] = 1
    """Decode steps from one look for new requests to the next; after a step with prompts the engine looks at once."""
    prefix_cache: bool = True
    """Requests use what others that begin alike left in the KV cache."""
    mixed_steps: bool = False
    """Prompts share a step with decode; else they go first, in steps of their own."""
    chunked_prompts: bool = True
    """A prompt that does not fit what is left of a step is split; else it waits, unless no step holds it whole."""
    memory_fraction: Share = 1.0
    """Share of the memory that an engine takes to serve; 0: what it leaves by default, of a static share."""
    memory_fraction_of: MemoryFractionOf = "total"
    """Memory that the share is of: total, all of it; static, what `serving_reserve_bytes` leaves; free, what weights
    and activations leave too."""
    serving_reserve_bytes: Bytes = 0.0
    """Memory of contexts, communicators, workspaces and captured graphs of an engine that serves, bytes."""
    logit_bytes: Annotated[float, Limits(0, 1_000)] = 2.0
    """Memory that choosing the next token takes for each logit of a request, bytes."""
    kv_answer_share: Share = 1.0
    """Share of its answer for which a request holds KV cache on average, as the engine admits requests."""
    engine: str = ""
    """Engine whose measured attention and all-reduces price its own, e.g. "vllm"; empty: the GPU's tables alone."""
    tables: str = ""
    """Version of the engine whose measurements those are, e.g. "1.0"; empty, or not measured on a GPU: the newest."""
    sampling: Sampling = "greedy"
    """How the next token is chosen; top-p without measurements of it in the profile is as fast as greedy."""
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
    def version(self) -> str:
        """Version of the engine: "0.12" of "vllm@0.12"; empty: the newest that is known."""
        return self.name.partition("@")[2]

    @property
    def fused_residual_add(self) -> bool:
        """Whether blocking variants add inside the next norm's kernel."""
        return self.residual_add != "apart"

    @property
    def fused_ladder_add(self) -> bool:
        """Whether ladder's deferred adds happen inside the next norm's kernel."""
        return self.residual_add == "fused"

    @property
    def serves(self) -> bool:
        """Whether the engine batches continuously."""
        return self.step_tokens > 0

    @property
    def schedules_ahead(self) -> bool:
        """Whether the next step is scheduled while one runs."""
        version = tuple(int(part) for part in self.version.split(".") if part.isdigit())
        return not version or version >= _AHEAD_SINCE.get(self.engine, (0,))

    @property
    def dense_within_top_k(self) -> bool:
        """Whether sparse attention of a prompt that may choose all of its context is attention to all of it.

        SGLang 0.5.14's kernels are "dense_mha" up to 2,048 tokens, those of vLLM 0.24 "SPARSE" at any length
        (aiconfigurator-core 0.12.0, dsa_context_module_perf).
        """
        return self.engine == "sglang"

    @property
    def shares_gemms(self) -> bool:
        """Whether the GPU's tables price GEMMs as in every other stack without a fit."""
        return not self.profile

    @property
    def rewired_kernel(self) -> str:
        """Algorithm of the all-reduces that other wirings have of their own; empty: they have the engine's."""
        return self.rewired_allreduce if self.allreduce == "auto" != self.rewired_allreduce else ""

    @property
    def static_cache(self) -> bool:
        """Whether attention reads the whole cache, prompt and answer, at every step."""
        return self.attention == "math"

    @property
    def stores_scores(self) -> bool:
        """Whether attention writes its scores to memory, and keys and values expanded to every query head."""
        return self.attention == "math"

    def __post_init__(self) -> None:
        where = f"stack '{nonempty(self.name, 'stack name')}'"
        # a flag of its own
        choice(self.allreduce, "all-reduce", get_args(AllReduce))
        check_fields(self, where)
        if self.memory_fraction == 0.0 and self.memory_fraction_of != "static":
            raise SpecError(
                f"{where}: memory_fraction is 0: must be above 0, because memory_fraction_of is not static",
                hint="give the share of the memory, e.g. 0.9",
            )
