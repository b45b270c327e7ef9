"""`Shape`, the base of every kernel, and what it is asked with: sizes of a pass, a GPU, an engine, kinds of tables.

Every count is per rank and per forward pass: FLOPs, bytes of device memory moved. Which kernels a pass runs does not
depend on how many sequences there are nor on how long they are. So one graph, of one token, serves every size: each
kernel grows with the tokens, or with the sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.des.shared import Floats, Number, any_true, maximum
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import FORMATS, Format, Imbalance, TensorCores
from ladder_sim.units import format_bytes

# formats that kernels multiply in, by name
GEMM_FORMATS: Mapping[str, Format] = {each.name: each for each in FORMATS.values() if not each.quantizes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The figures of one GPU that its kernels' times depend on."""

    # as in `GpuSpec`
    bf16_flops: Number
    fp8_flops: Number
    fp4_flops: Number
    hbm_bandwidth_Bps: Number
    kernel_s: Number

    @classmethod
    def of(cls, spec: GpuSpec) -> Self:
        return cls(**{name: getattr(spec, name) for name in GPU_FIGURES})

    def same_as(self, other: "Gpu") -> bool:
        """Say whether every figure is equal; an array that varies equals no single figure."""
        return not any(any_true(getattr(self, name) != getattr(other, name)) for name in GPU_FIGURES)

    def over(self, stated: GpuSpec, reference: "Gpu") -> "Gpu":
        """Return the figures of this GPU with which rooflines of tables are drawn that were measured on another.

        Ratios of tables belong to the figures `reference`. The `stated` ones of that GPU may be rounded otherwise, so
        this GPU's enter relative to them.
        """
        relative = {name: getattr(self, name) / getattr(stated, name) for name in GPU_FIGURES}
        return Gpu(**{name: getattr(reference, name) * ratio for name, ratio in relative.items()})

    def peak_flops(self, format: str) -> Number:
        """Return the peak FLOP/s of the tensor cores that multiply operands of a format."""
        peaks: dict[TensorCores, Number] = {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops}
        return peaks[GEMM_FORMATS[format].tensor_cores]


# names of a GPU's figures, once: asking a dataclass for its fields takes microseconds
GPU_FIGURES = tuple(field.name for field in fields(Gpu))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """What the inference engine adds to each op."""

    # as in `StackSpec`
    collective_launch_s: Number
    stream_wait_s: Number
    eager_launch_s: Number
    host_request_s: Number
    host_rank_s: Number
    host_state_s: Number
    frontend_s: Number
    frontend_steps: Number
    frontend_token_s: Number
    quantize_s: Number
    sustained_rate: Number
    kernel_gap_s: Number = 0.0
    """Idle time before each kernel beyond what the tables hold, seconds; 0: not measured."""
    graph_launch_s: Number = 0.0
    """CPU time from deciding to run a CUDA graph to its first kernel, seconds; 0: not measured."""
    kernel_factor: Number = 1.0
    """Time of every kernel, as a multiple of what all else says."""
    collective_factor: Number = 1.0
    """Time of every collective, as a multiple of what all else says."""
    gemv_factor: Number = 1.0
    """Time of a one-row GEMM, as a multiple of the table's."""
    gemm_factor: Number = 1.0
    """Time of a memory-bound GEMM of several rows, as a multiple of the table's."""
    prompt_factor: Number = 1.0
    """Time of a compute-bound GEMM and of attention over a prompt, as a multiple of the table's."""
    attention_factor: Number = 1.0
    """Time of decode attention's memory traffic, as a multiple of the table's."""
    small_kernel_factor: Number = 1.0
    """Floor of a small kernel, as a multiple of the GPU's."""
    batched_attention_s: Number = 10e-6
    """Fixed time that math attention of several sequences takes beyond one sequence's, seconds: four kernels of 2.5 us
    (cache update, expansion and layout of heads, which one sequence fuses away)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """A GPU with an engine on it."""

    gpu: Gpu
    stack: Stack
    sms: int
    """Streaming multiprocessors of the GPU."""
    memory_efficiency: float
    """Share of the memory's bandwidth that memory-bound kernels reach."""
    padded_share: float
    """As `StackSpec.padded_share`; 0: the engine does not pad the tokens of experts on this GPU."""
    compiled: bool
    """Whether torch.compile writes the engine's small kernels."""

    @property
    def floor_s(self) -> Number:
        """Seconds of a small kernel of the engine."""
        return self.stack.small_kernel_factor * self.gpu.kernel_s

    def traffic_s(self, moved_bytes: Number) -> Number:
        """Return the seconds of memory traffic at the rate that memory-bound kernels reach."""
        return moved_bytes / (self.memory_efficiency * self.gpu.hbm_bandwidth_Bps)


# of one pass, or of many. Kernels of many passes hold arrays too; their fields are typed as the numbers that they are
# everywhere else
Count = int | NDArray[np.int64]
Duty = float | NDArray[np.float64]

# mixed: a step of continuous batching, decode of some sequences and prompt tokens of others in one pass
Phase = Literal["prefill", "decode", "mixed"]
# by phase, `GemmShape.duty` of a run of such passes alone; that of mixed steps depends on how many there are
PROMPT_DUTY: Mapping[Phase, float] = {"prefill": 1.0, "decode": 0.0, "mixed": 0.0}

# rows of a large GEMM's thread-block tile (cuBLAS and CUTLASS on Ampere and Hopper)
TILE_ROWS = 128


def varies(size: object) -> bool:
    """Whether a size is an array of those of many passes."""
    return isinstance(size, np.ndarray)


class Portion(NamedTuple):
    """A part of a pass's tokens."""

    number: int = 0
    of: int = 1
    """Number of parts."""


WHOLE = Portion()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Sizes of one forward pass or of many: numbers, or arrays of one length."""

    batch: Count
    """Sequences."""
    q_len: Count
    """New tokens of each; as an array more than one everywhere, because a single one takes another kernel."""
    kv_len: Count
    """Tokens that attention reads, the new ones included."""
    every_logit: bool
    """Logits of every token, or of each sequence's last."""
    duty: Duty = 0.0
    """As `GemmShape.duty`."""
    prompts: Count = 0
    """Sequences whose prompt a mixed step runs in addition, maybe a fraction of one on average."""
    chunk: Count = 0
    """Tokens of each of those prompts in the step."""
    chunk_kv_len: Count = 0
    """What the last of these tokens reads, if the chunk is an average one."""
    whole_kv_len: Count = 0
    """`kv_len` of the whole prompts of which these are parts; 0 if they are whole."""
    smallest: int = 1
    """Tokens and sequences of the graph of one token: two in a mixed step, one of each kind."""
    _parts: "dict[Portion, Sizes]" = field(init=False, repr=False, default_factory=dict)
    """As `part` has made them."""

    @classmethod
    def of(cls, stack: StackSpec, phase: Phase, kv_len: Count, *, batch: Count, prompt: Count, gen: Count) -> Self:
        """Return the sizes of a pass over `kv_len` tokens of context, of requests of `batch`, `prompt` and `gen`."""
        return cls(
            batch=batch,
            q_len=prompt if phase == "prefill" else 1,
            kv_len=prompt + gen if stack.static_cache else kv_len,
            every_logit=stack.prefill_logits == "all",
            duty=PROMPT_DUTY[phase],
        )

    @classmethod
    def mixed(
        cls, stack: StackSpec, kv_len: Count, *, prompts: Count, chunk: Count, prompt: Count, duty: Duty, **rest: Count
    ) -> Self:
        """Return the sizes of a step that runs an average chunk of `prompts` prompts, and decodes `rest` as in `of`."""
        sizes: Any = {"prompts": prompts, "chunk": chunk, "chunk_kv_len": (prompt + chunk) / 2}
        return replace(cls.of(stack, "decode", kv_len, prompt=prompt, **rest), duty=duty, smallest=2, **sizes)

    @property
    def tokens(self) -> Any:
        """Number of new tokens of all sequences in the pass."""
        return self.batch * self.q_len + self.prompts * self.chunk

    @property
    def apart_from_context(self) -> Hashable:
        """Equal for passes that differ in context only; arrays are equal if they are the same."""
        return _same((self.batch, self.q_len, self.duty, self.prompts, self.chunk))

    @property
    def context(self) -> Hashable:
        """Equal for passes with the same context."""
        return _same((self.kv_len, self.chunk_kv_len, self.whole_kv_len))

    def part(self, portion: Portion) -> "Sizes":
        """Return the sizes of one of several parts of the tokens.

        Sequences are spread over the parts; one that decodes is in a single part. A lone prompt is cut at whole tiles
        of its GEMMs, so that the parts have no more waves than the whole; each reads what those before it left behind.
        """
        if portion == WHOLE:
            return self
        if portion not in self._parts:
            self._parts[portion] = self._part(*portion)
        return self._parts[portion]

    def _part(self, number: int, of: int) -> "Sizes":
        if self.smallest == 2:
            shares: Any = {"batch": self.batch / of, "prompts": self.prompts / of}
            return replace(self, **shares)
        if not varies(self.q_len) and self.q_len == 1:
            counted = isinstance(self.batch, int) or (varies(self.batch) and self.batch.dtype.kind == "i")
            own: Any = (self.batch + of - 1 - number) // of if counted else self.batch / of
            return replace(self, batch=own)
        start, end = _cut(self.q_len, number, of), _cut(self.q_len, number + 1, of)
        if not varies(self.batch) and self.batch != 1:
            share: Any = self.batch / of
            return replace(self, batch=share)
        alone: Any = self.batch == 1
        pairs = (
            # of a lone prompt, and of several
            (1, self.batch / of),
            (end - start, self.q_len),
            (self.kv_len - self.q_len + end, self.kv_len),
            (self.kv_len, 0),
        )
        batch, q_len, kv_len, whole = (np.where(alone, *pair) if varies(alone) else pair[0] for pair in pairs)
        return replace(self, batch=batch, q_len=q_len, kv_len=kv_len, whole_kv_len=whole)


def _same(sizes: tuple[Any, ...]) -> Hashable:
    return tuple(id(size) if varies(size) else size for size in sizes)


def _cut(tokens: Any, number: int, of: int) -> Any:
    """Return the token at which a part of a prompt begins: the first of a tile, if every part fills one."""
    if number == of:
        return tokens
    tile, even, has_tile = (
        tokens * number // (of * TILE_ROWS) * TILE_ROWS,
        tokens * number // of,
        tokens >= of * TILE_ROWS,
    )
    if varies(tokens):
        return np.where(has_tile, tile, even)
    return tile if has_tile else even


# element size of the residual stream, embedding, norms, LM head and queries: they stay 16-bit in every precision
STATE_BYTES = 2

# name of a kind of table
Kind = str


class Experts(NamedTuple):
    """What a table of experts was measured for: the layer, the format, and how unevenly tokens choose."""

    format: str
    """Format of the operands, by `ladder_sim.specs.workload.Format.name`."""

    # as in `MoeShape`
    hidden: int
    width: int
    experts: int
    top_k: int
    imbalance: Imbalance = "power-law-1.01"


# what tells tables of one kind apart: the layer of experts, the format, the type of the KV cache, or how tokens are
# chosen
TableOf = str | Experts


class TableKind(NamedTuple):
    """A kind of table: measured times of a kernel on a grid of its sizes."""

    kind: Kind
    label: str
    """Name for people."""
    axes: tuple[str, ...]
    """Sizes by which a kernel is looked up."""
    at: "Callable[..., Shape]"
    """Returns the kernel at a point, given the table's key and the sizes by name."""
    stand_ins: Mapping[str, str] = {}
    """Keys of tables whose ratios hold where one is missing; of others those of bf16 do."""
    has_formula: bool = False
    """Whether the kernel has a formula of its own where a profile has no such table."""

    def shape(self, of: TableOf, point: Mapping[str, ArrayLike]) -> "Shape":
        """Return the kernel at coordinates, maybe arrays, of the table with the key `of`."""
        return self.at(of, **{name: np.asarray(point[name], np.float64) for name in self.axes})


class Lookup(NamedTuple):
    """Where tables hold a kernel."""

    kind: Kind
    of: TableOf
    point: dict[str, ArrayLike]
    """Coordinates in the table."""
    times: Any = 1.0
    """Time of the kernel as a multiple of that at the point."""
    carried_over: bool = False
    """Whether the point is another kernel's, because no table can hold this one."""


class Work(NamedTuple):
    """What a kernel does."""

    moved_bytes: Any
    """Traffic of the device memory."""
    flops: Any = 0.0
    """Arithmetic, multiply-adds counted as two; 0: negligible next to the traffic."""
    stored_bytes: Any = 0.0
    """Traffic of what no cache of the GPU holds from one pass to the next."""


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """A kernel at its size, or a few kernels that always run in a row.

    Sizes are of one pass, or arrays of those of many passes; so is all that follows from them.
    """

    tables: ClassVar[tuple[TableKind, ...]] = ()
    """Kinds of tables that hold its times."""
    on_tensor_cores: ClassVar[bool] = False
    """Whether tensor cores multiply for most of its time, if it is compute bound."""
    grows: ClassVar[str] = ""
    """Field in proportion to the rows, where that is all that `resized` changes."""
    reads_context: ClassVar[bool] = False
    """Whether passes that differ in context alone differ in it."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """What it does."""

    @property
    def moved_bytes(self) -> Any:
        """Device memory traffic, bytes."""
        return self.work.moved_bytes

    @property
    def flops(self) -> Any:
        """Arithmetic, multiply-adds counted as two."""
        return self.work.flops

    @property
    def format(self) -> str:
        """Format in which it multiplies, by `ladder_sim.specs.workload.Format.name`."""
        return "bf16"

    @property
    def rows(self) -> Any:
        """Rows of activations that meet each of its weights; None: it has no weights.

        A collective next to it waits longer for the device memory if these are several
        (`ladder_sim.costs.estimate`).
        """
        return None

    @property
    def duty(self) -> float:
        """Share of the time in which the GPU multiplies as much as here, so that it may be slowed by its power."""
        return 0.0

    @property
    def label(self) -> str:
        """Its size in a few characters."""
        return format_bytes(self.moved_bytes)

    @property
    def per_sequence(self) -> bool:
        """Whether it grows with the sequences, not with their tokens."""
        return False

    def resized(self, sizes: Sizes, rows: Any) -> Self:
        """Return the kernel of passes of these sizes, given that of one token; it runs on so many `rows` of them."""
        return replace(self, **{self.grows: rows * getattr(self, self.grows) / sizes.smallest})

    @property
    def lookup(self) -> Lookup | None:
        """Where tables hold it; None: no table does."""
        return None

    def arithmetic_s(self, gpu: Gpu, work: Work | None = None) -> Number:
        """Return the seconds of its arithmetic at the peak of the tensor cores; `work`, if it is known already."""
        seconds: Number = (work or self.work).flops / gpu.peak_flops(self.format)
        return seconds

    @property
    def launches(self) -> int:
        """Number of kernels in the row."""
        return 1

    def roofline_s(self, gpu: Gpu) -> Floats:
        """Return the ideal time, seconds: floors of kernels, and the slower of arithmetic and memory traffic.

        Sizes and the GPU's figures may be arrays that broadcast, so thousands of kernels or thousands of GPUs are one
        call. Measured tables hold ratios to this time (`ladder_sim.costs.lookup`): what it leaves out is in the ratio,
        as long as the same function makes the ratio and undoes it.
        """
        work = self.work
        busy_s: Floats = np.maximum(self.arithmetic_s(gpu, work), work.moved_bytes / gpu.hbm_bandwidth_Bps)
        return self.launches * gpu.kernel_s + busy_s

    def least_s(self, gpu: Gpu) -> Number:
        """Return the lower bound of its seconds: arithmetic, and traffic that no cache saves."""
        work = self.work
        return maximum(self.arithmetic_s(gpu, work), work.stored_bytes / gpu.hbm_bandwidth_Bps)

    @property
    def outlasts(self) -> "tuple[Any, Shape] | None":
        """In which passes it takes at least as long as another kernel, and that kernel; None: in no pass."""
        return None

    @property
    def replaced(self) -> "tuple[Any, Shape] | None":
        """In which passes another kernel runs in its place, and that kernel; None: in no pass."""
        return None

    def untabled_s(self, machine: Machine) -> Number:
        """Return the seconds where no table holds it: by default of a small kernel, the most of which is traffic."""
        work = self.work
        return self.floor_s(machine) + maximum(machine.traffic_s(work.moved_bytes), work.flops / machine.gpu.bf16_flops)

    def floor_s(self, machine: Machine) -> Number:
        """Return the seconds that it takes at any size where no table holds it."""
        return machine.floor_s

    def stack_factor(self, machine: Machine, *, tabled: bool) -> Number:
        """Return the time of the engine's kernel relative to the table's, or if not `tabled` the formula's."""
        return 1.0

    def engine_s(self, machine: Machine) -> Number | None:
        """Return the seconds of an engine's kernel that is none of those in tables; None: tables have it."""
        return None


def count_text(count: float) -> str:
    """Return a number of tokens as text: in a mixed step it may be a mean."""
    return f"{round(count, 1):.12g}"
