"""The requests to serve, and how unevenly their tokens choose experts: ranks wait for the busiest."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self, cast, get_args

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.hf.fields import MAXIMA
from ladder_sim.hf.quantization import FP8_BLOCK, DType, KvDType
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.values import Limits, check_fields, real

# all equally often, or the i-th most frequent one in proportion to i to minus this power
Imbalance = Literal["balanced", "power-law-1.01", "power-law-1.2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoads:
    """How often tokens choose each expert: one of the ways that tables were measured with, or counts of one's own."""

    name: str = "power-law-1.01"
    """An `Imbalance`, or the name of the file of counts."""
    counts: tuple[float, ...] = ()
    """Tokens of each expert, in any unit; empty: as the name says."""

    def __post_init__(self) -> None:
        if not self.counts and self.name not in get_args(Imbalance):
            raise UnknownNameError("imbalance", self.name, get_args(Imbalance), more="or a file of tokens per expert")

    @classmethod
    def of(cls, given: "str | Sequence[float] | ExpertLoads") -> Self:
        """Return the loads of a name, of a file of numbers, or of a list of numbers.

        Raises SpecError or UnknownNameError if there is no such name and no such file, or it does not hold tokens of
        each expert.

        Examples
        --------
        >>> ExpertLoads.of([10, 30, 20, 20]).busiest(2)
        1.0
        >>> ExpertLoads.of([10, 30, 20, 20]).busiest(4)
        1.5
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, str):
            return cls._counted("measured", given, "imbalance")
        path = Path(given.strip())
        if given.strip() in get_args(Imbalance) or not path.is_file():
            return cls(name=given.strip())
        where = shown_path(path)
        text = read_text(path, what="a file of tokens per expert")
        numbers = [each for each in re.split(r"[\s,\[\]]+", text) if each]
        return cls._counted(path.name, numbers, where)

    @classmethod
    def _counted(cls, name: str, given: object, where: str) -> Self:
        hint = "a list of tokens per expert, in the order of the experts, e.g. [120, 80, ...]"
        if not isinstance(given, Sequence) or not 2 <= len(given) <= MAXIMA["experts"]:
            raise SpecError(f"{where}: must hold a number for each expert", hint=hint)
        try:
            counts = tuple(float(each) for each in given)
        except (TypeError, ValueError):
            raise SpecError(f"{where}: must hold numbers only", hint=hint) from None
        for count in counts:
            real(count, f"{where}: tokens of an expert", 1e30, zero=True)
        if not math.fsum(counts):
            raise SpecError(f"{where}: no expert has any tokens", hint=hint)
        return cls(name=name, counts=counts)

    @property
    def tabled(self) -> Imbalance:
        """The imbalance of the table that prices them."""
        return "balanced" if self.counts else cast(Imbalance, self.name)

    def busiest(self, ep: int) -> float:
        """Return the tokens of the busiest part of the experts over an even share, beyond what the table holds."""
        if not self.counts:
            return 1.0
        held = len(self.counts) // ep
        parts = [math.fsum(self.counts[start : start + held]) for start in range(0, len(self.counts), held)]
        return max(parts) * ep / math.fsum(parts)


# what most tables of experts were measured with; measured servings err by 9 % with it, by 11 % if balanced
USUAL = ExpertLoads()


TensorCores = Literal["bf16", "fp8", "fp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How the linear layers of a precision store their operands, and which tensor cores multiply them."""

    name: str
    """Name of the tables of the format's GEMMs."""
    weight_bytes: float
    """Bytes of one weight, its share of the scales included."""
    activation_bytes: float
    """Bytes of one input, likewise."""
    tensor_cores: TensorCores
    """Whose peak bounds its GEMMs, on a GPU that has them."""
    quantizes: bool = False
    """Whether inputs are quantised at run time by a kernel of their own; else the op before does, if any does."""


_BF16 = Format(name="bf16", weight_bytes=2, activation_bytes=2, tensor_cores="bf16")
FORMATS: Mapping[DType, Format] = MappingProxyType(
    {
        "bf16": _BF16,
        # the same bytes and rates
        "fp16": _BF16,
        # one static scale for each tensor
        "fp8": Format(name="fp8", weight_bytes=1, activation_bytes=1, tensor_cores="fp8"),
        # scales of the inputs, for each tensor or token, found at run time; the GEMM is the same
        "fp8-dynamic": Format(name="fp8", weight_bytes=1, activation_bytes=1, tensor_cores="fp8", quantizes=True),
        # a 32-bit scale for each block of weights and for each run of inputs of a token
        "fp8-block": Format(
            name="fp8-block", weight_bytes=1 + 4 / FP8_BLOCK**2, activation_bytes=1 + 4 / FP8_BLOCK, tensor_cores="fp8"
        ),
        # 4 bits, and an 8-bit scale for each 16 elements (NVIDIA, "Introducing NVFP4", 2025)
        "nvfp4": Format(name="nvfp4", weight_bytes=0.5 + 1 / 16, activation_bytes=0.5 + 1 / 16, tensor_cores="fp4"),
        # 4 bits, and a 16-bit scale and a 4-bit zero for each 128 weights (AWQ and GPTQ, group_size 128); the kernel
        # expands them to 16 bits
        "w4a16": Format(name="w4a16", weight_bytes=0.5 + 2.5 / 128, activation_bytes=2, tensor_cores="bf16"),
        # 4 bits, and an 8-bit scale for each 32 weights (OCP Microscaling Formats v1.0, section 5); expanded as w4a16
        "mxfp4": Format(name="mxfp4", weight_bytes=0.5 + 1 / 32, activation_bytes=2, tensor_cores="bf16"),
    }
)

# bytes of an element of the KV cache
KV_BYTES: Mapping[KvDType, int] = MappingProxyType({"bf16": 2, "fp8": 1})

# how requests share the GPUs. Static: they start together, and none joins until the last one has ended. Continuous: the
# next one starts when one has ended, as in engines that serve
Batching = Literal["static", "continuous"]
STATIC: Batching = "static"


def batching_of(concurrency: object) -> Batching:
    """Return how requests share the GPUs, by how many are kept in flight, if any."""
    return STATIC if concurrency is None else "continuous"


# beyond any published context
MAX_TOKENS = 100_000_000
# of lengths around their mean, either way, as a share of it: it stands for all that keeps clients apart. Chosen where
# nothing is known of a server and its load: servings (serving_dense.csv) then err by 24 % in TTFT with 0.2, by 22 %
# with 0.4, and by 110 to 180 % with none, as clients in step magnify what is wrong about the size of a server's steps
SPREAD = 0.4
# requests of each client in a measured run: ten under InferenceX and under aiconfigurator 0.4.0 (eval/benchmarks,
# genai_perf_runner.py: --request-count)
ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one prompt and answer length: a static batch, or a number of them kept in flight."""

    # beyond any served batch
    batch: Annotated[int, Limits(1, 1_000_000, hint="requests served together, e.g. --batch 1")] = 1
    """Requests that start together, in a static batch."""
    prompt: Annotated[int, Limits(1, MAX_TOKENS, hint="tokens of each prompt, e.g. --prompt 1024")] = 1024
    """Tokens of each prompt."""
    gen: Annotated[int, Limits(1, MAX_TOKENS, hint="new tokens of each request, e.g. --gen 512")] = 512
    """New tokens of each request; prefill yields the first."""
    dtype: DType = "bf16"
    """Type of the weights of linear layers, and of what they multiply."""
    kv_dtype: KvDType = "bf16"
    """Type of the KV cache."""
    concurrency: Annotated[int | None, Limits(1, 1_000_000, hint="requests in flight, e.g. --concurrency 64")] = None
    """Requests kept in flight under continuous batching; None: a static batch."""
    imbalance: ExpertLoads = USUAL
    """How often tokens choose each expert, in models that have any."""
    spread: Annotated[float, Limits(0, 1, hint="a share of the mean length, e.g. --set workload.spread=0.1")] = SPREAD
    """Spread of the lengths of prompts and answers of requests in flight around their mean, either way, as a share of
    the mean; 0: all requests are of one length, as benchmark clients send them unless told otherwise, and those that
    begin together stay together."""
    rounds: Annotated[int, Limits(2, 1_000_000, hint="e.g. --set workload.rounds=10")] = ROUNDS
    """Requests of each client in flight; the first ones of all clients come at once and count as every other."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.concurrency is not None and self.batch > 1:
            raise SpecError(
                f"batch {self.batch} and concurrency {self.concurrency}: requests start together or are kept in flight",
                hint="give one of them: --batch for a static batch, --concurrency for continuous batching",
            )
        if self.concurrency is None:
            for name, usual in (("spread", SPREAD), ("rounds", ROUNDS)):
                if (value := getattr(self, name)) != usual:
                    raise SpecError(
                        f"workload.{name} {value:g} without concurrency: requests of a static batch start together",
                        hint=f"add --concurrency, the number of requests in flight, or leave out workload.{name}",
                    )
        if self.context > MAX_TOKENS:
            raise SpecError(
                f"prompt {self.prompt} + gen {self.gen} is {self.context} tokens: must be at most {MAX_TOKENS}",
                hint="use a shorter prompt or answer, e.g. --prompt 1024 --gen 512",
            )

    @property
    def batching(self) -> Batching:
        """How requests share the GPUs."""
        return batching_of(self.concurrency)

    @property
    def load_field(self) -> Literal["batch", "concurrency"]:
        """The field that says how many requests the GPUs serve at a time."""
        return "batch" if self.concurrency is None else "concurrency"

    @property
    def in_flight(self) -> int:
        """Requests that the GPUs serve at a time."""
        return self.batch if self.concurrency is None else self.concurrency

    @property
    def context(self) -> int:
        """Tokens of one request once it is answered: prompt and answer."""
        return self.prompt + self.gen
