"""What runs with a checkpoint are asked for, and whether it can be done. Imports no torch: the launcher asks first."""

from dataclasses import dataclass
from pathlib import Path

from ladder_sim.errors import UsageError
from runtime.checkpoint.files import DTYPES, Checkpoint
from runtime.checkpoint.tokenizer import Text
from runtime.config import ModelConfig
from runtime.model.wiring import Wiring, lay_out

# new tokens, and tokens of a window, where nobody says how many
_GEN, _CONTEXT = 512, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionConfig:
    """What is completed."""

    model: Path
    """Folder of a checkpoint."""
    prompts: tuple[str, ...]
    """Served together, as one batch."""
    variant: str = "auto"
    """Wiring; auto: the one that the checkpoint's config asks for."""
    tp: int = 1
    """Tensor-parallel degree."""
    gen: int | None = None
    """New tokens of each prompt at most; none: 512, or as many as the model's context has room for."""
    stops: tuple[str, ...] = ()
    """Strings that end a text."""
    raw: bool = False
    """Leave out the chat template."""
    dtype: str = "auto"
    """fp32, bf16 or fp16; auto: the checkpoint's own."""
    threads: int = 1
    """CPU threads of each rank."""

    def __post_init__(self) -> None:
        _check_counts(tp=self.tp, gen=1 if self.gen is None else self.gen, threads=self.threads)
        _check_dtype(self.dtype)
        if not self.prompts:
            raise UsageError("no prompt", hint="give one with --prompt")
        if not all(self.stops):
            raise UsageError("a stop string is empty: every text would end at once", hint="leave out that --stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """What is evaluated."""

    models: tuple[Path, ...]
    """Folders of checkpoints."""
    text: Path
    """UTF-8."""
    variants: tuple[str, ...] = ("auto",)
    """Wirings; auto: the one that a checkpoint's config asks for."""
    tp: int = 1
    """Tensor-parallel degree."""
    context: int | None = None
    """Tokens of a window at most; none: 1024, or the model's longest context."""
    dtype: str = "auto"
    """fp32, bf16 or fp16; auto: the checkpoint's own."""
    threads: int = 1
    """CPU threads of each rank."""

    def __post_init__(self) -> None:
        _check_counts(tp=self.tp, threads=self.threads)
        _check_dtype(self.dtype)
        if self.context is not None and self.context < 2:
            raise UsageError(f"context is {self.context}: must be 2 or more")


@dataclass(frozen=True, slots=True)
class CompletionInput:
    """A text run whose input is good."""

    checkpoint: Checkpoint
    """Headers only."""
    text: Text
    """Its tokenizer."""
    wiring: Wiring
    """How the blocks are strung together."""
    prompts: list[list[int]]
    """Tokens."""
    gen: int
    """New tokens of each prompt at most."""


@dataclass(frozen=True, slots=True)
class EvaluationInput:
    """One checkpoint of an evaluation whose input is good."""

    folder: Path
    """As given."""
    checkpoint: Checkpoint
    """Headers only."""
    wirings: list[Wiring]
    """To be compared."""
    tokens: list[int]
    """Of the text."""
    context: int
    """Tokens of a window at most."""


def prepare_completion(config: CompletionConfig) -> CompletionInput:
    """Read what is not weights, and hold all of it against each other.

    Raises
    ------
    UsageError
        If a file is damaged or does not fit the others, or a prompt is longer than the model's context.
    InfeasibleError
        If the ranks do not divide the model.
    """
    checkpoint = Checkpoint.open(config.model)
    shape = checkpoint.shape
    shape.check_ranks(config.tp)
    wiring = _wiring(config.variant, shape)
    text = Text.open(config.model, shape)
    prompts = [text.encode_prompt(prompt, raw=config.raw) for prompt in config.prompts]
    longest = max(map(len, prompts))
    gen = config.gen or max(1, int(min(_GEN, shape.longest_context - longest)))
    shape.check_context(
        longest + gen, hint=f"the longest prompt has {longest}: shorten it, or ask for fewer new tokens (--gen)"
    )
    return CompletionInput(checkpoint, text, wiring, prompts, gen)


def prepare_evaluation(config: EvaluationConfig) -> list[EvaluationInput]:
    """The same for every checkpoint of an evaluation."""
    try:
        written = config.text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no UTF-8 ({error.reason})"
        raise UsageError(f"--text {config.text}: {reason}", hint="give a text file") from None
    tasks = []
    for folder in config.models:
        checkpoint = Checkpoint.open(folder)
        shape = checkpoint.shape
        shape.check_ranks(config.tp)
        context = config.context or int(min(_CONTEXT, shape.longest_context))
        shape.check_context(context, hint="choose shorter windows with --context")
        tokens = Text.open(folder, shape).encode(written)
        if len(tokens) < 2:
            raise UsageError(f"--text {config.text}: {len(tokens)} tokens: needs 2 or more")
        wirings = [_wiring(name, shape) for name in config.variants]
        tasks.append(EvaluationInput(folder, checkpoint, wirings, tokens, context))
    return tasks


def _wiring(variant: str, shape: ModelConfig) -> Wiring:
    return lay_out(shape.variant if variant == "auto" else variant, shape.layers, shape.ladder_layers)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise UsageError(f"{name} is {count}: must be 1 or more")


def _check_dtype(dtype: str) -> None:
    if dtype not in ("auto", *DTYPES.values()):
        raise UsageError(f"unknown dtype '{dtype}'", hint=f"known: auto, {', '.join(DTYPES.values())}")
