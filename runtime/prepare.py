"""The input of `bench`, `complete` and `eval`, read and checked before any rank is started. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_text
from runtime.checkpoint.files import Checkpoint
from runtime.checkpoint.tokenizer import Text
from runtime.config import ModelConfig, check_counts, check_dtype, check_groups
from runtime.model.wiring import Wiring, lay_out

# by default, unless the model's context is shorter: new tokens of `complete`, tokens of a window of `eval`
_GEN, _CONTEXT = 512, 1024
# of a text to evaluate
_TEXT_BYTES = 2**28
# colder, the logits over it are infinite, and the choice is the most likely token anyway
_COLDEST = 1e-4


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
    """Limit of the rounds after those."""
    threads: int = 1
    """CPU threads of each rank."""
    seed: int = 0
    """Of weights and prompts."""

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
    prompts: tuple[str, ...]
    """Served together, as one batch."""
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
    stops: tuple[str, ...] = ()
    """Strings that end a text."""
    raw: bool = False
    """Leave out the chat template."""
    dtype: str = "auto"
    """fp32, bf16 or fp16; auto: the checkpoint's own."""
    threads: int = 1
    """CPU threads of each rank."""

    def __post_init__(self) -> None:
        check_counts(tp=self.tp, ep=self.ep, pp=self.pp, gen=1 if self.gen is None else self.gen, threads=self.threads)
        check_dtype(self.dtype)
        if not self.prompts:
            raise UsageError("no prompt", hint="give one with --prompt")
        if not all(self.stops):
            raise UsageError("a stop string is empty and would end every text at once", hint="leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How the next token is chosen."""

    temperature: float = 0.0
    """Logits are divided by it; 0: the most likely token."""
    top_k: int = 0
    """Number of most likely tokens to draw from; 0: all."""
    top_p: float = 1.0
    """Draw from the most likely tokens with this total probability."""
    seed: int = 0
    """Of the draws."""

    def __post_init__(self) -> None:
        if self.temperature != 0 and not _COLDEST <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}: must be 0, or from {_COLDEST} up")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}: must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}: must be above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """What `eval` is to do."""

    models: tuple[Path, ...]
    """Folders of checkpoints."""
    text: Path
    """UTF-8."""
    variants: tuple[str, ...] = ("auto",)
    """Wirings; auto: the one in the checkpoint's config."""
    tp: int = 1
    """Tensor-parallel degree."""
    ep: int = 1
    """Expert-parallel degree."""
    context: int | None = None
    """Tokens of a window; None: 1024, or the model's longest context if that is shorter."""
    dtype: str = "auto"
    """fp32, bf16 or fp16; auto: the checkpoint's own."""
    threads: int = 1
    """CPU threads of each rank."""

    def __post_init__(self) -> None:
        check_counts(tp=self.tp, ep=self.ep, threads=self.threads)
        check_dtype(self.dtype)
        if self.context is not None and self.context < 2:
            raise UsageError(f"context is {self.context}: must be 2 or more")


@dataclass(frozen=True, slots=True)
class CompletionInput:
    """The checked input of a `complete`."""

    checkpoint: Checkpoint
    """Headers only."""
    text: Text
    """Its tokenizer."""
    wiring: Wiring
    """Of the decoder."""
    prompts: list[list[int]]
    """Tokens."""
    gen: int
    """Maximum of new tokens of each prompt."""


@dataclass(frozen=True, slots=True)
class EvaluationInput:
    """The checked input of an `eval` of one checkpoint."""

    folder: Path
    """As given."""
    checkpoint: Checkpoint
    """Headers only."""
    wirings: list[Wiring]
    """To be compared."""
    tokens: list[int]
    """Of the text."""
    context: int
    """Tokens of a window."""


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
    wiring = _wiring(config.variant, shape, config.tp)
    text = Text.open(config.model, shape)
    prompts = [text.encode_prompt(prompt, raw=config.raw) for prompt in config.prompts]
    longest = max(map(len, prompts))
    gen = config.gen or max(1, int(min(_GEN, shape.longest_context - longest)))
    hint = f"the longest prompt has {longest}: shorten it, or give a smaller --gen"
    shape.check_context(longest + gen, hint=hint)
    return CompletionInput(checkpoint, text, wiring, prompts, gen)


def prepare_evaluation(config: EvaluationConfig) -> list[EvaluationInput]:
    """The same for each checkpoint of an evaluation."""
    content = read_text(config.text, what="a text file", limit_bytes=_TEXT_BYTES, error=UsageError)
    tasks = []
    for folder in config.models:
        checkpoint = Checkpoint.open(folder)
        shape = checkpoint.shape
        shape.check_ranks(config.tp, config.ep)
        context = config.context or int(min(_CONTEXT, shape.longest_context))
        shape.check_context(context, hint="choose shorter windows with --context")
        tokens = Text.open(folder, shape).encode(content)
        if len(tokens) < 2:
            raise UsageError(f"--text {config.text}: {len(tokens)} tokens: must be 2 or more")
        wirings = [_wiring(name, shape, config.tp) for name in config.variants]
        tasks.append(EvaluationInput(folder, checkpoint, wirings, tokens, context))
    return tasks


def _wiring(variant: str, shape: ModelConfig, tp: int) -> Wiring:
    wiring = lay_out(shape.variant if variant == "auto" else variant, shape.layers, shape.ladder_layers)
    wiring.check_norms(shape, tp)
    return wiring
