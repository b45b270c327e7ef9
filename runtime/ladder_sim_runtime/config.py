"""What is run: the shape of a decoder, how its passes are executed, what is measured or continued, over which links.

Imports no torch. The command line has an option for each field but those of a shape, with its docstring as help.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.hf.config import Config, read_numbers, read_shape
from ladder_sim.hf.fields import read_config
from ladder_sim.hf.shape import Shape
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.stack import AttentionKernel, Sampling
from ladder_sim.units import parse_quantity
from ladder_sim.values import Limits, check_fields
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim.wirings.rules import Part

Dispatch = Literal["allgather", "all-to-all"]
# kernels: the backend's, or those that read the memory of a node's other GPUs
AllReduce = Literal["backend", "one-shot", "multimem"]
# auto: on a GPU, if nothing prevents it
Wish = Literal["off", "auto", "on"]
Phase = Literal["prefill", "decode"]
Backend = Literal["auto", "nccl", "gloo", "emulate", "none"]
DType = Literal["auto", "fp32", "bf16", "fp16"]
Count = Annotated[int, Limits(1, 10**12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Config):
    """A decoder's config, and what real passes ask of it."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a config.json, or the one in a directory."""
        return cls.from_hf(read_config(path), source=str(path / "config.json" if path.is_dir() else path))

    @classmethod
    def from_hf(cls, config: Mapping[str, object], *, source: str = "config.json") -> Self:
        """Translate a parsed config.json, read as for predictions; errors name `source`.

        Raises UsageError if a field is missing or impossible, or the blocks are not implemented.
        """
        return cls._of(read_shape(config, source=source, runs=True), config, source)

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Return the config of a spec, with Llama's numbers, which take as long as any others.

        Raises UsageError if the model has parts that are not implemented.
        """
        return cls._of({field.name: getattr(spec, field.name) for field in fields(Shape)}, {}, spec.name)

    @classmethod
    def _of(cls, shape: Mapping[str, Any], config: Mapping[str, object], source: str) -> Self:
        plain = cls(**shape)
        parts = {
            "norms both before and behind its blocks": plain.block_norms == "both",
            "attention sinks": plain.attention_sinks,
            "layers that are listed as data": bool(plain.block_kinds),
            "norms without weights": plain.qk_norm == "weightless",
        }
        if others := [part for part, there in parts.items() if there]:
            raise UsageError(
                f"{source} has {' and '.join(others)}, which real passes here do not run", hint="choose another --model"
            )
        return replace(plain, **read_numbers(config, plain, source=source))

    @property
    def norms_behind(self) -> bool:
        """Whether norms are of a block's output instead of its input."""
        return self.block_norms == "behind"

    @property
    def latent(self) -> bool:
        """Whether attention is latent attention, else it is grouped-query attention."""
        return self.kv_lora_rank > 0

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has routed experts."""
        return self.experts > 0 and layer not in self.dense_layers

    def mlp_of(self, layer: int) -> int:
        """Return the width of a layer's MLP, of shared experts where there are routed ones; 0 if there is none."""
        return self.shared_intermediate if self.has_experts(layer) else self.intermediate

    def window_of(self, layer: int) -> int:
        """Return the number of tokens that a layer attends to; 0 means all."""
        return self.sliding_window if layer in (self.window_layers or range(self.layers)) else 0

    def learned_of(self, layer: int) -> dict[Part, int]:
        """Return blocks of a layer that have learned weights in the config's own wiring, and the number of lanes."""
        wiring = lay_out(self.variant, self.layers, self.ladder_layers)
        blocks = wiring.layers[layer].blocks
        return {block.part: len(wiring.lanes) for block in blocks if "learned" in block.weights}

    def check_wiring(self, wiring: Wiring, ranks: int) -> None:
        """Raise UsageError if the model's norms, or the ranks of its training, do not fit a wiring."""
        wiring.check_training(ranks, self.trained_tp)
        wiring.check_norms(ranks, behind=self.norms_behind, joint=self.qk_norm == "all")

    def check_context(self, tokens: int, *, hint: str) -> None:
        """Raise UsageError if this is longer than the longest context."""
        if tokens > self.max_positions:
            raise UsageError(f"{tokens} tokens: the model's longest context is {self.max_positions}", hint=hint)

    def layers_of(self, stage: int, stages: int) -> range:
        """Return the layers of a pipeline stage, as predictions have them (`Plan.stages`).

        Raises InfeasibleError if there are more stages than layers.
        """
        if stages > self.layers:
            raise InfeasibleError(
                f"{stages} stages cannot share {self.layers} layers", hint=f"--pp must be at most {self.layers}"
            )
        counts = Plan(pp=stages).stages(self.layers)
        first = sum(counts[:stage])
        return range(first, first + counts[stage])

    def check_ranks(self, tp: int, ep: int = 1, attention_dp: int = 1) -> None:
        """Raise InfeasibleError unless ranks can share this model: `tp` in each of `attention_dp` groups.

        Experts are distributed in `ep` parts over the ranks of all groups.
        """
        for option, degree in (("--ep", ep), ("--attention-dp", attention_dp)):
            if degree > 1 and not self.experts:
                raise UsageError(f"{option} {degree}: the model has no experts", hint=f"leave out {option}")
        if self.experts and ep > 1:
            self._check_parts(self.experts, ep, tp * attention_dp)
        if problem := self.partition_problem(tp, attention_dp=attention_dp, ep=ep):
            degrees = [
                str(degree)
                for degree in range(1, self.heads + 1)
                if not (degree * attention_dp % ep or self.partition_problem(degree, attention_dp=attention_dp, ep=ep))
            ]
            raise InfeasibleError(
                f"{tp} ranks cannot share the model evenly: {problem}",
                hint=f"degrees that divide: {', '.join(degrees) or 'none with this --ep'}",
            )

    def _check_parts(self, experts: int, ep: int, ranks: int) -> None:
        degrees = [degree for degree in range(1, ranks + 1) if not (ranks % degree or experts % degree)]
        if ep not in degrees:
            raise InfeasibleError(
                f"--ep {ep}: must divide {ranks} ranks and {experts} experts",
                hint=f"degrees that divide both: {', '.join(map(str, degrees))}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a forward pass is executed: all that changes which kernels and collectives run."""

    attention: AttentionKernel = "flash"
    """Flash: fused, over the live context; math: separate kernels over the whole static cache, KV heads expanded."""
    fused_residual_add: bool = False
    """Blocking wirings add a block's output inside the next norm's kernel."""
    fused_ladder_add: bool = False
    """Ladder adds a block's deferred output inside the next norm's kernel."""
    sharded_lm_head: bool = False
    """Split the LM head over the vocabulary and gather logits, instead of a replica on every rank."""
    sharded_embedding: bool = False
    """Split the embedding over the vocabulary and all-reduce rows, instead of a replica on every rank."""
    prefill_logits: Literal["all", "last"] = "last"
    """Logits of every prompt position, or of the last only."""
    sampling: Sampling = "greedy"
    """How the next token is chosen: the likeliest, or drawn at temperature 0.8 of the 200 likeliest, or of as few as
    have 95 % together."""
    ep: Count = 1
    """Parts in which whole experts are distributed over ranks; those with the same part split each expert's width."""
    dispatch: Dispatch = "allgather"
    """How tokens reach the experts of other groups of ranks, with attention-DP."""
    techniques: tuple[str, ...] = ()
    """`token-split[:K]`: K parts of a pass take turns; `sequence-parallel`: ranks share the tokens of the stream."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.techniques:
            if not re.fullmatch(r"token-split(:[2-4])?|sequence-parallel", name):
                raise UsageError(
                    f"technique '{name}' cannot run in real passes: they have token-split, token-split:2, :3 or :4, "
                    "and sequence-parallel",
                    hint="leave it out; `ladder-sim predict --technique` prices others",
                )
        families = [name.partition(":")[0] for name in self.techniques]
        if len(set(families)) < len(families):
            raise UsageError(f"techniques are {', '.join(self.techniques)}: each at most once", hint="leave one out")

    @property
    def token_split(self) -> int:
        """Parts of a pass that take turns."""
        splits = [name for name in self.techniques if name.startswith("token-split")]
        return int(splits[0].partition(":")[2] or 2) if splits else 1

    @property
    def sequence_parallel(self) -> bool:
        """Every rank has a share of the residual stream's tokens."""
        return "sequence-parallel" in self.techniques

    def check_degrees(self, attention_dp: int, pp: int) -> None:
        """Raise UsageError if a technique does not fit these groups or stages."""
        for option, degree, reason in (
            ("--pp", pp, "stages already work on parts of the batch in turn"),
            ("--attention-dp", attention_dp, "groups wait for each other inside of blocks, where parts take no turns"),
        ):
            if self.token_split > 1 and degree > 1:
                raise UsageError(
                    f"technique 'token-split' with {option} {degree}: {reason}", hint="leave out one of both"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """How kernels are launched, as far as the device and the model allow."""

    cuda_graphs: Wish = "off"
    """Replay decode steps as CUDA graphs; auto: on GPUs, if possible."""
    prefill_cuda_graphs: Wish = "off"
    """Replay the prefill as a CUDA graph; auto: on GPUs, if possible."""
    compile: Wish = "off"
    """Run blocks through torch.compile; auto: on GPUs, if possible."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def recorded(self) -> tuple[Phase, ...]:
        """Phases whose steps are recorded, as far as possible."""
        wishes: dict[Phase, Wish] = {"prefill": self.prefill_cuda_graphs, "decode": self.cuda_graphs}
        return tuple(phase for phase, wish in wishes.items() if wish != "off")


def read_time(text: str, option: str = "--timeout") -> float:
    """Return the seconds that an option's text says."""
    return parse_quantity(text, "s", name=option, likely=("s", "ms"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommConfig:
    """How ranks communicate."""

    backend: Backend = "auto"
    """How ranks communicate; auto: emulate with a table, else NCCL if there are GPUs, else gloo."""
    table: Path | None = None
    """All-reduce latencies of an emulated link: CSV or JSON, bytes,seconds."""
    gloo_threads: Count = 1
    """1: collectives in turn, as on NCCL's stream; 2: two at once, gloo's default, by which ladder waits less."""
    allreduce: AllReduce = "backend"
    """Kernel of all-reduces; those in a node's symmetric memory leave large messages to the backend."""
    timeout_s: Annotated[float, Limits(0, 1e6, above=True, hint="for example --timeout 120s")] = 120.0
    """Limit of waiting for other ranks."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What `bench` measures."""

    model: Path
    """Decoder to measure: its config.json."""
    variants: tuple[str, ...]
    """Wirings; repeatable, commas allowed."""
    tp: Count = 1
    """Tensor-parallel degree."""
    attention_dp: Count = 1
    """Groups of --tp ranks, each with attention of its own for its share of the batch."""
    pp: Count = 1
    """Pipeline stages, of --tp ranks each."""
    batch: Count = 1
    """Sequences served together."""
    prompt: Count = 1024
    """Tokens of each prompt."""
    gen: Count = 512
    """New tokens of each sequence."""
    dtype: DType = "auto"
    """Precision of weights and activations; auto: bf16 on GPUs, fp32 on CPUs."""
    warmups: Annotated[int, Limits(0, 10**12)] = 5
    """Requests of each variant that do not count, before those that do."""
    repeats: Count = 10
    """Requests of each variant that count, at least."""
    within: Annotated[float | None, Limits(0, 1, above=True, hint="for example 1%")] = None
    """Go on until 95 % intervals of speedups are at most this wide on each side: 0.01 or 1%."""
    budget_s: float = 600.0
    """Limit on going on beyond --repeats."""
    threads: Count = 1
    """CPU threads of each rank."""
    seed: int = 0
    """Seed of weights and prompts."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch % self.attention_dp:
            raise UsageError(
                f"--attention-dp {self.attention_dp}: must divide the batch, {self.batch}, of which every group has an "
                "equal part",
                hint=f"give --batch {-(-self.batch // self.attention_dp) * self.attention_dp}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionConfig:
    """What `complete` continues; all prompts are served together, as one batch."""

    model: Path
    """Folder of a checkpoint."""
    prompts: tuple[str, ...] = ()
    """Prompt in text, for the checkpoint's tokenizer; repeatable."""
    ids: tuple[tuple[int, ...], ...] = ()
    """Prompt in numbers of tokens; repeatable."""
    variant: str = "auto"
    """Residual wiring; auto: the one in the checkpoint's config."""
    tp: Count = 1
    """Tensor-parallel degree."""
    ep: Count = 1
    """Parts in which whole experts are distributed over ranks."""
    pp: Count = 1
    """Pipeline stages, of --tp ranks each."""
    gen: Annotated[int | None, Limits(1, 10**12)] = None
    """New tokens of each prompt at most; by default 512, or as many as the model's context has room for."""
    dtype: DType = "auto"
    """Precision of weights and activations; auto: the checkpoint's own."""
    threads: Count = 1
    """CPU threads of each rank."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.prompts and not self.ids:
            raise UsageError("no prompt", hint="give one with --prompt or --tokens")
