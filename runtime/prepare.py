"""The input of `bench` and `complete`, read and checked before any rank is started. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from ladder_sim.errors import UsageError
from runtime.checkpoint.files import Checkpoint
from runtime.checkpoint.tokenizer import Text, end_tokens
from runtime.config import check_counts, check_dtype, check_groups
from runtime.model.wiring import Wiring, lay_out

# new tokens by default, unless the model's context is shorter
_GEN = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What `bench` is to do."""

    model: Path
    """config.json."""
    variants: tuple[str, ...]
    """Wirings."""
    tp: int = 1
    """Tensor-parallel degree."""
    attention_dp: int = 1
    """Groups of ranks, each with attention of its own for its share of the batch."""
    pp: int = 1
    """Pipeline stages."""
    batch: int = 1
    """Sequences served together."""
    prompt: int = 1024
    """Tokens of each prompt."""
    gen: int = 512
    """New tokens of each sequence."""
    dtype: str = "auto"
    """One of DTYPES; auto: bf16 on GPUs, fp32 on CPUs."""
    warmups: int = 5
    """Requests of each variant before those that count."""
    repeats: int = 10
    """Requests of each variant that count, at least."""
    within: float | None = None
    """Half-width that the intervals of speedups shall have at most, as a share; None: `repeats` are enough."""
    budget_s: float = 600.0
    """Limit on rounds beyond `repeats`, seconds."""
    threads: int = 1
    """CPU threads of each rank."""
    seed: int = 0
    """Seed of weights and prompts."""

    def __post_init__(self) -> None:
        check_counts(tp=self.tp, attention_dp=self.attention_dp, pp=self.pp)
        check_counts(batch=self.batch, prompt=self.prompt, gen=self.gen)
        check_counts(repeats=self.repeats, threads=self.threads)
        check_counts(minimum=0, warmups=self.warmups)
        if self.within is not None and not 0 < self.within < 1:
            raise UsageError(f"--within is {self.within:.4g}: must be above 0 and below 100 %", hint="for example 1%")
        check_dtype(self.dtype)
        check_groups(self.batch, self.attention_dp)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionConfig:
    """What `complete` is to do."""

    model: Path
    """Folder of a checkpoint."""
    prompts: tuple[str, ...] = ()
    """Texts, in tokens of the checkpoint's tokenizer."""
    ids: tuple[tuple[int, ...], ...] = ()
    """Prompts in tokens; all prompts are served together, as one batch."""
    variant: str = "auto"
    """Wiring; auto: the one in the checkpoint's config."""
    tp: int = 1
    """Tensor-parallel degree."""
    ep: int = 1
    """Expert-parallel degree."""
    pp: int = 1
    """Pipeline stages."""
    gen: int | None = None
    """Maximum of new tokens of each prompt; None: 512, or as many as the model's context has room for."""
    dtype: str = "auto"
    """fp32, bf16 or fp16; auto: the checkpoint's own."""
    threads: int = 1
    """CPU threads of each rank."""

    def __post_init__(self) -> None:
        check_counts(tp=self.tp, ep=self.ep, pp=self.pp, gen=1 if self.gen is None else self.gen, threads=self.threads)
        check_dtype(self.dtype)
        if not self.prompts and not self.ids:
            raise UsageError("no prompt", hint="give one with --prompt or --tokens")


@dataclass(frozen=True, slots=True)
class CompletionInput:
    """The checked input of a `complete`."""

    checkpoint: Checkpoint
    """Headers only."""
    wiring: Wiring
    """Of the decoder."""
    prompts: list[list[int]]
    """Tokens: those of texts, then those that were given."""
    gen: int
    """Maximum of new tokens of each prompt."""
    ends: frozenset[int]
    """Tokens that end an answer."""


def prepare_completion(config: CompletionConfig) -> CompletionInput:
    """Read everything but the weights.

    Raises
    ------
    UsageError
        A file is damaged or does not fit the others, or a prompt is longer than the model's context.
    InfeasibleError
        The ranks do not divide the model.
    """
    checkpoint = Checkpoint.open(config.model)
    shape = checkpoint.shape
    shape.check_ranks(config.tp, config.ep)
    shape.layers_of(0, config.pp)
    wiring = lay_out(shape.variant if config.variant == "auto" else config.variant, shape.layers, shape.ladder_layers)
    wiring.check_norms(shape, config.tp)
    text = Text.open(config.model, shape) if config.prompts else None
    prompts = [text.encode(prompt) for prompt in config.prompts] if text else []
    prompts += map(list, config.ids)
    for prompt in prompts:
        if not prompt or max(prompt) >= shape.vocab:
            raise UsageError(f"prompt {prompt}: must be tokens from 0 to {shape.vocab - 1}, one or more")
    longest = max(map(len, prompts))
    gen = config.gen or max(1, min(_GEN, shape.max_positions - longest))
    hint = f"the longest prompt has {longest}: shorten it, or give a smaller --gen"
    shape.check_context(longest + gen, hint=hint)
    return CompletionInput(checkpoint, wiring, prompts, gen, end_tokens(config.model))
